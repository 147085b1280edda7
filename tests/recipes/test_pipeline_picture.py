# SPDX-License-Identifier: Apache-2.0
"""The picture of how process rewards are composed: its lines are configurations that work, and it is written."""

import importlib.util
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from prime_ext.config.pspo_settings import PSPOSettings
from prime_ext.config.settings import PrimeSettings

SCRIPT = Path(__file__).parents[2] / "docs" / "draw_process_rewards.py"


@pytest.fixture(scope="module")
def picture():
    spec = importlib.util.spec_from_file_location("draw_process_rewards", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLACES = {"tokens": "tokens", "step ends": "step_ends", "last token": "last_token"}


def test_the_lines_are_legal_settings(picture):
    for name, (_, values) in picture.METHODS.items():
        scorer, granularity, accumulation, shape, place, estimator = values
        if scorer == "verifier":
            continue
        prefix, config = ("prime.process", "prime_trainer") if scorer == "implicit PRM" else ("pspo", "pspo_trainer")
        overrides = [f"{prefix}.accumulation.mode={accumulation}", f"{prefix}.shaping.name={shape}"]
        if accumulation != "none":
            overrides.append(f"{prefix}.accumulation.place={PLACES[place]}")
        if prefix == "prime.process":
            overrides += ["variant=guarded", f"{prefix}.granularity={granularity}", f"{prefix}.estimator={estimator}"]
            overrides += [f"{prefix}.step_score=sigmoid"] if accumulation != "none" else []
            overrides += [f"{prefix}.credit=min_form"] if "min-form" in name else []
        with initialize_config_module("prime_ext.config", version_base=None):
            composed = compose(config, overrides)
        section, settings = ("prime", PrimeSettings) if prefix == "prime.process" else ("pspo", PSPOSettings)
        assert settings.from_mapping(OmegaConf.to_container(composed[section], resolve=True))
