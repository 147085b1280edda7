# SPDX-License-Identifier: Apache-2.0
"""Settings of offline PRM training (config/offline_prm_common.yaml), checked without torch."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from prime_ext.config.checks import STRICT, Count, CountOrZero, Positive, Share, Switch, Text
from prime_ext.run.training_runs import Paths

STEP_LOSS = "step_ce"


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

    prefix: str
    separator: str


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
        """Yield what cannot work, a line each."""
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
