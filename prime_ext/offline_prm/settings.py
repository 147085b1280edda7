# SPDX-License-Identifier: Apache-2.0
"""Settings of offline PRM training, checked before a model is loaded; nothing here imports torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prime_ext.config.checks import SettingsError, boolean, build, choice, number, whole_number
from prime_ext.config.settings import LOSSES, LOSSES_OF_HARD_LABELS
from prime_ext.offline_prm.data import AFTER_ERROR

STEP_LOSSES = ("step_ce", "step_mse")
STEP_SCORES = ("prefix", "prefix_mean", "step")
OVERLONG = ("truncate", "drop", "error")
DEVICES = ("auto", "cpu", "cuda", "npu")
TIME_WEIGHTS = ("uniform", "early", "late")
DTYPES = ("float32", "bfloat16", "float16")

# Losses that need responses of both classes, and the default scale where it is not 0.05.
LOSSES_OF_MIXED_GROUPS = ("dpo",)
DEFAULT_BETA = 0.05
BETA_OF_LOSS = {"ipvrm": 10.0}


@dataclass(frozen=True)
class DataSettings:
    """What is trained on (``data``)."""

    train_files: Any
    """A path or a list of paths."""
    val_files: Any
    """The same for validation; None: a share of the prompts of ``train_files``."""
    val_fraction: float
    """Share of the prompts held out, by hash."""
    split_seed: int
    max_length: int
    """Tokens of prompt and response."""
    overlong: str
    """One of :data:`OVERLONG`."""
    append_eos: bool
    prompts_per_step: int
    """Prompts per optimiser step over all ranks, with all their responses."""
    seed: int
    """Of the order of the prompts."""

    def __post_init__(self) -> None:
        if not self.train_paths:
            raise SettingsError("data.train_files is missing; give a parquet or JSON Lines file, or a list of them")
        number("data.val_fraction", self.val_fraction, 0.0, 1.0)
        if self.val_paths and self.val_fraction:
            raise SettingsError(f"data.val_fraction={self.val_fraction} must be 0 when data.val_files is given")
        if self.val_fraction == 1:
            raise SettingsError("data.val_fraction=1 leaves nothing to train on")
        whole_number("data.split_seed", self.split_seed, 0)
        whole_number("data.max_length", self.max_length, 2, " of tokens")
        choice("data.overlong", self.overlong, OVERLONG)
        boolean("data.append_eos", self.append_eos)
        whole_number("data.prompts_per_step", self.prompts_per_step, 1, " of prompts")
        whole_number("data.seed", self.seed, 0)

    @property
    def train_paths(self) -> list[str]:
        return _paths("data.train_files", self.train_files)

    @property
    def val_paths(self) -> list[str]:
        return _paths("data.val_files", self.val_files)


def _paths(key: str, value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else list(value or [])
    if not all(isinstance(path, str) and path for path in values):
        raise SettingsError(f"{key}={value!r} must be a path or a list of paths")
    return values


@dataclass(frozen=True)
class IPVRMSettings:
    """Options of the loss ``ipvrm`` (``prm.ipvrm``)."""

    margin: float | None
    """None: beta / 2."""
    adaptive_boundary: bool
    dynamic_weight: bool
    time_weight: str

    def __post_init__(self) -> None:
        if self.margin is not None:
            number("prm.ipvrm.margin", self.margin, 0.0)
        boolean("prm.ipvrm.adaptive_boundary", self.adaptive_boundary)
        boolean("prm.ipvrm.dynamic_weight", self.dynamic_weight)
        choice("prm.ipvrm.time_weight", self.time_weight, TIME_WEIGHTS)


@dataclass(frozen=True)
class KTOSettings:
    """Options of the loss ``kto`` (``prm.kto``)."""

    mismatched: bool
    """Take the anchor over prompts with responses to other prompts, as in the paper; two more forward passes."""
    desirable_weight: float
    undesirable_weight: float

    def __post_init__(self) -> None:
        boolean("prm.kto.mismatched", self.mismatched)
        number("prm.kto.desirable_weight", self.desirable_weight, 0.0)
        number("prm.kto.undesirable_weight", self.undesirable_weight, 0.0)


@dataclass(frozen=True)
class StepSettings:
    """How steps are joined, labelled and scored by the losses of step labels (``prm.steps``)."""

    score: str
    """One of :data:`STEP_SCORES`."""
    after_error: str
    prefix: str
    separator: str

    def __post_init__(self) -> None:
        choice("prm.steps.score", self.score, STEP_SCORES)
        choice("prm.steps.after_error", self.after_error, AFTER_ERROR)
        for key in ("prefix", "separator"):
            if not isinstance(getattr(self, key), str):
                raise SettingsError(f"prm.steps.{key}={getattr(self, key)!r} must be a text")


@dataclass(frozen=True)
class LossSettings:
    """The section ``prm``."""

    loss: str
    """One of ``LOSSES`` from response labels, or :data:`STEP_LOSSES` from step labels."""
    beta: float | None
    """None: 0.05, and 10 for ``ipvrm``."""
    reference_path: str
    ipvrm: IPVRMSettings
    kto: KTOSettings
    steps: StepSettings

    def __post_init__(self) -> None:
        choice("prm.loss", self.loss, (*LOSSES, *STEP_LOSSES))
        if self.beta is not None:
            number("prm.beta", self.beta, 0.0, open_low=True)
        if not isinstance(self.reference_path, str) or not self.reference_path:
            raise SettingsError(f"prm.reference_path={self.reference_path!r} must be a model path")

    @property
    def by_step(self) -> bool:
        """Whether the data are steps with labels."""
        return self.loss in STEP_LOSSES

    @property
    def hard_labels(self) -> bool:
        return self.loss in LOSSES_OF_HARD_LABELS

    @property
    def scale(self) -> float:
        """The value of beta in use."""
        return BETA_OF_LOSS.get(self.loss, DEFAULT_BETA) if self.beta is None else self.beta

    @property
    def prepare_options(self) -> dict[str, Any]:
        """Options of the loss's part on the whole mini-batch."""
        if self.loss == "ipvrm":
            margin = self.scale / 2 if self.ipvrm.margin is None else self.ipvrm.margin
            return {
                "margin": margin,
                "adaptive_boundary": self.ipvrm.adaptive_boundary,
                "dynamic_weight": self.ipvrm.dynamic_weight,
            }
        if self.loss == "kto":
            return {
                "desirable_weight": self.kto.desirable_weight,
                "undesirable_weight": self.kto.undesirable_weight,
            }
        return {}

    @property
    def loss_options(self) -> dict[str, Any]:
        """Options of the loss's part on a micro-batch."""
        if self.by_step:
            return {"score": self.steps.score}
        return {"time_weight": self.ipvrm.time_weight} if self.loss == "ipvrm" else {}


