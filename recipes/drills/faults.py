# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Drills with broken disks, checkpoints, data, numbers, servers and users."""

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM

from prime_ext.trainer.checkpoint import complete_steps
from recipes.drills.classify_server import ClassifyServer
from recipes.drills.inputs import STEPS, prime_run, pspo_run
from recipes.drills.kills import end
from recipes.drills.outcome import Outcome, observe, start_again
from recipes.drills.runs import DrillError, Run, last_line, wait_for_leftovers
from recipes.drills.verifier import EASY
from recipes.quickstart.data import write_parquet

ALWAYS_RIGHT = "+reward.custom_reward_function.reward_kwargs.modules=[recipes.drills.verifier]"


def _to_the_end(run: Run) -> Outcome:
    """A run that carries its fault from the start."""
    run.start()
    try:
        return observe(run, [], run.tree(), run.started)
    finally:
        end(run)


def full_disk(folder: Path, inputs: Path) -> Outcome:
    """The checkpoints' own file system fills up in the middle of a save; then there is room again."""
    run = prime_run(folder, inputs)
    run.checkpoints.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", "size=1g", "tmpfs", str(run.checkpoints))
    try:
        run.start()
        run.wait_for_step(1)
        saved, processes = complete_steps(run.checkpoints), run.tree()
        used = shutil.disk_usage(run.checkpoints).used
        _mount("-o", f"remount,size={used + used // (3 * len(saved))}", str(run.checkpoints))
        outcome = observe(run, saved, processes, time.monotonic())
        _mount("-o", "remount,size=1g", str(run.checkpoints))
        return start_again(run, outcome, STEPS)
    finally:
        end(run)
        subprocess.run(["umount", "-l", str(run.checkpoints)], check=False)


def _mount(*arguments: str) -> None:
    if os.geteuid() != 0:
        raise DrillError("mounting a small file system needs root")
    subprocess.run(["mount", *arguments], check=True)


def corrupt_checkpoint(folder: Path, inputs: Path) -> Outcome:
    """The whole run is killed, and the largest file of its newest checkpoint is cut in half."""
    run = prime_run(folder, inputs)
    run.start()
    try:
        run.wait_for_step(2)
        processes = run.tree()
        saved, since = complete_steps(run.checkpoints), time.monotonic()
        run.kill()
        took, left = wait_for_leftovers(processes)
    finally:
        end(run)
    newest = run.checkpoints / f"global_step_{complete_steps(run.checkpoints)[-1]}"
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    outcome = Outcome(
        exit_status=run.ended(0),
        seconds=round(time.monotonic() - since, 1),
        leftover_seconds=round(took, 1),
        leftovers=left,
        last_line="",
        saved=saved,
        whole=complete_steps(run.checkpoints),
    )
    outcome = start_again(run, outcome, STEPS)
    lines = [line for line in (folder / "again.log").read_text(errors="replace").splitlines() if "damaged" in line]
    return replace(outcome, last_line=last_line("\n".join(lines), folder))


def too_easy_data(folder: Path, inputs: Path) -> Outcome:
    """Every rollout of every prompt is right."""
    run = prime_run(folder, inputs, name="run")
    data = folder / "easy.parquet"
    rows = pq.read_table(inputs / "train.parquet").to_pylist()
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(data, [{**row, "data_source": EASY} for row in rows])
    kept = [item for item in run.overrides if "reward_kwargs.modules" not in item]
    run.overrides = [*kept, ALWAYS_RIGHT, f"data.train_files={data}"]
    return _to_the_end(run)


def nan_prm(folder: Path, inputs: Path) -> Outcome:
    """One weight of the PRM's start model is NaN, so its loss is."""
    prime_run(folder, inputs)
    return _to_the_end(prime_run(folder, inputs, [f"prm.model.path={_with_nan(inputs, folder)}"]))


def nan_policy(folder: Path, inputs: Path) -> Outcome:
    """One weight of the policy's start model is NaN."""
    prime_run(folder, inputs)
    return _to_the_end(prime_run(folder, inputs, [f"actor_rollout_ref.model.path={_with_nan(inputs, folder)}"]))


def nan_learning_rate(folder: Path, inputs: Path) -> Outcome:
    """The policy's learning rate is NaN."""
    return _to_the_end(prime_run(folder, inputs, ["actor_rollout_ref.actor.optim.lr=nan"]))


def _with_nan(inputs: Path, folder: Path) -> Path:
    broken = folder / "model_with_nan"
    shutil.copytree(inputs / "model", broken)
    model = AutoModelForCausalLM.from_pretrained(broken)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.nan
    model.save_pretrained(broken)
    return broken


def no_reward_server(folder: Path, inputs: Path) -> Outcome:
    """PSPO-WRS: the server of the step reward model goes away after the first checkpoint, and comes back later."""
    server = ClassifyServer()
    asks = [
        "step_scorer.kind=server",
        "step_scorer.inputs=text",
        "step_scorer.model_path=null",
        "step_scorer.cache_size=0",
        f"step_scorer.address=127.0.0.1:{server.port}",
    ]
    run = pspo_run(folder, inputs, asks)
    server.start()
    try:
        run.start()
        run.wait_for_step(1)
        saved, processes = complete_steps(run.checkpoints), run.tree()
        server.stop()
        outcome = observe(run, saved, processes, time.monotonic())
        server.start()
        return start_again(run, outcome, STEPS)
    finally:
        server.stop()
        end(run)


def two_runs(folder: Path, inputs: Path) -> Outcome:
    """The same command is started while the run is under way. What is reported is the second start."""
    first, second = prime_run(folder, inputs), prime_run(folder, inputs, name="second")
    first.start()
    try:
        first.wait_for_step(1)
        saved = complete_steps(first.checkpoints)
        second.start()
        outcome = observe(second, saved, second.tree(), second.started)
        status = first.ended(300.0)
    finally:
        end(second)
        end(first)
    from prime_ext.metrics_file import read_metrics

    steps = sorted(read_metrics(folder / "metrics.jsonl"))
    note = f"the first run ended with {status}, and has metrics of the steps {steps}"
    return replace(outcome, finished=STEPS in complete_steps(first.checkpoints), note=note)
