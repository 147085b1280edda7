# SPDX-License-Identifier: Apache-2.0
"""A recipe for GPUs that is killed and continues: recipes/prime_gsm8k.sh on one device.

    python tests/gpu/runs.py --device cuda --output FILE [--model MODEL --data FOLDER]

Rollouts are by vLLM where it is installed. The run is killed (SIGKILL of every process) after the
first checkpoint and started again. Without ``--model`` it is the shrunk run: a tiny untrained model
and a coin for a verifier. With a model, ``--data`` is the folder of the official train.jsonl and
test.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from machine import describe  # noqa: E402

from prime_ext.run.metrics_file import read_metrics  # noqa: E402
from prime_ext.utils.files import write_json  # noqa: E402
from recipes.smoke.prepare import rollout_words  # noqa: E402


def environment(device: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    platform = {"VERL_PLATFORM": "cpu"} if device == "cpu" else {}
    return kept | platform | {"PYTHON": sys.executable, "HF_HUB_OFFLINE": "1"} | more


def start(command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    print("+", *command, flush=True)
    return subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL)


def kill_when(there: Path, run: subprocess.Popen[bytes]) -> None:
    """Kill a run with all its processes once a file is there; SystemExit if it ended before."""
    while not there.exists():
        if run.poll() is not None:
            raise SystemExit(f"the run ended with status {run.returncode} before {there} was there")
        time.sleep(0.2)
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in processes:
        if process.is_running():
            process.kill()
    psutil.wait_procs(processes, timeout=60)


def get_steps(folder: Path) -> dict[str, Any]:
    """Return the last step, the median time of a step, and the peak of memory."""
    metrics = read_metrics(folder / "metrics.jsonl")
    seconds = sorted(
        values["timing_s/step"] for values in metrics.values() if "timing_s/step" in values
    )
    memory = [values.get("perf/max_memory_allocated_gb", 0.0) for values in metrics.values()]
    return {
        "last_step": max(metrics),
        "median_seconds_per_step": round(seconds[len(seconds) // 2], 2),
        "peak_gb": round(max(memory), 3),
    }


def get_command(
    arguments: argparse.Namespace, folder: Path, rollout: str
) -> tuple[list[str], dict[str, str]]:
    """Return the words after ``bash`` of a run that ``rollout`` generates for, and its knobs."""
    command = ["recipes/prime_gsm8k.sh", arguments.model or "tiny"]
    knobs = {"N_GPUS": "1", "OUTPUT_DIR": str(folder)}
    if arguments.model:
        command += rollout_words(rollout)
        if not find_spec("flash_attn"):
            command.append("++actor_rollout_ref.model.override_config.attn_implementation=sdpa")
        knobs |= {
            "STEPS": "3",
            "SAVE_FREQ": "1",
            "TEST_FREQ": "-1",
            "TRAIN_BATCH": "32",
            "MINI_BATCH": "32",
        }
        knobs |= {"GSM8K_DIR": arguments.data, "DEVICE": arguments.device, "MAX_RESPONSE": "256"}
    else:
        shrink = "1" if arguments.device == "cpu" else "gpu"
        knobs |= {"SHRINK": shrink, "SHRINK_STEPS": "4", "SHRINK_ROLLOUT": rollout}
    return command, knobs


def gsm8k(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rollout = "vllm" if arguments.device != "cpu" and find_spec("vllm") else "transformers"
    words, knobs = get_command(arguments, folder, rollout)
    command = ["bash", *words]
    env = environment(arguments.device, **knobs)
    run, first, last = (folder, 1, 3) if arguments.model else (folder / "shrunk", 2, 4)
    complete = "checkpoints/global_step_{}/prime_ext_complete.json"
    begin = time.perf_counter()
    kill_when(run / complete.format(first), start(command, env))
    killed = time.perf_counter()
    status = start(command, env).wait()
    seconds = {
        "until_killed": round(killed - begin, 1),
        "second_start": round(time.perf_counter() - killed, 1),
    }
    if status or not (run / complete.format(last)).exists():
        raise SystemExit(
            f"the second start ended with status {status}, or without a checkpoint of step {last}"
        )
    return {
        "rollout": rollout,
        "model": arguments.model or "shrunk",
        "seconds": seconds,
        **get_steps(run),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default=os.environ.get("MODEL", ""))
    parser.add_argument("--data", default=os.environ.get("GSM8K_DIR", ""))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = gsm8k(arguments, Path(folder))
    write_json(arguments.output, {"machine": describe(arguments.device), **results})
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
