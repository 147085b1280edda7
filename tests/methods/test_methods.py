# SPDX-License-Identifier: Apache-2.0
"""Methods: files written from their settings, folders, and sources of a user's module."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from pydantic.dataclasses import dataclass
from small_batch import filled_queue, get_batch, settings

import prime_ext.methods
from prime_ext import extend
from prime_ext.config.checks import STRICT, Count, SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.methods import source_settings
from prime_ext.methods.changed_keys import variant_line
from prime_ext.methods.rollouts import Rewards, ScoredRollouts
from prime_ext.methods.settings import PrimeSettings, prm_section
from prime_ext.methods.source_settings import MethodSettings, Needs, SourceSettings
from prime_ext.step.reward_sources import reward_sources
from prime_ext.step.rollouts import load_rollouts
from prime_ext.verl_adapter.rollout_store import TransferQueueStore

ROOT = Path(prime_ext.methods.__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_sources(monkeypatch):
    monkeypatch.setattr(source_settings, "OWN_SOURCES", {})
    for name in ("prime_ext.extend", "prime_ext.methods.settings", "prime_ext.step.reward_sources"):
        monkeypatch.setattr(f"{name}.OWN_SOURCES", source_settings.OWN_SOURCES)


@pytest.fixture
def queue(monkeypatch):
    return filled_queue(monkeypatch)


@dataclass(frozen=True, config=STRICT)
class BrevitySettings(SourceSettings):
    """A reward for responses of at most ``limit`` tokens."""

    limit: Count = 3
    """Tokens of a response that is still short."""

    needs = Needs(labels=True)


def reward_brevity(rollouts, scored, options):
    short_B = rollouts.mask_BT.sum(-1) <= options.limit
    last_BT = rollouts.mask_BT.cumsum(-1) == rollouts.mask_BT.sum(-1, keepdim=True)
    reward_BT = short_B[:, None] * last_BT * rollouts.mask_BT
    return Rewards(reward_BT, rollouts.mask_BT, {"short": float(short_B.sum())})


def test_files_are_written_from_the_settings(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    write_yaml = importlib.import_module("write_yaml")
    for path, text in write_yaml.format_files().items():
        assert (write_yaml.CONFIG / path).read_text(encoding="utf-8") == text, path


@pytest.mark.parametrize(
    "folder", sorted(path.parent.name for path in ROOT.glob("prime_ext/methods/*/settings.py"))
)
def test_a_folder_describes_its_method(folder):
    module = importlib.import_module(f"prime_ext.methods.{folder}.settings")
    (kind,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, MethodSettings)
        and value.__module__ == module.__name__
    )
    for name, field in kind.__pydantic_fields__.items():
        inherited = [getattr(base, "__pydantic_fields__", {}).get(name) for base in kind.__mro__]
        assert name == "form" or any(each and each.description for each in inherited), name
        assert not field.is_required(), name
    if issubclass(kind, SourceSettings) or folder == "outcome":
        assert callable(importlib.import_module(f"prime_ext.methods.{folder}.source").rewards)


def test_settings_are_read_without_torch_and_verl():
    code = (
        "import sys, prime_ext.methods.settings, prime_ext.methods.prm_settings,"
        " prime_ext.methods.changed_keys; print({'torch', 'verl', 'ray'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"


@pytest.mark.parametrize("coefficient", [0.5, 2.0])
def test_a_source_of_a_users_module_is_paid(queue, coefficient):
    extend.source("brevity", BrevitySettings)(reward_brevity)
    options = settings(process__form="none", sources={"brevity": {"coefficient": coefficient}})
    rollouts = load_rollouts(TransferQueueStore(get_batch(queue)), options)
    sources = reward_sources(rollouts, ScoredRollouts(), options, 1.0, 1.0)
    brevity = sources.by_name["brevity"]
    assert (brevity.coefficient, brevity.discount, brevity.estimator) == (coefficient, 1.0, "rloo")
    lengths_B = rollouts.mask_BT.sum(-1)
    expected_B = ((lengths_B > 0) & (lengths_B <= 3)).float()
    assert torch.equal(brevity.reward_BT.sum(-1), expected_B)
    assert sources.metrics["source/brevity/short"] == float((lengths_B <= 3).sum())


def test_a_users_source_is_chosen_on_the_command_line():
    extend.source("brevity", BrevitySettings)(reward_brevity)
    config = compose_config("prime_trainer", ["variant=rloo", "+prime.sources.brevity.limit=9"])
    prime = PrimeSettings.from_config(config)
    assert prime.sources["brevity"] == BrevitySettings(limit=9)
    assert prime.estimators == {"outcome": "rloo", "brevity": "rloo"}


def test_the_trainer_builds_what_a_users_source_needs():
    @dataclass(frozen=True, config=STRICT)
    class Scored(BrevitySettings):
        needs = Needs(prm=True)

    extend.source("scored", Scored)(reward_brevity)
    config = compose_config("prime_trainer", ["variant=rloo", "+prime.sources.scored.limit=3"])
    assert variant_line(config) == 'rloo (changed: prime.sources={"scored": {"limit": 3}})'
    assert prm_section(config) is config.prm
    assert prm_section(compose_config("prime_trainer", ["variant=rloo"])) is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["+prime.sources.brevty={}"], "prime.sources.brevty is not registered; did you mean"),
        (["prime.sources.brevity.limit=2"], "Could not override 'prime.sources.brevity.limit'"),
        (["+prime.sources.brevity.limt=2"], "unknown key prime.sources.brevity.limt; did you mean"),
        (["+prime.sources.brevity.limit=0"], "prime.sources.brevity.limit must be"),
        (["+prime.sources.brevity.estimator=gea"], "prime.sources.brevity.estimator must be"),
    ],
)
def test_a_wrong_source_is_refused_in_one_line(words, line):
    extend.source("brevity", BrevitySettings)(reward_brevity)
    with pytest.raises(SettingsError) as error:
        PrimeSettings.from_config(compose_config("prime_trainer", ["variant=rloo", *words]))
    assert len(error.value.problems) == 1 and str(error.value).startswith(line)


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (lambda rollouts: rollouts.mask_BT, "the source 'brevity' must return Rewards or None"),
        (lambda rollouts: Rewards(torch.ones(2, 2), rollouts.mask_BT), "reward_BT of the source"),
        (lambda rollouts: Rewards(rollouts.mask_BT / 0 * 0, rollouts.mask_BT),
         "the source 'brevity' returns NaN"),
        (lambda rollouts: 1 / 0, "the source 'brevity' failed: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_broken_source_is_named(queue, result, line):
    extend.source("brevity", BrevitySettings)(lambda rollouts, scored, options: result(rollouts))
    options = settings(process__form="none", sources={"brevity": {}})
    rollouts = load_rollouts(TransferQueueStore(get_batch(queue)), options)
    with pytest.raises(extend.UserFunctionFailed) as error:
        reward_sources(rollouts, ScoredRollouts(), options, 1.0, 1.0)
    assert str(error.value).startswith(line)


def test_sources_without_defaults_or_with_taken_names_are_refused():
    @dataclass(frozen=True, config=STRICT, kw_only=True)
    class Required(SourceSettings):
        limit: Count

    for name, kind, key in (
        ("mine", Required, "'limit' of the source 'mine' needs a default"),
        ("process", BrevitySettings, "'process' is the name of a source"),
        ("mine", object, "must derive from SourceSettings"),
    ):
        with pytest.raises(ValueError, match=key):
            extend.source(name, kind)(reward_brevity)


def test_a_key_that_is_taken_away_is_named():
    values = OmegaConf.to_container(compose_config("prime_trainer", []).prime, resolve=True)
    del values["filter"]["lower"]
    with pytest.raises(SettingsError) as error:
        PrimeSettings.from_mapping(values)
    assert error.value.problems == ("prime.filter needs the key 'lower'",)


def test_without_sources_of_a_module_the_message_says_so():
    with pytest.raises(SettingsError, match="prime.sources.brief is not .* there are none;"):
        settings(sources={"brief": {}})


def test_a_shut_gate_leaves_the_divergence_to_the_average():
    gate = {"decay": 0.8, "start": 0.5}
    anchor = settings(anchor__coefficient=0.5, anchor__fallback=True, process__gate=gate).anchor
    assert [anchor.kl_coefficient(weight) for weight in (0.0, 0.25, 1.0)] == [0.5, 0.375, 0.0]


@pytest.mark.parametrize(("coefficient", "reads"), [(0.5, True), (0.0, False)])
def test_values_of_the_prm_are_read_where_the_outcome_counts(coefficient, reads):
    outcome = settings(outcome__estimator="prm_value", outcome__coefficient=coefficient).outcome
    assert outcome.reads_prm == outcome.needs.prm == outcome.needs.labels == reads


@pytest.mark.parametrize(("estimator", "compares"), [("turn_rloo", True), ("rloo", False)])
def test_turns_are_needed_where_an_estimator_compares_them(estimator, compares):
    assert settings(outcome__estimator=estimator).needs.turns == compares
