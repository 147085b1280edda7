# SPDX-License-Identifier: Apache-2.0
"""What model stages ask, row by row: a dialogue is a generator that yields what it wants to know and gets the answers.

    def rewriting(problem):
        for attempt in range(4):
            (answer,) = yield [Ask(prompt(problem), attempt=attempt)]
            question = parsed(answer.text)
            if question is not None:
                return question
        return Removal("malformed", answer.text)

The answer goes to the dialogue that asked, whatever others do meanwhile, so that a retry cannot meet the wrong row. A
dialogue decides by nothing but its answers: run again on the same ones it does the same, which is all that resuming
needs. Finished answers are kept in a file, so that none is asked for twice; what failed is asked again by the next run.
"""

import hashlib
import json
import sqlite3
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from data_preprocessing.grading import Judge, Judges
from prime_ext.generate.backend import Backend, BackendError, Request, Response, Sampling, generate_with_progress
from prime_ext.utils.rows import SourceError

COMMIT_SECONDS = 1.0
# Other stages hold the file only for the length of a commit.
WAIT_SECONDS = 60.0
Messages = Sequence[Mapping[str, str]]


class AnswerStore:
    """Finished answers in an SQLite database, which is made if there is none; a context manager.

    A process may be killed at any time and loses at most what came in since the last commit, a second. Several stages
    may use one file at the same time. SourceError if the file is something else.
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
        """Keep an answer under its key; returns it as a later run will find it: half characters are question marks."""
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


@dataclass(frozen=True)
class Ask:
    """A question to the model.

    Attributes:
        prompt: a chat.
        sample: which of several answers to the same prompt.
        attempt: how many answers to this were thrown away before; each has a seed of its own.
    """

    prompt: Messages
    sample: int = 0
    attempt: int = 0

    def seed(self, base: int) -> int:
        """31 bits that differ between prompts, samples and attempts."""
        asked = json.dumps(
            [base, [dict(message) for message in self.prompt], self.sample, self.attempt], sort_keys=True
        )
        return int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class Unanswered:
    """The end of a dialogue whose question got no answer; ``refused``: asking the backend again is of no use."""

    detail: str
    refused: bool


Result = TypeVar("Result")
Effect: TypeAlias = Ask | Judge
Dialogue: TypeAlias = Generator[Sequence[Effect], list[Any], Result]


class Interviewer:
    """Carries dialogues on: asks what the store does not know, and judges."""

    def __init__(self, backend: Backend, store: AnswerStore, sampling: Sampling, seed: int) -> None:
        self.asked = 0
        self.found = 0
        self._backend = backend
        self._store = store
        self._sampling = sampling
        self._seed = seed
        self._description = dict(backend.description())
        self._judges = Judges()

    def results(self, dialogues: Sequence[Dialogue[Result]]) -> list[Result | Unanswered]:
        """Carry dialogues on to their ends, all of them a turn at a time.

        Raises:
            SourceError: the backend takes none of the first questions.
        """
        results: dict[int, Result | Unanswered] = {}
        answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(dialogues)))
        while answers:
            waiting: dict[int, Sequence[Effect]] = {}
            for number, given in answers.items():
                try:
                    # A generator is started with None.
                    waiting[number] = dialogues[number].send(given)  # type: ignore[arg-type]
                except StopIteration as stop:
                    results[number] = stop.value
            flat = [effect for effects in waiting.values() for effect in effects]
            said = iter(self._responses([effect for effect in flat if isinstance(effect, Ask)]))
            judged = iter(self._judges.verdicts([effect for effect in flat if isinstance(effect, Judge)]))
            answers = {}
            for number, effects in waiting.items():
                found = [next(said if isinstance(effect, Ask) else judged) for effect in effects]
                failed = next((one for one in found if isinstance(one, Unanswered)), None)
                if failed is None:
                    answers[number] = found
                else:
                    dialogues[number].close()
                    results[number] = failed
        return [results[number] for number in range(len(dialogues))]

    def _responses(self, asks: Sequence[Ask]) -> list[Response | Unanswered]:
        requests, keys = {}, []
        for ask in asks:
            prompt = tuple(dict(message) for message in ask.prompt)
            seed = ask.seed(self._seed)
            # An answer belongs to what was asked and of whom.
            named = [self._description, prompt, asdict(self._sampling), seed, ask.attempt]
            key = hashlib.blake2b(json.dumps(named, sort_keys=True).encode(), digest_size=16).hexdigest()
            keys.append(key)
            requests[key] = Request(key, prompt, self._sampling, seed)
        known: dict[str, Response | Unanswered] = dict(self._store.find(requests))
        self.found += len(known)
        known.update(self._generated([request for key, request in requests.items() if key not in known]))
        return [known[key] for key in keys]

    def _generated(self, requests: Sequence[Request]) -> dict[str, Response | Unanswered]:
        """Answers to what the backend takes; the others say why not."""
        refused = self._refused(requests)
        taken = [request for request in requests if request.key not in refused]
        found: dict[str, Response | Unanswered] = {key: Unanswered(why, True) for key, why in refused.items()}
        found.update({request.key: Unanswered("the backend gave no answer", False) for request in taken})
        if not taken:
            return found
        self.asked += len(taken)
        watched = sys.stderr.isatty()
        answers = generate_with_progress(self._backend, taken, "answers") if watched else self._backend.generate(taken)
        for response in answers:
            if response.finish == "failed":
                found[response.key] = Unanswered(response.detail or "no reason given", False)
            else:
                found[response.key] = self._store.put(response)
        self._store.commit()
        return found

    def _refused(self, requests: Sequence[Request]) -> dict[str, str]:
        """Why the backend does not take some of the questions, by key."""
        try:
            self._backend.check(requests)
            return {}
        except BackendError:
            refused = {}
        for request in requests:
            try:
                self._backend.check([request])
            except BackendError as error:
                refused[request.key] = str(error)
        if refused and len(refused) == len(requests) and not self.asked and not self.found:
            first = next(iter(refused.values()))
            raise SourceError(f"the model takes none of {len(requests)} questions: {first}")
        return refused
