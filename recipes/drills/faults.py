# SPDX-License-Identifier: Apache-2.0
"""Drills with broken disks, checkpoints, data, numbers, servers and users.

Those that take a session hit its run and leave another one in its place; the others have a folder of their own.
"""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM

from prime_ext.run.metrics_file import read_metrics
from recipes.drills.classify_server import ClassifyServer
from recipes.drills.inputs import prime_run, pspo_run
from recipes.drills.outcome import Outcome
from recipes.drills.runs import START_SECONDS, DrillError, Run, last_line
from recipes.drills.session import Session, observe
from recipes.drills.verifier import EASY
from recipes.quickstart.data import write_parquet

EASY_MODULE = "+reward.custom_reward_function.reward_kwargs.modules=[recipes.drills.verifier]"


def full_disk(session: Session) -> Outcome:
    """The checkpoints' own file system fills up in the middle of a save; then there is room again."""
    if session.disk is None:
        raise DrillError("a full disk needs one to fill, and mounting it needs root")
    session.live()
    one = _size(session.folder / "checkpoints" / f"global_step_{session.saved()[-1]}")
    outcome = session.hit(lambda run: session.disk.fill(one // 2))
    session.disk.empty()
    return session.start_again(outcome)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def corrupt_checkpoint(session: Session) -> Outcome:
    """The whole run is killed, and the largest file of its newest checkpoint is cut in half."""
    run = session.live()
    # There must be one to fall back to.
    run.wait_until(lambda: len(session.saved()) >= 2)
    outcome = session.hit(Run.kill)
    newest = session.folder / "checkpoints" / f"global_step_{session.saved()[-1]}"
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    outcome = session.start_again(replace(outcome, saved=session.saved(), whole=session.saved()))
    assert session.run is not None
    lines = [line for line in session.run.log.splitlines() if "it is damaged" in line]
    return replace(outcome, last_line=last_line("\n".join(lines), session.folder))


def two_runs(session: Session) -> Outcome:
    """The same command is started while the run is under way. What is reported is the second start."""
    first = session.live()
    second = Run(first.folder, first.config, first.overrides, "second").start()
    try:
        outcome = observe(second, session.saved(), second.tree(), second.started)
    finally:
        _end(second)
    before = max(session.saved())
    first.wait_until(lambda: max(session.saved()) > before)
    logged = sorted(read_metrics(session.folder / "metrics.jsonl"))
    whole = logged == list(range(1, logged[-1] + 1))
    note = f"the first run goes on; its metrics have {'every step' if whole else f'only the steps {logged}'}"
    return replace(outcome, note=note)


def _end(run: Run) -> None:
    if run.process is not None and run.process.poll() is None:
        run.kill()


def _to_the_end(run: Run) -> Outcome:
    """A run that has its fault from the start."""
    run.start()
    try:
        # Until it ends, or has gone on for three steps as if nothing were wrong.
        status = run.ended(0.1)
        while status is None and len(read_metrics(run.folder / "metrics.jsonl")) < 3:
            if time.monotonic() - run.started > START_SECONDS:
                break
            status = run.ended(1.0)
        survived = status is None and len(read_metrics(run.folder / "metrics.jsonl")) >= 3
        processes, seconds = run.tree(), round(time.monotonic() - run.started, 1)
        if status is None:
            run.kill()
        outcome = observe(run, [], processes, run.started)
        return replace(outcome, exit_status=status, seconds=seconds, survived=survived)
    finally:
        _end(run)


def too_easy_data(folder: Path, inputs: Path) -> Outcome:
    """Every rollout of every prompt is right."""
    run = prime_run(folder, inputs)
    data = folder / "easy.parquet"
    rows = pq.read_table(inputs / "train.parquet").to_pylist()
    write_parquet(data, [{**row, "data_source": EASY} for row in rows])
    kept = [item for item in run.overrides if "reward_kwargs.modules" not in item]
    run.overrides = [*kept, EASY_MODULE, f"data.train_files={data}"]
    return _to_the_end(run)


def nan_prm(folder: Path, inputs: Path) -> Outcome:
    """One weight of the PRM's start model is NaN, so its loss is."""
    return _to_the_end(prime_run(folder, inputs, [f"prm.model.path={_with_nan(inputs, folder)}"]))


def nan_policy(folder: Path, inputs: Path) -> Outcome:
    """One weight of the policy's start model is NaN."""
    return _to_the_end(prime_run(folder, inputs, [f"actor_rollout_ref.model.path={_with_nan(inputs, folder)}"]))


def nan_learning_rate(folder: Path, inputs: Path) -> Outcome:
    """The policy's learning rate is NaN."""
    return _to_the_end(prime_run(folder, inputs, ["actor_rollout_ref.actor.optim.lr=nan"]))


def _with_nan(inputs: Path, folder: Path) -> Path:
    broken = folder / "model_with_nan"
    prime_run(folder, inputs)
    shutil.copytree(inputs / "model", broken)
    model = AutoModelForCausalLM.from_pretrained(broken)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.nan
    model.save_pretrained(broken)
    return broken


def no_reward_server(folder: Path, inputs: Path) -> Outcome:
    """PSPO-WRS: the server of the step reward model goes away after a checkpoint, and comes back later."""
    server = ClassifyServer()
    asks = [
        "step_scorer.kind=server",
        "step_scorer.inputs=text",
        "step_scorer.model_path=null",
        "step_scorer.cache_size=0",
        f"step_scorer.address=127.0.0.1:{server.port}",
    ]
    session = Session(folder, lambda name: pspo_run(folder, inputs, asks, name))
    server.start()
    try:
        outcome = session.hit(lambda run: server.stop())
        server.start()
        return session.start_again(outcome)
    finally:
        server.stop()
        session.close()
