# SPDX-License-Identifier: Apache-2.0
"""Settings of offline PRM training, checked before a model is loaded; nothing here imports torch."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    Positive,
    Share,
    Switch,
    Text,
    read,
    refuse,
)
from prime_ext.config.settings import LOSSES_OF_HARD_LABELS

STEP_LOSSES = ("step_ce", "step_mse")
# Losses that need responses of both classes.
LOSSES_OF_MIXED_GROUPS = ("dpo",)

Paths = Annotated[Text | list[Text] | None, Field(description="a path or a list of paths")]


@dataclass(frozen=True, config=STRICT)
class DataSettings:
    """What is trained on (``data``)."""

    train_files: Paths
    val_files: Paths
    """None: a share of the prompts of ``train_files``."""
    val_fraction: Share
    """Share of the prompts held out, by hash."""
    split_seed: CountOrZero
    max_length: Annotated[int, Field(strict=True, ge=2)]
    """Tokens of prompt and response."""
    overlong: Literal["truncate", "drop", "error"]
    append_eos: Switch
    prompts_per_step: Count
    """Prompts per optimiser step over all ranks, with all their responses."""
    seed: CountOrZero
    """Of the order of the prompts."""

    @property
    def train_paths(self) -> list[str]:
        return _paths(self.train_files)

    @property
    def val_paths(self) -> list[str]:
        return _paths(self.val_files)


def _paths(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


@dataclass(frozen=True, config=STRICT)
class StepSettings:
    """How steps are joined, labelled and scored by the losses of step labels (``prm.steps``)."""

    score: Literal["prefix", "step"]
    after_error: Literal["wrong", "keep", "ignore"]
    prefix: str
    separator: str


@dataclass(frozen=True, config=STRICT)
class LossSettings:
    """The section ``prm``."""

    loss: Literal["ce", "dpo", "nca", "kto", "step_ce", "step_mse"]
    """From response labels, or one of :data:`STEP_LOSSES` from step labels."""
    beta: Positive
    reference_path: Text
    steps: StepSettings

    @property
    def by_step(self) -> bool:
        """Whether the data are steps with labels."""
        return self.loss in STEP_LOSSES

    @property
    def hard_labels(self) -> bool:
        return self.loss in LOSSES_OF_HARD_LABELS


@dataclass(frozen=True, config=STRICT)
class BatchSettings:
    """How a mini-batch is cut into forward passes (``batching``); changes no result."""

    use_dynamic_bsz: Switch
    max_token_len_per_gpu: Count
    micro_batch_size_per_gpu: Count | None


@dataclass(frozen=True, config=STRICT)
class RunSettings:
    """The section ``trainer``."""

    output_dir: Text
    epochs: Count
    save_freq: CountOrZero
    keep_checkpoints: Count
    val_freq: CountOrZero
    seed: CountOrZero
    device: Literal["auto", "cpu", "cuda", "npu"]
    export_dtype: Literal["float32", "bfloat16", "float16"]
    logger: Annotated[list[str], Field(description="a list of verl's loggers")]
    """The metrics file is always written."""
    project_name: str
    experiment_name: str


@dataclass(frozen=True, config=STRICT)
class OfflineSettings:
    """The configuration ``offline_prm``, less ``model``, ``engine``, ``optim`` and ``checkpoint``, which are verl's."""

    data: DataSettings
    prm: LossSettings
    batching: BatchSettings
    trainer: RunSettings

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "OfflineSettings":
        """Build from the resolved configuration. Raises ``SettingsError``."""
        sections = get_type_hints(cls)
        settings = cls(**{name: read(kind, values.get(name), name) for name, kind in sections.items()})
        refuse(settings._problems())
        return settings

    def _problems(self) -> Iterable[str]:
        data, batching = self.data, self.batching
        if not data.train_paths:
            yield "data.train_files is missing; give a parquet or JSON Lines file, or a list of them"
        if data.val_paths and data.val_fraction:
            yield f"data.val_fraction={data.val_fraction} must be 0 when data.val_files is given"
        if data.val_fraction == 1:
            yield "data.val_fraction=1 leaves nothing to train on"
        if batching.use_dynamic_bsz and batching.max_token_len_per_gpu < data.max_length:
            yield (
                f"batching.max_token_len_per_gpu={batching.max_token_len_per_gpu} must be at least "
                f"data.max_length={data.max_length}"
            )
        if not batching.use_dynamic_bsz and batching.micro_batch_size_per_gpu is None:
            yield "batching.micro_batch_size_per_gpu is missing (use_dynamic_bsz=false)"
