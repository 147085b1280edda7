# SPDX-License-Identifier: Apache-2.0
"""Small whole runs through verl's main, on the CPU."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import metric_names
import psutil
import pytest
import torch
from tiny_step_rm import save_bert

from prime_ext.run.metrics_file import read_metrics
from prime_ext.step_rm.description import FILE, Description, PairFormat
from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.data import rl_rows, write_parquet
from recipes.smoke.prepare import write_model

# Long enough for a machine that is busy with other work; an idle one takes a minute or two.
TIMEOUT = 1800
# Ray gives its own processes 30 seconds to start, and nothing changes that; a busy machine may need another attempt.
RAY_STARTS = 3
# Clocks and memory differ between runs, and the rollout engine's log-probabilities by the rounding of its batches.
NOT_REPEATABLE = ("timing", "seconds", "perf/", "rollout_corr/", "training/rollout_", "/perf/", "prime/filter/refills")


def write_inputs(folder: Path) -> None:
    """An untrained model of the quickstart's kind, and small training and validation files."""
    write_model(folder / "model")
    for name, size in (("train", 64), ("val", 4)):
        problems = task.generate_problems(name, size, seed=0)
        write_parquet(folder / f"{name}.parquet", rl_rows(name, problems))


def write_step_rm(folder: Path) -> Path:
    """An untrained step reward model; returns its folder."""
    model = save_bert(folder / "step_rm")
    (model / FILE).write_text(Description(PairFormat(max_length=64), 1.0, (-1, 0, 1)).to_json())
    return model


def command(
    inputs: Path,
    output: Path,
    overrides: list[str],
    module: str = "prime_ext.train",
    config: str = "prime_trainer_cpu",
) -> list[str]:
    """The command line of a small run that writes its checkpoints below ``output``."""
    stock = ["--config-path=pkg://prime_ext.config"] if module != "prime_ext.train" else []
    # An untrained PRM would be shut out by the gate; what names another variant or the gate comes later and counts.
    of_the_prm = [
        "variant=guarded",
        "prime.process.reliability_gate=false",
        "prm.mini_batch_size=2",
        "prm.optim.lr=1e-3",
        "prm.optim.lr_warmup_steps=2",
    ]
    return [
        sys.executable, "-u", "-m", module, *stock, f"--config-name={config}",
        f"data.train_files={inputs}/train.parquet",
        f"data.val_files={inputs}/val.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=24",
        "data.max_response_length=12",
        f"actor_rollout_ref.model.path={inputs}/model",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        *(of_the_prm if config.startswith("prime") else []),
        "+reward.custom_reward_function.reward_kwargs.modules=[parity_verifier]",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=false",
        f"trainer.default_local_dir={output}/checkpoints",
        *overrides,
    ]  # fmt: skip


def environment(output: Path) -> dict[str, str]:
    """Environment of a run: one thread, no hub, metrics to ``output/metrics.jsonl``, this folder's modules."""
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


def run(
    inputs: Path,
    output: Path,
    overrides: list[str],
    module: str = "prime_ext.train",
    config: str = "prime_trainer_cpu",
) -> None:
    """Run to the end; a failure shows the end of the log. What is logged has to be in docs/reference/metrics.md."""
    output.mkdir(parents=True, exist_ok=True)
    log = output / "log.txt"
    for _ in range(RAY_STARTS):
        with log.open("a") as stream:
            begin = stream.tell()
            done = subprocess.run(
                command(inputs, output, overrides, module, config), env=environment(output), stdout=stream,
                stderr=stream, timeout=TIMEOUT, check=False, start_new_session=True,
            )  # fmt: skip
        if done.returncode == 0 or not ray_was_too_slow(log, begin):
            break
    assert done.returncode == 0, "\n".join(log.read_text(errors="replace").splitlines()[-60:])
    logged = {name for values in metrics(output).values() for name in values}
    assert metric_names.undocumented(logged) == []


def ray_was_too_slow(log: Path, begin: int) -> bool:
    """Whether what was logged from ``begin`` on says that Ray's own processes did not start within its 30 seconds."""
    return b"The current node timed out during startup" in log.read_bytes()[begin:]


def run_until_killed(
    inputs: Path,
    output: Path,
    overrides: list[str],
    ready: Callable[[], bool],
    when: Callable[[], bool],
    config: str = "prime_trainer_cpu",
) -> None:
    """Start a run and send SIGKILL to all its processes as soon as ``when`` says so.

    Looking for the processes takes as long as a small checkpoint, so they are looked up before: once ``ready`` says
    that all are there.
    """
    output.mkdir(parents=True, exist_ok=True)
    log = output / "log.txt"
    for _ in range(RAY_STARTS):
        begin = log.stat().st_size if log.exists() else 0
        if _killed_run(inputs, output, overrides, ready, when, config):
            return
        assert ray_was_too_slow(log, begin), log.read_text(errors="replace")[-6000:]
    raise AssertionError(f"Ray did not start in {RAY_STARTS} attempts")


