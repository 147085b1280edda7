# SPDX-License-Identifier: Apache-2.0
"""Steps on one device, each with its own limit: tests/gpu/first_run.sh and tests/gpu/run.sh.

    python tests/gpu/device_run.py first_run [STEP ...] [--from STEP] [--dry-run]
    python tests/gpu/device_run.py run [STEP ...] [--from STEP] [--dry-run]

Writes RESULTS/DEVICE_PROGRAM.json after every step, and RESULTS/STEP.log. Imports only Python's own
library and prime_ext.utils.files, so that it starts where packages are missing: a step that needs
them is skipped. Environment variables are in the help of the two scripts.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from prime_ext.utils.files import write_json  # noqa: E402

# Seconds that a step has to end after its limit.
GRACE = 30
# Lines of a step's output in the results.
LAST_LINES = 15
LONGEST_LINE = 500
DISTRIBUTIONS = "torch triton vllm flashinfer-python flash-attn transformers verl ray".split()
INSTALL = "pip install -e '.[gpu]', and docs/how_to/install.md for flash-attn"
LOOK = "read the end of its log"


@dataclass(frozen=True)
class Step:
    """A command with a limit in seconds, and how to judge its end.

    ``needs`` names modules. The folder ``fresh`` is removed first, and made again from ``copies``,
    targets below it with their sources. ``metrics`` is a run's file and the training step that it
    must log last. ``statuses`` maps exit statuses to results; others are failures.
    """

    name: str
    words: Sequence[str]
    limit: int
    needs: Sequence[str] = ()
    remedy: str = LOOK
    knobs: Mapping[str, str] = field(default_factory=dict)
    needs_device: bool = False
    fresh: Path | None = None
    copies: Mapping[str, Path] = field(default_factory=dict)
    metrics: tuple[Path, int] | None = None
    statuses: Mapping[int, str] = field(default_factory=lambda: {0: "passed"})
    # Also after a failure.
    always: bool = False

    @property
    def command(self) -> str:
        knobs = [f"{name}={value}" for name, value in self.knobs.items()]
        return shlex.join([*(["env", *knobs] if knobs else []), *self.words])


@dataclass(frozen=True)
class Place:
    """The device (cuda or cpu), the interpreter, and the folders of a program."""

    device: str
    python: str
    results: Path
    # Models, data and checkpoints.
    work: Path


def build_first_run(place: Place) -> list[Step]:
    """Return the steps of the first quarter of an hour, the cheapest first."""
    work = place.work
    on_gpu = place.device != "cpu"
    shrunk = work / "eurus2" / "shrunk"
    probe = [place.python, "tests/gpu/device_probes.py"]
    evaluate = [place.python, "-m", "eval.run", "--tasks", "last_digit_chain", "--limit", "16"]
    evaluate += "--temperature 1 --top-p 0.95 --max-new-tokens 32".split()
    evaluate += ["--model", str(work / "qwen2"), "--output", str(work / "eval"), "--backend"]
    evaluate += "vllm --gpu-memory-utilization 0.2".split() if on_gpu else ["transformers"]
    rl = ("torch", "transformers", "verl", "ray", *(["vllm"] if on_gpu else []))
    eurus2 = {"SHRINK": "gpu" if on_gpu else "1", "OUTPUT_DIR": str(work / "eurus2")}
    eurus2["SHRINK_ROLLOUT"] = "vllm" if on_gpu else "transformers"
    model = work / ("qwen2_0.5b" if on_gpu else "qwen2")
    gsm8k = ["bash", "recipes/prime_gsm8k.sh", str(model)]
    gsm8k.append("modules=[recipes.smoke.smoke_verifier]")
    knobs = {"STEPS": "2", "SAVE_FREQ": "-1", "TEST_FREQ": "-1", "N_GPUS": "1"}
    if on_gpu:
        knobs |= {"TRAIN_BATCH": "16", "MINI_BATCH": "16", "MAX_RESPONSE": "128"}
        knobs |= {"TOKENS_PER_GPU": "4096", "ROLLOUT_MEMORY": "0.4"}
        if find_spec("flash_attn") is None:
            gsm8k.append("++actor_rollout_ref.model.override_config.attn_implementation=sdpa")
    else:
        knobs |= {"DEVICE": "cpu", "MAX_PROMPT": "64", "MAX_RESPONSE": "16"}
    rows = {"data/train.parquet": work / "rows" / "train.parquet"}
    rows |= {"data/test.parquet": work / "rows" / "val.parquet"}

    def train(name: str, limit: int, *words: str) -> Step:
        folder = work / name
        return Step(
            name,
            [*gsm8k, *words],
            limit,
            rl,
            knobs={**knobs, "OUTPUT_DIR": str(folder)},
            fresh=folder,
            copies=rows,
            metrics=(folder / "metrics.jsonl", 2),
        )

    recipe = ["bash", "recipes/prime/run_eurus2-7b_fsdp.sh"]
    return [
        # Its problems may be in parts that no later step needs.
        Step(
            "doctor",
            [place.python, "-m", "prime_ext.doctor"],
            45,
            ("torch", "verl"),
            statuses={0: "passed", 1: "warned"},
        ),
        Step("toolchain", [*probe, "toolchain"], 10),
        Step("triton", [*probe, "triton"], 25, ("torch", "triton"), needs_device=True),
        Step("compile", [*probe, "compile"], 45, ("torch",), knobs={"TORCH_COMPILE_DISABLE": "0"}),
        Step(
            "flash_attn",
            [*probe, "flash_attn"],
            20,
            ("torch", "flash_attn"),
            "install a wheel for this torch and CUDA (docs/how_to/install.md#flash-attn)",
            needs_device=True,
        ),
        Step(
            "inputs",
            [*probe, "inputs", str(work), *([] if on_gpu else ["--tiny"])],
            40,
            ("torch", "transformers", "pyarrow"),
        ),
        Step(
            "evaluate",
            evaluate,
            95,
            ("torch", "transformers", *(["vllm"] if on_gpu else [])),
            fresh=work / "eval",
        ),
        Step(
            "shrunk",
            recipe,
            165,
            rl,
            knobs=eurus2,
            fresh=shrunk,
            copies={"inputs/model": work / "qwen3"},
            metrics=(shrunk / "metrics.jsonl", 2),
        ),
        Step(
            "resume",
            recipe,
            110,
            rl,
            "if its log names no error of a run, begin with --from shrunk",
            {**eurus2, "SHRINK_STEPS": "4", "TORCH_COMPILE_DISABLE": "0"},
            metrics=(shrunk / "metrics.jsonl", 4),
        ),
        train("gsm8k", 180),
        train("distilled", 125, "variant=distilled"),
        Step("logs", [*probe, "logs", str(work), str(place.results)], 10, always=True),
    ]


def build_run(place: Place) -> list[Step]:
    """Return the parts of tests/gpu/run.sh, which do not depend on each other."""
    name = find_device(place)["device"].replace(" ", "_")
    output = place.results / name
    tiny = [] if place.device != "cpu" else ["--tiny"]
    measure = [place.python, "tests/gpu/measure.py", *tiny, "--output", f"{output}.json"]
    gsm8k = [place.python, "tests/gpu/runs.py", "--device", place.device]
    # Status 5: without a device no test is left.
    no_tests = {5: "skipped"} if tiny else {}
    pytest = [place.python, "-m", "pytest", "-m", "gpu", "-q", "tests/gpu"]
    return [
        Step("measure", measure, 600, ("torch", "transformers", "verl", "hydra")),
        Step("pytest", pytest, 600, ("torch", "pytest"), statuses={0: "passed", **no_tests}),
        Step("gsm8k", [*gsm8k, "--output", f"{output}_gsm8k.json"], 600, ("verl", "ray")),
    ]


PROGRAMS = {"first_run": build_first_run, "run": build_run}


def find_device(place: Place) -> dict[str, str]:
    """Return the name of the device and its driver's version. SystemExit: there is none."""
    if place.device == "cpu":
        return {"device": "cpu"}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    torch = [place.python, "-c", "import torch; print(torch.cuda.get_device_name())"]
    for words in (query, torch):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            if done.returncode == 0 and done.stdout.strip():
                parts = done.stdout.splitlines()[0].split(", ")
                return dict(zip(("device", "driver"), parts, strict=False))
    print(
        "device_run: neither nvidia-smi nor torch finds a CUDA device; DEVICE=cpu tries the steps"
        " on the CPU",
        file=sys.stderr,
    )
    raise SystemExit(2)


