# SPDX-License-Identifier: Apache-2.0
"""One rank of the engine tests: runs verl's TrainingWorker on gloo, without Ray, and saves what it computed.

Started by test_engine.py as a program of its own, because a process can open one process group only:
``python engine_rank.py MODEL_PATH WORK_DIR`` with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set.
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


def build_sequences(n=8):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 30, (n,), generator=generator).tolist()
    return [torch.randint(2, 40, (length,), generator=generator) for length in lengths]


def build_batch(sequences, **non_tensors):
    """The nested tensors that verl's V1 trainer sends to its workers; every token but the first is trained on."""
    nested = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
    return tu.get_tensordict(
        tensor_dict={
            "input_ids": nested(sequences),
            "position_ids": nested([torch.arange(len(ids)) for ids in sequences]),
            "loss_mask": nested([torch.tensor([0] + [1] * (len(ids) - 1)) for ids in sequences]),
        },
        non_tensor_dict={"temperature": 1.0, "global_batch_size": 8, "pad_mode": "no_padding", **non_tensors},
    )


def own_share(sequences):
    n = len(sequences) // dist.get_world_size()
    return sequences[n * dist.get_rank() : n * (dist.get_rank() + 1)]


def gathered(values):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]


def log_probs(worker, sequences, **non_tensors):
    """Log-probability of every token but the first, one tensor per sequence, over all ranks."""
    output = worker.infer_batch(build_batch(own_share(sequences), compute_loss=False, **non_tensors))
    return gathered([row[:-1].clone() for row in output["log_probs"].unbind()])


def message_of(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return None


def main(model_path, work_dir):
    sequences = build_sequences()
    results = {"sequences": sequences}
    for remove_padding in (True, False):
        worker = build_worker(model_path, remove_padding=remove_padding)
        for dynamic in (True, False):
            for micro_batch_size in (1, 4):
                results["infer", remove_padding, dynamic, micro_batch_size] = log_probs(
                    worker, sequences, use_dynamic_bsz=dynamic, micro_batch_size_per_gpu=micro_batch_size
                )
                if dynamic:
                    break
    results["forward_only"] = log_probs(build_worker(model_path, forward_only=True), sequences, use_dynamic_bsz=False)

    value_worker = build_worker(model_path, model_type="value_model", remove_padding=False)
    batch = build_batch(own_share(sequences), compute_loss=False, use_dynamic_bsz=False)
    results["values"] = gathered([row.clone() for row in value_worker.infer_batch(batch)["values"].unbind()])
    results["value_engine"] = type(value_worker.engine).__name__

    results["refused_fsdp1"] = message_of(lambda: build_worker(model_path, strategy="fsdp"))
    results["refused_offload_policy"] = message_of(lambda: build_worker(model_path, offload_policy=True))
    results["backend"] = dist.get_backend()
    finish(results, work_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
