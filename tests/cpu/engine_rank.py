# SPDX-License-Identifier: Apache-2.0
"""One rank of the engine tests: verl's TrainingWorker on gloo, without Ray: ``python engine_rank.py MODEL WORK_DIR``.

Started as a program of its own, because a process can open one process group only, with RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT set. Engines of language models are tested with the PRM (tests/prm/test_prm_engine.py).
"""

import sys
from functools import partial

import torch
import torch.distributed as dist
from engines import worker_config
from gloo_ranks import finish
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import sft_loss


def build_worker(model_path, *, remove_padding=True, **options):
    options = {"checkpointing": False, "micro_batch_size": 2, **options}
    tokens = {"max_token_len_per_gpu": 64, "infer_max_token_len_per_gpu": 64}
    worker = TrainingWorker(worker_config(model_path, remove_padding=remove_padding, **tokens, **options))
    worker.reset()
    worker.set_loss_fn(partial(sft_loss, config=None))
    return worker


def message_of(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return None


def main(model_path, work_dir):
    worker = build_worker(model_path, model_type="value_model", remove_padding=False)
    rows = [torch.arange(2, 2 + length) for length in (5, 9, 3, 12)]
    nested = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
    tensors = {"input_ids": nested(rows), "position_ids": nested([torch.arange(len(row)) for row in rows])}
    settings = {"temperature": 1.0, "global_batch_size": 8, "pad_mode": "no_padding"}
    options = {"compute_loss": False, "use_dynamic_bsz": False}
    batch = tu.get_tensordict(
        tensor_dict={**tensors, "loss_mask": nested([torch.ones_like(row) for row in rows])},
        non_tensor_dict={**settings, **options},
    )
    results = {
        "values": [row.clone() for row in worker.infer_batch(batch)["values"].unbind()],
        "value_engine": type(worker.engine).__name__,
        "refused_fsdp1": message_of(lambda: build_worker(model_path, strategy="fsdp")),
        "refused_offload_policy": message_of(lambda: build_worker(model_path, offload_policy=True)),
        "backend": dist.get_backend(),
    }
    finish(results, work_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
