# SPDX-License-Identifier: Apache-2.0
"""What each kind of scorer really reads of its section, and that a key without effect is refused there."""

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

FILE = Path(prime_ext.config.__file__).parent / "step_scorer" / "step_scorer.yaml"
# Model, server, and the keys that make the case.
BY_STEP = {"model_path": "bert"}
BY_RESPONSE = {"architecture": "token_classification", "model_path": "classifier"}
ANSWERS = {**BY_RESPONSE, "model_path": "causal", "answer_tokens": ["+", "-"]}
TURNS = {**ANSWERS, "layout": "turns"}
CASES = {
    "classifier of steps": BY_STEP,
    "classifier of steps, served": {**BY_STEP, "kind": "server"},
    "token classifier": BY_RESPONSE,
    "answers": ANSWERS,
    "turns": TURNS,
}


def section(**changes):
    return {**yaml.safe_load(FILE.read_text()), **changes}


def leaves(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


KEYS = dict(leaves(section()))


class Watched:
    """Settings that note which keys are read."""

    def __init__(self, settings, seen, prefix=""):
        self._of = (settings, seen, prefix)

    def __getattr__(self, name):
        settings, seen, prefix = self._of
        if isinstance(of_class := getattr(type(settings), name, None), property):
            return of_class.fget(self)
        seen.add(f"{prefix}{name}")
        value = getattr(settings, name)
        return Watched(value, seen, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else value


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return save_models(tmp_path_factory.mktemp("models"))


def score(settings, seen):
    async def work():
        return await NodeStepScorer(Watched(settings, seen)).score(Chain(("Step 1: we add.", "so 7."), "2+2?"), 5)

    assert isinstance(asyncio.run(work()), StepScores)


@pytest.fixture(scope="module")
def read_by(paths):
    """The keys that are read in each case, from the settings to the scores of a response."""
    found = {}
    for name, case in CASES.items():
        values = section(**{**case, "model_path": str(paths[case["model_path"]])})
        found[name] = set()
        if case.get("kind") == "server":
            with ClassifyServer(paths["bert"]).in_thread() as address:
                score(ScorerSettings.from_mapping({**values, "address": address}), found[name])
        else:
            # Without a device a copy of the settings is made, which reads them all.
            score(ScorerSettings.from_mapping({**values, "device": "cpu"}), found[name])
    return found


def test_every_key_is_read_by_a_scorer(read_by):
    assert set.union(*read_by.values()) >= KEYS.keys()


# Another value that is a possible one.
OTHER = {
    "model_path": "m", "separator": "#", "layout": "chat", "answer_tokens": ["+", "-"],
    "pair_format": {"layout": "text"}, "device": "cpu", "dtype": "float32", "trust_remote_code": True,
    "address": "here:1", "api_key_variable": "KEY", "actor.cpu_threads": 3, "actor.num_gpus": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_changed_key_is_refused_where_and_only_where_it_has_no_effect(read_by, case):
    values = section(**CASES[case])
    for key, default in KEYS.items():
        if key in ("kind", "architecture") or key in CASES[case]:
            continue
        other = OTHER.get(key, default if default is None or isinstance(default, str) else default + 1)
        assert other != default, key
        *parents, name = key.split(".")
        changed = {**values, name: other}
        if parents:
            changed = {**values, parents[0]: {**values[parents[0]], name: other}}
        try:
            ScorerSettings.from_mapping(changed)
            problems = ()
        except SettingsError as error:
            problems = error.problems
        refused = [one for one in problems if one.startswith(f"step_scorer.{key}=") and "has no effect with" in one]
        assert bool(refused) == (key not in read_by[case]), (key, problems)
        assert all("; leave it at " in one and "\n" not in one for one in refused)
