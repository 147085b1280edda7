# SPDX-License-Identifier: Apache-2.0
"""Which runs are compared: the suites of ``suites.yaml``."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Variant:
    """A row of the comparison: its name in tables and plots, overrides of the configuration, knobs of ``train.sh``."""

    label: str
    overrides: list[str] = field(default_factory=list)
    knobs: dict[str, str] = field(default_factory=dict)

    @property
    def needs_offline_prm(self) -> bool:
        return any("{offline_prm}" in override for override in self.overrides)


@dataclass(frozen=True)
class Suite:
    """Variants on one task.

    Attributes:
        title: what the suite asks.
        baseline: name of the variant that the others are compared with, seed by seed.
        variants: by name.
        chain_lengths: operations per problem of the task, see ``prime_ext.tasks.last_digit_chain``.
        mean_error: of the demonstrators of the warm start.
        test_size: held-out problems.
        max_prompt_length, max_response_length: in tokens, which are characters here.
        steps: policy updates.
        every: steps between evaluations.
        knobs: of ``train.sh``.
        overrides: of the configuration, for every variant.
    """

    title: str
    baseline: str
    variants: dict[str, Variant]
    chain_lengths: tuple[int, ...] | list[int] = (4, 5, 6, 7)
    mean_error: float = 0.25
    test_size: int = 2000
    max_prompt_length: int = 24
    max_response_length: int = 48
    steps: int = 40
    every: int = 20
    knobs: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)


SUITES = {
    name: Suite(**suite | {"variants": {key: Variant(**value) for key, value in suite["variants"].items()}})
    for name, suite in yaml.safe_load(Path(__file__).with_name("suites.yaml").read_text(encoding="utf-8")).items()
}
