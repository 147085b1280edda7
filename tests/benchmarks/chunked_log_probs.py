# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities at a vocabulary of 151,936: plain, by verl's fused torch kernel, and chunked.

    python tests/benchmarks/chunked_log_probs.py

First the function alone, forward and backward; then a whole update of the PRM by its worker on verl's engine. Each
measurement is a process of its own, because the peak of a process never falls; what the process holds without any
logits is subtracted. Errors are those against float64. Prints and writes chunked_log_probs.json beside this file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prime_ext.utils.files import write_json

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["VERL_PLATFORM"] = "cpu"
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

MIB = 2**20
KINDS = ("plain", "verl_torch", "chunked")
BACKENDS = {"plain": None, "verl_torch": "torch", "chunked": "chunked"}
ENGINE_WIDTH, ENGINE_LAYERS = 64, 2


def measure_function(kind: str, tokens: int, vocabulary: int, width: int) -> dict[str, Any]:
    """Forward and backward pass of the function alone."""
    import torch
    from machine import peak_mib
    from verl.utils.experimental.torch_functional import FusedLinearForPPO

    from prime_ext.algorithms.chunked_log_probs import chunked_log_probs_and_entropy, plain_log_probs

    functions = {
        "plain": plain_log_probs,
        "verl_torch": lambda *inputs: FusedLinearForPPO().forward(*inputs, 1.0)[0],
        "chunked": lambda *inputs: chunked_log_probs_and_entropy(*inputs)[0],
    }
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(tokens, width, generator=generator).requires_grad_()
    weight_VH = (0.1 * torch.randn(vocabulary, width, generator=generator)).requires_grad_()
    target_N = torch.randint(vocabulary, (tokens,), generator=generator)
    if kind == "nothing":
        hidden_NH.grad, weight_VH.grad = torch.ones_like(hidden_NH), torch.ones_like(weight_VH)
        return {"peak_mib": peak_mib()}
    start = time.process_time()
    log_prob_N = functions[kind](hidden_NH, weight_VH, target_N)
    log_prob_N.sum().backward()
    result: dict[str, Any] = {"cpu_seconds": time.process_time() - start, "peak_mib": peak_mib()}
    exact_N = plain_log_probs(hidden_NH[:16].double(), weight_VH.double(), target_N[:16])
    result["error"] = float((log_prob_N[:16].double() - exact_N).abs().max().detach())
    return result


def measure_update(kind: str, model: str, tokens: int, vocabulary: int) -> dict[str, Any]:
    """One update of the PRM on one micro-batch of ``tokens`` tokens."""
    import torch
    from engines import PRM_LOG_PROBS, Rollouts, build_worker, nested
    from machine import forget_peak, peak_mib, resident_mib

    torch.set_num_threads(1)
    worker = build_worker(Path(model), fused=BACKENDS[kind], micro_batch_size=4, checkpointing=True)
    seconds, log_probs, held = 0.0, None, 0.0
    # The first update is short and builds the optimiser's state.
    for length in (4, tokens // 4 - 4):
        rollouts = Rollouts(4, 4, length, vocabulary)
        reference = nested([torch.full((len(mask),), -12.0) for mask in rollouts.masks])
        held = resident_mib()
        forget_peak()
        start = time.process_time()
        log_probs = worker.update_and_score(rollouts.prm_data(reference, 4))[PRM_LOG_PROBS].values()
        seconds = time.process_time() - start
    metrics = worker.update_metrics()
    return {
        "cpu_seconds": seconds,
        "peak_mib": peak_mib(),
        "held_mib": held,
        "grad_norm": metrics["grad_norm"][0],
        "log_probs": log_probs.tolist(),
    }


def in_a_process(what: str, **options: Any) -> dict[str, Any]:
    """Run this file for one measurement; the last line it prints is the result."""
    command = [sys.executable, __file__, "--measure", what]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def median(results: list[dict[str, Any]], key: str, digits: int) -> float:
    return round(statistics.median(result[key] for result in results), digits)


def function_alone(repeats: int, **shape: Any) -> dict[str, Any]:
    floor = in_a_process("function", kind="nothing", **shape)["peak_mib"]
    runs: dict[str, list] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind in KINDS:
            runs[kind].append(in_a_process("function", kind=kind, **shape))
    return {
        kind: {
            "peak_above_inputs_and_gradients_mib": round(median(results, "peak_mib", 1) - floor, 1),
            "cpu_seconds": median(results, "cpu_seconds", 2),
            "largest_error": results[0]["error"],
        }
        for kind, results in runs.items()
    }


def prm_update(repeats: int, **shape: Any) -> dict[str, Any]:
    from engines import save_llama

    runs: dict[str, list] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        model = save_llama(Path(folder), shape["vocabulary"], ENGINE_WIDTH, ENGINE_LAYERS)
        for _ in range(repeats):
            for kind in KINDS:
                runs[kind].append(in_a_process("update", kind=kind, model=model, **shape))
    plain = runs["plain"][0]
    return {
        kind: {
            "peak_mib": median(results, "peak_mib", 1),
            "held_before_mib": median(results, "held_mib", 1),
            "peak_above_held_mib": round(median(results, "peak_mib", 1) - median(results, "held_mib", 1), 1),
            "cpu_seconds": median(results, "cpu_seconds", 2),
            "largest_log_prob_difference_to_plain": max(
                abs(a - b) for a, b in zip(results[0]["log_probs"], plain["log_probs"], strict=True)
            ),
            "grad_norm": results[0]["grad_norm"],
        }
        for kind, results in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 896])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--measure", choices=("function", "update"), help="one measurement in this process")
    parser.add_argument("--kind", choices=("nothing", *KINDS))
    parser.add_argument("--width", type=int)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    if arguments.measure == "function":
        shape = (arguments.tokens, arguments.vocabulary, arguments.width)
        print(json.dumps(measure_function(arguments.kind, *shape)))
        return
    if arguments.measure == "update":
        print(json.dumps(measure_update(arguments.kind, arguments.model, arguments.tokens, arguments.vocabulary)))
        return

    from machine import describe

    shape = {"tokens": arguments.tokens, "vocabulary": arguments.vocabulary}
    settings = {**shape, "repeats": arguments.repeats, "dtype": "float32", "chunk": 256, "verl_chunk": 512}
    report = {
        "machine": describe(),
        "settings": settings | {"update_model": {"width": ENGINE_WIDTH, "layers": ENGINE_LAYERS}},
        "one_matrix_of_logits_mib": round(arguments.tokens * arguments.vocabulary * 4 / MIB, 1),
        "prm_update": prm_update(arguments.repeats, **shape),
        "function_by_width": {
            str(width): function_alone(arguments.repeats, width=width, **shape) for width in arguments.widths
        },
    }
    write_json(arguments.output, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
