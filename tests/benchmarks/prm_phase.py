# SPDX-License-Identifier: Apache-2.0
"""The PRM's phase of a step against the policy's update, on verl's engines, in the shape of SmolLM2-135M.

    python tests/benchmarks/prm_phase.py

Every pass that a PRM phase can consist of is measured by itself, in turn with the policy's update, in one process; a
phase is the sum of its passes. Times are seconds of the processor, because a shared machine stops a process without
asking. The ratio is taken within each repetition. Prints and writes prm_phase.json next to this file.
"""

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from engines import Rollouts, build_worker, chunked, save_llama, score

VOCABULARY, LAYERS = 49152, 30
# Passes of each variant. A shared reference has been computed for the policy already: its old log-probabilities, or
# those of its KL penalty's reference model. "twice" is the order of work of verl's recipe for PRIME.
VARIANTS = {
    "interleaved, own reference": ("reference", "update"),
    "interleaved, shared reference": ("update",),
    "before or after, own reference": ("reference", "score", "update"),
    "public recipe: reference twice": ("reference", "reference", "score", "update"),
    "LoRA r=16, its base as reference": ("lora_reference", "lora_update"),
    "interleaved, shared reference, chunked log-probabilities": ("chunked_update",),
    # The policy is pulled toward the PRM and toward its own average: a forward pass of each inside of its update,
    # measured here as scoring passes.
    "PRIME-D, own reference": ("reference", "update", "score", "score"),
    "PRIME-D, policy as reference": ("update", "score", "score"),
    "PRIME-D, policy as reference, LoRA r=16": ("lora_update", "score", "score"),
    "PRIME-D, policy as reference, half of the layers": ("half_update", "score", "score"),
    "PRIME-D, policy as reference, a third of the layers": ("third_update", "score", "score"),
    "PRIME-D, policy as reference, a third of the layers, no average": ("third_update", "score"),
}


def measure(path: Path, options: Namespace) -> dict[str, Any]:
    """Measure the seconds of each pass, and the ratio of each variant to the policy's update."""
    rollouts = Rollouts(options.rows, options.prompt, options.response, VOCABULARY)
    policy, prm, reference = (build_worker(path, role=role) for role in ("policy", "prm", "reference"))
    lora = build_worker(path, lora_rank=16)
    half, third = (build_worker(path, trainable_layers=1 / part) for part in (2, 3))
    shared = score(policy, rollouts)

    def update(worker: Any) -> Callable[[], object]:
        return lambda: worker.update_and_score(rollouts.prm_data(shared, options.rows))

    def chunked_update() -> object:
        with chunked(prm):
            return update(prm)()

    passes: dict[str, Callable[[], object]] = {
        "policy_update": lambda: policy.train_mini_batch(rollouts.policy_data(shared, options.rows)),
        "reference": lambda: score(reference, rollouts),
        "score": lambda: score(prm, rollouts),
        "update": update(prm),
        "chunked_update": chunked_update,
        "lora_reference": lambda: score(lora, rollouts, no_lora_adapter=True),
        "lora_update": update(lora),
        "half_update": update(half),
        "third_update": update(third),
    }
    # In turn, so that load hits all alike. The first round builds the optimizers' states, and is not counted.
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for number in range(1 + options.repeats):
        for name, run in passes.items():
            start = time.process_time()
            run()
            if number:
                seconds[name].append(time.process_time() - start)
    variants = {}
    for variant, parts in VARIANTS.items():
        rounds = zip(*(seconds[part] for part in parts), strict=True)
        values = sorted(sum(each) / base for each, base in zip(rounds, seconds["policy_update"], strict=True))
        variants[variant] = {
            "phase_over_policy_update": round(statistics.median(values), 3),
            "lowest_and_highest": [round(values[0], 3), round(values[-1], 3)],
        }
    medians = {key: round(statistics.median(values), 3) for key, values in seconds.items()}
    return {"median_seconds": medians, "variants": variants}


def main() -> None:
    # Prompts of 16 tokens and responses of 32 to 64.
    options = harness.parser(__doc__, repeats=5, rows=8, prompt=16, response=64).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"intermediate_size": 1536, "num_key_value_heads": 3}
        results = measure(save_llama(Path(folder), VOCABULARY, 576, LAYERS, 9, **sizes), options)
    harness.record(options, {"results": {"smollm2-135m": results}})


if __name__ == "__main__":
    main()
