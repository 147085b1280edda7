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
from typing import Any

from prime_ext.generate.backend import Request, Response
from prime_ext.utils.rows import SourceError

COMMIT_SECONDS = 1.0
# Other stages hold the file only for the length of a commit.
WAIT_SECONDS = 60.0


def answer_key(description: Mapping[str, Any], request: Request, attempt: int) -> str:
    """The name of an answer; ``request.key`` plays no part in it.

    ``attempt`` is how many answers to the same question were thrown away before.
    """
    prompt = request.prompt if isinstance(request.prompt, str) else [dict(message) for message in request.prompt]
    asked = [dict(description), prompt, asdict(request.sampling), request.seed, attempt]
    return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()


class AnswerStore:
    """The answers in a file, which is made if there is none; a context manager.

    Raises:
        SourceError: the file is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=WAIT_SECONDS)
        self._pending: list[Response] = []
        self._last_commit = time.monotonic()
        try:
            with self._connection:
                self._connection.execute(
                    "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, text TEXT NOT NULL, tokens INTEGER NOT"
                    " NULL, prompt_tokens INTEGER NOT NULL, finish TEXT NOT NULL)"
                )
        except sqlite3.Error as error:
            self._connection.close()
            raise SourceError(f"{path} is no file of answers: {error}") from error

    def find(self, keys: Iterable[str]) -> dict[str, Response]:
        """Those of the answers that are there, by key."""
        self.commit()
        query = "SELECT key, text, tokens, prompt_tokens, finish FROM answers WHERE key = ?"
        rows = (self._connection.execute(query, (key,)).fetchone() for key in keys)
        return {row[0]: Response(*row) for row in rows if row is not None}

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
        rows = [(r.key, r.text, r.tokens, r.prompt_tokens, r.finish) for r in self._pending]
        with self._connection:
            self._connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?)", rows)
        self._pending.clear()
        self._last_commit = time.monotonic()

    def __enter__(self) -> "AnswerStore":
        return self

    def __exit__(self, *error: object) -> None:
        # Also after an error: what is finished is kept.
        self.commit()
        self._connection.close()
