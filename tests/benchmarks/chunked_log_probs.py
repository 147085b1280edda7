# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities at a vocabulary of 151,936: plain, by verl's fused torch kernel, and chunked.

    python tests/benchmarks/chunked_log_probs.py

First the function alone, forward and backward; then a whole update of the PRM by its worker on verl's engine. Each
measurement is a process of its own; what the process holds without any logits is subtracted. Errors are those against
float64. Prints and writes chunked_log_probs.json beside this file.
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
from plain_log_probs import plain_log_probs
from verl.utils.experimental.torch_functional import FusedLinearForPPO

from prime_ext.algorithms.chunked_log_probs import chunked_log_probs_and_entropy

FUNCTIONS = {
    "plain": plain_log_probs,
    "verl_torch": lambda *inputs: FusedLinearForPPO().forward(*inputs, 1.0)[0],
    "chunked": lambda *inputs: chunked_log_probs_and_entropy(*inputs)[0],
}
BACKENDS = {"plain": None, "verl_torch": "torch", "chunked": "chunked"}
UPDATE_MODEL = {"width": 64, "layers": 2}


def measure_function(options: Namespace) -> dict[str, Any]:
    """Forward and backward pass of the function alone; of the kind ``nothing``, what its inputs and gradients need."""
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(options.tokens, options.width, generator=generator).requires_grad_()
    weight_VH = (0.1 * torch.randn(options.vocabulary, options.width, generator=generator)).requires_grad_()
    target_N = torch.randint(options.vocabulary, (options.tokens,), generator=generator)
    if options.kind == "nothing":
        hidden_NH.grad, weight_VH.grad = torch.ones_like(hidden_NH), torch.ones_like(weight_VH)
        return {"peak_mib": peak_mib()}

    def both_ways() -> torch.Tensor:
        log_prob_N = FUNCTIONS[options.kind](hidden_NH, weight_VH, target_N)
        log_prob_N.sum().backward()
        return log_prob_N

    log_prob_N, seconds = harness.timed(both_ways)
    result = {"cpu_seconds": seconds, "peak_mib": peak_mib()}
    exact_N = plain_log_probs(hidden_NH[:16].double(), weight_VH.double(), target_N[:16])
    return result | {"error": float((log_prob_N[:16].double() - exact_N).abs().max().detach())}


def measure_update(options: Namespace) -> dict[str, Any]:
    """One update of the PRM on one micro-batch of ``tokens`` tokens."""
    worker = build_worker(Path(options.model), fused=BACKENDS[options.kind], micro_batch_size=4, checkpointing=True)
    result: dict[str, Any] = {}
    # The first update is short and builds the optimiser's state.
    for length in (4, options.tokens // 4 - 4):
        rollouts = Rollouts(4, 4, length, options.vocabulary)
        reference = nested([torch.full((len(mask),), -12.0) for mask in rollouts.masks])
        result["held_mib"] = resident_mib()
        forget_peak()
        data = rollouts.prm_data(reference, 4)
        output, result["cpu_seconds"] = harness.timed(lambda data=data: worker.update_and_score(data))
    metrics, log_probs = worker.update_metrics(), output[PRM_LOG_PROBS].values()
    return result | {"peak_mib": peak_mib(), "grad_norm": metrics["grad_norm"][0], "log_probs": log_probs.tolist()}


def runs_of(what: str, options: Namespace, **more: Any) -> dict[str, list[dict[str, Any]]]:
    """Measurements in processes of their own, by kind, in turn."""
    values = {"tokens": options.tokens, "vocabulary": options.vocabulary, **more}
    words = [word for name, value in values.items() for word in (f"--{name}", value)]
    kinds = [*FUNCTIONS] if what == "update" else ["nothing", *FUNCTIONS]
    found: dict[str, list] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        for kind in kinds:
            found[kind].append(harness.own_process("--measure", what, "--kind", kind, *words))
    return found


def median(results: list[dict[str, Any]], key: str, digits: int) -> float:
    return round(statistics.median(result[key] for result in results), digits)


def function_alone(options: Namespace, width: int) -> dict[str, Any]:
    runs = runs_of("function", options, width=width)
    floor = median(runs.pop("nothing"), "peak_mib", 1)
    return {
        kind: {
            "peak_above_inputs_and_gradients_mib": round(median(results, "peak_mib", 1) - floor, 1),
            "cpu_seconds": median(results, "cpu_seconds", 2),
            "largest_error": results[0]["error"],
        }
        for kind, results in runs.items()
    }


def prm_update(options: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = runs_of("update", options, model=save_llama(Path(folder), options.vocabulary, **UPDATE_MODEL))
    plain = torch.tensor(runs["plain"][0]["log_probs"])
    return {
        kind: {
            "peak_mib": median(results, "peak_mib", 1),
            "held_before_mib": median(results, "held_mib", 1),
            "peak_above_held_mib": round(median(results, "peak_mib", 1) - median(results, "held_mib", 1), 1),
            "cpu_seconds": median(results, "cpu_seconds", 2),
            "largest_log_prob_difference_to_plain": float((torch.tensor(results[0]["log_probs"]) - plain).abs().max()),
            "grad_norm": results[0]["grad_norm"],
        }
        for kind, results in runs.items()
    }


def main() -> None:
    parser = harness.parser(__doc__, tokens=1024, vocabulary=151936, repeats=3)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 896])
    measured = parser.add_argument_group("one measurement in this process")
    measured.add_argument("--measure", choices=("function", "update"))
    measured.add_argument("--kind", choices=("nothing", *FUNCTIONS))
    measured.add_argument("--width", type=int)
    measured.add_argument("--model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.measure:
        print(json.dumps(measure_function(options) if options.measure == "function" else measure_update(options)))
        return
    results = {
        "update_model": UPDATE_MODEL,
        "one_matrix_of_logits_mib": round(options.tokens * options.vocabulary * 4 / 2**20, 1),
        "prm_update": prm_update(options),
        "function_by_width": {str(width): function_alone(options, width) for width in options.widths},
    }
    harness.record(options, results)


if __name__ == "__main__":
    main()
