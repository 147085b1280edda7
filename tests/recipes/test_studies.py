# SPDX-License-Identifier: Apache-2.0
"""Studies of many runs: finished runs are not repeated, kept results give the kept tables, statistics are right."""

import json
import math

import pytest

from prime_ext.run.metrics_file import put_aside
from prime_ext.utils.files import read_json, write_json, write_json_lines
from recipes.ablations import report
from recipes.ablations.suites import SUITES, Suite, Variant
from recipes.compare_variants import compare
from recipes.lab_study import report as lab_report
from recipes.pspo_wrs import length_report
from recipes.quickstart.learning_curve import METHODS
from recipes.run_statistics import (
    PAIR_ACCURACY,
    crossing,
    mean_and_error,
    moving_average,
    paired_standard_error,
    read_seconds,
    run_metrics,
)
from recipes.study_runs import ROOT, keep_run, read_runs, run_missing

RECIPES = ROOT / "recipes"


def test_statistics():
    assert crossing([0, 10, 20], [0.2, 0.4, 0.8], 0.5) == pytest.approx(12.5)
    assert crossing([0, 10], [0.2, 0.4], 0.5) is None
    assert crossing([0, 10], [0.6, 0.4], 0.5) == 0.0
    assert mean_and_error([1.0, 2.0, 3.0]) == {"mean": 2.0, "standard_error": pytest.approx(1 / 3**0.5), "n": 3}
    assert mean_and_error([1.0])["standard_error"] is None
    # Over what was measured.
    assert moving_average([math.nan, 1.0, 3.0, math.nan], width=2).tolist()[1:] == [1.0, 2.0, 3.0]
    assert paired_standard_error("0000", "0011") == pytest.approx((1 / 3) ** 0.5 / 2)
    with pytest.raises(ValueError, match="same"):
        paired_standard_error("01", "011")


