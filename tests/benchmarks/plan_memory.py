# SPDX-License-Identifier: Apache-2.0
"""The plan's memory of a PRM process (``python -m prime_ext.doctor --plan``) against the resident memory of one.

    python tests/benchmarks/plan_memory.py

Builds the PRM's worker on the CPU, trains it twice on one micro-batch, and compares what the process holds afterwards
(weights and optimiser states) and the peak of the second time with what the plan says. Each model is a process of its
own; what that held after training a model of a few weights is subtracted. Prints and writes plan_memory.json beside
this file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from prime_ext.utils.files import write_json

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["VERL_PLATFORM"] = "cpu"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

MIB = 2**20
ROWS, PROMPT = 4, 16


def build_models(folder: Path) -> dict[str, Path]:
    import engines

    return {
        "quickstart, 0.1 M": engines.save_llama(folder / "quickstart", 56, 64, 2, 2, intermediate_size=192),
        "random, 30 M": engines.save_llama(folder / "random", 32000, 384, 8, 6, intermediate_size=1536),
        "SmolLM2-135M shape": engines.smollm2_135m(folder / "smollm2"),
    }


def planned_mib(path: str, tokens: int, backend: str | None) -> dict[str, float]:
    from prime_ext.plan.memory import Engine, engine_memory
    from prime_ext.plan.model_shape import read_shape

    shape = read_shape("model", path)
    memory = engine_memory(Engine("PRM", shape, shape.weights, 0, 4, 4, 1, tokens, True, backend, False, False, False))
    return {
        "parameters": shape.weights,
        # Gradients are freed when the optimiser has stepped.
        "planned_held": (memory.weights + memory.optimizer) / MIB,
        "planned_peak": memory.working / MIB,
    }


def measure(path: str, response: int, backend: str | None) -> dict[str, Any]:
    """Resident memory above that before the model: held after an update, and the peak."""
    import torch
    from engines import Rollouts, build_worker, nested, save_llama
    from machine import forget_peak, peak_mib, resident_mib
    from transformers import AutoConfig

    torch.set_num_threads(1)

    def train(folder: str) -> tuple[object, float]:
        rollouts = Rollouts(ROWS, PROMPT, response, AutoConfig.from_pretrained(folder).vocab_size)
        worker = build_worker(Path(folder), fused=backend, micro_batch_size=ROWS)
        reference = nested([torch.zeros(len(mask)) for mask in rollouts.masks])
        # The first update builds the optimiser's states.
        worker.update_and_score(rollouts.prm_data(reference, ROWS))
        forget_peak()
        worker.update_and_score(rollouts.prm_data(reference, ROWS))
        return worker, peak_mib()

    # Everything that is imported or cached at the first use belongs to the process, not to the model.
    with tempfile.TemporaryDirectory() as folder:
        small, _ = train(str(save_llama(Path(folder), 16, 16, 1)))
    base = resident_mib()
    worker, peak = train(path)
    return {"held": resident_mib() - base, "peak": peak - base}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--response", type=int, default=112, help="tokens of the longest response")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--measure", help="folder of a model to measure in this process")
    parser.add_argument("--backend", choices=("chunked",))
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.response, arguments.backend)))
        return

    from machine import describe

    tokens = ROWS * (PROMPT + arguments.response)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in build_models(Path(folder)).items():
            for backend in (None, "chunked"):
                command = [sys.executable, __file__, "--measure", str(path), "--response", str(arguments.response)]
                command += ["--backend", backend] if backend else []
                runs = []
                for _ in range(arguments.repeats):
                    done = subprocess.run(command, capture_output=True, text=True)
                    if done.returncode:
                        raise SystemExit(done.stderr[-3000:])
                    runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
                measured = {f"measured_{key}": sorted(run[key] for run in runs)[len(runs) // 2] for key in runs[0]}
                values = planned_mib(str(path), tokens, backend) | measured
                case = f"{name}, {backend or 'plain'}"
                results[case] = {key: round(value, 1) for key, value in values.items()}
                print(case, results[case], flush=True)
    settings = {"micro_batch_tokens": tokens, "repeats": arguments.repeats, "dtype": "float32", "unit": "MiB"}
    report = {"machine": describe(), "settings": settings, "results": results}
    write_json(arguments.output, report)


if __name__ == "__main__":
    main()
