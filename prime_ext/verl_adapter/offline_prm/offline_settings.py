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
    interpolate,
    read,
)
from prime_ext.run.training_runs import Paths

STEP_LOSS = "step_ce"
# Contents of a checkpoint that a resumed run needs.
NEEDED_CONTENTS = ("model", "optimizer", "extra")


@dataclass(frozen=True, config=STRICT)
class OfflineDataSettings:
    """The section ``data``."""

    train_files: Paths = Field(default_factory=list)
    """Parquet or JSON Lines files, a path or a list. Response labels: prompt, completions,
    correctness. Step labels: prompt, completions (the steps of one response) and labels (one per
    step), as in TRL."""
    val_files: Paths = Field(default_factory=list)
    """The same for validation, without prompts of train_files; []: a share of their prompts."""
    val_fraction: Share = 0.02
    """Fraction of the prompts that is held out for validation, chosen by hash of the prompt; 0:
    none."""
    split_seed: CountOrZero = 0
    """Seed of the choice of held-out prompts."""
    max_length: Annotated[int, Field(strict=True, ge=2)] = 8192
    """Tokens of prompt and response together. Longer responses are dropped, as their label is not
    that of a part of them; with step labels they are cut. Prompts that leave no room are
    dropped."""
    append_eos: Switch = True
    """End every response with the end-of-sequence token, as the policy does."""
    prompts_per_step: Count = 8
    """Prompts per optimizer step over all ranks, each with all its responses; 8 prompts with 8
    responses are the usual 64."""
    seed: CountOrZero = 1
    """Seed of the order of the prompts."""


@dataclass(frozen=True, config=STRICT)
class OfflineStepSettings:
    """The section ``prm.steps``, of the loss of step labels."""

    prefix: Escaped = "Step {n}: "
    """How steps become one response: the text before each ({n} is its number). On the command line
    \\n, \\t and \\\\ are escapes."""
    separator: Escaped = "\n\n"
    """The text between the steps."""


@dataclass(frozen=True, config=STRICT)
class LossSettings:
    """The section ``prm``."""

    loss: Literal["ce", "dpo", "nca", "kto", "step_ce"] = "ce"
    """For response labels: ce, dpo (detached opponents), kto, nca. For step labels (EurusPRM stage
    2): step_ce (cross-entropy of beta times the sum of q up to each step's end)."""
    beta: Positive = 0.05
    """Scale of the log-ratios."""
    reference_path: Text = interpolate("${model.path}")
    """Model of the frozen reference."""
    steps: OfflineStepSettings = OfflineStepSettings()
    """How steps become one response, with step labels."""

    @property
    def by_step(self) -> bool:
        return self.loss == STEP_LOSS


@dataclass(frozen=True, config=STRICT)
class BatchSettings:
    """The section ``batching``, which changes no result."""

    max_token_len_per_gpu: Count = 16384
    """Maximum number of tokens per forward pass. Results do not depend on it."""


@dataclass(frozen=True, config=STRICT)
class RunSettings:
    """The section ``trainer``."""

    output_dir: Text = "outputs/implicit_prm"
    """Folder of checkpoints, metrics.jsonl and, in hf/, the final model."""
    epochs: Count = 1
    """Passes over the prompts."""
    save_freq: CountOrZero = 200
    """Steps between checkpoints; 0: only one at the end."""
    keep_checkpoints: Count = 2
    """Number of latest checkpoints to keep."""
    val_freq: CountOrZero = 100
    """Steps between validations, in addition to those at the start and the end; 0: only these."""
    seed: CountOrZero = 1
    """Seed of dropout and new weights."""
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    """auto: an accelerator if there is one."""
    logger: list[str] = Field(default_factory=list)
    """verl's loggers in addition to metrics.jsonl: console, tensorboard, wandb, mlflow, swanlab,
    ..."""
    project_name: str = "prime_ext"
    """Name of the project for the loggers."""
    experiment_name: str = "implicit_prm"
    """Name of the run for the loggers."""


@dataclass(frozen=True, config=STRICT)
class OfflineSettings:
    """The configuration ``offline_prm`` without verl's model, engine, optim and checkpoint."""

    data: OfflineDataSettings = OfflineDataSettings()
    """Files, and the tokens that are read of them."""
    prm: LossSettings = LossSettings()
    """Loss and reference."""
    batching: BatchSettings = BatchSettings()
    """Size of forward passes."""
    trainer: RunSettings = RunSettings()
    """Length of the run, and what it writes."""

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
