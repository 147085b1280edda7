# SPDX-License-Identifier: Apache-2.0
"""The launcher of experiments: knobs, choices, variations, and refusals in one line."""

import pytest

from recipes.launch import Experiment, ExperimentError

BASE = """
arguments: [MODEL]
config: prime_trainer
knobs:
  OUTPUT_DIR: outputs/{{ SIZE }}
  SIZE: 7b
  PROMPT: 10
  TOKENS: "{{ [PROMPT + 5, 12] | max }}"
  THINK: "true"
empty: [THINK]
overrides:
  - model={{ MODEL }}
  - tokens={{ TOKENS }}
  - rate=1e-6
  - "{% if SHRINK %}small=true{% endif %}"
  - folder={{ OUTPUT_DIR }}
choices:
  THINK:
    "true": [think=1]
    "": []
"""
VARIATION = """
base: base.yaml
arguments: []
refuse: "{% if SIZE == '1b' %}SIZE=1b is too small{% endif %}"
knobs:
  MODEL: mine
  PROMPT: "{{ 4 if SIZE == '7b' else 20 }}"
overrides: [tokens=0]
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that makes an experiment of a file, arguments and environment."""
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "variation.yaml").write_text(VARIATION)
    return lambda name, *words, **knobs: Experiment(tmp_path / name, [*words], knobs)


def test_overrides_hold_arguments_knobs_and_the_users_words_last(start):
    words = start("base.yaml", "m", "rate=2").overrides
    expected = ["model=m", "tokens=15", "rate=1e-6", "folder=outputs/7b", "think=1", "rate=2"]
    assert words == expected


def test_environment_replaces_defaults_and_is_never_a_template(start):
    words = start("base.yaml", "m", PROMPT="1", OUTPUT_DIR="{{ TOKENS }}", SIZE="").overrides
    assert "tokens=12" in words and "folder={{ TOKENS }}" in words


def test_an_empty_knob_counts_only_where_the_experiment_says_so(start):
    assert "think=1" in start("base.yaml", "m").overrides
    assert "think=1" not in start("base.yaml", "m", THINK="").overrides


def test_a_variation_comes_after_its_base(start):
    words = start("variation.yaml", "x=1").overrides
    expected = ["model=mine", "tokens=12", "rate=1e-6", "folder=outputs/7b", "think=1"]
    assert words == [*expected, "tokens=0", "x=1"]
    assert "tokens=25" in start("variation.yaml", SIZE="32b").overrides


def test_a_shrunk_run_has_a_folder_inside(start):
    words = start("base.yaml", "m", SHRINK="1").overrides
    assert "folder=outputs/7b/shrunk" in words and "small=true" in words
    assert "small=true" not in start("base.yaml", "m", SHRINK="0").overrides


@pytest.mark.parametrize(
    ("name", "words", "knobs", "message"),
    [
        ("base.yaml", [], {}, "give MODEL"),
        ("base.yaml", ["m"], {"THINK": "no"}, "THINK=no must be true or empty"),
        ("variation.yaml", [], {"SIZE": "1b"}, "SIZE=1b is too small"),
    ],
)
def test_values_that_are_not_allowed_are_refused(start, name, words, knobs, message):
    with pytest.raises(ExperimentError, match=message):
        start(name, *words, **knobs)
