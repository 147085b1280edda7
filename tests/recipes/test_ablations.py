# SPDX-License-Identifier: Apache-2.0
"""Ablations: every variant is a configuration that works, and results become a table."""

import json

import pytest
from hydra import compose, initialize_config_module

from prime_ext.preflight.check import check_config
from recipes.ablations import report, run
from recipes.ablations.suites import SUITES, Suite, Variant

VARIANTS = [(suite, name) for suite in SUITES for name in SUITES[suite].variants]


@pytest.mark.parametrize(("suite_name", "name"), VARIANTS)
def test_every_variant_is_a_configuration_that_works(suite_name, name, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    suite = SUITES[suite_name]
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


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_a_suite_is_compared_with_one_of_its_own_and_ends_on_an_evaluation(suite):
    assert suite.baseline in suite.variants
    assert suite.steps % suite.every == 0


@pytest.fixture
def suite(monkeypatch):
    small = Suite(
        "title", "a", {"a": Variant("first"), "b": Variant("second"), "c": Variant("third")}, steps=2, every=2
    )
    monkeypatch.setitem(SUITES, "small", small)
    return small


def result(at_the_end, seed, metrics=None):
    def accuracies(value):
        return {"temperature_1": {"accuracy": value}, "greedy": {"accuracy": value}}

    return {
        "seed": seed,
        "curve": {"0": accuracies(0.2), "2": accuracies(at_the_end)},
        "metrics": metrics or {},
        "seconds_per_step_median": 2.0,
    }


def write(folder, name, seed, value):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_seed{seed}.json").write_text(json.dumps(value))


def test_differences_are_paired_by_seed(suite, tmp_path):
    folder = tmp_path / "small"
    for seed, (first, second) in enumerate([(0.4, 0.5), (0.6, 0.7), (0.5, 0.6)]):
        write(folder, "a", seed, result(first, seed))
        write(folder, "b", seed, result(second, seed, {report.PAIRS: {"first_5": 0.5, "last_10": 0.75}}))
    found = report.read_results(folder, suite)
    assert list(found) == ["a", "b"]
    first, second = report.table(suite, found).splitlines()[2:]
    assert first.startswith("| first | 3 | 50.0 ± 5.8 | 40.0, 60.0, 50.0 | - |")
    # The difference is 10 points in every pair, so that it has no error, although both variants vary.
    assert second.startswith("| second | 3 | 60.0 ± 5.8 | 50.0, 70.0, 60.0 | 10.0 ± 0.0 |") and "| 0.75 |" in second


def test_a_single_seed_has_no_standard_error(suite, tmp_path):
    write(tmp_path / "small", "a", 0, result(0.4, 0))
    table = report.table(suite, report.read_results(tmp_path / "small", suite))
    assert "| first | 1 | 40.0 | 40.0 | - |" in table


def test_the_report_writes_a_table_and_a_plot(suite, tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        write(tmp_path / "small", "c", seed, result(0.3 + seed / 10, seed))
    monkeypatch.setattr("sys.argv", ["report", "--results", str(tmp_path)])
    report.main()
    assert "third" in (tmp_path / "small.md").read_text() and "third" in capsys.readouterr().out
    assert (tmp_path / "small.png").stat().st_size > 5000


def test_finished_runs_are_not_run_again_and_a_failed_one_does_not_stop_the_others(suite, tmp_path, monkeypatch):
    results = tmp_path / "results"
    results.mkdir()
    write(results / "small", "a", 0, result(0.4, 0))
    started = []

    def train(suite, variant, seed, folder, path, offline_prm):
        started.append(variant.label)
        (path / "checkpoints").mkdir(parents=True)
        if variant.label == "second":
            raise RuntimeError("the end of its log")

    monkeypatch.setattr(run, "prepare", lambda name, suite, folder: folder.mkdir(parents=True))
    monkeypatch.setattr(run, "measure", lambda suite, policy, folder: {"temperature_1": {}, "greedy": {}})
    monkeypatch.setattr(run, "run_variant", train)
    monkeypatch.setattr(run, "result_of", lambda suite, variant, seed, folder, path: result(0.5, seed))
    assert run.run_suite("small", [0], [], tmp_path / "work", results) == ["b_seed0: the end of its log"]
    assert started == ["second", "third"]
    assert (results / "small" / "c_seed0.json").exists() and not (results / "small" / "b_seed0.json").exists()
    assert not (tmp_path / "work" / "small" / "runs" / "c_seed0" / "checkpoints").exists()
