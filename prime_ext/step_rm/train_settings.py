# SPDX-License-Identifier: Apache-2.0
"""Settings of the training (config/step_rm.yaml), checked before a model is loaded. No torch."""

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    EscapedText,
    Number,
    Positive,
    PositiveOrZero,
    Switch,
    Text,
)
from prime_ext.run.training_runs import Paths
from prime_ext.step_rm.description import PairFormat


@dataclass(frozen=True, config=STRICT)
class ModelSettings:
    """The section ``model``."""

    path: Text
    trust_remote_code: Switch


@dataclass(frozen=True, config=STRICT, kw_only=True)
class StepDataSettings(PairFormat):
    """The section ``data``: files, and which of their texts the model reads."""

    files: Annotated[Paths, Field(min_length=1)]
    separator: EscapedText

    def pair_format(self) -> PairFormat:
        return PairFormat(**{each.name: getattr(self, each.name) for each in fields(PairFormat)})


@dataclass(frozen=True, config=STRICT)
class OptimSettings:
    """The section ``optim``."""

    lr: Positive
    epochs: Positive
    warmup_ratio: Annotated[Number, Field(ge=0, lt=1)]
    weight_decay: PositiveOrZero
    batch_size: Count
    accumulation: Count


@dataclass(frozen=True, config=STRICT)
class TrainerSettings:
    """The section ``trainer``."""

    output_dir: Text
    evals_per_epoch: Count
    patience: CountOrZero
    metric: Literal["macro_f1", "accuracy", "nll"]
    eval_batch_size: Count
    keep_checkpoints: Count
    seed: CountOrZero
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    logger: Annotated[list[str], Field(description="a list of transformers' loggers")]


@dataclass(frozen=True, config=STRICT)
class StepRMSettings:
    """The configuration ``step_rm``."""

    model: ModelSettings
    data: StepDataSettings
    optim: OptimSettings
    trainer: TrainerSettings

    @property
    def of_result(self) -> dict[str, Any]:
        """Return the settings that the weights depend on; a resumed run must have equal ones."""
        free = ("keep_checkpoints", "logger", "eval_batch_size", "output_dir", "device")
        values = asdict(self)
        values["trainer"] = {
            key: value for key, value in values["trainer"].items() if key not in free
        }
        return values
