# SPDX-License-Identifier: Apache-2.0
"""Runs of studies in one process, by an extended trainer of examples/minimal_prime.py.

It adds wrong labels, times and labels of steps. The task is chains, or a task of reasoning-gym for
a pretrained model.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, logging

from examples.minimal_prime import (
    ChainTask,
    PRMOutputs,
    Rollouts,
    TextTask,
    Trainer,
    build_settings,
    write_start,
)
from prime_ext.algorithms.prm_accuracy import count_pairs
from prime_ext.config.checks import SettingsError
from prime_ext.tasks.gym_problems import generate
from prime_ext.utils.files import read_json, write_json
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import check_identity
from prime_ext.utils.text_tokens import TextEncoder
from prime_ext.verifiers.gym_verifier import GymVerifier

CURVE = ("rollouts", "seconds", "accuracy", "step_accuracy", "pair_accuracy", "gate", "step_auc")


def label_steps(task: ChainTask, rollouts: Rollouts) -> tuple[torch.Tensor, torch.Tensor]:
    """Return labels of results (1: right from the value before) and their mask, both ``(B, T)``."""
    operation_BK = rollouts.prompt_BP[:, 2:-1] - task.first_operation
    response_BT = rollouts.response_BT
    before_BK = response_BT[:, 0:-3:2]
    shown_BK = response_BT[:, 1:-2:2]
    after_BK = response_BT[:, 2:-1:2]
    value_BK = (before_BK - task.first_value).clamp(0, task.n_values - 1)
    same_BK = (before_BK == value_BK + task.first_value) & (
        shown_BK == operation_BK + task.first_operation
    )
    right_BK = same_BK & (after_BK == task.right[operation_BK, value_BK] + task.first_value)
    label_BT = torch.zeros(response_BT.shape)
    is_result_BT = torch.zeros(response_BT.shape, dtype=torch.bool)
    is_result_BT[:, 2:-1:2] = after_BK != task.pad
    label_BT[:, 2:-1:2] = right_BK.float()
    return label_BT, is_result_BT


class GymTask(TextTask):
    """Problems of a task of reasoning-gym, with its parameters; the first 256 are held out.

    Responses have at most ``limit`` tokens. A response that the scorer cannot judge counts as
    wrong.
    """

    held_out = 256

    def __init__(self, model: str, reasoning_gym: str, limit: int, train: int = 2000):
        problems = generate(reasoning_gym, self.held_out + train, seed=0)
        rows = [
            ([{"role": "user", "content": problem["question"]}], problem["gold"])
            for problem in problems
        ]
        self.rows = {True: rows[: self.held_out], False: rows[self.held_out :]}
        self.encoder = TextEncoder(AutoTokenizer.from_pretrained(model))
        self.limit = limit
        self.pad = self.eos = self.encoder.tokenizer.eos_token_id
        self.verifier = GymVerifier()


class StudyTrainer(Trainer):
    """A trainer that inverts the share ``flipped`` of the outcomes, but not in evaluation.

    With ``shuffled`` the PRM learns from the outcomes of other responses, a control.
    """

    flipped = 0.0
    seconds = 0.0
    shuffled = False

    def step(self) -> None:
        started = time.perf_counter()
        super().step()
        self.seconds += time.perf_counter() - started

    def collect(self) -> Rollouts:
        batch = super().collect()
        if self.flipped == 0:
            return batch
        flipped_B = torch.rand(len(batch.outcome_B), generator=self.problem_rng) < self.flipped
        return batch._replace(
            outcome_B=torch.where(flipped_B, 1 - batch.outcome_B, batch.outcome_B)
        )

    def learn_and_score(self, batch: Rollouts) -> tuple[float, PRMOutputs]:
        if self.shuffled:
            order_B = torch.randperm(len(batch.outcome_B), generator=self.prm_rng)
            batch = batch._replace(outcome_B=batch.outcome_B[order_B])
        gate, scores = super().learn_and_score(batch)
        if not isinstance(self.task, ChainTask):
            return gate, scores
        label_BT, is_result_BT = label_steps(self.task, batch)
        # The results of all steps as one group: the share of right ones that score above wrong
        # ones.
        score_N = scores[0][is_result_BT]
        label_N = label_BT[is_result_BT]
        auc = count_pairs(score_N, label_N, torch.zeros_like(label_N, dtype=torch.long)).accuracy
        if auc is not None:
            self.shares["step_auc"].append((auc, 1.0))
        return gate, scores

    def evaluate(self) -> dict[str, float | int]:
        point = super().evaluate() | {"seconds": round(self.seconds, 3)}
        if not isinstance(self.task, ChainTask):
            return point
        label_BT, is_result_BT = label_steps(self.task, self.held_out)
        return point | {"step_accuracy": round(float(label_BT.sum() / is_result_BT.sum()), 4)}


def make_task(study: Mapping[str, Any], folder: Path) -> tuple[Any, Path]:
    """Return the task of a study, and the folder of the model that all runs start from.

    For chains, that model is trained if it is missing. ``SettingsError``: a field of the task is
    unknown or wrong, or a pretrained model is missing.
    """
    fields = dict(study["task"])
    start = Path(study.get("model", folder / "start"))
    fields.pop("flipped", None)
    if "model" in study and not (start / "config.json").exists():
        fetch = f"python -m recipes.pretrained.fetch --output-dir {start}"
        raise SettingsError(f"model: there is no model in {start}; {fetch} gets one")
    try:
        task = GymTask(str(start), **fields) if "model" in study else ChainTask(**fields)
    except (TypeError, SourceError) as error:
        raise SettingsError(f"task: {error}") from error
    if not start.exists():
        print(f"{start}: training the start", flush=True)
        write_start(task, start)
    return task, start


def run(
    study: Mapping[str, Any], name: str, words: Sequence[str], seed: int, output: Path
) -> dict[str, list[float | None]]:
    """Return the curve of a run, lists by name, from its file in the study's folder.

    A run without a file is trained first. A word is ``key=value`` or, where ``name`` is not one, a
    method of examples/minimal_prime.py. ``SettingsError``: a name, key or value cannot work.
    ``RunError``: the run is there with other settings.
    """
    method = next((word for word in words if "=" not in word), name)
    changes = dict(word.split("=", 1) for word in [*study.get("words", []), *words] if "=" in word)
    shuffled = changes.pop("shuffled", "false") == "true"
    settings = build_settings(method, changes)
    plan = {"task": study["task"], "budget": study["rollouts"], "seed": seed, "settings": settings}
    plan |= {"shuffled": True} if shuffled else {}
    folder = output / study["name"]
    path = (
        folder
        / f"{','.join([name, *sorted(word for word in words if '=' in word)])}_seed{seed}.json"
    )
    if path.exists():
        known = read_json(path)
        check_identity(path, {key: known.get(key) for key in plan}, plan)
        return known["curve"]
    logging.disable_progress_bar()
    if "model" not in study:
        torch.set_num_threads(1)
    task, start = make_task(study, folder)
    trainer = StudyTrainer(task, settings, seed, start)
    trainer.flipped = study["task"].get("flipped", 0.0)
    trainer.shuffled = shuffled
    every = (
        study["every"] * settings["rollout.prompts"] * settings["rollout.n"]
        if "every" in study
        else 160
    )
    points = []
    for point in trainer.train(study["rollouts"], every):
        points.append(point)
        if "model" in study:
            print(f"{path.stem}: {point}", flush=True)
    print(f"{path}: {points[-1]['accuracy']:.1%}", flush=True)
    curve = {key: [point.get(key) for point in points] for key in CURVE}
    write_json(
        path,
        plan | {"curve": {key: values for key, values in curve.items() if set(values) != {None}}},
    )
    return read_json(path)["curve"]
