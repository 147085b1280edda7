# SPDX-License-Identifier: Apache-2.0
"""Answers of language models that are finished, so that none is asked for twice. All model stages share it.

An answer belongs to what was asked and of whom: the prompt, the sampling, the seed and the number of the attempt, and
the description of the backend. Only finished answers are kept; what failed is asked again by the next run. The file is
an SQLite database: a process may be killed at any time and loses at most what came in since the last commit, a second.
Several stages may use one file at the same time.
"""

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from prime_ext.generate.backend import Request, Response
from prime_ext.utils.rows import SourceError

# Files of another version are refused.
VERSION = 1
COMMIT_SECONDS = 1.0
# Other stages hold the file only for the length of a commit.
WAIT_SECONDS = 60.0
# Below SQLite's limit of parameters in every version.
_AT_A_TIME = 500


def answer_key(description: Mapping[str, Any], request: Request, attempt: int) -> str:
    """The name of an answer; ``request.key`` plays no part in it.

    Args:
        description: of the backend.
        request: what is asked.
        attempt: how many answers to the same question were thrown away before.
    """
    prompt = request.prompt if isinstance(request.prompt, str) else [dict(message) for message in request.prompt]
    asked = [dict(description), prompt, asdict(request.sampling), request.seed, attempt]
    return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()


class AnswerStore:
    """The answers in a file; a context manager.

    Args:
        path: of the file; it is made if there is none.

    Raises:
        SourceError: the file is something else, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=WAIT_SECONDS)
        self._pending: list[Response] = []
        self._last_commit = time.monotonic()
        try:
            self._open()
        except sqlite3.Error as error:
            self._connection.close()
            raise SourceError(f"{path} is no file of answers: {error}") from error

    def _open(self) -> None:
        # Of a new file: answers are long, and one that takes more than half a page leaves the rest empty.
        self._connection.execute("PRAGMA page_size = 16384")
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if version != VERSION and (version or tables):
                raise SourceError(
                    f"{self.path} has version {version} of the answers, this is {VERSION}; use another file"
                )
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, text TEXT NOT NULL, tokens INTEGER NOT NULL,"
                " prompt_tokens INTEGER NOT NULL, finish TEXT NOT NULL)"
            )
            self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def find(self, keys: Iterable[str]) -> dict[str, Response]:
        """Those of the answers that are there, by key."""
        self.commit()
        wanted = list(dict.fromkeys(keys))
        found = {}
        for start in range(0, len(wanted), _AT_A_TIME):
            part = wanted[start : start + _AT_A_TIME]
            marks = ",".join("?" * len(part))
            rows = self._connection.execute(
                f"SELECT key, text, tokens, prompt_tokens, finish FROM answers WHERE key IN ({marks})", part
            )
            found.update({row[0]: Response(*row) for row in rows})
        return found

    def put(self, response: Response) -> Response:
        """Keep an answer under its key.

        Returns:
            The answer as a later run will find it: half characters, which cannot be written, are question marks.

        Raises:
            ValueError: it failed.
        """
        if response.finish == "failed":
            raise ValueError(f"only finished answers are kept, got {response}")
        kept = replace(response, text=response.text.encode("utf-8", "replace").decode("utf-8"), detail="")
        self._pending.append(kept)
        if time.monotonic() - self._last_commit >= COMMIT_SECONDS:
            self.commit()
        return kept

    def commit(self) -> None:
        """Write what came in to the disk. The file is locked no longer than that."""
        if self._pending:
            rows = [(r.key, r.text, r.tokens, r.prompt_tokens, r.finish) for r in self._pending]
            with self._connection:
                self._connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?)", rows)
            self._pending.clear()
        self._last_commit = time.monotonic()

    def __len__(self) -> int:
        self.commit()
        (number,) = self._connection.execute("SELECT count(*) FROM answers").fetchone()
        return int(number)

    def __enter__(self) -> "AnswerStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Also after an error: what is finished is kept.
        self.commit()
        self._connection.close()
