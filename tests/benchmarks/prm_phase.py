# SPDX-License-Identifier: Apache-2.0
"""The PRM's phase of a step against the policy's update, in the shape of SmolLM2-135M.

    python tests/benchmarks/prm_phase.py

Runs on verl's engines. Every pass that a PRM phase can consist of is measured by itself, in turn
with the policy's update, in one process; a phase is the sum of its passes. Times are seconds of the
processor, because a shared machine may stop a process at any time. The ratio is taken within each
repetition. PRIME-D's divergences are measured by themselves, as they are where nothing is compiled
(on a CPU) and where verl's ``use_torch_compile`` is true. Prints and writes prm_phase.json.
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
from engines import Rollouts, build_worker, chunked, configure, save_llama, score
from torch._inductor import config, metrics
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prime_ext.algorithms.distillation import log_probs_and_reverse_kl

VOCABULARY = 49152
LAYERS = 30
# Passes of each variant. A shared reference has been computed for the policy already: its old
# log-probabilities, or those of its KL penalty's reference model. "twice" is the order of work of
# verl's recipe for PRIME.
VARIANTS = {
    "interleaved, own reference": ("reference", "update"),
    "interleaved, shared reference": ("update",),
    "before or after, own reference": ("reference", "score", "update"),
    "public recipe: reference twice": ("reference", "reference", "score", "update"),
    "LoRA r=16, its base as reference": ("lora_reference", "lora_update"),
    "interleaved, shared reference, chunked log-probabilities": ("chunked_update",),
    # The policy is pulled toward the PRM and toward its own average: a forward pass of each inside
    # of its update, measured here as scoring passes.
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
    checkpointing = {"prm.model.enable_gradient_checkpointing": True}
    whole = configure(path, checkpointing)
    policy, prm, reference = (build_worker(whole, role) for role in ("policy", "prm", "reference"))
    kinds = [{"prm.model.lora_rank": 16, "prm.model.lora_alpha": 32}]
    kinds += [{"prm.trainable_layers": 1 / part} for part in (2, 3)]
    lora, half, third = (build_worker(configure(path, checkpointing | kind)) for kind in kinds)
    shared = score(policy, rollouts)

    def update(worker: Any) -> Callable[[], object]:
        return lambda: worker.update_and_score(rollouts.prm_data(shared, options.rows))

    def chunked_update() -> object:
        with chunked(prm):
            return update(prm)()

    passes: dict[str, Callable[[], object]] = {
        "policy_update": lambda: policy.train_mini_batch(
            rollouts.policy_data(shared, options.rows)
        ),
        "reference": lambda: score(reference, rollouts),
        "score": lambda: score(prm, rollouts),
        "update": update(prm),
        "chunked_update": chunked_update,
        "lora_reference": lambda: score(lora, rollouts, no_lora_adapter=True),
        "lora_update": update(lora),
        "half_update": update(half),
        "third_update": update(third),
    }
    # In turn, so that load hits all alike. The first round builds the optimizers' states, and is
    # not counted.
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
        values = sorted(
            sum(each) / base for each, base in zip(rounds, seconds["policy_update"], strict=True)
        )
        variants[variant] = {
            "phase_over_policy_update": round(statistics.median(values), 3),
            "lowest_and_highest": [round(values[0], 3), round(values[-1], 3)],
        }
    medians = {key: round(statistics.median(values), 3) for key, values in seconds.items()}
    return {"median_seconds": medians, "variants": variants}


class BytesMoved(TorchDispatchMode):
    """Sum of what eager operations read and write."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (
            []
            if func.is_view
            else [one for one in tree_leaves((args, result)) if isinstance(one, torch.Tensor)]
        )
        self.total += sum(one.numel() * one.element_size() for one in tensors)
        return result


def measure_kl(tokens: int, repeats: int) -> dict[str, Any]:
    """Measure PRIME-D's divergences to two targets, with gradients: eager, and compiled chunks."""
    logits_NV, *targets = (torch.randn(tokens, VOCABULARY).bfloat16() for _ in range(3))
    token_N = torch.randint(VOCABULARY, (tokens,))
    logits_NV = logits_NV.requires_grad_()

    def run(fused: bool) -> None:
        log_prob_N, kl_NJ = log_probs_and_reverse_kl(logits_NV, token_N, targets, tokens, fused)
        torch.autograd.backward([log_prob_N.sum(), kl_NJ.sum()])

    with BytesMoved() as eager:
        run(False)
    torch._logging.set_logs(inductor_metrics=True)  # it counts bytes when it compiles
    with config.patch(force_disable_caches=True):
        run(True)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for fused in [False, True] * repeats:
        start = time.process_time()
        run(fused)
        seconds[fused].append(time.process_time() - start)
    ratio = statistics.median(
        one / other for one, other in zip(seconds[True], seconds[False], strict=True)
    )
    moved = metrics.num_bytes_accessed / eager.total
    medians = {
        name: statistics.median(seconds[fused])
        for name, fused in (("eager", False), ("compiled", True))
    }
    return {
        "tokens": tokens,
        "median_seconds": medians,
        "compiled_over_eager": {"seconds": ratio, "bytes": moved},
    }


def main() -> None:
    # Prompts of 16 tokens and responses of 32 to 64.
    options = harness.parser(__doc__, repeats=5, rows=8, prompt=16, response=64).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"intermediate_size": 1536, "num_key_value_heads": 3}
        results = measure(save_llama(Path(folder), VOCABULARY, 576, LAYERS, 9, **sizes), options)
    kl = measure_kl(256, options.repeats)
    harness.record(options, {"results": {"smollm2-135m": results}, "kl": kl})


if __name__ == "__main__":
    main()
