# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of the trained bias and of several epochs; see prm_rank.py."""

import sys
from pathlib import Path

import prm_rank as base
import torch
import torch.distributed as dist
from gloo_ranks import finish

from prime_ext.prm.worker import WEIGHT

BIAS = {"prm.bias.enable": True, "prm.bias.lr": 0.05}
MEAN_OUTCOME = 0.3

VARIANTS = {
    **base.VARIANTS,
    "two epochs": {"prm.epochs": 2},
    "two epochs, micro-batches of 4": {"prm.epochs": 2, "prm.micro_batch_size_per_gpu": 4},
}


def updated(prm, rollouts, reference):
    return {**prm.update(rollouts, reference), "bias": prm.worker.bias_value()}


def main(model_path, work_dir):
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    reference = base.Prm(model_path, forward_only=True).score(rollouts)

    for name, overrides in VARIANTS.items():
        prm = base.Prm(model_path, {**overrides, **BIAS})
        # The second one comes too late.
        prm.worker.start_bias(MEAN_OUTCOME)
        prm.worker.start_bias(0.9)
        updates = [updated(prm, rollouts, reference) for _ in range(2)]
        results["variant", name] = {"updates": updates, "weights": prm.weights()}

    # Half of the rollouts are those of an earlier step: each of two mini-batches has its share of both.
    replayed = [7 <= row < base.N_VALID for row in range(base.N_ROWS)]
    prm = base.Prm(model_path, BIAS, mini_batch_size=2)
    prm.worker.start_bias(MEAN_OUTCOME)
    updates = [{**prm.update(rollouts, reference, replayed, 8), "bias": prm.worker.bias_value()} for _ in range(2)]
    results["replayed"] = {"updates": updates, "weights": prm.weights()}

    # Gradients that are not finite: neither the PRM nor its bias moves, and the next step starts from no gradient.
    prm = base.Prm(model_path, {**BIAS, "prm.bias.init": 0.5})
    before = prm.weights()
    data, _ = prm.planned(rollouts, reference)
    data[WEIGHT][:] = torch.inf
    prm.worker.train_mini_batch(data)
    after = prm.weights()
    results["skipped"] = (prm.worker.bias_value(), all(torch.equal(after[name], before[name]) for name in before))
    results["after the skipped one"] = updated(prm, rollouts, reference)
    fresh = base.Prm(model_path, {**BIAS, "prm.bias.init": 0.5})
    fresh.worker.engine.lr_scheduler_step()
    results["without a skipped one"] = updated(fresh, rollouts, reference)

    # Off: a checkpoint without a bias, and what a run with one says to it.
    plain = base.Prm(model_path)
    results["none"] = (updated(plain, rollouts, reference), plain.weights())
    try:
        base.saved_and_restored(plain, Path(work_dir) / "without", model_path, BIAS)
    except FileNotFoundError as error:
        results["missing"] = str(error)

    # Saved before its first update, the bias still waits for its starting value.
    for steps in (0, 1):
        prm = base.Prm(model_path, BIAS)
        if steps:
            prm.worker.start_bias(MEAN_OUTCOME)
            updated(prm, rollouts, reference)
        restored = base.saved_and_restored(prm, Path(work_dir) / f"prm{steps}", model_path, BIAS, step=steps)
        for each in (prm, restored):
            each.worker.start_bias(0.6)
        results["resumed", steps] = [
            (updated(each, rollouts, reference), updated(each, rollouts, reference), each.weights())
            for each in (prm, restored)
        ]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, prm.worker.bias_value())
    results["of all ranks"] = values
    finish(results, work_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
