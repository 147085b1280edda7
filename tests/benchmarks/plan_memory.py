# SPDX-License-Identifier: Apache-2.0
"""The plan's memory of a PRM process (``python -m prime_ext.doctor --plan``) against the resident memory of one.

    python tests/benchmarks/plan_memory.py

Builds the PRM's worker on the CPU, trains it twice on one micro-batch, and compares what the process holds afterwards
(weights and optimiser states) and the peak of the second time with what the plan says. Each model is a process of its
own; what that held after training a model of a few weights is subtracted. Prints and writes plan_memory.json beside
this file.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import harness
import torch
from engines import Rollouts, build_worker, nested, save_llama, smollm2_135m
from machine import forget_peak, peak_mib, resident_mib
from transformers import AutoConfig

from prime_ext.plan.memory import Engine, engine_memory, read_shape

MIB = 2**20
ROWS, PROMPT = 4, 16


def build_models(folder: Path) -> dict[str, Path]:
    return {
        "quickstart, 0.1 M": save_llama(folder / "quickstart", 56, 64, 2, 2, intermediate_size=192),
        "random, 30 M": save_llama(folder / "random", 32000, 384, 8, 6, intermediate_size=1536),
        "SmolLM2-135M shape": smollm2_135m(folder / "smollm2"),
    }


def planned_mib(path: str, tokens: int, backend: str | None) -> dict[str, float]:
    shape = read_shape("model", path)
    memory = engine_memory(Engine(shape, shape.weights, 0, 4, 4, 1, tokens, True, backend))
    return {
        "parameters": shape.weights,
        # Gradients are freed when the optimiser has stepped.
        "planned_held": (memory["weights"] + memory["optimizer"]) / MIB,
        "planned_peak": memory["working"] / MIB,
    }


def train(path: Path, response: int, backend: str | None) -> tuple[object, float]:
    """The worker after two updates, and the peak of the second; the first builds the optimiser's states."""
    rollouts = Rollouts(ROWS, PROMPT, response, AutoConfig.from_pretrained(path).vocab_size)
    worker = build_worker(path, fused=backend, micro_batch_size=ROWS)
    reference = nested([torch.zeros(len(mask)) for mask in rollouts.masks])
    worker.update_and_score(rollouts.prm_data(reference, ROWS))
    forget_peak()
    worker.update_and_score(rollouts.prm_data(reference, ROWS))
    return worker, peak_mib()


def measure(path: Path, response: int, backend: str | None) -> dict[str, float]:
    """Resident memory above that before the model: held after an update, and the peak."""
    torch.set_num_threads(1)
    # Everything that is imported or cached at the first use belongs to the process, not to the model.
    with tempfile.TemporaryDirectory() as folder:
        small, _ = train(save_llama(Path(folder), 16, 16, 1), response, backend)
    base = resident_mib()
    worker, peak = train(path, response, backend)
    return {"measured_held": resident_mib() - base, "measured_peak": peak - base}


def main() -> None:
    parser = harness.parser(__doc__, repeats=3)
    parser.add_argument("--response", type=int, default=112, help="tokens of the longest response")
    parser.add_argument("--measure", type=Path, help="folder of a model to measure in this process")
    parser.add_argument("--backend", choices=("chunked",))
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.response, options.backend)))
        return
    tokens = ROWS * (PROMPT + options.response)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in build_models(Path(folder)).items():
            for backend in (None, "chunked"):
                words = ["--measure", path, "--response", options.response]
                words += ["--backend", backend] if backend else []
                runs = [harness.own_process(*words) for _ in range(options.repeats)]
                measured = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
                values = planned_mib(str(path), tokens, backend) | measured
                results[f"{name}, {backend or 'plain'}"] = {key: round(value, 1) for key, value in values.items()}
    harness.record(options, {"micro_batch_tokens": tokens, "unit": "MiB", "results": results})


if __name__ == "__main__":
    main()
