# SPDX-License-Identifier: Apache-2.0
"""Whole runs on one device: the quickstart, and a recipe for GPUs that is killed and goes on.

    python tests/gpu/runs.py quickstart --device cuda --output FILE
    python tests/gpu/runs.py gsm8k --device cuda --output FILE [--model MODEL --data FOLDER]

quickstart: data, warm start, PRIME through verl with rollouts by transformers, export and evaluation.
gsm8k: recipes/prime_gsm8k.sh; with rollouts by vLLM where it is installed. It is killed (SIGKILL of every process)
after the first checkpoint and started again. Without ``--model`` it is the shrunk run: a tiny untrained model and a
coin for a verifier. With a model, ``--data`` is the folder of the official train.jsonl and test.jsonl.
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

# Of --tiny and of a real run.
STEPS = {True: 2, False: 30}


def environment(device: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    platform = {"VERL_PLATFORM": "cpu"} if device == "cpu" else {}
    return kept | platform | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | more


def finish(command: list[str], env: dict[str, str]) -> float:
    """Run to the end; seconds it took.

    Raises:
        SystemExit: it failed.
    """
    print("+", *command, flush=True)
    start = time.perf_counter()
    status = subprocess.run(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    if status:
        raise SystemExit(f"{' '.join(command[:4])} ... ended with status {status}")
    return round(time.perf_counter() - start, 1)


def kill_when(there: Path, command: list[str], env: dict[str, str]) -> float:
    """Kill a run and all its processes as soon as a file is there; seconds until then.

    Raises:
        SystemExit: it ended before.
    """
    print("+", *command, f"  (killed when {there.name} is there)", flush=True)
    start = time.perf_counter()
    run = subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL)
    while not there.exists():
        if run.poll() is not None:
            raise SystemExit(f"the run ended with status {run.returncode} before {there} was there")
        time.sleep(0.2)
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in processes:
        if process.is_running():
            process.kill()
    psutil.wait_procs(processes, timeout=60)
    return round(time.perf_counter() - start, 1)


def steps_of(folder: Path) -> dict[str, Any]:
    """The last step, and what one took."""
    metrics = read_metrics(folder / "metrics.jsonl")
    seconds = sorted(values["timing_s/step"] for values in metrics.values() if "timing_s/step" in values)
    memory = [values.get("perf/max_memory_allocated_gb", 0.0) for values in metrics.values()]
    return {
        "last_step": max(metrics),
        "median_seconds_per_step": round(seconds[len(seconds) // 2], 2),
        "peak_gb": round(max(memory), 3),
    }


def quickstart(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    tiny = arguments.tiny
    env = environment(arguments.device)
    module = [sys.executable, "-m"]
    problems = "64" if tiny else "1000"
    seconds = {}
    data, sft = str(folder / "data"), str(folder / "sft")
    seconds["data"] = finish(
        [*module, "recipes.quickstart.data", "--output-dir", data, "--seed", "0", "--test-size", problems], env
    )
    seconds["warm_start"] = finish(
        [*module, "recipes.quickstart.sft", "--data", f"{data}/sft.parquet", "--output-dir", sft, "--seed", "0"]
        + ["--steps", "20" if tiny else "1000"],
        env,
    )
    evaluate = [*module, "recipes.quickstart.evaluate", "--data", f"{data}/test.parquet", "--seed", "0"]
    before, after = folder / "before.json", folder / "after.json"
    finish([*evaluate, "--model", sft, "--output", str(before)], env)
    steps = STEPS[tiny]
    train = ["bash", "recipes/quickstart/train.sh", str(folder), data, sft]
    # Two steps of an untrained model pass no filter.
    easy = ["prime.filter.lower=0.0", "prime.filter.upper=1.0"] if tiny else []
    seconds["prime"] = finish(
        [*train, *easy], env | {"STEPS": str(steps), "SAVE_FREQ": str(steps), "DEVICE": arguments.device}
    )
    finish([*module, "prime_ext.generate.export", f"{folder}/checkpoints", str(folder / "policy")], env)
    finish([*evaluate, "--model", str(folder / "policy"), "--output", str(after)], env)
    accuracy = {name: json.loads(path.read_text()) for name, path in (("before", before), ("after", after))}
    return {"seconds": seconds, **steps_of(folder), "evaluation": accuracy}


def gsm8k(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rollout = "vllm" if arguments.device != "cpu" and find_spec("vllm") else "transformers"
    command = ["bash", "recipes/prime_gsm8k.sh", arguments.model or "tiny"]
    knobs = {"N_GPUS": "1", "OUTPUT_DIR": str(folder)}
    if arguments.model:
        knobs |= {"STEPS": "3", "SAVE_FREQ": "1", "TEST_FREQ": "-1", "TRAIN_BATCH": "16", "MINI_BATCH": "16"}
        knobs |= {"GSM8K_DIR": arguments.data, "DEVICE": arguments.device, "MAX_RESPONSE": "256"}
        run, first, last = folder, 1, 3
    else:
        shrink = "1" if arguments.device == "cpu" else "gpu"
        knobs |= {"SHRINK": shrink, "SHRINK_STEPS": "4", "SHRINK_ROLLOUT": rollout}
        run, first, last = folder / "shrunk", 2, 4
    env = environment(arguments.device, **knobs)
    complete = "checkpoints/global_step_{}/prime_ext_complete.json"
    until_killed = kill_when(run / complete.format(first), command, env)
    resumed = finish(command, env)
    if not (run / complete.format(last)).exists():
        raise SystemExit(f"no checkpoint of step {last} after the second start")
    return {"rollout": rollout, "model": arguments.model or "shrunk"} | {
        "seconds_until_killed": until_killed,
        "seconds_of_the_second_start": resumed,
        **steps_of(run),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("quickstart", "gsm8k"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default=os.environ.get("MODEL", ""))
    parser.add_argument("--data", default=os.environ.get("GSM8K_DIR", ""))
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {"quickstart": quickstart, "gsm8k": gsm8k}[arguments.part](arguments, Path(folder))
    write_json(arguments.output, {"machine": describe(arguments.device), **found})
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
