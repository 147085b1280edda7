# SPDX-License-Identifier: Apache-2.0
"""One rank of test_policy_loss.py: the policy on verl's engines, pulled towards two other models of its process."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import prime_ext.plugin  # noqa: F401  (first: fused kernels of each model on its own)

import prm_rank as base  # isort: skip
from prm_rank import CHUNKED, FSDP1, LORA, OFFLOAD, PACKED  # isort: skip
import torch
from fsdp1_on_cpu import allow_fsdp1
from gloo_ranks import finish
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from prime_ext.prm.engines import average_weights, register_engine
from prime_ext.trainer.policy_loss import COEFFICIENTS, PRM_PROMPT, PRM_READS, TOP_K, install_targets

BOTH = {"prm": 0.7, "average": 0.3}
ONE = {"prm.micro_batch_size_per_gpu": 1}
TOP = {"top 3": 3, "all 40 tokens by top_k": 40, "top 3, packed": 3, "hints, top 3, packed policy": 3}
# Coefficients, changes to the policy, changes to the PRM.
VARIANTS = {
    "both": (BOTH, {}, {}),
    "the PRM alone": ({"prm": 0.7, "average": 0.0}, {}, {}),
    "none": ({}, {}, {}),
    "micro-batches of 1": (BOTH, ONE, {}),
    "packed": (BOTH, PACKED, PACKED),
    "top 3": (BOTH, {}, {}),
    "top 3, packed": (BOTH, PACKED, PACKED),
    "all 40 tokens by top_k": (BOTH, {}, {}),
    "packed policy, padded PRM": (BOTH, PACKED, {}),
    "a PRM with fused kernels, offloaded": (BOTH, {}, CHUNKED | OFFLOAD),
    "a PRM with an adapter": (BOTH, {}, LORA),
    "hints": (BOTH, {}, {}),
    "hints, packed": (BOTH, PACKED, PACKED),
    "hints, top 3, packed policy": (BOTH, PACKED, {}),
    "fsdp1": (BOTH, FSDP1, FSDP1),
    "fsdp1, packed, offloaded": (BOTH, FSDP1 | PACKED | OFFLOAD, FSDP1 | PACKED | OFFLOAD),
}


def policy(model_path, overrides, mini_batch_size=4):
    """A worker that is trained as verl trains the policy, with the targets in its loss."""
    found = base.Prm(model_path, overrides, mini_batch_size=mini_batch_size)
    config = omega_conf_to_dataclass(base.base_config().actor_rollout_ref.actor)
    found.worker.set_loss_fn(partial(ppo_loss, config=config))
    install_targets(SimpleNamespace(actor=found.worker))
    return found


def prompts_of_the_prm(rollouts):
    """Longer and shorter ones than the policy's, and that every third row has none."""
    lengths = [1 + 2 * at % 7 for at in range(len(rollouts))]
    prompts = [torch.arange(length) * 5 % 37 + 1 for length in lengths]
    return {PRM_PROMPT: prompts, PRM_READS: [torch.tensor(float(at % 3 != 2)) for at in range(len(rollouts))]}


def update(policy, rollouts, old_log_probs, coefficients, top_k=None, advantages=None, more=None):
    plan = policy.plan(rollouts)
    if advantages is None:
        advantages = [torch.full((len(r["response"]),), r["label"] - 0.5) for r in rollouts]
    fields = {"old_log_probs": old_log_probs, "advantages": advantages, **(more or {})}
    options = policy.prm._update_options() | {COEFFICIENTS: coefficients, TOP_K: top_k}
    data, _ = policy.batch(rollouts, plan.order, fields, **options)
    metrics = tu.get(policy.worker.train_mini_batch(data), "metrics")
    kept = {name: value for name, value in metrics.items() if name.startswith("kl_to")}
    return base.metrics_of(metrics) | kept


def main(policy_path, prm_path, average_path, work_dir):
    allow_fsdp1()
    rollouts = base.build_rollouts()
    old_log_probs = base.Prm(policy_path, forward_only=True).score(rollouts)
    results = {"rollouts": rollouts, "old_log_probs": old_log_probs}
    for name, (coefficients, of_policy, of_prm) in VARIANTS.items():
        trained = policy(policy_path, of_policy)
        strategy = {key: value for key, value in of_policy.items() if key == "prm.engine.strategy"}
        average = base.Prm(average_path, strategy, forward_only=True)
        register_engine("average", average.worker.engine)
        prm = base.Prm(prm_path, of_prm)  # registered as the PRM by itself
        more = prompts_of_the_prm(rollouts) if "hints" in name else {}
        options = {"top_k": TOP.get(name), "more": more}
        updates = [update(trained, rollouts, old_log_probs, coefficients, **options) for _ in range(2)]
        results["variant", name] = {
            "coefficients": coefficients,
            "top_k": TOP.get(name),
            "of_prm": list(zip(*more.values(), strict=True)),
            "updates": updates,
            "weights": trained.weights(),
            "prm": prm.score(rollouts),
        }

    # The average moves towards the trained policy, and is saved and restored.
    before = average.weights()
    average_weights(trained.worker.engine, average.worker.engine, 0.75)
    results["average"] = (before, trained.weights(), average.weights())
    restored = base.saved_and_restored(average, Path(work_dir) / "average", policy_path, strategy, forward_only=True)
    results["restored average"] = restored.weights()
    finish(results, work_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
