# SPDX-License-Identifier: Apache-2.0
"""One rank that saves a checkpoint with verl's FSDP2 engine."""

from pathlib import Path

from engines import build_worker, configure
from gloo_ranks import finish


def main(model_path, work_dir):
    worker = build_worker(configure(model_path, {}))
    worker.save_checkpoint(str(Path(work_dir) / "run" / "global_step_3" / "actor"), global_step=3)
    weights, _ = worker.engine.get_per_tensor_param()
    finish({name: tensor.detach().clone() for name, tensor in weights}, work_dir)
