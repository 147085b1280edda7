# SPDX-License-Identifier: Apache-2.0
"""Settings of the training, checked before a model is loaded. No torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prime_ext.config.checks import SettingsError, boolean, build, choice, number, whole_number
from prime_ext.step_rm.description import PairFormat
from prime_ext.step_rm.labels import LABELS, StepRMError

METRICS = ("macro_f1", "accuracy", "nll")
METRICS_FILE = "metrics.jsonl"
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("float32", "bfloat16")
CLASS_WEIGHTS = ("none", "balanced")


def _text(key: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise SettingsError(
            f"{key} is missing" if value is None or value == "???" else f"{key}={value!r} must be a text"
        )


@dataclass(frozen=True)
class ModelSettings:
    """The section ``model``."""

    path: str
    new_head: bool
    trust_remote_code: bool

    def __post_init__(self) -> None:
        _text("model.path", self.path)
        if self.path.startswith(("/", ".", "~")) and not Path(self.path).expanduser().is_dir():
            raise SettingsError(f"model.path={self.path} does not exist")
        boolean("model.new_head", self.new_head)
        boolean("model.trust_remote_code", self.trust_remote_code)


@dataclass(frozen=True)
class DataSettings:
    """The section ``data``."""

    files: Any
    """A path or a list of paths."""
    layout: str
    separator: str
    previous: int
    question: bool
    strip_markers: bool
    max_length: int

    def __post_init__(self) -> None:
        if not self.paths or not all(isinstance(path, str) and path for path in self.paths):
            raise SettingsError(f"data.files={self.files!r} must be a parquet file or a list of them")
        try:
            self.pair_format()
        except StepRMError as error:
            raise SettingsError(f"data.{error}") from error

    @property
    def paths(self) -> list[str]:
        return [self.files] if isinstance(self.files, str) else list(self.files or [])

    def pair_format(self) -> PairFormat:
        """What the model reads. Raises ``StepRMError``."""
        return PairFormat(**{key: value for key, value in asdict(self).items() if key != "files"})


@dataclass(frozen=True)
class OptimSettings:
    """The section ``optim``."""

    lr: float
    epochs: float
    warmup_ratio: float
    weight_decay: float
    batch_size: int
    accumulation: int
    class_weights: Any
    """One of :data:`CLASS_WEIGHTS`, or three numbers."""

    def __post_init__(self) -> None:
        number("optim.lr", self.lr, 0, open_low=True)
        number("optim.epochs", self.epochs, 0, open_low=True)
        number("optim.warmup_ratio", self.warmup_ratio, 0, 1)
        number("optim.weight_decay", self.weight_decay, 0)
        whole_number("optim.batch_size", self.batch_size, 1)
        whole_number("optim.accumulation", self.accumulation, 1)
        weights = self.class_weights
        if isinstance(weights, list):
            if len(weights) != len(LABELS):
                raise SettingsError(f"optim.class_weights={weights} must be three numbers, for -1, 0 and 1")
            for weight in weights:
                number("optim.class_weights", weight, 0)
            if not any(weights):
                raise SettingsError(f"optim.class_weights={weights} must not all be 0")
        else:
            choice("optim.class_weights", weights, CLASS_WEIGHTS)


@dataclass(frozen=True)
class TrainerSettings:
    """The section ``trainer``."""

    output_dir: str
    evals_per_epoch: int
    patience: int
    metric: str
    calibrate: bool
    eval_batch_size: int
    keep_checkpoints: int
    seed: int
    device: str
    dtype: str
    logger: Any

    def __post_init__(self) -> None:
        _text("trainer.output_dir", self.output_dir)
        for key in ("evals_per_epoch", "eval_batch_size", "keep_checkpoints"):
            whole_number(f"trainer.{key}", getattr(self, key), 1)
        whole_number("trainer.patience", self.patience, 0)
        whole_number("trainer.seed", self.seed, 0)
        choice("trainer.metric", self.metric, METRICS)
        choice("trainer.device", self.device, DEVICES)
        choice("trainer.dtype", self.dtype, DTYPES)
        boolean("trainer.calibrate", self.calibrate)
        if not isinstance(self.logger, list) or not all(isinstance(name, str) for name in self.logger):
            raise SettingsError(f"trainer.logger={self.logger!r} must be a list of transformers' loggers")


@dataclass(frozen=True)
class StepRMSettings:
    """The configuration ``step_rm``."""

    model: ModelSettings
    data: DataSettings
    optim: OptimSettings
    trainer: TrainerSettings

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "StepRMSettings":
        """Build from the resolved configuration. Raises ``SettingsError``."""
        return cls(
            build(ModelSettings, values.get("model", {}), "model"),
            build(DataSettings, values.get("data", {}), "data"),
            build(OptimSettings, values.get("optim", {}), "optim"),
            build(TrainerSettings, values.get("trainer", {}), "trainer"),
        )

    @property
    def of_result(self) -> dict[str, Any]:
        """What the trained weights depend on: a run with other values cannot go on from this one's checkpoints."""
        free = ("keep_checkpoints", "logger", "eval_batch_size", "calibrate", "output_dir", "device")
        values = asdict(self)
        values["trainer"] = {key: value for key, value in values["trainer"].items() if key not in free}
        return values
