# SPDX-License-Identifier: Apache-2.0
"""Studies of many runs: every variant is a configuration that works, runs are not repeated, results become tables."""

import json
import math

import pytest
from hydra import compose, initialize_config_module

from prime_ext.preflight.check import check_config
from recipes.ablations import report
from recipes.ablations.suites import SUITES, Suite, Variant
from recipes.compare_variants.compare import summarize, table
from recipes.run_statistics import PAIR_ACCURACY, crossing, mean_and_error, moving_average, paired_standard_error
from recipes.study_runs import run_missing

VARIANTS = [(suite, name) for suite in SUITES for name in SUITES[suite].variants]


def test_statistics():
    assert crossing([0, 10, 20], [0.2, 0.4, 0.8], 0.5) == pytest.approx(12.5)
    assert crossing([0, 10], [0.2, 0.4], 0.5) is None
    assert crossing([0, 10], [0.6, 0.4], 0.5) == 0.0
    assert mean_and_error([1.0, 2.0, 3.0]) == {"mean": 2.0, "standard_error": pytest.approx(1 / 3**0.5), "n": 3}
    assert mean_and_error([1.0])["standard_error"] is None
    assert moving_average([1.0, 2.0, 3.0, 4.0], width=2).tolist() == [1.0, 1.5, 2.5, 3.5]
    # Over what was measured.
    assert moving_average([math.nan, 1.0, 3.0, math.nan], width=2).tolist()[1:] == [1.0, 2.0, 3.0]
    assert math.isnan(moving_average([math.nan, 1.0])[0])
    assert paired_standard_error("0101", "0101") == 0.0
    assert paired_standard_error("0000", "0011") == pytest.approx((1 / 3) ** 0.5 / 2)
    with pytest.raises(ValueError, match="same"):
        paired_standard_error("01", "011")


def test_finished_runs_are_not_run_again_and_a_failed_one_does_not_stop_the_others(tmp_path, capsys):
    (tmp_path / "a.json").touch()
    started = []

    def run(name):
        started.append(name)
        if name == "b":
            raise RuntimeError("the end of its log")
        (tmp_path / f"{name}.json").touch()

    with pytest.raises(SystemExit, match="1 runs failed.*\n\nb: the end of its log"):
        run_missing("abc", tmp_path, lambda: started.append("prepare"), run)
    assert started == ["prepare", "b", "c"]
    run_missing("ac", tmp_path, lambda: started.append("prepare"), run)
    assert started[3:] == [] and "nothing left to run" in capsys.readouterr().out


@pytest.mark.parametrize(("suite_name", "name"), VARIANTS)
def test_every_variant_is_a_configuration_that_works(suite_name, name, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    suite = SUITES[suite_name]
    assert suite.baseline in suite.variants and suite.steps % suite.every == 0
    overrides = [o.format(offline_prm="prm", start="start") for o in suite.variants[name].overrides]
    base = [
        "actor_rollout_ref.model.path=start",
        "data.train_files=train.parquet",
        "data.val_files=val.parquet",
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "prm.mini_batch_size=4",
    ]
    with initialize_config_module("prime_ext.config", version_base=None):
        config = compose("prime_trainer_cpu", [*base, *suite.overrides, *overrides])
    assert check_config(config) == []


def test_differences_are_paired_by_seed_and_the_report_has_a_table_and_a_plot(tmp_path, monkeypatch, capsys):
    small = Suite("title", "a", {"a": Variant("first"), "b": Variant("second"), "c": Variant("third")}, steps=2)
    monkeypatch.setitem(SUITES, "small", small)

    def write(name, seed, accuracy, metrics):
        curve = {
            k: dict.fromkeys(("temperature_1", "greedy"), {"accuracy": v}) for k, v in (("0", 0.2), ("2", accuracy))
        }
        (tmp_path / "small").mkdir(exist_ok=True)
        (tmp_path / "small" / f"{name}_seed{seed}.json").write_text(json.dumps({"curve": curve, "metrics": metrics}))

    for seed, (first, second) in enumerate([(0.4, 0.5), (0.6, 0.7), (0.5, 0.6)]):
        write("a", seed, first, {})
        write("b", seed, second, {PAIR_ACCURACY: {"first_5": 0.5, "last_10": 0.75}})
    write("c", 0, 0.4, {})
    monkeypatch.setattr("sys.argv", ["report", "--results", str(tmp_path)])
    report.main()
    first, second, third = (tmp_path / "small.md").read_text().splitlines()[2:]
    assert first.startswith("| first | 3 | 50.0 ± 5.8 | 40.0, 60.0, 50.0 | - |")
    # The difference is 10 points in every pair, so that it has no error, although both variants vary.
    assert second.startswith("| second | 3 | 60.0 ± 5.8 | 50.0, 70.0, 60.0 | 10.0 ± 0.0 |") and "| 0.75 |" in second
    # A single seed has no standard error.
    assert third.startswith("| third | 1 | 40.0 | 40.0 | 0.0 |") and "third" in capsys.readouterr().out
    assert (tmp_path / "small.png").stat().st_size > 5000


def write_run(folder, accuracy, seconds, pairs=None):
    folder.mkdir(parents=True)
    curve = {
        step: {"temperature_1": value, "greedy": value, "n_problems": 100}
        for step, value in zip((0, 10), accuracy, strict=True)
    }
    (folder / "curve.json").write_text(json.dumps(curve))
    data = {"timing_s/step": seconds + 2.0, "timing_s/save_checkpoint": 2.0, "prime/filter/examined": 20}
    if pairs is not None:
        data[PAIR_ACCURACY] = pairs
    lines = [json.dumps({"step": step, "data": data}) for step in range(1, 11)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_the_comparison_pairs_the_seeds_and_leaves_out_the_time_of_saving(tmp_path):
    for seed, (prime, rloo) in enumerate([(0.6, 0.5), (0.7, 0.5)]):
        write_run(tmp_path / f"distilled_seed{seed}", (0.2, prime), seconds=3.0, pairs=0.75)
        if seed == 0:
            with pytest.raises(FileNotFoundError, match="rloo_seed.*has \\['distilled'\\]"):
                summarize(tmp_path)
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
