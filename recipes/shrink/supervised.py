# SPDX-License-Identifier: Apache-2.0
"""What a supervised recipe runs on with ``SHRINK=1``: an untrained tiny model and a few generated rows.

    python -m recipes.shrink.supervised sft_trainer_engine outputs/eurus2_7b_sft/shrunk/inputs

Prints the overrides, one per line, that come after those of the recipe: sizes, paths and what a CPU needs. Everything
else stays as the recipe says it.
"""

import argparse
from pathlib import Path

from prime_ext.config.compose import SFT_CONFIG
from prime_ext.plan.supervised import STEP_RM_CONFIG
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_json_lines
from recipes.pspo_wrs.data import labelled_chains
from recipes.pspo_wrs.step_rm_start import MAX_LENGTH
from recipes.pspo_wrs.task import generate_problems
from recipes.quickstart.data import sft_rows, write_parquet
from recipes.shrink.prepare import write_model, write_step_rm

ROWS = {"train": 16, "val": 8}
# About 270 steps, of which some are for validation and test.
CHAINS, CHAIN_BATCH = 64, 160


def prepare_sft(folder: Path) -> list[str]:
    """Model and conversations; returns the overrides."""
    if not (folder / "model" / "config.json").exists():
        write_model(folder / "model")
    for name, size in ROWS.items():
        rows = sft_rows(task.generate_problems(name, size, seed=0), mean_error=0.2, misconception_seed=0, seed=0)
        write_parquet(folder / f"{name}.parquet", rows)
    precision = "param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32"
    return [
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
        "data.train_batch_size=8",
        "data.max_length=128",
        "data.max_token_len_per_gpu=1024",
        "data.num_workers=0",
        f"model.path={folder}/model",
        "model.use_remove_padding=false",
        "model.enable_gradient_checkpointing=false",
        "+model.override_config.attn_implementation=sdpa",
        "engine.strategy=fsdp2",
        "engine.ulysses_sequence_parallel_size=1",
        "engine.use_torch_compile=false",
        f"+engine.mixed_precision={{{precision}}}",
        "trainer.device=cpu",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "trainer.total_epochs=2",
        "trainer.total_training_steps=2",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
    ]


def prepare_step_rm(folder: Path) -> list[str]:
    """Model and labelled chains, which the recipe converts; returns the overrides."""
    if not (folder / "model" / "config.json").exists():
        write_step_rm(folder / "model")
    problems = generate_problems("sft", CHAINS, seed=0, unique=True)
    write_json_lines(folder / "chains.jsonl", labelled_chains(problems, lenient=False, seed=0))
    return [
        f"model.path={folder}/model",
        'data.separator=";"',
        f"data.max_length={MAX_LENGTH}",
        # Two updates.
        "optim.epochs=1",
        f"optim.batch_size={CHAIN_BATCH}",
        "optim.accumulation=1",
        "trainer.evals_per_epoch=2",
        "trainer.device=cpu",
        "trainer.dtype=float32",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", choices=(SFT_CONFIG, STEP_RM_CONFIG))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print("\n".join(prepare_sft(folder) if options.config == SFT_CONFIG else prepare_step_rm(folder)))


if __name__ == "__main__":
    main()
