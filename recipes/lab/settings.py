# SPDX-License-Identifier: Apache-2.0
"""What can be set. Keys that prime_ext has too keep name and meaning; ``methods.yaml`` holds the presets.

The key ``prime.process.coefficient`` is the field ``prime_process_coefficient``.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from prime_ext.algorithms.estimators import ESTIMATORS
from prime_ext.algorithms.normalization import NORMALIZATIONS
from prime_ext.config.checks import SettingsError, choice, number, whole_number

METHODS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "methods.yaml").read_text())


@dataclass(frozen=True)
class Settings:
    """The defaults are RLOO on the compact tasks."""

    rollout_prompts: int = 20  # per step
    rollout_n: int = 4  # responses to each

    actor_lr: float = 6e-4
    actor_lr_warmup_steps: int = 10  # updates
    actor_mini_batches: int = 5  # updates per step
    actor_clip_ratio: float = 0.2

    prime_outcome_estimator: str = "rloo"

    prime_process_coefficient: float = 0.0
    # reference: beta * log(phi / ref), PRIME's reward; policy: log(phi / pi); labels: the true step labels, no PRM.
    prime_process_target: str = "reference"
    # Of the target policy. sampled: a reward of the sampled tokens; kl: KL(pi || phi) in the loss.
    prime_process_form: str = "sampled"
    prime_process_top_k: int = 0  # of kl: the old policy's likeliest tokens and one bucket for the rest; 0: all
    # Of the target reference, as in the trainer on verl.
    prime_process_granularity: str = "token"
    prime_process_normalization: str = "batch_max"
    prime_process_discount: float = 1.0
    prime_process_reliability_gate: bool = True
    prime_process_gate_decay: float = 0.8
    prime_process_gate_start: float = 0.5

    # KL to a moving average of the policy. It fills what the gate shuts: its weight is coefficient * (1 - gate).
    prime_anchor_coefficient: float = 0.0
    prime_anchor_decay: float = 0.5  # weight of the old average, once per step

    prime_filter_enable: bool = False
    prime_filter_lower: float = 0.2
    prime_filter_upper: float = 0.8
    prime_filter_max_examined: float = 16.0  # times rollout.prompts; then the step makes do with what it has

    prm_beta: float = 1.0
    prm_update_mode: str = "before"
    prm_epochs: int = 1
    prm_mini_batch_size: int = 16  # new rollouts of an update
    prm_replay: int = 0  # as many old ones join them, out of the last so many; 0: none
    prm_bias: bool = True  # trained, with a learning rate of 0.05
    prm_lr: float = 1e-3
    prm_lr_warmup_steps: int = 20  # updates
    prm_start: str = ""  # folder of another, say smaller, model with the same tokens; empty: the policy's start
    prm_reference: str = "frozen"  # policy: its log-probabilities before its update, no model and no pass
    prm_trainable_layers: float = 0.0  # the last ones, or below 1 their share; 0: the whole model
    prm_lora_rank: int = 0  # an adapter in place of the weights; 0: none
    prm_groups: str = "all"  # mixed: trained on prompts with right and wrong responses only
    prm_labels: str = "outcome"  # shuffled: permuted within the batch, a control

    # Before RL: fine-tuning on the right ones of the first rollouts.
    rft_rollouts: int = 0
    rft_epochs: int = 8
    rft_mini_batch_size: int = 32
    rft_lr: float = 1e-3

    @property
    def uses_prm(self) -> bool:
        return self.prime_process_coefficient > 0 and self.prime_process_target != "labels"

    def by_key(self) -> dict[str, Any]:
        """All values, by dotted key."""
        prefixes = {name: next(p for p in SECTIONS if name.startswith(p)) for name in asdict(self)}
        return {p.replace("_", ".") + name[len(p) :]: getattr(self, name) for name, p in prefixes.items()}


SECTIONS = ("rollout_", "actor_", "prime_outcome_", "prime_process_", "prime_anchor_", "prime_filter_", "prm_", "rft_")
CHOICES = {
    "prime.outcome.estimator": tuple(name for name, estimator in ESTIMATORS.items() if not estimator.needs),
    "prime.process.target": ("reference", "policy", "labels"),
    "prime.process.form": ("sampled", "kl"),
    "prime.process.granularity": ("token", "response"),
    "prime.process.normalization": tuple(NORMALIZATIONS),
    "prm.update_mode": ("none", "before", "after", "interleaved"),
    "prm.reference": ("frozen", "policy"),
    "prm.groups": ("all", "mixed"),
    "prm.labels": ("outcome", "shuffled"),
}
LEAST = {"rollout.n": 2} | dict.fromkeys(
    ("rollout.prompts", "actor.mini_batches", "prm.epochs", "prm.mini_batch_size", "rft.mini_batch_size"), 1
)
ABOVE_ZERO = ("actor.lr", "actor.clip_ratio", "prm.beta", "prm.lr", "rft.lr", "prime.filter.max_examined")
SHARES = ("prime.anchor.decay", *(f"prime.process.{name}" for name in ("gate_decay", "gate_start", "discount")))


def settings_of(*layers: Mapping[str, Any]) -> Settings:
    """The defaults, overridden by the values of the layers, which may be text; later layers win.

    Raises:
        SettingsError: a key is unknown, or a value does not have the type of its default or cannot work.
    """
    settings = Settings()
    known = settings.by_key()
    for key, value in (item for layer in layers for item in layer.items()):
        if key not in known:
            raise SettingsError(f"unknown key {key}; known keys: {', '.join(known)}")
        settings = replace(settings, **{key.replace(".", "_"): _checked(key, str(value), type(known[key]))})
    if settings.prm_lora_rank and settings.prm_trainable_layers:
        raise SettingsError("prm.lora_rank trains an adapter of all layers; it wants prm.trainable_layers=0")
    if settings.prm_update_mode == "interleaved" and settings.prm_groups == "mixed":
        raise SettingsError("prm.update_mode=interleaved scores what it trains on; prm.groups=mixed leaves some out")
    return settings


def _checked(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        choice(key, text.lower(), ("true", "false"))
        return text.lower() == "true"
    try:
        value = kind(text)
    except ValueError:
        raise SettingsError(f"{key}={text} must be a {'whole number' if kind is int else 'number'}") from None
    if key == "prm.start":
        if value and not (Path(value) / "config.json").is_file():
            raise SettingsError(f"prm.start={value} must be the folder of a model, with a config.json")
    elif kind is str:
        choice(key, value, CHOICES[key])
    elif kind is int:
        whole_number(key, value, LEAST.get(key, 0))
    else:
        number(key, value, 0.0, 1.0 if key in SHARES else math.inf, open_low=key in ABOVE_ZERO)
    return value
