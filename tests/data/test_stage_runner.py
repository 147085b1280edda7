# SPDX-License-Identifier: Apache-2.0
"""Parts of a stream: in order, resumable, the same with any number of processes."""

import pytest
from part_work import dying, work

from data_preprocessing.stage_runner import Parts, run_parts
from data_preprocessing.tally import MAX_SAMPLES, Tally
from prime_ext.utils.rows import SourceError

STREAM = [[1, 2], [3], [4, 5, 6]]


def never(numbers, part):
    raise AssertionError("made again")


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_come_in_order_with_their_summaries(tmp_path, workers):
    parts = Parts(tmp_path / "parts", {"version": 1})
    found = list(run_parts(iter(STREAM), work, parts, workers))
    assert found == [(0, {"sum": 3}), (1, {"sum": 3}), (2, {"sum": 15})]
    assert [parts.path(number, ".txt").read_text() for number in range(3)] == ["1 2", "3", "4 5 6"]


def test_finished_parts_are_not_made_again(tmp_path):
    parts = Parts(tmp_path / "parts", {"version": 1})
    stopped = run_parts(iter(STREAM), work, parts, 1)
    next(stopped), next(stopped)
    stopped.close()
    again = Parts(tmp_path / "parts", {"version": 1})
    assert list(run_parts(iter(STREAM[:2]), never, again, 1)) == [(0, {"sum": 3}), (1, {"sum": 3})]
    assert [summary["sum"] for _, summary in run_parts(iter(STREAM), work, again, 1)] == [3, 3, 15]


def test_parts_of_other_settings_are_thrown_away(tmp_path):
    list(run_parts(iter(STREAM), work, Parts(tmp_path / "parts", {"version": 1}), 1))
    assert Parts(tmp_path / "parts", {"version": 2}).summary(0) is None


def test_a_killed_process_is_one_line_and_what_was_finished_stays(tmp_path):
    parts = Parts(tmp_path / "parts", {})
    with pytest.raises(SourceError, match="a worker process was killed"):
        list(run_parts(iter(STREAM), dying, parts, 2))
    assert [summary["sum"] for _, summary in run_parts(iter(STREAM), work, parts, 1)] == [3, 3, 15]


def tally_of(rows):
    tally = Tally()
    for rule, name in rows:
        tally.read["train", name] += 1
        if rule:
            tally.remove("train", name, rule, {"row": tally.read["train", name]})
    return tally


def test_tallies_of_parts_add_up_to_that_of_the_whole():
    rows = [("proof", "a"), (None, "a"), ("figure", "b"), ("proof", "a")] * MAX_SAMPLES
    total = Tally()
    for part in (rows[:7], rows[7:]):
        total.add(Tally.restored(tally_of(part).described()))
    assert total.described()["sources"] == tally_of(rows).described()["sources"]
    assert len(total.samples["train", "proof"]) == MAX_SAMPLES
    assert total.described()["sources"][0] == {
        "split": "train",
        "data_source": "a",
        "read": 15,
        "removed": {"proof": 10},
        "written": 5,
    }
