# SPDX-License-Identifier: Apache-2.0
"""One rank that saves a checkpoint with verl's FSDP2 engine."""

from pathlib import Path

from engines import configure, worker_config
from gloo_ranks import finish
from verl.workers.engine_workers import TrainingWorker


def main(model_path, work_dir):
    worker = TrainingWorker(worker_config(configure(model_path, {})))
    worker.reset()
    worker.save_checkpoint(str(Path(work_dir) / "run" / "global_step_3" / "actor"), global_step=3)
    weights, _ = worker.engine.get_per_tensor_param()
    finish({name: tensor.detach().clone() for name, tensor in weights}, work_dir)
