# SPDX-License-Identifier: Apache-2.0
"""Small whole runs through verl's main, on the CPU."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import metric_names
import psutil
import pytest
import torch
from forked_workers import python, server_of_this_process, with_forks
from logged_runs import TIMEOUT, ray_was_too_slow, run_logged
from torch.utils._pytree import keystr, tree_flatten_with_path

from prime_ext.run.checkpoint import MARKER
from prime_ext.run.metrics_file import read_metrics
from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.quickstart_data import rl_rows, write_parquet
from recipes.smoke.prepare import write_model

# Clocks and memory differ between runs, log-probabilities of rollouts by rounding, and prompts
# ahead by the speed.
NOT_REPEATABLE = ("timing", "seconds", "perf/", "rollout_corr/", "training/rollout_", "/perf/")
NOT_REPEATABLE += ("prime/filter/refills", "prime/filter/returned_to_queue")


def write_inputs(folder: Path) -> None:
    """Write an untrained model like the quickstart's, and small training and validation files."""
    write_model(folder / "model")
    for name, size in (("train", 64), ("val", 4)):
        problems = task.generate_problems(name, size, seed=0)
        write_parquet(folder / f"{name}.parquet", rl_rows(name, problems))


def command(inputs: Path, output: Path, overrides: list[str], module: str) -> list[str]:
    """Return the command line of a small run that writes its checkpoints below ``output``."""
    stock = ["--config-path=pkg://prime_ext.config"] if module != "prime_ext.train" else []
    return [
        python(), "-m", module, *stock, "--config-name=prime_trainer_cpu",
        f"data.train_files={inputs}/train.parquet", f"data.val_files={inputs}/val.parquet",
        "data.train_batch_size=4", "data.max_prompt_length=24", "data.max_response_length=12",
        f"actor_rollout_ref.model.path={inputs}/model",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.optim.lr=1e-3",
        # A gate would shut out an untrained PRM; overrides that name another variant win.
        "variant=paper", "prm.mini_batch_size=2", "prm.optim.lr=1e-3",
        "prm.optim.lr_warmup_steps=2",
        "modules=[parity_verifier]", "trainer.logger=[console,file]",
        "trainer.val_before_train=false",
        "trainer.total_epochs=50", f"trainer.default_local_dir={output}/checkpoints", *overrides,
    ]  # fmt: skip


def environment(output: Path) -> dict[str, str]:
    """Return a run's environment: one thread, no hub, metrics in ``output``, modules from here."""
    paths = [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "VERL_PLATFORM": "cpu",
        "VERL_FILE_LOGGER_PATH": str(output / "metrics.jsonl"),
        "HF_HUB_OFFLINE": "1",
        "TQ_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }


def start_options(
    inputs: Path, output: Path, overrides: list[str], module: str = "prime_ext.train"
) -> dict[str, Any]:
    """Return words and environment of a run, whose folder is made."""
    output.mkdir(parents=True, exist_ok=True)
    known = with_forks(environment(output))
    if module != "prime_ext.train":
        # What prime_ext.train makes of the key modules.
        known["VERL_USE_EXTERNAL_MODULES"] = "prime_ext.plugin,parity_verifier"
    return {"args": command(inputs, output, overrides, module), "env": known}


def run(inputs: Path, output: Path, *arguments: Any, **options: Any) -> None:
    """Run to the end, with ``log.txt``. The metrics page must name what is logged."""
    run_logged(output / "log.txt", **start_options(inputs, output, *arguments, **options))
    logged = {name for values in metrics(output).values() for name in values}
    assert metric_names.undocumented(logged) == []


def train(folder: Path, overrides: list[str]) -> dict[int, dict[str, float]]:
    """Train a small run in ``folder/run``, and return its metrics by step."""
    write_inputs(folder)
    run(folder, folder / "run", overrides)
    return metrics(folder / "run")


def run_copied_while_saving(
    inputs: Path, output: Path, copy: Path, whole: int, torn: int, **options: Any
) -> None:
    """Run to the end, and copy what a kill would leave while step ``torn`` is saved.

    The kill is a SIGKILL; the checkpoint of step ``whole`` is complete. All processes stand still
    during the copy. They are looked up before, which would take too long then.
    """
    saved, saving = (output / "checkpoints" / f"global_step_{step}" for step in (whole, torn))
    for _ in range(5):
        known = start_options(inputs, output, **options)
        with (output / "log.txt").open("w") as log:
            process = subprocess.Popen(**known, stdout=log, stderr=log)
        # Ray's workers have sessions of their own: stop all forks and what they started.
        tree = psutil.Process(server_of_this_process()[1].pid)
        wait_for(saved / MARKER, process)
        members = [] if process.poll() is not None else tree.children(recursive=True)
        wait_for(saving, process)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, number)
            if number == signal.SIGSTOP and saving.exists():
                shutil.copytree(output, copy)
        status = process.wait(TIMEOUT)
        text = (output / "log.txt").read_text(errors="replace")
        assert status == 0 or ray_was_too_slow(text), text[-6000:]
        if copy.exists() and not (copy / saving.relative_to(output) / MARKER).exists():
            return
        # On a busy machine they may be stopped when all is saved, which proves nothing.
        for folder in (output, copy):
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("five times the copy was made too late to prove anything")


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Return when the path exists or the process has ended."""
    deadline = time.monotonic() + TIMEOUT
    while not path.exists() and process.poll() is None:
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.001)


def assert_same_end(alone: Path, other: Path, last: int, parts: Iterable[str]) -> None:
    """Check that two runs log equal metrics, to rounding, and end with equal bits of weights."""
    of_alone = metrics(alone)
    of_other = metrics(other)
    assert sorted(of_alone) == sorted(of_other) == list(range(1, last + 1))
    for step in of_alone:
        assert repeatable(of_other[step]) == pytest.approx(
            repeatable(of_alone[step]), rel=1e-6, abs=1e-7
        ), step
    for part in parts:
        one, two = (
            weights(folder / "checkpoints" / f"global_step_{last}", part)
            for folder in (alone, other)
        )
        assert one.keys() == two.keys() and len(one) > 15
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=0, atol=0, msg=f"{part}: {name}")


def metrics(output: Path) -> dict[int, dict[str, float]]:
    return read_metrics(output / "metrics.jsonl")


def repeatable(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics that two equal runs share."""
    return {
        name: value
        for name, value in metrics.items()
        if not any(part in name for part in NOT_REPEATABLE)
    }


def weights(checkpoint: Path, part: str) -> dict[str, torch.Tensor]:
    """Return weights and optimizer state of one model of a checkpoint, as plain tensors by name."""
    kinds = ["model"] if part == "policy_average" else ["model", "optim"]
    states = {
        kind: torch.load(checkpoint / part / f"{kind}_world_size_1_rank_0.pt", weights_only=False)
        for kind in kinds
    }
    leaves, _ = tree_flatten_with_path(states)
    tensors = {keystr(path): value for path, value in leaves if isinstance(value, torch.Tensor)}
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in tensors.items()
    }
