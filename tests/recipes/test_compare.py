# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the comparison of PRIME's variants and RLOO."""

import json

import pytest

from recipes.compare_variants.compare import crossing, summarize, table
from recipes.run_statistics import mean_and_error


def write_run(folder, accuracy, seconds, pairs=None):
    folder.mkdir(parents=True)
    curve = {
        step: {"temperature_1": value, "greedy": value, "n_problems": 100}
        for step, value in zip((0, 10), accuracy, strict=True)
    }
    (folder / "curve.json").write_text(json.dumps(curve))
    data = {"timing_s/step": seconds + 2.0, "timing_s/save_checkpoint": 2.0, "prime/filter/examined": 20}
    if pairs is not None:
        data["prm/pair_accuracy/before_update"] = pairs
    lines = [json.dumps({"step": step, "data": data}) for step in range(1, 11)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_a_threshold_is_crossed_on_the_straight_line_between_two_evaluations():
    assert crossing([0, 10, 20], [0.2, 0.4, 0.8], 0.5) == pytest.approx(12.5)
    assert crossing([0, 10], [0.2, 0.4], 0.5) is None
    assert crossing([0, 10], [0.6, 0.4], 0.5) == 0.0


def test_the_standard_error_is_that_of_the_mean():
    result = mean_and_error([1.0, 2.0, 3.0])
    assert result == {"mean": 2.0, "standard_error": pytest.approx(1 / 3**0.5), "n": 3}
    assert mean_and_error([1.0])["standard_error"] is None


def test_the_summary_pairs_the_seeds_and_leaves_out_the_time_of_saving(tmp_path):
    for seed, (prime, rloo) in enumerate([(0.6, 0.5), (0.7, 0.5)]):
        write_run(tmp_path / f"distilled_seed{seed}", (0.2, prime), seconds=3.0, pairs=0.75)
        write_run(tmp_path / f"rloo_seed{seed}", (0.2, rloo), seconds=2.0)
    summary = summarize(tmp_path)
    assert summary["seeds"] == [0, 1] and summary["steps"] == [0, 10]
    assert summary["final_difference_to_rloo_temperature_1"]["distilled"]["mean"] == pytest.approx(0.15)
    assert summary["aggregate"]["distilled"]["seconds_per_step"]["mean"] == pytest.approx(3.0)
    assert summary["aggregate"]["rloo"]["steps_to_0.6"] is None
    # 0.2 to 0.6 and 0.2 to 0.7 over ten steps: half is reached after 7.5 and 6 of them, with 20 prompts in each.
    assert summary["aggregate"]["distilled"]["prompts_to_0.5"]["mean"] == pytest.approx(20 * (7.5 + 6) / 2)
    assert summary["aggregate"]["distilled"]["seconds_to_0.5"]["mean"] == pytest.approx(3 * (7.5 + 6) / 2)
    assert summary["runs"]["distilled"]["0"]["prm_pair_accuracy_last_10_steps"] == pytest.approx(0.75)
    assert "never" in table(summary) and "PRIME-D 15.0 ± 5.0." in table(summary)


def test_a_method_without_runs_is_an_error(tmp_path):
    write_run(tmp_path / "distilled_seed0", (0.2, 0.6), seconds=3.0)
    with pytest.raises(FileNotFoundError, match="rloo_seed.*has \\['distilled'\\]"):
        summarize(tmp_path)
