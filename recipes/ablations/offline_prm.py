# SPDX-License-Identifier: Apache-2.0
"""The PRM of the offline variant: trained on responses of the warm-started policy, then never again."""

import os
import subprocess
import sys
from pathlib import Path

from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import write_json_lines
from recipes.ablations.suites import Suite
from recipes.quickstart.respond import load_model, load_problems, respond

ROOT = Path(__file__).resolve().parents[2]
# As many labelled responses as 24 online steps of 16 prompts with 4 rollouts see, from prompts of the training split.
PROMPTS, ROLLOUTS = 384, 4
OVERRIDES = (
    "prm.beta=0.2",
    "optim.lr=1e-3",
    "optim.betas=[0.9,0.99]",
    "optim.clip_grad=10.0",
    "data.prompts_per_step=4",
    "data.max_length=128",
    "trainer.epochs=1",
)


def train_offline_prm(suite: Suite, folder: Path) -> Path:
    """Sample, label, train; returns the folder of the PRM. What exists already is kept."""
    target = folder / "offline_prm"
    if (target / "hf" / "config.json").exists():
        return target / "hf"
    data = folder / "offline_rollouts.jsonl"
    if not data.exists():
        model, tokenizer = load_model(folder / "sft")
        problems = load_problems(folder / "data" / "train.parquet", PROMPTS)
        texts: list[list[str]] = [[] for _ in problems]
        for seed in range(ROLLOUTS):
            responses = respond(
                model, tokenizer, problems, temperature=1.0, seed=1000 + seed, description=f"offline rollouts {seed}",
                max_response_length=suite.max_response_length,
            )  # fmt: skip
            for of_problem, response in zip(texts, responses, strict=True):
                of_problem.append(response.text)
        rows = [
            {
                "dataset": task.DATA_SOURCE,
                "prompt": [{"role": "user", "content": problem.prompt}],
                "completions": of_problem,
                "correctness": [task.outcome_reward(text, problem.ground_truth) for text in of_problem],
            }
            for problem, of_problem in zip(problems, texts, strict=True)
        ]
        write_json_lines(data, rows)
    command = ["bash", str(ROOT / "recipes" / "train_implicit_prm.sh"), str(folder / "sft"), str(data), *OVERRIDES]
    environment = {**os.environ, "OUTPUT_DIR": str(target), "DEVICE": "cpu", "PYTHON": sys.executable}
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    return target / "hf"
