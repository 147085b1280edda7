# SPDX-License-Identifier: Apache-2.0
"""Table of the names that settings accept, with the traits of each.

Settings and checks read it. Nothing here imports torch, so that a bad name is rejected at once.
The functions of the same names are in :mod:`prime_ext.algorithms` and
:mod:`prime_ext.step_rm.splitting`; :mod:`prime_ext.extend` adds a name and its function together.
"""

from dataclasses import dataclass
from typing import Literal

Source = Literal["outcome", "process", "turns"]
StepScoreName = Literal["none", "sigmoid"]
Accumulation = Literal["mean", "geometric", "min"]
SingleStep = Literal["zero", "keep"]
RewardPosition = Literal["last_token", "step_ends", "tokens"]
Credit = Literal["sum", "min_form"]
Baseline = Literal["released", "paper"]
TextSplitter = Literal["auto", "labels", "brackets", "numbered", "paragraphs", "sentences"]


@dataclass(frozen=True)
class EstimatorTraits:
    """Traits of an advantage estimator.

    Attributes:
        sources: the sources of reward that it serves; empty for an estimator of verl only.
        compares_rollouts: it needs two rollouts of a prompt.
        sums_response: an outcome enters as the sum of a response's rewards; elsewhere a reward
            counts from its own token on.
        compares_turns: it reads the turns of responses.
        value: the model whose values it reads.
        in_verl: verl's registry has an estimator of this name, with the same traits.
    """

    sources: tuple[Source, ...] = ()
    compares_rollouts: bool = False
    sums_response: bool = False
    compares_turns: bool = False
    value: Literal["critic", "prm"] | None = None
    in_verl: bool = False


ALL_SOURCES: tuple[Source, ...] = ("outcome", "process", "turns")
_VERLS_GROUPS = EstimatorTraits((), compares_rollouts=True, sums_response=True, in_verl=True)
ESTIMATORS: dict[str, EstimatorTraits] = {
    "rloo": EstimatorTraits(ALL_SOURCES, True, True, in_verl=True),
    "grpo": EstimatorTraits(ALL_SOURCES, True, True, in_verl=True),
    "maxrl": EstimatorTraits(("outcome",), compares_rollouts=True, sums_response=True),
    "rloo_per_token": EstimatorTraits(("process",), compares_rollouts=True),
    "turn_rloo": EstimatorTraits(ALL_SOURCES, True, True, compares_turns=True),
    "reinforce": EstimatorTraits(ALL_SOURCES),
    "gae": EstimatorTraits(("outcome", "process"), value="critic", in_verl=True),
    "prm_value": EstimatorTraits(("outcome",), value="prm"),
    "reinforce_plus_plus": EstimatorTraits(in_verl=True),
    "reinforce_plus_plus_baseline": _VERLS_GROUPS,
    "grpo_vectorized": _VERLS_GROUPS,
    "grpo_passk": _VERLS_GROUPS,
    "rloo_vectorized": _VERLS_GROUPS,
    "opo": _VERLS_GROUPS,
    "gpg": _VERLS_GROUPS,
}


def list_estimators(source: Source) -> list[str]:
    """Return the estimators that serve a source of reward."""
    return [name for name, traits in ESTIMATORS.items() if source in traits.sources]


def list_token_estimators() -> list[str]:
    """Return verl's estimators that use the positions of rewards, not only their sum."""
    return [
        name for name, traits in ESTIMATORS.items() if traits.in_verl and not traits.sums_response
    ]


def compares_rollouts(estimator: str) -> bool:
    """Return whether an estimator, ours or verl's, needs two rollouts of a prompt."""
    return estimator in ESTIMATORS and ESTIMATORS[estimator].compares_rollouts


def find_value_model(estimator: str) -> str | None:
    """Return which model's values an estimator reads, ``critic`` or ``prm``; None if none."""
    return ESTIMATORS[estimator].value if estimator in ESTIMATORS else None


@dataclass(frozen=True)
class LossTraits:
    """Traits of a loss of the PRM.

    Attributes:
        needs_scores: the PRM is scored before it is updated.
        allows_soft_labels: labels may be fractions.
    """

    needs_scores: bool = False
    allows_soft_labels: bool = False


PRM_LOSSES: dict[str, LossTraits] = {
    "ce": LossTraits(allows_soft_labels=True),
    "dpo": LossTraits(needs_scores=True),
    "nca": LossTraits(allows_soft_labels=True),
    "kto": LossTraits(needs_scores=True),
}

# Shapes of a chain of steps, and whether they have parameters, which a settings class then holds.
SHAPES: dict[str, bool] = {"weibull": True, "gaussian": True, "released": False}


def list_plain_shapes() -> list[str]:
    """Return the shapes without parameters."""
    return [name for name, has_parameters in SHAPES.items() if not has_parameters]


# Agent loops of one turn, of tools, and of environments: verl's, and those of
# prime_ext.verl_adapter.
SINGLE_TURN_LOOPS = ("single_turn_agent", "seeded_single_turn_agent")
TOOL_LOOPS = ("tool_agent", "bounded_tool_agent", "seeded_tool_agent")
ENVIRONMENT_LOOPS = ("environment_agent", "seeded_environment_agent")

# Reward managers (reward.reward_manager.name): one that tells the reward function the prompt, one
# that also gives the trainer step scores, and one that pays for these itself, with verl's trainers.
PROMPT_MANAGER = "naive_with_prompt"
STEP_SCORES_MANAGER = "naive_with_step_scores"
PAYING_MANAGER = "pspo_wrs"
