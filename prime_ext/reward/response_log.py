# SPDX-License-Identifier: Apache-2.0
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
