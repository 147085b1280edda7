# SPDX-License-Identifier: Apache-2.0
"""The section ``prime``: the methods of a run and the prompt filter. No verl and no torch."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Annotated, Any, Literal

from omegaconf import DictConfig
from pydantic import Field, InstanceOf, Tag
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Number,
    Section,
    SettingsError,
    Share,
    Switch,
    Text,
    choose_by,
    guess,
    limit_to,
    read,
)
from prime_ext.config.step_rule import Steps, StepSettings
from prime_ext.methods.anchor.settings import AnchorSettings
from prime_ext.methods.kl.settings import KLSettings
from prime_ext.methods.outcome.settings import OutcomeSettings
from prime_ext.methods.source_settings import (
    OWN_SOURCES,
    GateSettings,
    MethodSettings,
    Needs,
    ProcessSourceSettings,
    SourceSettings,
)
from prime_ext.methods.step_scorer.settings import StepScorerSettings
from prime_ext.methods.steps.settings import StepRewardSettings
from prime_ext.methods.tokens.settings import TokenSettings
from prime_ext.methods.turns.settings import TurnSettings
from prime_ext.methods.variants import VARIANTS
from prime_ext.names import ESTIMATORS, Baseline, find_value_model

OnFailure = Literal["drop", "zero", "stop"]
AtLeastOne = Annotated[Number, Field(ge=1)]

# How scores become rewards, or pull the policy (``prime.process``):
# docs/explanation/process_rewards.md.
ProcessSettings = Annotated[
    Annotated[KLSettings, Tag("<kl>")]
    | Annotated[TokenSettings, Tag("<tokens>")]
    | Annotated[StepRewardSettings, Tag("<steps>")]
    | Annotated[StepScorerSettings, Tag("<step_scorer>")],
    choose_by(
        "form",
        "prime/process=kl, tokens, steps or step_scorer; variant=rloo has no process rewards",
    ),
]


@dataclass(frozen=True, config=STRICT)
class FilterSettings:
    """Online prompt filter (``prime.filter``)."""

    enable: Switch = True
    """false: train on every prompt unless all of its rollouts failed."""
    lower: Share = 0.2
    """Lower bound of the mean accuracy of a prompt's rollouts, inclusive."""
    upper: Share = 0.8
    """Upper bound, inclusive."""
    drop_truncated: Switch = False
    """Also drop prompts with a truncated rollout: without an end-of-sequence token at
    data.max_response_length, or, with its prompt, at rollout.max_model_len."""
    oversample: AtLeastOne = 2.0
    """Maximum number of prompts in flight, as a multiple of data.train_batch_size. Surplus prompts
    return to the queue. The asynchronous modes add num_warmup_batches and keep surplus prompts for
    the next batch."""
    max_examined: AtLeastOne = 16.0
    """Maximum number of prompts examined per step, as a multiple of data.train_batch_size
    (asynchronous modes: per batch)."""
    on_exhausted: Literal["error", "partial"] = "error"
    """When max_examined is reached and the batch is not full: error, or partial (train on the
    prompts that passed, with a warning)."""

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        if self.lower > self.upper:
            yield (
                f"prime.filter.lower={self.lower} is above prime.filter.upper={self.upper}; no"
                " prompt could be kept"
            )
        if self.max_examined < self.oversample:
            yield (
                f"prime.filter.max_examined={self.max_examined} is below"
                f" prime.filter.oversample={self.oversample}"
            )
        if self.enable and (self.lower == 1 or self.upper == 0):
            yield (
                f"prime.filter.lower={self.lower} and prime.filter.upper={self.upper} keep only"
                " prompts whose rollouts are all alike, which teach nothing; widen them"
            )


@dataclass(frozen=True, config=STRICT)
class VerifierSettings:
    """Treatment of a rollout that the verifier could not judge (``prime.verifier``)."""

    on_failure: OnFailure = "drop"
    """drop: the rollout leaves its group before anything counts it; zero: the rollout counts as
    wrong (or its steps, if a step scorer failed); stop: the run ends."""


def _read_sources(values: Mapping[str, Any]) -> dict[str, SourceSettings]:
    """Read the sources of users' modules by their classes. Raises SettingsError."""
    sources = {}
    for name, section in values.items():
        key = f"prime.sources.{name}"
        if name not in OWN_SOURCES:
            known = ", ".join(OWN_SOURCES) or "none"
            raise SettingsError(
                f"{key} is not registered{guess(name, OWN_SOURCES)}; there are {known}; the key"
                " modules names the module that calls extend.source"
            )
        sources[name] = read(OWN_SOURCES[name].settings, section or {}, key)
    return sources


