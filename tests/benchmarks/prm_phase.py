# SPDX-License-Identifier: Apache-2.0
"""The PRM's phase of a step against the policy's update, on verl's engines, with the passes over tokens counted.

    python tests/benchmarks/prm_phase.py
    python tests/benchmarks/prm_phase.py --device cuda --models PATH --rows 64 --response 2048 --micro-batch 8

Every pass that a PRM phase can consist of is measured by itself, in turn with the policy's update, in one process; a
phase is the sum of its passes. Times are seconds of the process (on a GPU: of the clock), because a shared machine
stops a process without asking. The ratio is taken within each repetition. Prints a table and writes prm_phase.json
beside this file.

Models: ``tiny``, ``smollm2-135m`` (random weights in that shape), or the folder of a model.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prime_ext.utils.files import write_json

HERE = Path(__file__).resolve().parent
if "cuda" not in sys.argv:
    # Before verl is imported: it picks its device once.
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

# Passes of each variant. A shared reference has been computed for the policy already: its old log-probabilities, or
# those of its KL penalty's reference model. "twice" is the order of work of verl's recipe for PRIME.
VARIANTS = {
    "interleaved, own reference": ("reference", "update"),
    "interleaved, shared reference": ("update",),
    "before or after, own reference": ("reference", "score", "update"),
    "before or after, shared reference": ("score", "update"),
    "public recipe: reference twice": ("reference", "reference", "score", "update"),
    "LoRA r=16, its base as reference": ("lora_reference", "lora_update"),
    "LoRA r=16, shared reference": ("lora_update",),
    "interleaved, shared reference, chunked log-probabilities": ("chunked_update",),
    # The policy is pulled towards the PRM and towards its own average: a forward pass of each inside of its update,
    # measured here as scoring passes.
    "PRIME-D, own reference": ("reference", "update", "score", "score"),
    "PRIME-D, policy as reference": ("update", "score", "score"),
    "PRIME-D, policy as reference, LoRA r=16": ("lora_update", "score", "score"),
    "PRIME-D, policy as reference, half of the layers": ("half_update", "score", "score"),
    "PRIME-D, policy as reference, a third of the layers": ("third_update", "score", "score"),
    "PRIME-D, policy as reference, a third of the layers, no average": ("third_update", "score"),
}


def build_model(name: str, folder: Path) -> tuple[Path, int, int]:
    """The model's folder, its vocabulary and its layers."""
    import engines
    from transformers import AutoConfig

    if name == "tiny":
        path = engines.save_llama(folder / name, 2048, 128, 6, 4)
    elif name == "smollm2-135m":
        path = engines.smollm2_135m(folder / name)
    else:
        path = Path(name)
    config = AutoConfig.from_pretrained(path)
    return path, config.vocab_size, config.num_hidden_layers


def measure(name: str, path: Path, vocabulary: int, layers: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and tokens of each pass, and the ratio of each variant to the policy's update."""
    import engines
    import torch
    from engines import PassCounter, Rollouts, build_worker, score

    rollouts = Rollouts(arguments.rows, arguments.prompt, arguments.response, vocabulary)
    options = {"micro_batch_size": arguments.micro_batch, "checkpointing": not arguments.keep_activations}
    policy, prm = build_worker(path, role="policy", **options), build_worker(path, **options)
    reference = build_worker(path, role="reference", **options)
    lora = build_worker(path, lora_rank=16, **options)
    half, third = (build_worker(path, trainable_layers=layers // part, **options) for part in (2, 3))
    counter = PassCounter()
    for worker in (policy, prm, reference, lora, half, third):
        counter.watch(worker)
    shared = score(policy, rollouts)
    mini_batch = arguments.rows // arguments.optimizer_steps

    def update(worker: Any) -> Callable[[], object]:
        return lambda: worker.update_and_score(rollouts.prm_data(shared, mini_batch))

    def chunked_update() -> object:
        with engines.fused_by(prm, "chunked"):
            return update(prm)()

    passes: dict[str, Callable[[], object]] = {
        "policy_update": lambda: policy.train_mini_batch(rollouts.policy_data(shared, mini_batch)),
        "reference": lambda: score(reference, rollouts),
        "score": lambda: score(prm, rollouts),
        "update": update(prm),
        "chunked_update": chunked_update,
        "lora_reference": lambda: score(lora, rollouts, without_adapter=True),
        "lora_update": update(lora),
        "half_update": update(half),
        "third_update": update(third),
    }

    def clock() -> float:
        if arguments.device == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()

    tokens, seconds = {}, {key: [] for key in passes}
    for repetition in range(arguments.repeats + 1):
        for key, run in passes.items():
            counter.take()
            start = clock()
            run()
            elapsed = clock() - start
            tokens[key] = counter.take()
            # The first round builds the optimisers' states.
            if repetition:
                seconds[key].append(elapsed)
                print(f"{name} {key} {elapsed:.2f} s", flush=True)

    def ratios(parts: tuple[str, ...]) -> list[float]:
        return [sum(seconds[part][i] for part in parts) / base for i, base in enumerate(seconds["policy_update"])]

    variants = {}
    for variant, parts in VARIANTS.items():
        values = sorted(ratios(parts))
        variants[variant] = {
            "phase_over_policy_update": round(statistics.median(values), 3),
            "lowest_and_highest": [round(values[0], 3), round(values[-1], 3)],
            "tokens": {kind: sum(tokens[part][kind] for part in parts) for kind in tokens["update"]},
        }
    return {
        "parameters": sum(p.numel() for p in engines.module_of(policy).parameters()),
        "padded_tokens_of_one_pass": tokens["reference"]["forward"],
        "policy_update_tokens": tokens["policy_update"],
        "median_seconds": {key: round(statistics.median(values), 3) for key, values in seconds.items()},
        "variants": variants,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2-135m"])
    parser.add_argument("--rows", type=int, default=8, help="rollouts")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of a prompt")
    parser.add_argument("--response", type=int, default=64, help="longest response; the shortest has half of it")
    parser.add_argument("--micro-batch", type=int, default=4, help="rollouts per forward pass")
    parser.add_argument("--optimizer-steps", type=int, default=1)
    parser.add_argument("--keep-activations", action="store_true", help="no activation recomputation")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()

    from machine import describe

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            path, vocabulary, layers = build_model(name, Path(folder))
            results[name] = measure(name, path, vocabulary, layers, arguments)
            print(f"\n{name}: {results[name]['parameters'] / 1e6:.1f} M parameters")
            for variant, value in results[name]["variants"].items():
                low, high = value["lowest_and_highest"]
                print(f"  {variant:64s} {value['phase_over_policy_update']:.2f}x  ({low:.2f} to {high:.2f})")
    settings = {key.replace("-", "_"): value for key, value in vars(arguments).items() if key != "output"}
    report = {"machine": describe(arguments.device), "settings": settings, "results": results}
    write_json(arguments.output, report)
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
