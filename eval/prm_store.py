# SPDX-License-Identifier: Apache-2.0
"""Scores that are computed once: every finished response is a line of a file, and an interrupted run goes on there."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.prm_scorers import Scorer, Tokens
from prime_ext.offline_prm.data import BadData
from prime_ext.utils.files import write_text

OVERLONG = "overlong"


def token_key(tokens: Tokens) -> str:
    """The same for the same tokens and the same ends of steps."""
    return hashlib.sha256(json.dumps([tokens.ids, tokens.n_prompt, tokens.ends]).encode()).hexdigest()[:24]


def model_identity(path: str | None) -> Any:
    """Name of a model; for a local one also size and time of its weights, so that a retrained one is another."""
    if path is None or not Path(path).is_dir():
        return path
    files = sorted(p for p in Path(path).iterdir() if p.suffix in (".safetensors", ".bin"))
    return [str(Path(path).resolve()), [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]]


class ScoreStore:
    """Results of a scorer by token key, in ``scores.jsonl``.

    Args:
        folder: of the evaluation.
        settings: what the scores depend on.

    Raises:
        BadData: the folder holds scores of another model or other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "scores.jsonl"
        settings_path = folder / "scores.settings.json"
        settings = json.loads(json.dumps(settings))
        if self.path.exists() and settings_path.exists():
            earlier = json.loads(settings_path.read_text(encoding="utf-8"))
            changed = [key for key in settings if settings[key] != earlier.get(key)]
            if changed:
                raise BadData(
                    f"{self.path} was scored with {changed[0]}={earlier.get(changed[0])!r}, now it is "
                    f"{settings[changed[0]]!r}; choose another --output or delete the folder"
                )
        else:
            write_text(settings_path, json.dumps(settings, indent=2) + "\n")
        self.results: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            # A kill may have cut off the last line.
            whole = self.path.read_bytes().rpartition(b"\n")[0]
            self.results = {record["key"]: record["result"] for record in map(json.loads, whole.splitlines())}
            write_text(self.path, whole.decode() + "\n" if whole else "")

    def score(self, scorer: Scorer, rows: Sequence[Tokens], batch_tokens: int) -> list[dict[str, Any]]:
        """Results of all rows, in order; those that are not stored yet are computed, long ones first.

        A response longer than the scorer's limit has the result ``{"overlong": its tokens}``.

        Args:
            scorer: the PRM.
            rows: responses.
            batch_tokens: padded tokens of a batch at most; at least one response.
        """
        keys = [token_key(row) for row in rows]
        missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in self.results}
        todo = sorted(missing.items(), key=lambda item: len(item[1].ids), reverse=True)
        with (
            self.path.open("a", encoding="utf-8") as lines,
            tqdm(total=len(set(keys)), initial=len(set(keys)) - len(todo), desc="scoring") as progress,
        ):
            while todo and len(todo[0][1].ids) > scorer.max_length:
                key, row = todo.pop(0)
                self.results[key] = {OVERLONG: len(row.ids)}
                progress.update()
            while todo:
                size = max(1, batch_tokens // len(todo[0][1].ids))
                batch, todo = todo[:size], todo[size:]
                for (key, _), result in zip(batch, scorer.score([row for _, row in batch]), strict=True):
                    self.results[key] = result
                    lines.write(json.dumps({"key": key, "result": result}) + "\n")
                lines.flush()
                progress.update(len(batch))
        return [self.results[key] for key in keys]
