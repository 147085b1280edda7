# SPDX-License-Identifier: Apache-2.0
"""The PRM's phase of a step against the policy's update, on verl's engines.

    python tests/benchmarks/prm_phase.py
    python tests/benchmarks/prm_phase.py --device cuda --models PATH --rows 64 --response 2048 --micro-batch 8

Every pass that a PRM phase can consist of is measured by itself, in turn with the policy's update, in one process; a
phase is the sum of its passes. Times are seconds of the process (on a GPU: of the clock), because a shared machine
stops a process without asking. The ratio is taken within each repetition. Prints and writes prm_phase.json beside this
file.

Models: ``smollm2-135m`` (random weights in that shape), or the folder of a model.
"""

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from engines import Rollouts, build_worker, chunked, save_llama, score
from transformers import AutoConfig

SMOLLM2 = "smollm2-135m"
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


def clock_of(device: str) -> Callable[[], float]:
    """Seconds of the processor, or on a GPU of the clock when it is done."""
    if device == "cpu":
        return time.process_time

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def measure(path: Path, options: Namespace) -> dict[str, Any]:
    """Seconds of each pass, and the ratio of each variant to the policy's update."""
    config = AutoConfig.from_pretrained(path)
    rollouts = Rollouts(options.rows, options.prompt, options.response, config.vocab_size)
    built: dict[str, Any] = {"micro_batch_size": options.micro_batch, "checkpointing": not options.keep_activations}
    policy, prm = build_worker(path, role="policy", **built), build_worker(path, **built)
    reference = build_worker(path, role="reference", **built)
    lora = build_worker(path, lora_rank=16, **built)
    half, third = (build_worker(path, trainable_layers=config.num_hidden_layers // part, **built) for part in (2, 3))
    shared = score(policy, rollouts)
    mini_batch = options.rows // options.optimizer_steps

    def update(worker: Any) -> Callable[[], object]:
        return lambda: worker.update_and_score(rollouts.prm_data(shared, mini_batch))

    def chunked_update() -> object:
        with chunked(prm):
            return update(prm)()

    passes: dict[str, Callable[[], object]] = {
        "policy_update": lambda: policy.train_mini_batch(rollouts.policy_data(shared, mini_batch)),
        "reference": lambda: score(reference, rollouts),
        "score": lambda: score(prm, rollouts),
        "update": update(prm),
        "chunked_update": chunked_update,
        "lora_reference": lambda: score(lora, rollouts, no_lora_adapter=True),
        "lora_update": update(lora),
        "half_update": update(half),
        "third_update": update(third),
    }
    # The first round builds the optimizers' states.
    seconds = harness.in_turn(passes, options.repeats, clock_of(options.device))
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
    parser = harness.parser(__doc__, optimizer_steps=1, repeats=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", default=[SMOLLM2])
    parser.add_argument("--rows", type=int, default=8, help="rollouts")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of a prompt")
    parser.add_argument("--response", type=int, default=64, help="longest response; the shortest has half of it")
    parser.add_argument("--micro-batch", type=int, default=4, help="rollouts per forward pass")
    parser.add_argument("--keep-activations", action="store_true", help="no activation recomputation")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"intermediate_size": 1536, "num_key_value_heads": 3}
        smollm2 = save_llama(Path(folder), 49152, 576, 30, 9, **sizes)
        results = {name: measure(smollm2 if name == SMOLLM2 else Path(name), options) for name in options.models}
    harness.record(options, {"results": results}, device=options.device)


if __name__ == "__main__":
    main()