def find_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def get_environment(place: Place, knobs: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept |= {"PYTHON": place.python, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    kept |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    kept |= {"RAY_USAGE_STATS_ENABLED": "0", "DEVICE": place.device}
    if place.device == "cpu":
        kept |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    return kept | dict(knobs)


def find_reason_to_skip(step: Step, place: Place) -> str:
    """Return what a step lacks here, or nothing."""
    if step.needs_device and place.device == "cpu":
        return "needs a CUDA device"
    missing = [name for name in step.needs if find_spec(name) is None]
    return f"needs {', '.join(missing)}: {INSTALL}" if missing else ""


def run_step(step: Step, place: Place) -> dict[str, Any]:
    """Run a step within its limit; return its entry in the results."""
    log = place.results / f"{step.name}.log"
    log.unlink(missing_ok=True)
    entry: dict[str, Any] = {"name": step.name, "command": step.command, "limit": step.limit}
    if reason := find_reason_to_skip(step, place):
        return {**entry, "seconds": 0.0, "status": "skipped", "reason": reason, "last_lines": []}
    begin = time.time()
    reason = _prepare(step)
    code = None if reason else _run(step, place, log)
    if code is None:
        reason = reason or f"it reached its limit of {step.limit} s"
    elif code not in step.statuses:
        reason = f"it ended with status {code}"
    elif step.metrics is not None:
        reason = check_metrics(*step.metrics, begin)
    output = log.read_text(errors="replace").splitlines() if log.exists() else []
    lines = [line[:LONGEST_LINE] for line in output[-LAST_LINES:]]
    entry["seconds"] = round(time.time() - begin, 1)
    status = "failed" if code is None or reason else step.statuses[code]
    return {**entry, "status": status, "reason": reason, "last_lines": lines}


def _prepare(step: Step) -> str:
    """Make a step's folder anew; return what is missing for that, or nothing."""
    for source in step.copies.values():
        if not source.exists():
            return f"{source} is not there; begin with --from inputs"
    if step.fresh is not None:
        shutil.rmtree(step.fresh, ignore_errors=True)
        for target, source in step.copies.items():
            path = step.fresh / target
            path.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    return ""


def _run(step: Step, place: Place, log: Path) -> int | None:
    """Return a step's exit status, None if its limit ended it; no process of it is left."""
    with log.open("w") as output:
        process = subprocess.Popen(
            list(step.words),
            cwd=ROOT,
            env=get_environment(place, step.knobs),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(step.limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end, then kill it with all that it has started."""
    running = _find_descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    running += _find_descendants(process.pid)
    process.kill()
    process.wait()
    for pid in set(running):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _find_descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                found += [child, *_find_descendants(child)]
    return found


def check_metrics(path: Path, wanted: int, begin: float) -> str:
    """Return why a run since ``begin`` has not logged a training step, or nothing."""
    if not path.exists() or path.stat().st_mtime < begin:
        return f"it logged no step in {path}"
    last = max(json.loads(line)["step"] for line in path.read_text().splitlines())
    return "" if last == wanted else f"its last step in {path} is {last}, not {wanted}"


def choose_steps(steps: Sequence[Step], names: Sequence[str], first: str | None) -> list[Step]:
    """Return the named steps, or all, from ``first`` on. SystemExit: one does not exist."""
    known = [step.name for step in steps]
    for name in (*names, *([first] if first else [])):
        if name not in known:
            print(f"device_run: no step {name}; the steps are {', '.join(known)}", file=sys.stderr)
            raise SystemExit(2)
    later = known[known.index(first) if first else 0 :]
    return [step for step in steps if step.name in later and step.name in (names or known)]


def run_steps(
    program: str, steps: Sequence[Step], chosen: Sequence[Step], place: Place, keep_going: bool
) -> int:
    """Run the chosen steps, and write the results after each; return the exit status.

    Results of other steps that an earlier start has written stay.
    """
    device = find_device(place)
    place.results.mkdir(parents=True, exist_ok=True)
    output = place.results / f"{device['device'].replace(' ', '_')}_{program}.json"
    order = [step.name for step in steps]
    done: dict[str, dict[str, Any]] = {}
    if output.exists() and len(chosen) < len(steps):
        done = {entry["name"]: entry for entry in json.loads(output.read_text())["steps"]}
    for step in chosen:
        done.pop(step.name, None)
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for step in chosen:
        if failed and not keep_going and not step.always:
            continue
        log = place.results / f"{step.name}.log"
        print(f"== {step.name}: at most {step.limit} s, {log}", flush=True)
        entry = done[step.name] = run_step(step, place)
        entries = [done[name] for name in order if name in done]
        counts = Counter(entry["status"] for entry in entries)
        counts["not run"] = len(steps) - len(entries)
        write_json(
            output,
            {"machine": {**device, **find_versions()}, "counts": dict(counts), "steps": entries},
        )
        reason = f" ({entry['reason']})" if entry["reason"] else ""
        print(f"== {step.name}: {entry['status']}, {entry['seconds']} s{reason}", flush=True)
        if entry["status"] in ("failed", "warned"):
            print(*entry["last_lines"], sep="\n")
        if entry["status"] == "failed":
            failed.append(
                f"{program}: step {step.name} failed: {entry['reason']}; its log is {log};"
                f" {step.remedy}, then: bash tests/gpu/{program}.sh --from {step.name}"
            )
    told = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()) if number)
    print(f"{program}: {told}; results in {output}")
    print(*failed, sep="\n", file=sys.stderr, end="\n" if failed else "")
    return 1 if failed else 0


def print_steps(chosen: Sequence[Step], place: Place) -> None:
    for step in chosen:
        print(f"{step.name:<12}{step.limit:>4} s  {step.command}")
        if reason := find_reason_to_skip(step, place):
            print(f"{'':<18} skipped: {reason}")
    print(f"{'all':<12}{sum(step.limit for step in chosen):>4} s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("steps", nargs="*", help="only these (default: all)")
    parser.add_argument("--from", dest="first", metavar="STEP", help="only this and the later ones")
    parser.add_argument("--dry-run", action="store_true", help="print steps and limits")
    options = parser.parse_args()
    folder = "outputs/first_run" if options.program == "first_run" else "tests/gpu/results"
    results = Path(os.environ.get("RESULTS") or folder).absolute()
    # A folder of its own, because steps remove folders in it.
    work = Path(os.environ.get("WORK") or "outputs/first_run").absolute() / "work"
    device = os.environ.get("DEVICE") or "cuda"
    if device not in ("cuda", "cpu"):
        parser.error(f"DEVICE={device} must be cuda or cpu")
    place = Place(device, os.environ.get("PYTHON") or sys.executable, results, work)
    steps = PROGRAMS[options.program](place)
    if limit := os.environ.get("LIMIT"):
        if not limit.isdecimal() or int(limit) == 0:
            parser.error(f"LIMIT={limit} must be a number of seconds")
        steps = [replace(step, limit=int(limit)) for step in steps]
    chosen = choose_steps(steps, options.steps, options.first)
    if options.dry_run:
        print_steps(chosen, place)
        return 0
    # The steps end with this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return run_steps(options.program, steps, chosen, place, options.program == "run")


if __name__ == "__main__":
    sys.exit(main())
