# SPDX-License-Identifier: Apache-2.0
"""``python -m eval.grade --run``: new verdicts on old responses."""

import json
import sys

import pytest
from small_tasks import SAME, TASKS, bytes_of, results_of, run, score_of

from eval import regrade as regrading
from eval.grade import main as grade_main
from eval.regrade import regrade


class Generous:
    """A verifier for which every answer is right."""

    async def averify(self, response, gold, **options):
        from prime_ext.verifiers.verdict import correct

        return correct("7", 0.0)


def test_regrading_needs_no_model_and_changes_only_verdicts(tasks, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = [*tasks, "--decoding", "several", "--output", out]
    assert run(*words) == 0
    before = bytes_of(out)
    results, changed = regrade(out)
    assert changed == dict.fromkeys(TASKS, 0)
    assert results.pop("regraded_with") == results["versions"] and results == json.loads(before["results.json"])
    assert {name: (out / name).read_bytes() for name in SAME if name != "results.json"} == {
        name: content for name, content in before.items() if name != "results.json"
    }
    monkeypatch.setattr(regrading, "make_verifier", lambda grader: Generous())
    monkeypatch.setattr(sys, "argv", ["grade", "--run", str(out)])
    assert grade_main() == 0
    assert "sums: 48 verdicts are not what they were" in capsys.readouterr().out
    assert score_of(out, "sums", "avg@4") == 1 and score_of(out, "functions", "pass@4") == 1
    assert (out / "sums" / "responses.jsonl").read_bytes() == before["sums/responses.jsonl"]
    # The run itself leaves the new verdicts alone, and says with what they were made.
    assert run(*words) == 0
    assert score_of(out, "sums", "avg@4") == 1 and "regraded_with" in results_of(out)


def test_regrading_a_folder_that_is_no_run(tmp_path, monkeypatch, capsys):
    for arguments, message in [
        (["--run", str(tmp_path / "no")], "no is no folder"),
        (["--run", str(tmp_path)], "the folder of a run that has finished a task?"),
    ]:
        monkeypatch.setattr(sys, "argv", ["grade", *arguments])
        assert grade_main() == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
    monkeypatch.setattr(sys, "argv", ["grade", "--run", str(tmp_path), "--task", "math"])
    with pytest.raises(SystemExit):
        grade_main()
    assert "--run judges a whole folder; leave out --task" in capsys.readouterr().err
