# SPDX-License-Identifier: Apache-2.0
"""An update of the PRM at a vocabulary of 151,936: plain, by verl's fused torch kernel, and chunked.

    python tests/benchmarks/chunked_log_probs.py

Each measurement is a process of its own; what the process holds before the update is subtracted. Prints and writes
chunked_log_probs.json beside this file.
"""

import json
import statistics
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import harness
import torch
from engines import PRM_LOG_PROBS, Rollouts, build_worker, nested, save_llama
from machine import forget_peak, peak_mib, resident_mib

BACKENDS = {"plain": None, "verl_torch": "torch", "chunked": "chunked"}
MODEL = {"width": 64, "layers": 2}


def measure_update(options: Namespace) -> dict[str, Any]:
    """One update of the PRM on one micro-batch of ``tokens`` tokens."""
    worker = build_worker(Path(options.model), fused=BACKENDS[options.kind])
    result: dict[str, Any] = {}
    # The first update is short and builds the optimizer's state.
    for length in (4, options.tokens // 4 - 4):
        rollouts = Rollouts(4, 4, length, options.vocabulary)
        data = rollouts.prm_data(nested([torch.full((len(mask),), -12.0) for mask in rollouts.masks]), 4)
        result["held_mib"] = resident_mib()
        forget_peak()
        output, result["cpu_seconds"] = harness.timed(lambda data=data: worker.update_and_score(data))
    metrics, log_probs = worker.update_metrics(), output[PRM_LOG_PROBS].values()
    return result | {"peak_mib": peak_mib(), "grad_norm": metrics["grad_norm"][0], "log_probs": log_probs.tolist()}


def measure_all(options: Namespace) -> dict[str, Any]:
    """Medians over processes, by kind."""
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in BACKENDS}
    with tempfile.TemporaryDirectory() as folder:
        model = save_llama(Path(folder), options.vocabulary, **MODEL)
        words = ["--tokens", options.tokens, "--vocabulary", options.vocabulary, "--model", model]
        for _ in range(options.repeats):
            for kind, results in runs.items():
                results.append(harness.own_process(*words, "--kind", kind))
    plain = torch.tensor(runs["plain"][0]["log_probs"])
    found = {}
    for kind, results in runs.items():
        peak, held, seconds = (
            statistics.median(result[key] for result in results) for key in ("peak_mib", "held_mib", "cpu_seconds")
        )
        found[kind] = {
            "peak_above_held_mib": round(peak - held, 1),
            "cpu_seconds": round(seconds, 2),
            "largest_log_prob_difference_to_plain": float((torch.tensor(results[0]["log_probs"]) - plain).abs().max()),
            "grad_norm": results[0]["grad_norm"],
        }
    return found


def main() -> None:
    parser = harness.parser(__doc__, tokens=1024, vocabulary=151936, repeats=3)
    measured = parser.add_argument_group("one measurement in this process")
    measured.add_argument("--kind", choices=BACKENDS)
    measured.add_argument("--model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.kind:
        print(json.dumps(measure_update(options)))
        return
    matrix = round(options.tokens * options.vocabulary * 4 / 2**20, 1)
    harness.record(options, {"one_matrix_of_logits_mib": matrix, "prm_update": measure_all(options)})


if __name__ == "__main__":
    main()