def test_files_of_a_run_that_was_interrupted(tmp_path):
    with pytest.raises(ValueError, match="file"):
        run_metrics(tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"data":{"a":1}}\n{"step":2,"data":{"a":2}}\n{"step":3,"da')
    put_aside(path)
    path.write_text('{"step":2,"data":{"a":20}}\n{"step":3,"data":{"a":30}}\n')
    assert run_metrics(tmp_path) == {1: {"a": 1}, 2: {"a": 20}, 3: {"a": 30}}
    (tmp_path / "seconds.tsv").write_text("data\t5\nprime\t60\nprime\t40\n")
    assert read_seconds(tmp_path / "seconds.tsv") == {"data": 5.0, "prime": 100.0, "total": 105.0}


def test_finished_runs_are_not_run_again_and_a_failed_one_does_not_stop_the_others(tmp_path, capsys):
    results, said = tmp_path / "results", []
    keep_run(results, "a", {"of": "before"})
    # That this one is trained, but not measured, is known by its checkpoint.
    trained = tmp_path / "runs" / "d" / "checkpoints" / "global_step_2"
    write_json(trained / "prime_ext_complete.json", {"files": {}})

    def training(name, run):
        said.append(name)
        # A recipe that takes no arguments, and a script that does nothing.
        return (["make_environment.sh", "x"] if name in "bd" else ["python.sh"]), {"STEPS": "2", "PROJECT_ROOT": "."}

    with pytest.raises(SystemExit, match="(?s)1 runs failed.*b: .*takes no arguments"):
        run_missing("abcd", tmp_path, results, lambda: said.append("prepare"), training, lambda name, run: {"of": name})
    assert said == ["prepare", "b", "c", "d"] and not trained.exists()
    assert read_runs(results) == {"a": {"of": "before"}, "c": {"of": "c"}, "d": {"of": "d"}}
    run_missing("acd", tmp_path, results, lambda: said.append("prepare"), training, lambda name, run: {})
    assert said[4:] == [] and "nothing left to run" in capsys.readouterr().out


# ---- kept results ----


def ablations(name):
    return report.table(SUITES[name], report.read_results(report.RESULTS / name, SUITES[name]))


def length_study():
    found = length_report.read_results(length_report.RESULTS)
    assert "cannot be judged" in length_report.prediction({})
    return f"{length_report.table(found)}\n{length_report.prediction(found)}\n"


def laboratory(name):
    folder = RECIPES / "lab" / "results" / name
    kept, runs = read_json(folder / "report.json"), lab_report.read_runs(folder)
    accuracies = [float(accuracy) for accuracy in next(iter(kept["methods"].values()))["rollouts"]]
    summary = lab_report.summarize(runs, kept["baseline"], accuracies)
    assert json.loads(json.dumps(summary)) == kept["methods"]
    return lab_report.tables(summary, kept["baseline"], accuracies)


TABLES = {
    "ablations/results/choices.md": lambda: ablations("choices"),
    "ablations/results/long_chains.md": lambda: ablations("long_chains"),
    "pspo_wrs/results/length_study.md": length_study,
    "compare_variants/comparison.md": lambda: compare.table(read_json(RECIPES / "compare_variants/comparison.json")),
    **{f"lab/results/{name}/report.md": lambda name=name: laboratory(name) for name in ("compact", "quickstart")},
}


@pytest.mark.parametrize("page", TABLES)
def test_the_kept_tables_are_those_of_the_kept_runs(page):
    assert TABLES[page]() == (RECIPES / page).read_text()


# ---- results that were not kept ----


def result(accuracies, **metrics):
    curve = {
        step: {how: {"accuracy": value} for how in ("temperature_1", "greedy")} | {"n_problems": 100}
        for step, value in accuracies.items()
    }
    return {"curve": curve, "metrics": metrics}


def test_a_single_seed_and_a_variant_without_a_pair_have_no_error_and_pictures_are_drawn(tmp_path, monkeypatch):
    small = Suite("title", "a", {"a": Variant("first"), "b": Variant("second"), "c": Variant("third")}, steps=2)
    monkeypatch.setitem(SUITES, "small", small)
    for seed, first, second in ((0, 0.4, 0.5), (1, 0.6, 0.7)):
        keep_run(tmp_path / "small", f"a_seed{seed}", result({"0": 0.2, "2": first}))
        keep_run(tmp_path / "small", f"b_seed{seed}", result({"0": 0.2, "2": second}))
    keep_run(tmp_path / "small", "c_seed7", result({"0": 0.2, "2": 0.4}))
    monkeypatch.setattr("sys.argv", ["report", "--results", str(tmp_path)])
    report.main()
    _, second, third = (tmp_path / "small.md").read_text().splitlines()[2:]
    # The difference is 10 points in every pair, so that it has no error, although both variants vary.
    assert second.startswith("| second | 2 | 60.0 ± 10.0 | 50.0, 70.0 | 10.0 ± 0.0 |")
    assert third.startswith("| third | 1 | 40.0 | 40.0 | - |")
    assert (tmp_path / "small.png").stat().st_size > 5000


def test_the_comparison_pairs_the_seeds_and_leaves_out_the_time_of_saving(tmp_path):
    for seed, (prime, rloo) in enumerate([(0.6, 0.5), (0.7, 0.5)]):
        for method, accuracy, seconds in (("distilled", prime, 3.0), ("rloo", rloo, 2.0)):
            if (method, seed) == ("rloo", 0):
                with pytest.raises(FileNotFoundError, match="rloo.*has \\['distilled'\\]"):
                    compare.summarize(tmp_path)
            name = f"{method}_seed{seed}"
            keep_run(tmp_path / "results" / "methods", name, result({"0": 0.2, "10": accuracy}))
            row = {"timing_s/step": seconds + 2.0, "timing_s/save_checkpoint": 2.0, "prime/filter/examined": 20}
            row |= {PAIR_ACCURACY: 0.75} if method == "distilled" else {}
            (tmp_path / "methods" / "runs" / name).mkdir(parents=True)
            lines = [{"step": step, "data": row} for step in range(1, 11)]
            write_json_lines(tmp_path / "methods" / "runs" / name / "metrics.jsonl", lines)
    assert METHODS.items() <= compare.METHODS.items() and set(compare.COLOURS) == set(compare.METHODS)
    summary = compare.summarize(tmp_path)
    assert summary["seeds"] == [0, 1] and summary["steps"] == [0, 10]
    assert summary["final_difference_to_rloo_temperature_1"]["distilled"]["mean"] == pytest.approx(0.15)
    assert summary["aggregate"]["distilled"]["seconds_per_step"]["mean"] == pytest.approx(3.0)
    assert summary["aggregate"]["rloo"]["steps_to_0.6"] is None
    # 0.2 to 0.6 and 0.2 to 0.7 over ten steps: half is reached after 7.5 and 6 of them, with 20 prompts in each.
    assert summary["aggregate"]["distilled"]["prompts_to_0.5"]["mean"] == pytest.approx(20 * (7.5 + 6) / 2)
    assert summary["aggregate"]["distilled"]["seconds_to_0.5"]["mean"] == pytest.approx(3 * (7.5 + 6) / 2)
    assert summary["runs"]["distilled"]["0"]["prm_pair_accuracy_last_10_steps"] == pytest.approx(0.75)
    compare.plot(summary, tmp_path / "comparison.png")


def ends(*lengths, cut_off=0.0):
    """Runs of the length study, one for each mean number of steps at the end."""
    return {
        seed: {"end": {"steps": {"mean": length, "long": float(length > 8)}, "cut_off": cut_off}}
        for seed, length in enumerate(lengths)
    }


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        (ends(15, 15), "runs away"),
        (ends(15, 6), "neither"),
        # A chain that never ends runs away however few its steps are.
        (ends(4, cut_off=0.6), "runs away"),
        (ends(4, 5), "near 4"),
        (ends(4, 2), "shorter"),
    ],
)
def test_every_seed_must_meet_the_verdict_on_the_length(results, verdict):
    assert length_report.verdict(results) == verdict
