# SPDX-License-Identifier: Apache-2.0
"""The settings of the reward manager ``pspo_wrs``: the section ``pspo``. Nothing here imports verl or torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.chain_settings import (
    AccumulationSettings,
    ShapingSettings,
    accumulation_settings,
    check_chain,
    check_credit,
    check_credit_of_chain,
    shaping_settings,
)
from prime_ext.config.checks import SettingsError, boolean, build, choice, number, whole_number
from prime_ext.config.reward_settings import StepSettings
from prime_ext.config.settings import ON_VERIFIER_FAILURE
from prime_ext.config.step_scorer_settings import SECTION as SCORER_SECTION
from prime_ext.config.step_scorer_settings import ScorerSettings

SECTION = "pspo"
# verl's estimators that see at which token a reward is paid; the others sum over the response. And those that compare
# the responses to one prompt.
TOKEN_ESTIMATORS = ("gae", "reinforce_plus_plus")
GROUP_ESTIMATORS = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "opo",
    "gpg",
    "reinforce_plus_plus_baseline",
)
# The name that reward.reward_manager.name gives the manager.
MANAGER = "pspo_wrs"


@dataclass(frozen=True)
class BatchingSettings:
    """How responses are collected, to be scored together (``pspo.batching``)."""

    window_ms: float
    """Milliseconds that the first response waits for more."""
    max_tokens: int
    """Tokens of the responses that are collected at most."""

    def __post_init__(self) -> None:
        number("pspo.batching.window_ms", self.window_ms, 0.0)
        whole_number("pspo.batching.max_tokens", self.max_tokens, 1)


@dataclass(frozen=True)
class ActorSettings:
    """The process on each node in which a local model works (``pspo.actor``)."""

    num_gpus: float
    """GPUs that Ray reserves for it; 0: it works on the CPU."""
    cpu_threads: int | None
    """Threads of the CPU; None: as Ray leaves it."""

    def __post_init__(self) -> None:
        number("pspo.actor.num_gpus", self.num_gpus, 0.0)
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            problem = f"pspo.actor.num_gpus={self.num_gpus}: Ray reserves a fraction of one GPU, or whole ones"
            raise SettingsError(problem)
        if self.cpu_threads is not None:
            whole_number("pspo.actor.cpu_threads", self.cpu_threads, 1)


@dataclass(frozen=True)
class PSPOSettings:
    """The section ``pspo``."""

    steps: StepSettings
    accumulation: AccumulationSettings
    """``mode`` ``none``: every step is paid for itself."""
    shaping: ShapingSettings
    credit: str
    """What a step's score pays, or the shares of an accumulated reward at step ends."""
    credit_temperature: float
    """Of ``min_form``."""
    credit_threshold: float | None
    """Of ``clip`` and ``clip_delta``."""
    judge: bool
    """Whether responses are judged where there is a gold answer."""
    outcome_coefficient: float
    """Times the verdict, added to the reward."""
    on_failure: str
    """What becomes of responses that could not be scored: ``drop``, ``zero`` or ``stop``."""
    warn_rate: float
    """Fraction of such responses in a step above which a warning is logged."""
    log_path: str | None
    """Folder for JSON lines."""
    batching: BatchingSettings
    actor: ActorSettings

    def __post_init__(self) -> None:
        check_credit(SECTION, self.credit, self.credit_temperature, self.credit_threshold)
        check_chain(SECTION, self.accumulation, self.shaping)
        check_credit_of_chain(SECTION, self.credit, self.accumulation)
        boolean("pspo.judge", self.judge)
        number("pspo.outcome_coefficient", self.outcome_coefficient, 0.0)
        if self.outcome_coefficient > 0 and not self.judge:
            raise SettingsError(
                f"pspo.outcome_coefficient={self.outcome_coefficient} needs the verdicts that pspo.judge=false does "
                f"without; set pspo.judge=true"
            )
        choice("pspo.on_failure", self.on_failure, ON_VERIFIER_FAILURE)
        number("pspo.warn_rate", self.warn_rate, 0.0, 1.0)
        if self.log_path is not None and (not isinstance(self.log_path, str) or not self.log_path):
            raise SettingsError(f"pspo.log_path={self.log_path!r} must be a folder or null")

    @property
    def pays_tokens(self) -> bool:
        """Whether rewards are paid elsewhere than at the last token."""
        return self.accumulation.mode == "none" or self.accumulation.place != "last_token"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PSPOSettings":
        """Build from the resolved section. Raises :class:`SettingsError`."""
        if not isinstance(values, Mapping):
            raise SettingsError(f"{SECTION}={values!r} must be a section with keys")
        parts = {
            "steps": build(StepSettings, values.get("steps", {}), "pspo.steps", section="pspo.steps"),
            "accumulation": accumulation_settings(values.get("accumulation", {}), "pspo.accumulation"),
            "shaping": shaping_settings(values.get("shaping", {}), "pspo.shaping"),
            "batching": build(BatchingSettings, values.get("batching", {}), "pspo.batching"),
            "actor": build(ActorSettings, values.get("actor", {}), "pspo.actor"),
        }
        return build(cls, {**values, **parts}, SECTION)


def sections_of(config: DictConfig) -> tuple[PSPOSettings, ScorerSettings]:
    """The two sections that the manager reads, from the whole configuration. Raises :class:`SettingsError`."""
    missing = [name for name in (SECTION, SCORER_SECTION) if config.get(name) is None]
    if missing:
        raise SettingsError(
            f"reward.reward_manager.name={MANAGER} needs the section {missing[0]}; use --config-name=pspo_trainer, or "
            f"add it with +{missing[0]}={missing[0]}"
        )
    pspo, scorer = (OmegaConf.to_container(config[name], resolve=True) for name in (SECTION, SCORER_SECTION))
    return PSPOSettings.from_mapping(pspo), ScorerSettings.from_mapping(scorer)  # type: ignore[arg-type]


def uses_manager(config: DictConfig) -> bool:
    """Whether rewards come from this manager."""
    manager = config.reward.reward_manager
    return manager.source == "register" and manager.name == MANAGER
