# SPDX-License-Identifier: Apache-2.0
"""What both CPU recipes of PSPO-WRS start from: data, a warm-started policy, step reward models. In this order:

    python -m recipes.pspo_wrs.prepare data --dir outputs/pspo_quickstart --seed 0
    python -m recipes.pspo_wrs.prepare warm-start --dir outputs/pspo_quickstart
    python -m recipes.pspo_wrs.prepare step-rm --dir outputs/pspo_quickstart --labeller honest

What is complete is kept, and the training of a step reward model goes on from its last checkpoint.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from recipes.pspo_wrs.data import LABELLERS, write_data
from recipes.pspo_wrs.step_rm_start import MAX_LENGTH, write_start

ROOT = Path(__file__).resolve().parents[2]
# The model is shown the question and the previous step. PSPO shows it the previous step only, by which it cannot tell
# whether a step does what is asked.
STEP_RM_SETTINGS = (
    "data.question=true",
    "data.previous=1",
    'data.separator=";"',
    f"data.max_length={MAX_LENGTH}",
    "optim.lr=1e-3",
    "optim.epochs=4",
    "optim.batch_size=128",
    "trainer.metric=nll",
    "trainer.evals_per_epoch=2",
    "trainer.patience=0",
    "trainer.eval_batch_size=256",
    "trainer.keep_checkpoints=1",
    "trainer.device=cpu",
)


def _run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=True)


def prepare_data(folder: Path, seed: int = 0) -> Path:
    """The data; returns their folder."""
    if not (folder / "data" / "data.json").exists():
        write_data(folder / "data", seed=seed)
    return folder / "data"


def warm_start(folder: Path, steps: int = 1200, seed: int = 0) -> Path:
    """A policy that imitates the demonstrations; returns its folder."""
    target = folder / "sft"
    if not (target / "sft.json").exists():
        data = folder / "data" / "sft.parquet"
        _run("recipes.quickstart.sft", f"--data={data}", f"--output-dir={target}", f"--steps={steps}", f"--seed={seed}")
    return target


def train_step_rm(folder: Path, labeller: str, seed: int = 0) -> Path:
    """A step reward model from the labels of one labeller; returns the folder of the model."""
    target = folder / f"step_rm_{labeller}"
    if (target / "results.json").exists():
        return target / "model"
    start = folder / "step_rm_start"
    if not (start / "config.json").exists():
        write_start(folder / "sft", start)
    steps = target / "steps.parquet"
    if not steps.exists():
        chains = folder / "data" / f"steps_{labeller}.jsonl"
        # Questions of one template differ in their numbers only.
        _run("prime_ext.step_rm.convert", f"--chains={chains}", "--near-duplicates=text", f"--output={steps}")
    places = (f"model.path={start}", f"data.files={steps}", f"trainer.output_dir={target}")
    _run("prime_ext.step_rm.train", *places, f"trainer.seed={seed}", *STEP_RM_SETTINGS)
    return target / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("data", "warm-start", "step-rm"))
    parser.add_argument("--dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--labeller", choices=LABELLERS, default="honest")
    parser.add_argument("--sft-steps", type=int, default=1200, help="optimiser steps of the warm start")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = options.dir.resolve()
    if options.part == "data":
        prepare_data(folder, options.seed)
    elif options.part == "step-rm":
        train_step_rm(folder, options.labeller, options.seed)
    else:
        warm_start(folder, options.sft_steps, options.seed)


if __name__ == "__main__":
    main()
