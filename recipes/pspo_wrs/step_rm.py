# SPDX-License-Identifier: Apache-2.0
"""Train a step reward model of PSPO-WRS on the CPU, in ``step_rm_<labeler>/model``.

    python -m recipes.pspo_wrs.step_rm --run-dir outputs/pspo_quickstart

The folder holds the data (``recipes.pspo_wrs.pspo_data``) and the warm-started policy, and for the
labeler ``rollouts`` the labels of ``data_preprocessing.step_labels``. A complete model is kept, and
training resumes from its last checkpoint.
"""

import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from prime_ext.utils.files import write_atomically
from recipes.command_line import read_options
from recipes.quickstart.evaluate import load_model
from recipes.quickstart.small_model import BOS, VOCABULARY, character_tokenizer

# The labeler whose labels are the outcomes of continued prefixes, of fewer responses than those of
# the others. So the model reads them more often.
ROLLOUTS = "rollouts"
ROLLOUTS_EPOCHS = 8
# The question, fifteen steps before and the step itself, each with its separator; in tokens.
MAX_LENGTH = 128
# The model sees the question and the previous step. PSPO shows only the previous step, from which
# the model cannot tell whether a step answers the question.
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


def pair_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of the policy's ids, a line break and the pair encoder's probe letter."""
    processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, VOCABULARY.index(BOS))]
    )
    return character_tokenizer((*VOCABULARY, "\n", "a"), processor, model_max_length=MAX_LENGTH)


def write_step_rm_start(policy: Path, output_dir: Path, seed: int = 0) -> None:
    """Write the start of a step reward model (``model.path``): the warm-started policy's body.

    From random weights a classifier of this size does not learn the 210 facts of the task in a
    minute, with one label per input; a language model gets a lesson from every token. PSPO starts
    from a pretrained BERT. The embeddings of the two tokens that the policy lacks are random, from
    ``seed``.
    """
    tokenizer = pair_tokenizer()
    model, _ = load_model(policy)
    torch.manual_seed(seed)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with write_atomically(output_dir) as temporary:
        model.base_model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def train_step_rm(run_dir: Path, labeler: str = "honest", seed: int = 0) -> None:
    """Train a step reward model from the labels of one labeler, if it is not there."""
    folder = run_dir.resolve()
    target = folder / f"step_rm_{labeler}"
    start = folder / "step_rm_start"
    if (target / "results.json").exists():
        return
    if not (start / "config.json").exists():
        write_step_rm_start(folder / "sft", start, seed)
    steps = target / "steps.parquet"

    def run_module(*words: str) -> None:
        subprocess.run([sys.executable, "-m", *words], cwd=Path(__file__).parents[2], check=True)

    if not steps.exists():
        chains = f"--chains={folder}/data/steps_{labeler}.jsonl"
        labels = f"--stepwise={folder}/labels/samples.parquet"
        # Questions of one template differ in their numbers only.
        run_module(
            "prime_ext.step_rm.convert",
            labels if labeler == ROLLOUTS else chains,
            "--near-duplicates=text",
            f"--output={steps}",
        )
    places = (f"model.path={start}", f"data.files={steps}", f"trainer.output_dir={target}")
    settings = [f"trainer.seed={seed}", *STEP_RM_SETTINGS]
    if labeler == ROLLOUTS:
        settings.append(f"optim.epochs={ROLLOUTS_EPOCHS}")
    run_module("prime_ext.step_rm.train", *places, *settings)


if __name__ == "__main__":
    train_step_rm(**read_options(__doc__, "run-dir", "labeler", "seed"))
