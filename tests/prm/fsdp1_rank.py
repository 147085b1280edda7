# SPDX-License-Identifier: Apache-2.0
"""One rank of test_fsdp1.py: ImplicitPRMWorker on verl's FSDP1 engine over gloo, without Ray and TransferQueue."""

import sys
from pathlib import Path
from types import SimpleNamespace

import prime_ext.plugin  # noqa: F401  (first: fused kernels of each model on its own)

import prm_rank as base  # isort: skip
from prm_rank import CHUNKED, FSDP1, LORA, OFFLOAD, PACKED  # isort: skip
import torch.distributed as dist
from fsdp1_on_cpu import allow_fsdp1
from gloo_ranks import finish
from omegaconf import OmegaConf

from prime_ext.prm.engines import copy_weights
from prime_ext.trainer.registration import SnapshotActorWorker

BF16 = {"prm.engine.mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}}
VARIANTS = {
    "padded": {},
    "packed": PACKED,
    "chunked": CHUNKED,
    "packed, chunked, offload": PACKED | CHUNKED | OFFLOAD,
    "bf16": BF16,
    "bf16, packed, chunked, offload": BF16 | PACKED | CHUNKED | OFFLOAD,
}


def gathered_bytes(prm):
    """What the root of the model holds beside its shards."""
    return prm.worker.engine.module._handle.flat_param._full_param_padded.untyped_storage().nbytes()


def snapshot(prm, rollouts, reference):
    """Scores before an update, behind it, and of the earlier weights, restored as in verl's separate mode."""
    worker = SnapshotActorWorker.__new__(SnapshotActorWorker)
    worker.config = OmegaConf.create({"actor": {"strategy": "fsdp"}})
    worker._strategy_handlers = None
    worker.actor = SimpleNamespace(engine=prm.worker.engine)
    before = prm.score(rollouts)
    worker.save_model_to_cpu(0)
    prm.update(rollouts, reference)
    moved = prm.score(rollouts)
    worker.restore_model_from_cpu(0)
    return before, moved, prm.score(rollouts)


def main(model_path, work_dir):
    allow_fsdp1()
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    frozen = base.Prm(model_path, FSDP1, forward_only=True)
    reference = results["reference"] = frozen.score(rollouts)
    results["gathered by the reference"] = gathered_bytes(frozen)

    for name, overrides in VARIANTS.items():
        prm = base.Prm(model_path, FSDP1 | overrides)
        before = {"initial": prm.score(rollouts), "gathered": gathered_bytes(prm)}
        results["variant", name] = before | prm.two_updates(rollouts, reference)

    upper = base.Prm(model_path, FSDP1 | OFFLOAD | {"prm.trainable_layers": 1})
    results["last layer"] = upper.two_updates(rollouts, reference)

    # The reference scored as the update packs, and in passes of its own; and the first scores of the update.
    packs = (
        FSDP1
        | VARIANTS["bf16, packed, chunked, offload"]
        | {
            "prm.use_dynamic_bsz": True,
            "prm.max_token_len_per_gpu": 40,
            "prm.infer_max_token_len_per_gpu": 40,
        }
    )
    fresh, same = base.Prm(model_path, packs), base.Prm(model_path, packs, forward_only=True)
    as_update, otherwise = same.score(rollouts, as_update=True), same.score(rollouts)
    results["packing"] = (as_update, otherwise, fresh.update_and_score(rollouts, as_update)[1])

    # Saved, restored into a fresh worker, updated once more.
    prm = base.Prm(model_path, FSDP1 | OFFLOAD)
    prm.update(rollouts, reference)
    results["saved"] = prm.score(rollouts)
    restored = base.saved_and_restored(prm, Path(work_dir) / "prm", model_path, FSDP1 | OFFLOAD)
    results["resumed"] = [(each.score(rollouts), each.update(rollouts, reference)) for each in (prm, restored)]

    # The reference takes over the PRM's weights, behind a pass of its own.
    results["refreshed"] = (copy_weights(prm.worker.engine, frozen.worker.engine), frozen.score(rollouts))
    results["its source"] = prm.score(rollouts)

    results["snapshot"] = snapshot(base.Prm(model_path, FSDP1), rollouts, reference)

    for name in ("padded", "packed, chunked, offload", "bf16, packed, chunked, offload"):
        adapted = base.Prm(model_path, FSDP1 | LORA | VARIANTS[name])
        initial = adapted.score(rollouts)
        updates = [adapted.update(rollouts, reference) for _ in range(2)]
        folder = str(Path(work_dir) / f"lora {name}")
        adapted.worker.save_checkpoint(folder, global_step=1)
        results["lora", name] = (initial, updates, adapted.score(rollouts))
    dist.barrier()
    finish(results, work_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
