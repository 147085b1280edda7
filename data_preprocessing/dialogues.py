# SPDX-License-Identifier: Apache-2.0
"""What model stages ask, row by row: a dialogue is a generator that yields questions and is sent the answers.

    def rewriting(problem):
        for attempt in range(4):
            (answer,) = yield [Ask(prompt(problem), attempt=attempt)]
            question = parsed(answer.text)
            if question is not None:
                return question
        return Removal("malformed", answer.text)

An answer goes to the dialogue that asked, so that a retry cannot meet the wrong row. A dialogue decides by nothing but
its answers: run again on the same ones it does the same, which is all that resuming needs. Finished answers are kept in
a file, so that none is asked for twice; the next run asks again for what failed.
"""

import hashlib
import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from data_preprocessing.grading import Judge, Judges
from data_preprocessing.report import replace_half_characters
from prime_ext.generate.backend import Backend, BackendError, Request, Response, Sampling, generate_with_progress
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import LineFile, lock_folder

Messages = Sequence[Mapping[str, str]]
FIELDS = ("key", "text", "tokens", "prompt_tokens", "finish")


@contextmanager
def open_answers(path: Path) -> Iterator[LineFile]:
    """Open a file of finished answers, one process at a time. RunError: it holds something else."""
    store = LineFile(path, lambda row: row["key"], FIELDS)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_folder(path.parent, "give another --answers"), store:
        yield store


@dataclass(frozen=True)
class Ask:
    """A question to the model.

    Attributes:
        prompt: a chat.
        sample: number of the answer, of several to the same prompt.
        attempt: number of answers that were thrown away before; each has a seed of its own.
    """

    prompt: Messages
    sample: int = 0
    attempt: int = 0

    def seed(self, base: int) -> int:
        """Return 31 bits that differ between prompts, samples and attempts."""
        asked = json.dumps(
            [base, [dict(message) for message in self.prompt], self.sample, self.attempt], sort_keys=True
        )
        return int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class Unanswered:
    """The end of a dialogue whose question got no answer; ``refused``: the backend cannot be asked this."""

    detail: str
    refused: bool


Result = TypeVar("Result")
Effect: TypeAlias = Ask | Judge
Dialogue: TypeAlias = Generator[Sequence[Effect], list[Any], Result]


class Interviewer:
    """Runs dialogues: asks what the store does not have, and judges.

    Attributes:
        asked: answers that the backend was asked for.
        found: answers that the store had.
    """

    def __init__(self, backend: Backend, store: LineFile, sampling: Sampling, seed: int) -> None:
        self.asked = 0
        self.found = 0
        self._backend = backend
        self._store = store
        self._sampling = sampling
        self._seed = seed
        self._description = dict(backend.description())
        self._judges = Judges()

    def results(self, dialogues: Sequence[Dialogue[Result]]) -> list[Result | Unanswered]:
        """Run dialogues to their ends, all of them a turn at a time.

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
        known: dict[str, Response | Unanswered] = {
            key: Response(**self._store.rows[key]) for key in requests if key in self._store.rows
        }
        self.found += len(known)
        known.update(self._generate([request for key, request in requests.items() if key not in known]))
        return [known[key] for key in keys]

    def _generate(self, requests: Sequence[Request]) -> dict[str, Response | Unanswered]:
        """Ask what the backend takes; the other questions are refused."""
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
                kept = replace(response, text=replace_half_characters(response.text), detail="")
                self._store.append({name: getattr(kept, name) for name in FIELDS})
                found[response.key] = kept
        return found

    def _refused(self, requests: Sequence[Request]) -> dict[str, str]:
        """Return why the backend does not take some of the questions, by key."""
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
