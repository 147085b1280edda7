# SPDX-License-Identifier: Apache-2.0
"""The faults. Those that take a session hit its run and leave another one in its place."""

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM

from prime_ext.run.metrics_file import read_metrics
from prime_ext.step_rm.labels import ID2LABEL
from recipes.fault_tests.runs import START_SECONDS, NotReached, Outcome, Run, Session, last_line
from recipes.quickstart.data import write_parquet
from recipes.smoke.verifier import TOO_EASY


def killing(title: str | None) -> Callable[[Session], Outcome]:
    """The fault that kills the process that Ray calls so; None for the one that the user started."""

    def fault(run: Run) -> None:
        (run.find(title) if title else run.tree()[0]).kill()

    return lambda session: session.start_again(session.hit(fault))


def kill_verifiers(session: Session) -> Outcome:
    """SIGKILL of the actor that owns the verifiers of a node. The run goes on."""
    run = session.live()
    saved, since = run.saved(), time.monotonic()
    run.find("ray::NodeVerifiers").kill()
    try:
        # The step in progress may have all its verdicts already.
        run.wait_until(lambda: max(run.saved()) >= max(saved) + 3)
    except NotReached as error:
        return Outcome(run.ended(0), round(time.monotonic() - since, 1), 0.0, [], str(error), saved, run.saved())
    said = "the verifiers of this node died" in run.log
    line = "the run goes on; its log has a warning" if said else "the run goes on, and says nothing"
    return Outcome(None, round(time.monotonic() - since, 1), 0.0, [], line, saved, run.saved(), survived=True)


def full_disk(session: Session) -> Outcome:
    """The checkpoints' own file system fills up in the middle of a save; then there is room again."""
    if session.disk is None:
        raise NotReached("a full disk needs one to fill, and mounting it needs root")
    sizes = [path.stat().st_size for path in _files_of_newest(session.live())]
    outcome = session.hit(lambda run: session.disk.fill(sum(sizes) // 2))
    session.disk.empty()
    return session.start_again(outcome)


def corrupt_checkpoint(session: Session) -> Outcome:
    """The whole run is killed, and the largest file of its newest checkpoint is cut in half."""
    run = session.live()
    # There must be one to fall back to.
    run.wait_until(lambda: len(run.saved()) >= 2)
    outcome = session.hit(Run.kill)
    largest = max(_files_of_newest(run), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    outcome = session.start_again(replace(outcome, saved=run.saved(), whole=run.saved()))
    lines = [line for line in session.run.log.splitlines() if "it is damaged" in line]
    return replace(outcome, last_line=last_line("\n".join(lines), session.folder))


def _files_of_newest(run: Run) -> list[Path]:
    newest = run.folder / "checkpoints" / f"global_step_{run.saved()[-1]}"
    return [path for path in newest.rglob("*") if path.is_file()]


def two_runs(session: Session) -> Outcome:
    """The same command is started while the run is under way. What is reported is the second start."""
    first = session.live()
    second = session.make("second").start()
    try:
        outcome = second.outcome(first.saved(), second.tree(), second.started)
    finally:
        if second.running():
            second.kill()
    before = max(first.saved())
    first.wait_until(lambda: max(first.saved()) > before)
    logged = sorted(read_metrics(session.folder / "metrics.jsonl"))
    whole = logged == list(range(1, logged[-1] + 1))
    note = f"the first run goes on; its metrics have {'every step' if whole else f'only the steps {logged}'}"
    return replace(outcome, note=note)


def from_the_start(run: Run) -> Outcome:
    """A run that has its fault from the start, until it ends or has made three steps as if nothing were wrong."""

    def steps() -> int:
        return len(read_metrics(run.folder / "metrics.jsonl"))

    run.start()
    try:
        status = run.ended(0.1)
        while status is None and steps() < 3 and time.monotonic() - run.started < START_SECONDS:
            status = run.ended(1.0)
        processes, seconds = run.tree(), round(time.monotonic() - run.started, 1)
        survived = status is None and steps() >= 3
    finally:
        if run.running():
            run.kill()
    outcome = run.outcome([], processes, run.started)
    return replace(outcome, exit_status=status, seconds=seconds, survived=survived)


def too_easy_data(folder: Path, inputs: Path) -> Outcome:
    """Every rollout of every prompt is right."""
    run = Run(folder, inputs)
    rows = pq.read_table(inputs / "train.parquet").to_pylist()
    write_parquet(folder / "easy.parquet", [{**row, "data_source": TOO_EASY} for row in rows])
    run.overrides.append(f"data.train_files={folder / 'easy.parquet'}")
    return from_the_start(run)


def nan_weight(key: str) -> Callable[[Path, Path], Outcome]:
    """The fault that one weight of the model named by the key is NaN."""

    def fault(folder: Path, inputs: Path) -> Outcome:
        broken = folder / "model_with_nan"
        run = Run(folder, inputs, [f"{key}={broken}"])
        shutil.copytree(inputs / "model", broken)
        model = AutoModelForCausalLM.from_pretrained(broken)
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight[0, 0] = torch.nan
        model.save_pretrained(broken)
        return from_the_start(run)

    return fault


def nan_learning_rate(folder: Path, inputs: Path) -> Outcome:
    """The policy's learning rate is NaN."""
    return from_the_start(Run(folder, inputs, ["actor_rollout_ref.actor.optim.lr=nan"]))


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
    session = Session(folder, lambda name: Run(folder, inputs, asks, name, "pspo"))
    server.start()
    try:
        outcome = session.hit(lambda run: server.stop())
        server.start()
        return session.start_again(outcome)
    finally:
        server.stop()
        session.close()


class _Classify(BaseHTTPRequestHandler):
    """Answers as vLLM does, with the same probabilities for every step."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"label": ID2LABEL[2], "probs": [0.2, 0.3, 0.5]}
        body = json.dumps({"data": [{"index": number, **answer} for number in range(len(request["input"]))]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class ClassifyServer:
    """A server of a step reward model; can be stopped and started again on the same port."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _Classify)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