def _killed_run(
    inputs: Path,
    output: Path,
    overrides: list[str],
    ready: Callable[[], bool],
    when: Callable[[], bool],
    config: str,
) -> bool:
    """One attempt of :func:`run_until_killed`; False if the run ended by itself."""
    with (output / "log.txt").open("a") as stream:
        process = subprocess.Popen(
            command(inputs, output, overrides, config=config), env=environment(output), stdout=stream, stderr=stream,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT

        def came(moment: Callable[[], bool]) -> bool:
            while not moment():
                if process.poll() is not None:
                    return False
                assert time.monotonic() < deadline, "the moment to kill the run never came"
                time.sleep(0.001)
            return True

        # Ray's workers have sessions of their own and would go on for a while: kill the whole tree at once.
        tree = psutil.Process(process.pid)
        if not came(ready):
            return False
        members = [member.pid for member in tree.children(recursive=True)]
        if not came(when):
            return False
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        # And those that have come since.
        for later in [*tree.children(recursive=True), tree]:
            with contextlib.suppress(psutil.NoSuchProcess):
                later.kill()
        process.wait()
    return True


def run_killed_while_saving(
    inputs: Path, output: Path, overrides: list[str], whole: int, torn: int, config: str = "prime_trainer_cpu"
) -> None:
    """Kill a run while it writes the checkpoint of step ``torn``, with that of step ``whole`` complete."""
    saved, saving = (output / "checkpoints" / f"global_step_{step}" for step in (whole, torn))
    marker = "prime_ext_complete.json"
    for _ in range(5):
        run_until_killed(inputs, output, overrides, (saved / marker).exists, saving.exists, config)
        if not (saving / marker).exists():
            return
        # On a busy machine the signal may come when all is saved, which proves nothing.
        shutil.rmtree(output)
    raise AssertionError("five times the run was killed too late to prove anything")


def run_alone_and_resumed(
    inputs: Path, base: Path, overrides: list[str], step: int, config: str = "prime_trainer_cpu"
) -> tuple[Path, Path]:
    """Folders of a run, and of its checkpoint of a step run on."""
    alone, resumed = base / "alone", base / "resumed"
    run(inputs, alone, overrides, config=config)
    shutil.copytree(alone / "checkpoints" / f"global_step_{step}", resumed / "checkpoints" / f"global_step_{step}")
    (resumed / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))
    run(inputs, resumed, overrides, config=config)
    return alone, resumed


def assert_same_end(alone: Path, other: Path, steps: Iterable[int], last: int, parts: Iterable[str]) -> None:
    """Two runs have the same metrics at these steps, to rounding, and the same bits in their last checkpoints."""
    of_alone, of_other = metrics(alone), metrics(other)
    assert sorted(of_alone) == list(range(1, last + 1)) and sorted(of_other) == list(steps)
    for step in steps:
        assert repeatable(of_other[step]) == pytest.approx(repeatable(of_alone[step]), rel=1e-6, abs=1e-7), step
    for part in parts:
        one, two = (weights(folder / "checkpoints" / f"global_step_{last}", part) for folder in (alone, other))
        assert one.keys() == two.keys() and len(one) > 15
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=0, atol=0, msg=f"{part}: {name}")


def metrics(output: Path) -> dict[int, dict[str, float]]:
    """Metrics by step."""
    return read_metrics(output / "metrics.jsonl")


def repeatable(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that two equal runs share. How far it generated ahead is a matter of speed, not of the result."""
    skipped = (*NOT_REPEATABLE, "prime/filter/returned_to_queue")
    return {name: value for name, value in metrics.items() if not any(part in name for part in skipped)}


def weights(folder, part: str) -> dict:
    """Weights and optimiser state of one model of a checkpoint, as plain tensors by name."""
    tensors = {}
    for kind in ("model", "optim"):
        path = folder / part / f"{kind}_world_size_1_rank_0.pt"
        if (kind, part) == ("optim", "policy_average"):
            continue
        stack = [(kind, torch.load(path, weights_only=False))]
        while stack:
            name, value = stack.pop()
            if isinstance(value, dict):
                stack.extend((f"{name}.{key}", item) for key, item in value.items())
            elif isinstance(value, list | tuple):
                stack.extend((f"{name}.{key}", item) for key, item in enumerate(value))
            elif isinstance(value, torch.Tensor):
                tensors[name] = value.full_tensor() if hasattr(value, "full_tensor") else value
    return tensors
