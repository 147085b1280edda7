# SPDX-License-Identifier: Apache-2.0
"""Train a step reward model of the CPU recipes of PSPO-WRS from one labeller, in ``step_rm_<labeller>/model``.

    python -m recipes.pspo_wrs.step_rm --dir outputs/pspo_quickstart --labeller honest

The folder holds the data (``recipes.pspo_wrs.data``) and the warm-started policy. A complete model is kept, and the
training goes on from its last checkpoint.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from prime_ext.utils.files import atomic_path
from recipes.pspo_wrs.data import LABELLERS
from recipes.quickstart.evaluate import load_model
from recipes.quickstart.tokenizer import BOS, VOCABULARY, character_tokenizer

# The question, fifteen steps before and the step itself, each with its separator; in tokens.
MAX_LENGTH = 128
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


def run_module(*words: str) -> None:
    """Run ``python -m`` with these words from the root of the repository."""
    subprocess.run([sys.executable, "-m", *words], cwd=Path(__file__).parents[2], check=True)


def pair_tokenizer() -> PreTrainedTokenizerFast:
    """The policy's tokens with their numbers, a line break and the letter by which the pair encoder finds the frame."""
    processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, VOCABULARY.index(BOS))]
    )
    return character_tokenizer((*VOCABULARY, "\n", "a"), processor, model_max_length=MAX_LENGTH)


def write_step_rm_start(policy: Path, output_dir: Path, seed: int = 0) -> None:
    """What a step reward model starts from: the body of the warm-started policy, for ``model.path``.

    From random weights a classifier of this size does not learn the 210 facts of the task in a minute, with one label
    per input; a language model gets a lesson from every token. PSPO starts from a pretrained BERT. The embeddings of
    the two tokens that the policy lacks are random, from ``seed``.
    """
    tokenizer = pair_tokenizer()
    model, _ = load_model(policy)
    torch.manual_seed(seed)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with atomic_path(output_dir) as temporary:
        model.base_model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    print(f"{output_dir}: the body of {policy}, {model.base_model.num_parameters():,} parameters")


def train_step_rm(folder: Path, labeller: str, seed: int = 0) -> None:
    """Train a step reward model from the labels of one labeller, if it is not there."""
    target, start = folder / f"step_rm_{labeller}", folder / "step_rm_start"
    if (target / "results.json").exists():
        return
    if not (start / "config.json").exists():
        write_step_rm_start(folder / "sft", start, seed)
    steps = target / "steps.parquet"
    if not steps.exists():
        chains = folder / "data" / f"steps_{labeller}.jsonl"
        # Questions of one template differ in their numbers only.
        run_module("prime_ext.step_rm.convert", f"--chains={chains}", "--near-duplicates=text", f"--output={steps}")
    places = (f"model.path={start}", f"data.files={steps}", f"trainer.output_dir={target}")
    run_module("prime_ext.step_rm.train", *places, f"trainer.seed={seed}", *STEP_RM_SETTINGS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--labeller", choices=LABELLERS, default="honest")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train_step_rm(options.dir.resolve(), options.labeller, options.seed)


if __name__ == "__main__":
    main()
