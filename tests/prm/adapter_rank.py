# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of LoRA, of frozen layers, of refreshed references and of several epochs; see prm_rank.py."""

import sys
from pathlib import Path

import prm_rank as base
import torch.distributed as dist
from gloo_ranks import finish
from verl.utils import tensordict_utils as tu

from prime_ext.prm.engines import copy_weights


def optimizer_size(prm):
    """Numbers in the optimiser's state over all ranks, less its step counters."""
    states = prm.worker.engine.optimizer.state.values()
    local = [getattr(value, "_local_tensor", value) for state in states for value in state.values()]
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, sum(value.numel() for value in local if value.dim() > 0))
    return sum(sizes)


def main(model_path, work_dir):
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    plain = base.Prm(model_path)
    results["plain scores"] = plain.score(rollouts)

    # LoRA: adapter off is the reference, whatever the adapter has learnt.
    adapted = base.Prm(model_path, base.LORA)
    results["initial"] = adapted.score(rollouts)
    reference = adapted.score(rollouts, no_lora_adapter=True)
    results["reference"] = reference
    adapted.worker.take_pass_counts()
    results["updates"] = [adapted.update(rollouts, reference) for _ in range(3)]
    results["counts of three updates"] = adapted.worker.take_pass_counts()
    results["optimiser size"] = optimizer_size(adapted)
    results["trained"] = adapted.score(rollouts)
    results["reference after training"] = adapted.score(rollouts, no_lora_adapter=True)
    resumed = base.saved_and_restored(adapted, Path(work_dir) / "lora", model_path, base.LORA, step=3)
    results["resumed"] = [(each.update(rollouts, reference), each.score(rollouts)) for each in (adapted, resumed)]

    # A refreshed reference has the weights of the model that it took over.
    frozen = base.Prm(model_path, forward_only=True)
    plain.update(rollouts, frozen.score(rollouts))
    results["plain optimiser size"] = optimizer_size(plain)
    results["copied"] = copy_weights(plain.worker.engine, frozen.worker.engine)
    results["refreshed"], results["its source"] = frozen.score(rollouts), plain.score(rollouts)
    try:
        copy_weights(adapted.worker.engine, frozen.worker.engine)
    except RuntimeError as error:
        results["other architecture"] = str(error)
    results["after a refused copy"] = frozen.score(rollouts)
    restored = base.saved_and_restored(frozen, Path(work_dir) / "reference", model_path, forward_only=True)
    results["restored reference"] = restored.score(rollouts)

    # Two epochs: the scores are those of the first, the weights those after two passes.
    once, twice = base.Prm(model_path), base.Prm(model_path, {"prm.epochs": 2})
    reference = once.score(rollouts)
    for prm in (once, twice):
        prm.worker.take_pass_counts()
    once_metrics, once_scores = once.update_and_score(rollouts, reference)
    twice_metrics, twice_scores = twice.update_and_score(rollouts, reference)
    results["epochs"] = (once_scores, twice_scores, len(once_metrics["loss"]), len(twice_metrics["loss"]))
    results["epoch counts"] = [prm.worker.take_pass_counts() for prm in (once, twice)]
    tokens = sum(len(r["prompt"]) + len(r["response"]) for r in rollouts)
    results["tokens"] = tokens

    # Only the last of two layers is trained; saved and restored.
    last_layer = {"prm.trainable_layers": 1}
    upper = base.Prm(model_path, last_layer)
    results["last layer"] = upper.two_updates(rollouts, reference)
    results["last layer's optimiser size"] = optimizer_size(upper)
    restored = base.saved_and_restored(upper, Path(work_dir) / "upper", model_path, last_layer)
    results["resumed last layer"] = [(each.update(rollouts, reference), each.weights()) for each in (upper, restored)]

    # Options of a loss reach it.
    losses = {}
    for name, options in (("plain", {}), ("late", {"time_weight": "late"})):
        prm = base.Prm(model_path, {"prm.loss": "ipvrm", "prm.loss_options": options, "prm.beta": 10.0})
        data, _ = prm.planned(rollouts, [value - 0.1 for value in reference])
        losses[name] = tu.get(prm.worker.train_mini_batch(data), "metrics")["loss"]
    results["losses"] = losses

    totals = [None] * dist.get_world_size()
    dist.all_gather_object(totals, (results["counts of three updates"], results["epoch counts"]))
    results["counts of all ranks"] = totals
    finish(results, work_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
