# SPDX-License-Identifier: Apache-2.0
"""Declarations of a method: its settings, its needs and its problems. No torch.

The settings class is the only place of a key: name, default, type, range and help (the docstring
below the field). The YAML files and the reference page are written from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Positive, Share, Switch, Text, limit_to
from prime_ext.names import list_estimators

if TYPE_CHECKING:
    from prime_ext.methods.settings import PrimeSettings

ProcessEstimator = Annotated[Text, limit_to(partial(list_estimators, "process"))]
TurnEstimator = Annotated[Text, limit_to(partial(list_estimators, "turns"))]
Granularity = Literal["token", "step", "turn", "response"]


@plain_dataclass(frozen=True)
class Needs:
    """Needs of a method; the trainer builds them, and the checks ask for them.

    Attributes:
        prm: the implicit PRM, or a frozen model in its place (section ``prm``).
        labels: the verifier's verdicts.
        step_scores: the scores of a step reward model (section ``step_scorer``).
        steps: the steps of responses (``prime.steps``), cut by the trainer.
        turns: the turns of responses.
        old_log_probs: log-probabilities under the policy that wrote the responses.
        target_logits: logits over the vocabulary of the model that the policy is pulled toward.
    """

    prm: bool = False
    labels: bool = False
    step_scores: bool = False
    steps: bool = False
    turns: bool = False
    old_log_probs: bool = False
    target_logits: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(
            **{
                each.name: getattr(self, each.name) or getattr(other, each.name)
                for each in fields(self)
            }
        )


@dataclass(frozen=True, config=STRICT)
class MethodSettings:
    """Settings of a method; a subclass has the keys."""

    @property
    def needs(self) -> Needs:
        """Return what the method needs."""
        return Needs()

    def problems(self, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts between settings of the section ``prime``, a line each."""
        return ()

    def run_problems(self, config: DictConfig, prime: "PrimeSettings") -> Iterable[str]:
        """Yield the conflicts with the other keys of a run, a line each."""
        return ()


@dataclass(frozen=True, config=STRICT)
class GateSettings:
    """The reliability gate (``prime.process.gate``)."""

    decay: Share = 0.8
    """Weight of the past in the running counts of correctly ordered pairs and of all pairs; their
    ratio is the accuracy."""
    start: Share = 0.5
    """Pair accuracy before the first step, with the weight of the first batch's pairs; 0.5 is
    chance and shuts the gate."""


@dataclass(frozen=True, config=STRICT)
class SourceSettings(MethodSettings):
    """Settings of a method that gives rewards, a source of the advantage.

    Whoever writes one adds keys, and a function from rollouts to
    :class:`prime_ext.methods.rollouts.Rewards` (docs/how_to/own_method.md).
    """

    coefficient: Positive = 1.0
    """Weight of the source in the sum of sources, above 0; applied before whitening."""
    discount: Share = 1.0
    """Discount of the return; 0: each reward counts only where it is paid."""
    estimator: ProcessEstimator = "rloo"
    """rloo, grpo, reinforce, gae or turn_rloo, as prime.outcome.estimator; or rloo_per_token (PURE:
    a baseline in proportion to the tokens of a step)."""


@dataclass(frozen=True, config=STRICT)
class ProcessSourceSettings(SourceSettings):
    """Settings of rewards that a scorer's scores become (``prime.process``)."""

    normalization: Literal["batch_max", "none"] = "batch_max"
    """batch_max: divide by the largest |return-to-go| of the global batch, and at least by five
    times what it would be for rounding noise alone (docs/explanation/process_rewards.md); none:
    keep the rewards."""
    gate: GateSettings | None = None
    """The reliability gate scales the process rewards by clip(2 * e - 1, 0, 1), where e is the
    running pair accuracy of the PRM on responses before it trains on them. null: no gate, as in the
    paper; variant=guarded has {decay: 0.8, start: 0.5}."""
    center_wrong: Switch = False
    """Subtract from the rewards of a prompt's wrong responses their mean (as in PROGRS), before the
    normalization: wrong answers earn nothing on average, whatever the scorer says."""

    granularity: ClassVar[Granularity]


@plain_dataclass(frozen=True)
class OwnSource:
    """A source of a user's module: its settings class, and its function of rewards."""

    settings: type[SourceSettings]
    rewards: Any


# Sources of users' modules by name, chosen by prime.sources (prime_ext.extend.source adds one).
OWN_SOURCES: dict[str, OwnSource] = {}
