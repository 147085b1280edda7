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
"""What the reward manager saw of each response, as JSON lines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray


class ResponseLog:
    """Appends one line for each response to a file of this process below ``folder``.

    Each reward worker has its own file, since lines of several nodes in one file of a shared disk could mix.

    Args:
        folder: made when the first line is written.
    """

    def __init__(self, folder: str | Path):
        node = f"{ray.get_runtime_context().get_node_id()[:8]}_" if ray.is_initialized() else ""
        self.path = Path(folder).expanduser() / f"responses_{node}{os.getpid()}.jsonl"

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
