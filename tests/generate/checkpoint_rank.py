# SPDX-License-Identifier: Apache-2.0
"""One rank that saves a checkpoint with verl's FSDP2 engine: ``python checkpoint_rank.py MODEL_PATH WORK_DIR``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))

from engine_rank import build_worker  # noqa: E402
from gloo_ranks import finish  # noqa: E402

if __name__ == "__main__":
    model_path, work_dir = sys.argv[1:]
    worker = build_worker(model_path)
    worker.save_checkpoint(str(Path(work_dir) / "run" / "global_step_3" / "actor"), global_step=3)
    weights, _ = worker.engine.get_per_tensor_param()
    finish({name: tensor.detach().clone() for name, tensor in weights}, work_dir)
