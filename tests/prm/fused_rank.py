# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of fused log-probabilities: the PRM's worker on verl's engine over gloo, without Ray.

Started by test_fused_engine.py: ``python fused_rank.py MODEL_PATH WORK_DIR`` with the variables of a torchrun rank.
"""

import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import engines  # noqa: E402
import torch.distributed as dist  # noqa: E402
from gloo_ranks import finish
from verl.utils import tensordict_utils as tu  # noqa: E402

from prime_ext.prm.fused_forward import FusedLogProbsDiffer  # noqa: E402

VOCABULARY, ROWS = 600, 4
BACKENDS = (None, "chunked", "torch")


def gathered(nested_tensor):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, [row.clone() for row in nested_tensor.unbind()])
    return [row for part in parts for row in part]


def own_rows(rollouts):
    """This rank's share of the rows."""
    share = rollouts.rows // dist.get_world_size()
    rows = slice(share * dist.get_rank(), share * (dist.get_rank() + 1))
    for name in ("prompts", "responses", "masks"):
        setattr(rollouts, name, getattr(rollouts, name)[rows])
    rollouts.rows = share
    return rollouts


def guarded(worker, rollouts):
    """What the comparison before a worker's first pass has found now."""
    worker._guard_metrics = {}
    worker._guard(rollouts.data())
    return worker._guard_metrics


def message_of(function):
    try:
        function()
    except (ValueError, FusedLogProbsDiffer) as error:
        return str(error)
    return None


def main(_, work_dir):
    # Models of their own, with a larger vocabulary. The same weights on every rank: the seed is fixed.
    model = engines.save_llama(Path(work_dir) / f"model{os.environ['RANK']}", VOCABULARY, 32, 2)
    build = partial(engines.build_worker, model, micro_batch_size=2)
    results = {}
    workers = {}
    # Side by side in one process, as the policy, the PRM and its reference are.
    for backend in BACKENDS:
        workers[backend] = build(fused=backend, learning_rate=1e-3)
    rollouts = own_rows(engines.Rollouts(ROWS, 5, 12, VOCABULARY))
    reference = engines.score(workers[None], rollouts)
    for backend, worker in workers.items():
        results["guard", backend] = guarded(worker, rollouts)
        results["guard again", backend] = guarded(worker, rollouts)
        results["before", backend] = gathered(engines.score(worker, rollouts))
        data = rollouts.prm_data(reference, ROWS)
        results["interleaved", backend] = gathered(worker.update_and_score(data)[engines.PRM_LOG_PROBS])
        results["metrics", backend] = {name: worker.update_metrics()[name] for name in ("loss", "grad_norm")}
        results["after", backend] = gathered(engines.score(worker, rollouts))

    # An output layer of its own, which FSDP2 gathers for its own passes only.
    untied = engines.save_llama(Path(work_dir) / f"untied{os.environ['RANK']}", VOCABULARY, 32, 2, tie=False)
    variants = {
        "plain": {"fused": None},
        "chunked": {"fused": "chunked"},
        "packed": {"fused": "chunked", "remove_padding": True},
        "adapter": {"fused": None, "lora_rank": 4},
        "chunked adapter": {"fused": "chunked", "lora_rank": 4},
    }
    for name, options in variants.items():
        worker = engines.build_worker(untied, micro_batch_size=2, learning_rate=1e-3, **options)
        before = gathered(engines.score(worker, rollouts))
        worker.update_and_score(rollouts.prm_data(reference, ROWS))
        found = {"loss": worker.update_metrics()["loss"], "grad_norm": worker.update_metrics()["grad_norm"]}
        results["untied", name] = (before, found, gathered(engines.score(worker, rollouts)))

    packed = build(fused="chunked", remove_padding=True)
    results["packed"] = gathered(engines.score(packed, rollouts))

    entropies = {}
    for backend in BACKENDS:
        data = rollouts.data(compute_loss=False)
        tu.assign_non_tensor(data, calculate_entropy=True)
        entropies[backend] = gathered(workers[backend].infer_batch(data)["entropy"])
    results["entropy"] = entropies

    adapter = build(fused="chunked", lora_rank=4, learning_rate=1e-2)
    before = gathered(engines.score(adapter, rollouts))
    adapter.update_and_score(rollouts.prm_data(reference, ROWS))
    results["adapter"] = {
        "before": before,
        "after": gathered(engines.score(adapter, rollouts)),
        "switched off": gathered(engines.score(adapter, rollouts, without_adapter=True)),
    }

    # A model whose logits are scaled behind the output layer, as some models do.
    scaled = build(fused="chunked")
    plain_forward = type(engines.module_of(scaled)).forward

    def scaled_forward(self, *args, **kwargs):
        output = plain_forward(self, *args, **kwargs)
        return output if "temperature" in kwargs else type(output)(logits=3 * output.logits)

    fused_forward = engines.module_of(scaled).forward
    engines.module_of(scaled).forward = lambda *args, **kwargs: (
        fused_forward(*args, **kwargs)
        if "temperature" in kwargs
        else scaled_forward(engines.module_of(scaled), *args, **kwargs)
    )
    results["scaled logits"] = message_of(lambda: guarded(scaled, rollouts))
    results["unknown backend"] = message_of(lambda: build(fused="magic"))
    finish(results, work_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
