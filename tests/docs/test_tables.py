# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/how_to are what the scripts in docs write, records are those of the runs."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from recipes.ablations.report import read_results
from recipes.ablations.suites import SUITES

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Where the scripts of that folder find one another.
sys.path.append(str(DOCS))


def script(name):
    """A script of the folder docs as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tuning():
    return script("draw_tuning")


def test_the_tables_of_tuning_are_those_of_the_records(tuning):
    page = tuning.PAGE.read_text()
    for name, text in tuning.tables().items():
        assert tuning.replace(page, name, text) == page, name
    with pytest.raises(ValueError, match="markers"):
        tuning.replace("a page", "choices", "")


@pytest.mark.parametrize("suite", ["choices", "long_chains"])
def test_the_recorded_steps_are_those_of_the_results(tuning, suite):
    runs = tuning.read_runs(suite)
    results = read_results(tuning.RESULTS / suite, SUITES[suite])
    found = {(variant, seed): result for variant, by_seed in results.items() for seed, result in by_seed.items()}
    assert sum(map(len, runs.values())) == len(found)
    for (variant, seed), result in found.items():
        for name, kept in result["metrics"].items():
            values = runs[variant][seed][name]
            known = values[~np.isnan(values)]
            ends = [known[:5].mean(), known[-10:].mean()]
            assert ends == pytest.approx([kept["first_5"], kept["last_10"]], rel=1e-3, abs=1e-6), (variant, seed, name)


@pytest.mark.parametrize("name", ["write_memory_tables", "write_configuration"])
def test_a_page_is_what_its_script_writes(name):
    writer = script(name)
    assert writer.page() == writer.PAGE.read_text()
