# SPDX-License-Identifier: Apache-2.0
"""What ``train_implicit_prm.sh`` runs on with ``SHRINK=1``: an untrained tiny model and a few labelled responses.

    python -m recipes.shrink.prm outputs/eurusprm_stage1/shrunk/inputs prm.loss=ce

Prints the overrides, one per line, that come after those of the recipe, which are its further arguments.
"""

import argparse
from pathlib import Path
from typing import Any

from prime_ext.offline_prm.settings import STEP_LOSSES
from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_json_lines
from recipes.shrink.prepare import write_model

PROMPTS = {"train": 4, "val": 2}
LABELS = ("responses", "steps")


def rows(split: str, labels: str) -> list[dict[str, Any]]:
    """Problems of the quickstart, each with a right and a wrong response: the wrong one ends in another digit."""
    found = []
    for problem in task.generate_problems(split, PROMPTS[split], seed=0):
        right = task.solve(problem).split(";")
        wrong = [*right[:-1], f"\\boxed{{{(problem.answer + 1) % 10}}}"]
        for number, steps in enumerate((right, wrong)):
            if labels == "steps":
                found.append({"prompt": problem.prompt, "steps": steps, "label": len(steps) - 1 if number else -1})
            else:
                found.append({"prompt": problem.prompt, "completions": [";".join(steps)], "correctness": [1 - number]})
    return found


def overrides(folder: Path, labels: str) -> list[str]:
    """What comes after the overrides of a recipe: two steps of two prompts."""
    model = folder / "model"
    return [
        "trainer.device=cpu",
        f"model.path={model}",
        f"prm.reference_path={model}",
        f"data.train_files={folder}/train_{labels}.jsonl",
        f"data.val_files={folder}/val_{labels}.jsonl",
        "data.val_fraction=0",
        "data.max_length=96",
        "data.prompts_per_step=2",
        # The tokenizer knows neither letters nor line breaks.
        "prm.steps.prefix=''",
        "prm.steps.separator=';'",
        "batching.max_token_len_per_gpu=512",
        "trainer.epochs=1",
        "trainer.save_freq=1",
        "trainer.val_freq=1",
        "trainer.logger=[]",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="overrides of the recipe")
    options = parser.parse_args()
    folder = options.folder.resolve()
    losses = [word.partition("=")[2] for word in options.words if word.startswith("prm.loss=")]
    labels = LABELS[bool(losses) and losses[-1] in STEP_LOSSES]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "config.json").exists():
        write_model(folder / "model")
    for split in PROMPTS:
        write_json_lines(folder / f"{split}_{labels}.jsonl", rows(split, labels))
    print("\n".join(overrides(folder, labels)))


if __name__ == "__main__":
    main()