@dataclass(frozen=True)
class BatchSettings:
    """How a mini-batch is cut into forward passes (``batching``); changes no result."""

    use_dynamic_bsz: bool
    max_token_len_per_gpu: int
    micro_batch_size_per_gpu: int | None

    def __post_init__(self) -> None:
        boolean("batching.use_dynamic_bsz", self.use_dynamic_bsz)
        key = "max_token_len_per_gpu" if self.use_dynamic_bsz else "micro_batch_size_per_gpu"
        whole_number(
            f"batching.{key}", getattr(self, key), 1, f" (use_dynamic_bsz={str(self.use_dynamic_bsz).lower()})"
        )


@dataclass(frozen=True)
class RunSettings:
    """The section ``trainer``."""

    output_dir: str
    epochs: int
    save_freq: int
    keep_checkpoints: int
    val_freq: int
    seed: int
    device: str
    export_dtype: str
    logger: Any
    """Loggers of verl, a list; the metrics file is always written."""
    project_name: str
    experiment_name: str

    def __post_init__(self) -> None:
        if not isinstance(self.output_dir, str) or not self.output_dir:
            raise SettingsError(f"trainer.output_dir={self.output_dir!r} must be a folder")
        whole_number("trainer.epochs", self.epochs, 1)
        whole_number("trainer.save_freq", self.save_freq, 0, " of steps")
        whole_number("trainer.keep_checkpoints", self.keep_checkpoints, 1)
        whole_number("trainer.val_freq", self.val_freq, 0, " of steps")
        whole_number("trainer.seed", self.seed, 0)
        choice("trainer.device", self.device, DEVICES)
        choice("trainer.export_dtype", self.export_dtype, DTYPES)
        if not isinstance(self.logger, list) or not all(isinstance(name, str) for name in self.logger):
            raise SettingsError(f"trainer.logger={self.logger!r} must be a list of verl's loggers")


@dataclass(frozen=True)
class OfflineSettings:
    """The configuration ``offline_prm``, less ``model``, ``engine``, ``optim`` and ``checkpoint``, which are verl's."""

    data: DataSettings
    prm: LossSettings
    batching: BatchSettings
    trainer: RunSettings

    def __post_init__(self) -> None:
        longest = self.batching.max_token_len_per_gpu
        if self.batching.use_dynamic_bsz and longest < self.data.max_length:
            raise SettingsError(
                f"batching.max_token_len_per_gpu={longest} must be at least data.max_length={self.data.max_length}"
            )
        if self.prm.loss == "kto" and self.prm.kto.mismatched and self.data.prompts_per_step < 2:
            raise SettingsError("prm.kto.mismatched=true needs data.prompts_per_step of at least 2")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "OfflineSettings":
        """Build from the resolved configuration. Raises :class:`SettingsError`."""
        prm = values.get("prm")
        if not isinstance(prm, Mapping):
            raise SettingsError(f"prm={prm!r} must be a section with keys")
        parts = {
            "ipvrm": build(IPVRMSettings, prm.get("ipvrm", {}), "prm.ipvrm"),
            "kto": build(KTOSettings, prm.get("kto", {}), "prm.kto"),
            "steps": build(StepSettings, prm.get("steps", {}), "prm.steps"),
        }
        return cls(
            data=build(DataSettings, values.get("data", {}), "data"),
            prm=build(LossSettings, {**prm, **parts}, "prm"),
            batching=build(BatchSettings, values.get("batching", {}), "batching"),
            trainer=build(RunSettings, values.get("trainer", {}), "trainer"),
        )
