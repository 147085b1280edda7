# SPDX-License-Identifier: Apache-2.0
"""Options of the PRM's losses: what the settings allow is what the functions take."""

import inspect

import pytest

from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.config.settings import LOSS_OPTIONS, LOSSES, LOSSES_WITH_BIAS, SettingsError
from prime_ext.prm.implicit_prm import ImplicitPRM

ON_WORKERS = {"time_weight"}
# Set by prm.bias.
TRAINED = {"bias"}


def options_of(function):
    return {
        name: type(parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty and parameter.default is not None
    }


@pytest.mark.parametrize("name", LOSSES)
def test_the_settings_know_the_options(name):
    allowed = LOSS_OPTIONS.get(name, {})
    loss = PRM_LOSSES[name]
    assert {key: kind for key, kind in allowed.items() if key not in ON_WORKERS} == options_of(loss.prepare)
    assert {key: kind for key, kind in allowed.items() if key in ON_WORKERS} == {
        key: kind for key, kind in options_of(loss.loss).items() if key not in TRAINED
    }


def test_the_losses_that_take_a_bias_are_those_that_the_settings_allow_one_for():
    assert {name for name in LOSSES if "bias" in options_of(PRM_LOSSES[name].loss)} == set(LOSSES_WITH_BIAS)


def test_options_go_where_they_are_needed(prm_settings, config):
    settings = prm_settings(loss="ipvrm", loss_options={"margin": 2.0, "time_weight": "early"})
    assert ImplicitPRM(config, settings)._loss_options == ({"margin": 2.0}, {"time_weight": "early"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_options": {"margin": 1.0}}, "prm.loss_options.margin is not an option of prm.loss=ce; it has none"),
        (
            {"loss": "ipvrm", "loss_options": {"margins": 1.0}},
            "prm.loss_options.margins is not an option of prm.loss=ipvrm; it has margin, adaptive_boundary, "
            "dynamic_weight, time_weight",
        ),
        (
            {"loss": "ipvrm", "loss_options": {"time_weight": "middle"}},
            "prm.loss_options.time_weight='middle' is not one of uniform, early, late",
        ),
        (
            {"loss": "ipvrm", "loss_options": {"dynamic_weight": 1}},
            "prm.loss_options.dynamic_weight=1 must be true or false",
        ),
        (
            {"loss": "kto", "update_mode": "after", "loss_options": {"desirable_weight": -1}},
            "prm.loss_options.desirable_weight=-1 must be a number >= 0",
        ),
        ({"loss_options": 3}, "prm.loss_options=3 must be a section with keys"),
        ({"epochs": 0}, "prm.epochs=0 must be a whole number >= 1"),
        ({"train_on": "all"}, "prm.train_on='all' is not one of kept, judged"),
        ({"train_on": "judged", "judged_limit": 0}, "prm.judged_limit=0 must be a whole number >= 1"),
        (
            {"judged_limit": 8},
            "prm.judged_limit=8 limits the rollouts that prm.train_on=judged adds, and prm.train_on=kept adds none; "
            "set it to null",
        ),
        (
            {"train_on": "judged", "reference": "kl"},
            "prm.train_on=judged trains on rollouts that do not go through the policy's passes, from which "
            "prm.reference=kl takes its log-probabilities; set prm.reference to frozen, base or none",
        ),
        ({"update_freq": 0}, "prm.update_freq=0 must be a whole number >= 1"),
        (
            {"reference": "policy", "reference_refresh_freq": 5},
            "prm.reference_refresh_freq=5 refreshes the weights of a frozen reference, and prm.reference=policy has "
            "none; set it to 0, or prm.reference to frozen",
        ),
        (
            {"reference_refresh_freq": 5, "reference_refresh_source": "actor"},
            "prm.reference_refresh_source='actor' is not one of policy, prm",
        ),
    ],
)
def test_what_cannot_work_is_said_in_one_line(prm_settings, changes, message):
    with pytest.raises(SettingsError) as error:
        prm_settings(**changes)
    assert str(error.value) == message