@dataclass(frozen=True, config=STRICT)
class PrimeSettings(Section):
    """The methods of a run, from rewards to advantages, and the prompts that are trained on.

    The sections process, anchor and turns are chosen whole, with the keys that their choice reads:
    prime/process=kl, tokens, steps, step_scorer or none; prime/anchor=ema, fallback or none;
    prime/turns=rewards or none.
    """

    section = "prime"

    process: ProcessSettings | None
    turns: TurnSettings | None
    anchor: AnchorSettings | None
    variant: Annotated[str, limit_to(VARIANTS.keys)] = "distilled"
    """Name of the variant that the keys below come from. Choose one by variant=paper, for example,
    which sets its keys; do not choose it here."""
    outcome: OutcomeSettings = OutcomeSettings()
    """The outcome reward, as the reward manager returns it; with algorithm.use_kl_in_reward, minus
    the KL penalty of each token."""
    sources: Mapping[str, InstanceOf[SourceSettings]] = Field(default_factory=dict)
    """Further sources of rewards, from modules of yours, by name:
    +prime.sources.brevity.coefficient=0.1 (docs/how_to/own_method.md)."""
    steps: Steps = StepSettings("auto")
    """Where the steps of a response begin, if steps are paid. auto: the first of the next five that
    finds two steps; labels (Step 1:), brackets ([1]), numbered (1. or 1)), all at the start of a
    line and in order; paragraphs; sentences. {pattern: ...}: a regular expression that matches
    where a step begins; ^ and $ match at lines. {delimiters: [...]}: strings or token ids after
    which a step ends; strings need quotes on the command line:
    'prime.steps={delimiters: [";", "\\n"]}', where \\n, \\t and \\\\ are escapes."""
    baseline: Baseline = "released"
    """Leave-one-out baseline of rloo: released (the code of the published numbers) or paper (Eq.
    5)."""
    whitening: Switch = True
    """Whiten the summed returns over all valid tokens of the batch."""
    label_key: Text = "acc"
    """Key of the reward manager's extra info with the verifier's verdict in [0, 1]: the label of
    the PRM and the accuracy of the prompt filter. verl's reward managers write `acc`."""
    verifier: VerifierSettings = VerifierSettings()
    """Rollouts that the verifier failed to grade (it ran out of time or memory, or broke)."""
    filter: FilterSettings = FilterSettings()
    """Online prompt filter."""

    @classmethod
    def from_mapping(
        cls, values: Mapping[str, Any], find_conflicts: bool = True
    ) -> "PrimeSettings":
        """Build from the resolved section, with its own sources. Raises SettingsError."""
        sources = values.get("sources")
        if isinstance(sources, Mapping):
            values = {**values, "sources": _read_sources(sources)}
        return super().from_mapping(values, find_conflicts)

    @property
    def methods(self) -> dict[str, MethodSettings]:
        """Return the settings of all chosen methods, by their keys in the section."""
        chosen = {
            "outcome": self.outcome,
            "process": self.process,
            "turns": self.turns,
            "anchor": self.anchor,
            **{f"sources.{name}": source for name, source in self.sources.items()},
        }
        return {key: method for key, method in chosen.items() if method is not None}

    @property
    def needs(self) -> Needs:
        """Return what the methods, their estimators, the filter and the gate need together."""
        total: Needs = reduce(Needs.__or__, (method.needs for method in self.methods.values()))
        compares_turns = any(
            name in ESTIMATORS and ESTIMATORS[name].compares_turns
            for name in self.estimators.values()
        )
        labels = self.filter.enable or self.gate is not None
        return total | Needs(labels=labels, turns=compares_turns)

    @property
    def reward_sources(self) -> dict[str, OutcomeSettings | SourceSettings]:
        """Return the settings of the sources that enter the advantage, by name."""
        named = {key.removeprefix("sources."): method for key, method in self.methods.items()}
        return {
            name: method
            for name, method in named.items()
            if isinstance(method, SourceSettings)
            or (isinstance(method, OutcomeSettings) and method.coefficient > 0)
        }

    @property
    def estimators(self) -> dict[str, str]:
        """Return the estimator of each source that counts, by name."""
        return {name: source.estimator for name, source in self.reward_sources.items()}

    @property
    def critic_sources(self) -> tuple[str, ...]:
        """Return the sources that need a critic; of several it values the sum of their rewards."""
        return tuple(
            name
            for name, estimator in self.estimators.items()
            if find_value_model(estimator) == "critic"
        )

    @property
    def paid_process(self) -> ProcessSourceSettings | None:
        """Return the settings of the process rewards; None without them, as in PRIME-D."""
        return self.process if isinstance(self.process, ProcessSourceSettings) else None

    @property
    def distils(self) -> bool:
        """Return whether the policy is pulled toward the PRM as a distribution."""
        return isinstance(self.process, KLSettings)

    @property
    def gate(self) -> GateSettings | None:
        """Return the settings of the gate that scales the process rewards, if there is one."""
        return None if self.process is None else self.process.gate

    @property
    def granularity(self) -> str:
        """Return the unit of a process reward: ``token``, ``step``, ``turn`` or ``response``."""
        return "token" if self.paid_process is None else self.paid_process.granularity

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        yield from self.filter.problems()
        for method in self.methods.values():
            yield from method.problems(self)
        reading = [key for key, method in self.methods.items() if method.needs.prm]
        if reading and self.needs.step_scores:
            yield (
                f"prime.{reading[0]} reads the implicit PRM, which a step scorer stands in for;"
                " choose one of the two"
            )
        if self.gate is not None and self.outcome.coefficient == 0:
            yield (
                "prime.process.gate weighs rewards by outcomes: set prime.outcome.coefficient above"
                " 0, or it to null"
            )
        if not self.estimators:
            # PRIME-D's divergence stands next to PPO's loss, which needs an advantage.
            yield (
                f"prime.outcome.coefficient={self.outcome.coefficient} without rewards of tokens,"
                " steps or turns leaves nothing to learn from; set it above 0"
            )


def read_needs(config: DictConfig) -> Needs:
    """Return what a run needs: a PRM and labels too, where its settings are refused elsewhere."""
    try:
        return PrimeSettings.from_config(config).needs
    except SettingsError:
        return Needs(prm=True, labels=True)


def prm_section(config: DictConfig) -> DictConfig | None:
    """Return the section ``prm`` of a configuration; None where no PRM is built to read it."""
    return config.prm if config.get("prime") is not None and read_needs(config).prm else None
