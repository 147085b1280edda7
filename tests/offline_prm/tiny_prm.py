# SPDX-License-Identifier: Apache-2.0
"""A tiny byte-level Llama, and labeled responses; correct ones have even digits only."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from forked_workers import python
from tiny_llama import save_llama

ROOT = Path(__file__).resolve().parents[2]


def save_tiny_model(path, max_positions=512):
    save_llama(path, max_positions=max_positions, spread=0.08)


def digits(rng, correct, n=4):
    even = [rng.choice("02468") for _ in range(n)]
    if not correct:
        even[rng.randrange(n)] = rng.choice("13579")
    return " ".join(even)


def response_rows(n_prompts, seed=0, responses=4):
    """Return prompts with correct and wrong responses, at least one of each."""
    rng = random.Random(seed)
    rows = []
    for number in range(n_prompts):
        correctness = [True, False, *[rng.random() < 0.5 for _ in range(responses - 2)]]
        rng.shuffle(correctness)
        completions = [digits(rng, correct, rng.randint(3, 5)) for correct in correctness]
        rows.append({"dataset": "even", "prompt": f"p{number}?", "completions": completions})
        rows[-1]["correctness"] = correctness
    return rows


def step_rows(n, seed=0):
    """Return ProcessBench-like rows of three steps, labeled by the first with an odd digit."""
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        wrong = rng.choice([-1, 0, 1, 2])
        steps = [digits(rng, not 0 <= wrong <= step, 2) for step in range(3)]
        rows.append({"problem": f"p{number}?", "steps": steps, "label": wrong})
    return rows


def labeled_steps(rows):
    """Yield the same for training: a label for each step."""
    for row in rows:
        labels = [int(step != row["label"]) for step in range(len(row["steps"]))]
        yield {"prompt": row["problem"], "completions": row["steps"], "labels": labels}


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def overrides(model, data, output, **more):
    """Return overrides of a small run."""
    values = {
        "model.path": model,
        "data.train_files": data,
        "trainer.output_dir": output,
        "data.max_length": 64,
        "data.val_fraction": 0.2,
        "data.prompts_per_step": 4,
        "optim.lr": 1e-2,
        "prm.beta": 0.5,
        "trainer.save_freq": 0,
        "trainer.val_freq": 0,
        **more,
    }
    return [f"{key}={value}" for key, value in values.items()]


def train(arguments):
    """Run the command as a user would."""
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    command = [python(), "-m", "prime_ext.offline_prm", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )


def final_weights(output):
    from safetensors.torch import load_file

    return load_file(Path(output) / "hf" / "model.safetensors")


def write_example(folder):
    """Write model and data of docs/reference/offline_prm.md: ``python .../tiny_prm.py FOLDER``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tiny_model(folder / "model", max_positions=4096)
    write_jsonl(folder / "responses.jsonl", response_rows(60))
    write_jsonl(folder / "steps.jsonl", labeled_steps(step_rows(200)))
    candidates = response_rows(24, seed=5, responses=16)
    for row in candidates:
        # What a candidate votes for: wrong ones have one of three answers.
        row["answers"] = [str(sum(map(int, text.split())) % 3) for text in row["completions"]]
        row["correctness"] = [int(value) for value in row["correctness"]]
    write_jsonl(folder / "candidates.jsonl", candidates)
    # Two splits of the same kind.
    for seed, split in ((7, "gsm8k"), (8, "math")):
        write_jsonl(folder / f"{split}.jsonl", step_rows(100, seed))


if __name__ == "__main__":
    write_example(Path(sys.argv[1]))
