# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""One rank that saves a checkpoint with verl's FSDP2 engine: ``python checkpoint_rank.py MODEL_PATH WORK_DIR``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))

from engine_rank import build_worker, full_weights  # noqa: E402
from gloo_ranks import finish  # noqa: E402

if __name__ == "__main__":
    model_path, work_dir = sys.argv[1:]
    worker = build_worker(model_path)
    worker.save_checkpoint(str(Path(work_dir) / "run" / "global_step_3" / "actor"), global_step=3)
    finish(full_weights(worker), work_dir)
