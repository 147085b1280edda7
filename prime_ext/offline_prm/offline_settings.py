# SPDX-License-Identifier: Apache-2.0
"""Settings of offline PRM training (config/offline_prm_common.yaml), checked without torch."""

from collections.abc import Iterable
from typing import Annotated, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import (
    STRICT,
    Count,
    CountOrZero,
    Escaped,
    Number,
    Positive,
    PositiveOrZero,
    SettingsError,
    Share,
    Switch,
    Text,
    read,
)
from prime_ext.run.training_runs import Paths

STEP_LOSS = "step_ce"
# Contents of a checkpoint that a resumed run needs.
NEEDED_CONTENTS = ("model", "optimizer", "extra")


@dataclass(frozen=True, config=STRICT)
class OfflineDataSettings:
    """The section ``data``."""

    train_files: Paths
    val_files: Paths
    val_fraction: Share
    split_seed: CountOrZero
    max_length: Annotated[int, Field(strict=True, ge=2)]
    append_eos: Switch
    prompts_per_step: Count
    seed: CountOrZero


@dataclass(frozen=True, config=STRICT)
class OfflineStepSettings:
    """The section ``prm.steps``, of the loss of step labels."""

    prefix: Escaped
    separator: Escaped


@dataclass(frozen=True, config=STRICT)
class LossSettings:
    """The section ``prm``."""

    loss: Literal["ce", "dpo", "nca", "kto", "step_ce"]
    beta: Positive
    reference_path: Text
    steps: OfflineStepSettings

    @property
    def by_step(self) -> bool:
        return self.loss == STEP_LOSS


@dataclass(frozen=True, config=STRICT)
class BatchSettings:
    """The section ``batching``, which changes no result."""

    max_token_len_per_gpu: Count


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
    logger: Annotated[list[str], Field(description="a list of verl's loggers")]
    project_name: str
    experiment_name: str


@dataclass(frozen=True, config=STRICT)
class OfflineSettings:
    """The configuration ``offline_prm`` without verl's model, engine, optim and checkpoint."""

    data: OfflineDataSettings
    prm: LossSettings
    batching: BatchSettings
    trainer: RunSettings

    def problems(self) -> Iterable[str]:
        """Yield a line for each setting that cannot work."""
        data = self.data
        longest = self.batching.max_token_len_per_gpu
        if not data.train_files:
            yield (
                "data.train_files is missing; give a parquet or JSON Lines file, or a list of them"
            )
        if data.val_files and data.val_fraction:
            yield f"data.val_fraction={data.val_fraction} must be 0 when data.val_files is given"
        if data.val_fraction == 1:
            yield "data.val_fraction=1 leaves nothing to train on"
        if longest < data.max_length:
            yield (
                f"batching.max_token_len_per_gpu={longest} must be at least"
                f" data.max_length={data.max_length}"
            )


_BelowOne = Annotated[Number, Field(ge=0, lt=1)]


@dataclass(frozen=True, config={"extra": "ignore"})
class OptimizerRanges:
    """Ranges of verl's ``optim`` outside of which a run learns nothing, or moves backwards."""

    lr: Positive
    lr_warmup_steps_ratio: _BelowOne
    lr_scheduler_type: Literal["constant", "cosine"]
    weight_decay: PositiveOrZero
    betas: tuple[_BelowOne, _BelowOne]
    clip_grad: Positive
    min_lr_ratio: Share | None = None


def check_optimizer(optim: DictConfig) -> Iterable[str]:
    """Yield values of ``optim`` by which training does nothing, a line each."""
    try:
        read(OptimizerRanges, OmegaConf.to_container(optim, resolve=True), "optim")
    except SettingsError as error:
        yield from error.problems


def check_warmup(optim: DictConfig, total_steps: int) -> Iterable[str]:
    """Yield a line if the learning rate rises for longer than the run is."""
    steps = optim.lr_warmup_steps or 0
    if steps >= total_steps:
        yield (
            f"optim.lr_warmup_steps={steps} must be below the {total_steps} steps of this run, or"
            " -1 for optim.lr_warmup_steps_ratio"
        )


def check_contents(checkpoint: DictConfig) -> Iterable[str]:
    """Yield a line if checkpoints lack contents that a resumed run needs."""
    for key in ("save_contents", "load_contents"):
        contents = list(checkpoint[key] or [])
        if missing := [name for name in NEEDED_CONTENTS if name not in contents]:
            yield (
                f"checkpoint.{key}=[{','.join(contents)}] lacks {' and '.join(missing)}, which a"
                " resumed run needs; the final model is always written"
            )
            return
