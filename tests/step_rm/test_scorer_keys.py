# SPDX-License-Identifier: Apache-2.0
"""A changed key of ``step_scorer`` is refused where, and only where, the chosen scorer does not read it."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
import yaml
from classify_server import ClassifyServer, save_models

import prime_ext.config
from prime_ext.config.checks import SettingsError
from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.reward.node_scorer import NodeStepScorer
from prime_ext.step_rm.scorers.protocol import Chain, StepScores

DEFAULTS = yaml.safe_load((Path(prime_ext.config.__file__).parent / "step_scorer" / "step_scorer.yaml").read_text())
# Model, server, and the keys that make the case.
BY_RESPONSE = {"architecture": "token_classification", "model_path": "classifier"}
ANSWERS = {**BY_RESPONSE, "model_path": "causal", "answer_tokens": ["+", "-"]}
CASES = {
    "classifier of steps": {"model_path": "bert"},
    "classifier of steps, served": {"model_path": "bert", "kind": "server"},
    "token classifier": BY_RESPONSE,
    "answers": ANSWERS,
    "turns": {**ANSWERS, "layout": "turns"},
}
# Another value that is a possible one.
OTHER = {
    "model_path": "m", "separator": "#", "layout": "chat", "answer_tokens": ["+", "-"],
    "pair_format": {"layout": "text"}, "device": "cpu", "dtype": "float32", "trust_remote_code": True,
    "address": "here:1", "api_key_variable": "KEY", "concurrency": 17, "timeout_seconds": 61.0, "attempts": 4,
    "actor": {"num_gpus": 1.0, "cpu_threads": 3},
}  # fmt: skip


class Watched:
    """Settings that note which keys are read."""

    def __init__(self, settings, seen):
        self._of = (settings, seen)

    def __getattr__(self, name):
        settings, seen = self._of
        if isinstance(of_class := getattr(type(settings), name, None), property):
            return of_class.fget(self)
        seen.add(name)
        value = getattr(settings, name)
        return Watched(value, set()) if dataclasses.is_dataclass(value) else value


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


def keys_read(paths, case):
    """The keys that are read from the settings to the scores of a response."""
    seen = set()

    def score(**place):
        values = {**DEFAULTS, **case, "model_path": str(paths[case["model_path"]]), **place}
        scorer = NodeStepScorer(Watched(ScorerSettings.from_mapping(values), seen))
        return asyncio.run(scorer.score(Chain(("Step 1: we add.", "so 7."), "2+2?"), 5))

    if case.get("kind") == "server":
        with ClassifyServer(paths["bert"]).in_thread() as address:
            assert isinstance(score(address=address), StepScores)
    else:
        # Without a device a copy of the settings is made, which reads them all.
        assert isinstance(score(device="cpu"), StepScores)
    return seen


@pytest.mark.parametrize("case", CASES)
def test_a_changed_key_is_refused_where_and_only_where_it_has_no_effect(paths, case):
    read = keys_read(paths, CASES[case])
    for key in DEFAULTS.keys() - {"kind", "architecture", *CASES[case]}:
        try:
            ScorerSettings.from_mapping({**DEFAULTS, **CASES[case], key: OTHER[key]})
            problems = ()
        except SettingsError as error:
            problems = error.problems
        refused = [one for one in problems if one.startswith(f"step_scorer.{key}") and "has no effect with" in one]
        assert bool(refused) == (key not in read), (key, problems)
