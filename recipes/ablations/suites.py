# SPDX-License-Identifier: Apache-2.0
"""Which runs are compared: the suites of ``suites.yaml``."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml

PAPER_KNOBS = {"LR": "2e-4", "PRM_LR": "1e-3", "BETA": "0.2"}


@dataclass(frozen=True)
class Variant:
    """One row of the comparison: its name in tables and plots, and its overrides of the configuration."""

    label: str
    overrides: list[str] = field(default_factory=list)

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
    max_prompt_length: int = 24
    max_response_length: int = 48
    steps: int = 40
    every: int = 20
    knobs: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)


def read_suites() -> dict[str, Suite]:
    """The suites by name."""
    suites = yaml.safe_load((Path(__file__).parent / "suites.yaml").read_text(encoding="utf-8"))
    return {
        name: Suite(**suite | {"variants": {key: Variant(**value) for key, value in suite["variants"].items()}})
        for name, suite in suites.items()
    }


SUITES = read_suites()
