# SPDX-License-Identifier: Apache-2.0
"""The section ``pspo``, of the reward manager ``pspo_wrs``. Nothing here imports verl or torch."""

from collections.abc import Iterable

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Section, SettingsError, Switch
from prime_ext.config.step_rule import Steps
from prime_ext.config.step_scorer_settings import MANAGER as STEP_SCORES_MANAGER
from prime_ext.config.step_scorer_settings import SECTION as SCORER_SECTION
from prime_ext.config.step_scorer_settings import ScorerSettings, require_scorer
from prime_ext.methods.chains import ChainSettings
from prime_ext.methods.settings import OnFailure

SECTION = "pspo"
# The name that reward.reward_manager.name gives the manager.
MANAGER = "pspo_wrs"


@dataclass(frozen=True, config=STRICT, kw_only=True)
class PSPOSettings(ChainSettings, Section):
    """The section ``pspo``."""

    section = SECTION
    steps: Steps
    judge: Switch
    on_failure: OnFailure

    @property
    def pays_tokens(self) -> bool:
        """Return whether rewards are paid elsewhere than at the last token."""
        return self.accumulation is None or self.reward_position != "last_token"

    def problems(self) -> Iterable[str]:
        """Yield the conflicts between settings."""
        return self.chain_problems()


def read_pspo_sections(config: DictConfig) -> tuple[PSPOSettings, ScorerSettings]:
    """Return the manager's two sections of the configuration. Raises :class:`SettingsError`."""
    if config.get(SECTION) is None:
        raise SettingsError(
            f"reward.reward_manager.name={MANAGER} needs the section {SECTION}; use"
            " --config-name=pspo_trainer"
        )
    return PSPOSettings.from_config(config), require_scorer(config)


def scorer_section(config: DictConfig) -> DictConfig | None:
    """Return the section ``step_scorer`` if this manager or PRIME's with step scores reads it."""
    reads_scorer = get_manager_name(config) in (MANAGER, STEP_SCORES_MANAGER)
    return config.get(SCORER_SECTION) if reads_scorer else None


def get_manager_name(config: DictConfig) -> str | None:
    """Return the name of the reward manager; None for one of a user's own file."""
    manager = config.reward.reward_manager
    return manager.name if manager.source == "register" else None
