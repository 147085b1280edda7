# SPDX-License-Identifier: Apache-2.0
"""Train a pretrained model through verl and by the loop of the studies, and compare the metrics.

    python -m recipes.pretrained.compare_verl --output-dir outputs/pretrained/verl --steps 5

Task, warm start and settings are those of ``recipes/studies/pretrained.yaml``, with half of its
rollouts per step, all prompts and constant rates. Both sides train RLOO and PRIME-D from the same
start, with three seeds: a seed has its own problems, the same on both sides and in the same order,
while responses are drawn independently. A metric is the mean over the steps of a run; the table has
its mean and standard error over the seeds. verl computes in float32, the loop in bfloat16 products.

Writes comparison.json; runs that are there are not repeated.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from examples.minimal_prime import Learner, PRMOutputs, Rollouts, Targets, build_settings
from prime_ext.algorithms.distillation import log_probs_and_reverse_kl
from prime_ext.config.checks import SettingsError
from prime_ext.generate.prm_description import versions
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.utils.files import read_json, write_atomically, write_json
from prime_ext.utils.report_page import format_markdown_table
from prime_ext.utils.run_store import RunError, check_identity
from recipes.command_line import read_options
from recipes.quickstart.quickstart_data import write_parquet
from recipes.run_statistics import format_mean, run_metrics
from recipes.studies.laboratory import StudyTrainer, SumTask, format_prompt, make_task
from recipes.studies.packed_model import MixedRollouts, sample
from recipes.studies.study_report import read_study
from recipes.studies.through_verl import ROOT, run_logged

SEEDS = (0, 1, 2)
METHODS = ("rloo", "distilled")
# Rates are constant, as verl has them by default: its warm-up counts steps and starts at zero, that
# of the loop counts updates.
CHANGES = {
    "rollout.prompts": 16,
    "actor.lr": 5e-6,
    "actor.lr_warmup_steps": 1,
    "prm.lr": 1e-5,
    "prm.lr_warmup_steps": 1,
}
# Names of the table, and metrics of verl.
METRICS = {
    "accuracy of the rollouts": "critic/score/mean",
    "tokens of a response": "response_length/mean",
    "mean -log pi of a response's tokens": "rollout_corr/training_log_ppl",
    "gradient norm of the policy": "actor/grad_norm",
    "loss of the PRM": "prm/loss",
    "gradient norm of the PRM": "prm/grad_norm",
    "pair accuracy of the PRM": "prm/pair_accuracy/before_update",
    "gate": "prime/gate/value",
    "KL to the PRM": "prime/kl/prm",
    "KL to the average": "prime/kl/average",
}


class RecordingLearner:
    """A learner that keeps the losses and gradient norms of its updates."""

    def __init__(self, learner: Learner):
        self.learner = learner
        self.model = learner.model
        self.bias = learner.bias
        self.optimizer = learner.optimizer
        self.losses: list[float] = []
        self.norms: list[float] = []

    def minimize(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss.detach()))
        self.learner.minimize(loss)
        self.norms.append(float(self.learner.norm))


class RecordingTrainer(StudyTrainer):
    """A trainer that keeps the metrics of its steps under the names of verl."""

    def __init__(self, *fields: Any):
        super().__init__(*fields)
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.policy = RecordingLearner(self.policy)
        self.prm = RecordingLearner(self.prm) if self.prm else None

    def collect(self) -> Rollouts:
        batch = super().collect()
        length_B = batch.mask_BT.sum(1)
        self.metrics["critic/score/mean"].append(float(batch.outcome_B.mean()))
        self.metrics["response_length/mean"].append(float(length_B.float().mean()))
        perplexity_B = -(batch.old_BT * batch.mask_BT).sum(1) / length_B
        self.metrics["rollout_corr/training_log_ppl"].append(float(perplexity_B.mean()))
        return batch

    def learn_and_score(self, batch: Rollouts) -> tuple[float, PRMOutputs]:
        gate, scores = super().learn_and_score(batch)
        pairs = self.shares["pair_accuracy"][-1]
        if pairs.accuracy is not None:
            self.metrics["prm/pair_accuracy/before_update"].append(pairs.accuracy)
        self.metrics["prime/gate/value"].append(gate)
        return gate, scores

    @torch.no_grad()
    def kl_targets(self, batch: Rollouts, gate: float, scores: PRMOutputs | None) -> Targets:
        targets = super().kl_targets(batch, gate, scores)
        if targets:
            logits_NV = batch.logits(self.policy.model)
            token_N = batch.response_BT[batch.mask_BT]
            _, kl_NJ = log_probs_and_reverse_kl(logits_NV, token_N, [t for _, t in targets])
            names = [name for name, weight in (("prm", gate), ("average", 1 - gate)) if weight > 0]
            for name, kl_N in zip(names, kl_NJ.T, strict=True):
                self.metrics[f"prime/kl/{name}"].append(float(kl_N.mean()))
        return targets

    def compute_means(self) -> dict[str, float]:
        """Return the means over the steps."""
        means = {name: float(np.mean(values)) for name, values in self.metrics.items()}
        means["actor/grad_norm"] = float(np.mean(self.policy.norms))
        if self.prm:
            means["prm/loss"] = float(np.mean(self.prm.losses))
            means["prm/grad_norm"] = float(np.mean(self.prm.norms))
        return means


def get_problems(task: SumTask, seed: int, count: int) -> list[Any]:
    """Return the problems of a seed."""
    return task.rows[False][seed * count : (seed + 1) * count]


def train_in_loop(
    task: SumTask, start: Path, settings: Mapping[str, Any], seed: int, steps: int
) -> dict[str, float]:
    """Return the metrics of a run by the loop of the studies."""
    problems = iter(get_problems(task, seed, steps * settings["rollout.prompts"]))
    in_order = copy(task)
    in_order.draw = lambda count, generator: list(islice(problems, count))
    trainer = RecordingTrainer(in_order, settings, seed, start)
    trainer.sample = partial(sample, kind=MixedRollouts)
    for _ in range(steps):
        trainer.step()
    return trainer.compute_means()


def train_through_verl(
    task: SumTask,
    start: Path,
    settings: Mapping[str, Any],
    seed: int,
    steps: int,
    run: Path,
    method: str,
) -> dict[str, float]:
    """Return the metrics of a run by ``recipes/pretrained.sh`` in a folder."""
    write_inputs(task, start, run, get_problems(task, seed, steps * settings["rollout.prompts"]))
    knobs = {
        "OUT": run,
        "MODEL": run / "model",
        "STEPS": steps,
        "PROMPTS": settings["rollout.prompts"],
        "ROLLOUTS": settings["rollout.n"],
        "LR": settings["actor.lr"],
        "PRM_LR": settings["prm.lr"],
        "PRM_MINI_BATCH": settings["prm.mini_batch_size"] // settings["rollout.n"],
        "MAX_RESPONSE": task.limit,
        "TEST_FREQ": -1,
    }
    overrides = [
        f"variant={method}",
        "data.shuffle=false",
        f"actor_rollout_ref.rollout.seed={seed}",
        "actor_rollout_ref.actor.optim.betas=[0.9,0.99]",
        "prime.filter.enable=false",
        "trainer.val_before_train=false",
        "trainer.save_freq=-1",
    ]
    if method == "distilled":
        overrides += [
            f"prm.beta={settings['prm.beta']}",
            "prm.optim.betas=[0.9,0.99]",
        ]
    command = ["bash", str(ROOT / "recipes/pretrained.sh"), *overrides]
    run_logged(command, {key: str(value) for key, value in knobs.items()}, run)
    rows = [row for step, row in run_metrics(run).items() if 0 < step <= steps]
    values = {name: [row[name] for row in rows if name in row] for name in METRICS.values()}
    return {name: float(np.mean(numbers)) for name, numbers in values.items() if numbers}


def write_inputs(task: SumTask, start: Path, run: Path, problems: Sequence[Any]) -> None:
    """Write data whose chats are bare prompts, and the start with a template that keeps them."""
    for split, written in (("train", problems), ("test", task.rows[True])):
        rows = [
            rl_row(
                "reasoning_gym/chain_sum",
                [{"role": "user", "content": format_prompt(gold)}],
                "math",
                gold,
                {"split": split, "index": index},
            )
            for index, (_, gold) in enumerate(written)
        ]
        write_parquet(run / "data" / f"{split}.parquet", rows)
    with write_atomically(run / "model") as temporary:
        tokenizer = AutoTokenizer.from_pretrained(start)
        tokenizer.chat_template = "{{ messages[0]['content'] }}"
        tokenizer.save_pretrained(temporary)
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            (temporary / name).symlink_to((start / name).resolve())


def format_table(runs: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> str:
    """Format means and standard errors over seeds, by metric; ``runs`` by method, side and seed."""
    columns = [(method, side) for method in runs for side in runs[method]]
    lines = []
    for label, name in METRICS.items():
        cells = [
            [metrics[name] for metrics in runs[method][side].values() if name in metrics]
            for method, side in columns
        ]
        lines.append([label, *(format_mean(cell, digits=4) if cell else "-" for cell in cells)])
    head = ["", *(f"`{method}`, {side}" for method, side in columns)]
    return format_markdown_table(head, lines, escape=False)


def compare(output_dir: Path, steps: int = 5) -> None:
    """Run what is missing, write comparison.json and print the table.

    ``SettingsError``: the pretrained model is missing. ``RunError``: the runs in the folder have
    other settings. ``RuntimeError``: a run through verl failed.
    """
    study = read_study("pretrained")
    task, start = make_task(study, Path("outputs"))
    folder = output_dir.resolve()
    path = folder / "comparison.json"
    words = dict(word.split("=", 1) for word in study["words"])
    del words["filter"]
    changes = words | CHANGES
    plan = {"steps": steps, "settings": changes}
    runs: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    if path.exists():
        record = read_json(path)
        check_identity(path, {key: record[key] for key in plan}, plan)
        runs = record["runs"]
    for seed in SEEDS:
        for method in METHODS:
            inputs = (task, start, build_settings(method, changes), seed, steps)
            run = folder / f"{method}_seed{seed}"
            sides = {
                "loop": partial(train_in_loop, *inputs),
                "verl": partial(train_through_verl, *inputs, run, method),
            }
            for side, train in sides.items():
                metrics = runs.setdefault(method, {}).setdefault(side, {})
                if str(seed) not in metrics:
                    print(f"{method}, {side}, seed {seed}", flush=True)
                    metrics[str(seed)] = train()
                    write_json(path, plan | {"versions": versions(), "runs": runs})
    print(f"{path}:\n\n{format_table(runs)}")


if __name__ == "__main__":
    try:
        compare(**read_options(__doc__, "output-dir", "steps"))
    except (SettingsError, RunError) as error:
        raise SystemExit(f"error: {error}") from None
