# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""The settings of a method. Keys that verl or prime_ext has too keep name and meaning; ``methods.yaml`` holds presets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from prime_ext.algorithms.estimators import ESTIMATORS
from prime_ext.algorithms.normalization import NORMALIZATIONS
from prime_ext.settings_checks import SettingsError, choice, number, whole_number

METHODS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "methods.yaml").read_text())


@dataclass(frozen=True)
class Rollout:
    prompts: int = 20  # per step
    n: int = 4  # responses to each


@dataclass(frozen=True)
class Actor:
    lr: float = 6e-4
    lr_warmup_steps: int = 10  # updates
    mini_batches: int = 5  # updates per step
    clip_ratio: float = 0.2


@dataclass(frozen=True)
class Outcome:
    estimator: str = "rloo"


@dataclass(frozen=True)
class Process:
    coefficient: float = 0.0
    # reference: beta * log(phi / ref), PRIME's reward; policy: log(phi / pi), PRIME-D's; labels: the true step labels.
    target: str = "reference"
    # How the target policy enters: sampled, as a reward of the sampled token; kl, as KL(pi || phi) in the loss.
    form: str = "sampled"
    topk: int = 0  # KL over the old policy's most probable tokens and one bucket for the rest; 0: the whole vocabulary
    granularity: str = "token"  # of the target reference: token or response
    normalization: str = "batch_max"  # of the target reference
    discount: float = 1.0  # of the target reference
    reliability_gate: bool = True
    gate_decay: float = 0.8
    gate_start: float = 0.5


@dataclass(frozen=True)
class Anchor:
    """KL to a moving average of the policy; with process rewards times 1 - gate: it fills what the gate shuts."""

    coefficient: float = 0.0
    decay: float = 0.5  # weight of the old average, once per step


@dataclass(frozen=True)
class Filter:
    enable: bool = False
    lower: float = 0.2
    upper: float = 0.8
    max_examined: float = 16.0  # times rollout.prompts; then the step goes on with what it has


@dataclass(frozen=True)
class Prime:
    outcome: Outcome = field(default_factory=Outcome)
    process: Process = field(default_factory=Process)
    anchor: Anchor = field(default_factory=Anchor)
    filter: Filter = field(default_factory=Filter)


@dataclass(frozen=True)
class PRM:
    beta: float = 1.0
    update_mode: str = "before"  # none, before, after or interleaved
    epochs: int = 1
    mini_batch_size: int = 16  # new rollouts per update
    replay: int = 0  # as many old ones are added to each mini-batch, out of the last so many; 0: none
    bias: bool = True  # trained with a learning rate of 0.05
    lr: float = 1e-3
    lr_warmup_steps: int = 20  # updates
    labels: str = "outcome"  # shuffled: permuted within the batch, a negative control


@dataclass(frozen=True)
class RejectionSampling:
    """Fine-tuning on the right ones of the first rollouts, before RL."""

    rollouts: int = 0
    epochs: int = 8
    mini_batch_size: int = 32
    lr: float = 1e-3


@dataclass(frozen=True)
class Settings:
    rollout: Rollout = field(default_factory=Rollout)
    actor: Actor = field(default_factory=Actor)
    prime: Prime = field(default_factory=Prime)
    prm: PRM = field(default_factory=PRM)
    rft: RejectionSampling = field(default_factory=RejectionSampling)

    @property
    def uses_prm(self) -> bool:
        return self.prime.process.coefficient > 0 and self.prime.process.target != "labels"

    def check(self) -> None:
        """Raise SettingsError on values that cannot work."""
        process, prm = self.prime.process, self.prm
        estimators = tuple(name for name, estimator in ESTIMATORS.items() if not estimator.needs)
        choice("prime.outcome.estimator", self.prime.outcome.estimator, estimators)
        choice("prime.process.target", process.target, ("reference", "policy", "labels"))
        choice("prime.process.form", process.form, ("sampled", "kl"))
        choice("prime.process.granularity", process.granularity, ("token", "response"))
        choice("prime.process.normalization", process.normalization, tuple(NORMALIZATIONS))
        choice("prm.update_mode", prm.update_mode, ("none", "before", "after", "interleaved"))
        choice("prm.labels", prm.labels, ("outcome", "shuffled"))
        for name, value in flat(self).items():
            positive = name in POSITIVE or name.endswith(".lr")
            if isinstance(value, int) and not isinstance(value, bool):
                whole_number(name, value, POSITIVE.get(name, 0))
            elif isinstance(value, float):
                number(name, value, 0.0, 1.0 if name in SHARES else math.inf, open_low=positive)
        if process.target == "policy" and prm.update_mode == "interleaved":
            raise SettingsError("prime.process.target=policy needs a pass that scores: prm.update_mode=before or after")


POSITIVE = {
    "rollout.prompts": 1,
    "rollout.n": 2,
    "actor.mini_batches": 1,
    "actor.clip_ratio": 0,
    "prm.beta": 0,
    "prm.epochs": 1,
    "prm.mini_batch_size": 1,
    "rft.mini_batch_size": 1,
}
SHARES = (
    "prime.anchor.decay",
    "prime.process.gate_decay",
    "prime.process.gate_start",
    "prime.filter.lower",
    "prime.filter.upper",
)


def flat(section: Any, prefix: str = "") -> dict[str, Any]:
    """All settings in one table, by dotted key."""
    table: dict[str, Any] = {}
    for name in (entry.name for entry in fields(section)):
        value = getattr(section, name)
        table |= flat(value, f"{prefix}{name}.") if is_dataclass(value) else {prefix + name: value}
    return table


def settings_of(*layers: Mapping[str, Any]) -> Settings:
    """The defaults with the values of the layers, later ones first; values may be text.

    Raises:
        SettingsError: a key is unknown, or a value does not have the type of its default or cannot work.
    """
    settings = Settings()
    for key, value in (item for layer in layers for item in layer.items()):
        known = flat(settings)
        if key not in known:
            raise SettingsError(f"unknown key {key}; known keys: {', '.join(known)}")
        settings = _with(settings, key.split("."), _parsed(key, str(value), type(known[key])))
    settings.check()
    return settings


def _with(section: Any, names: list[str], value: Any) -> Any:
    inner = _with(getattr(section, names[0]), names[1:], value) if len(names) > 1 else value
    return replace(section, **{names[0]: inner})


def _parsed(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        choice(key, text.lower(), ("true", "false"))
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{key}={text} must be a {'whole number' if kind is int else 'number'}") from None
