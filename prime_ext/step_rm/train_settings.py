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
    interpolate,
)
from prime_ext.run.training_runs import Paths
from prime_ext.step_rm.description import PairFormat


@dataclass(frozen=True, config=STRICT)
class ModelSettings:
    """The section ``model``."""

    path: Text = interpolate("???")
    """Hub name or folder: any encoder or decoder that transformers can load for sequence
    classification."""
    trust_remote_code: Switch = False
    """Whether the model may bring its own code."""


@dataclass(frozen=True, config=STRICT, kw_only=True)
class StepDataSettings(PairFormat):
    """The section ``data``: files, and which of their texts the model reads."""

    files: Annotated[Paths, Field(min_length=1)] = interpolate("???")
    """Parquet file of python -m prime_ext.step_rm.convert, or a list of them; they contain their
    splits."""
    separator: EscapedText = " </s><s>"
    max_length: Annotated[int, Field(strict=True, ge=8)] = 256

    def pair_format(self) -> PairFormat:
        return PairFormat(**{each.name: getattr(self, each.name) for each in fields(PairFormat)})


@dataclass(frozen=True, config=STRICT)
class OptimSettings:
    """The section ``optim``."""

    lr: Positive = 2e-5
    """Peak learning rate of AdamW."""
    epochs: Positive = 10
    """Maximum number of passes over the training split."""
    warmup_ratio: Annotated[Number, Field(ge=0, lt=1)] = 0.05
    """Fraction of the steps in which the learning rate rises; it falls linearly afterwards."""
    weight_decay: PositiveOrZero = 0.0
    """Weight decay of AdamW."""
    batch_size: Count = 32
    """Inputs per device and pass."""
    accumulation: Count = 1
    """Passes per optimizer step. PSPO: 32 passes of 32 on two devices."""


@dataclass(frozen=True, config=STRICT)
class TrainerSettings:
    """The section ``trainer``."""

    output_dir: Text = interpolate("???")
    """Folder of checkpoints, metrics and the finished model. The same command continues from the
    last checkpoint."""
    evals_per_epoch: Count = 1
    """Evaluations, and checkpoints, per epoch."""
    patience: CountOrZero = 3
    """Evaluations without improvement after which training stops; 0: never."""
    metric: Literal["macro_f1", "accuracy", "nll"] = "macro_f1"
    """Metric of improvement on the validation split: macro_f1, accuracy or nll."""
    eval_batch_size: Count = 64
    """Inputs per device and pass in evaluations."""
    keep_checkpoints: Count = 2
    """Checkpoints to keep, in addition to the best."""
    seed: CountOrZero = 0
    """Random seed of head, order and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto, cpu or cuda."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """float32, or bfloat16 for mixed precision."""
    logger: list[str] = Field(default_factory=list)
    """Loggers of transformers, for example [tensorboard]; metrics.jsonl is always written."""


@dataclass(frozen=True, config=STRICT)
class StepRMSettings:
    """The configuration ``step_rm``."""

    model: ModelSettings = ModelSettings()
    """The model that is trained."""
    data: StepDataSettings = StepDataSettings()
    """Files, and which of their texts the model reads."""
    optim: OptimSettings = OptimSettings()
    """Length and rates of the training."""
    trainer: TrainerSettings = TrainerSettings()
    """What the run writes, and how it evaluates."""

    @property
    def of_result(self) -> dict[str, Any]:
        """Return the settings that the weights depend on; a resumed run must have equal ones."""
        free = ("keep_checkpoints", "logger", "eval_batch_size", "output_dir", "device")
        values = asdict(self)
        values["trainer"] = {
            key: value for key, value in values["trainer"].items() if key not in free
        }
        return values
