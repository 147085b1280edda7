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
needs.
"""

import hashlib
import json
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from data_preprocessing.answer_store import AnswerStore, answer_key
from data_preprocessing.grading import Judge, Judges
from prime_ext.generate.backend import Backend, BackendError, Request, Response, Sampling, generate_with_progress
from prime_ext.utils.rows import SourceError

Messages = Sequence[Mapping[str, str]]


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


@dataclass(frozen=True)
class Unanswered:
    """The end of a dialogue whose question got no answer.

    ``refused``: the backend would not take the question, so that asking again is of no use.
    """

    detail: str
    refused: bool


Result = TypeVar("Result")
Effect: TypeAlias = Ask | Judge
Dialogue: TypeAlias = Generator[Sequence[Effect], list[Any], Result]


def seed_of(base: int, ask: Ask) -> int:
    """31 bits that differ between prompts, samples and attempts."""
    asked = json.dumps([base, [dict(message) for message in ask.prompt], ask.sample, ask.attempt], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=4).digest(), "big") >> 1


class Interviewer:
    """Carries dialogues on: asks what the store does not know, and judges."""

    def __init__(self, backend: Backend, store: AnswerStore, sampling: Sampling, seed: int) -> None:
        self.asked = 0
        self.found = 0
        self._backend = backend
        self._store = store
        self._sampling = sampling
        self._seed = seed
        self._description = backend.description()
        self._judges = Judges()

    def results(self, dialogues: Sequence[Dialogue[Result]]) -> list[Result | Unanswered]:
        """Carry dialogues on to their ends, all of them a turn at a time.

        Raises:
            SourceError: the backend takes none of the first questions.
        """
        results: dict[int, Result | Unanswered] = {}
        waiting: dict[int, Sequence[Effect]] = {}
        answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(dialogues)))
        while answers:
            for number, given in answers.items():
                try:
                    # A generator is started with None.
                    waiting[number] = dialogues[number].send(given)  # type: ignore[arg-type]
                except StopIteration as stop:
                    results[number] = stop.value
            answers = {}
            for number, given in zip(waiting, self._answered(list(waiting.values())), strict=True):
                failed = next((one for one in given if isinstance(one, Unanswered)), None)
                if failed is None:
                    answers[number] = given
                else:
                    dialogues[number].close()
                    results[number] = failed
            waiting = {}
        return [results[number] for number in range(len(dialogues))]

    def _answered(self, effects: Sequence[Sequence[Effect]]) -> list[list[Any]]:
        """What comes of the questions of each dialogue."""
        flat = [effect for one in effects for effect in one]
        said = iter(self._responses([effect for effect in flat if isinstance(effect, Ask)]))
        judged = iter(self._judges.verdicts([effect for effect in flat if isinstance(effect, Judge)]))
        return [[next(said if isinstance(effect, Ask) else judged) for effect in one] for one in effects]

    def _responses(self, asks: Sequence[Ask]) -> list[Response | Unanswered]:
        requests = {}
        keys = []
        for ask in asks:
            prompt = tuple(dict(message) for message in ask.prompt)
            request = Request("", prompt, self._sampling, seed_of(self._seed, ask))
            keys.append(answer_key(self._description, request, ask.attempt))
            requests[keys[-1]] = replace(request, key=keys[-1])
        known: dict[str, Response | Unanswered] = dict(self._store.find(requests))
        self.found += len(known)
        missing = [request for key, request in requests.items() if key not in known]
        known.update(self._generated(missing))
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
        refused = {}
        try:
            self._backend.check(requests)
        except BackendError:
            for request in requests:
                try:
                    self._backend.check([request])
                except BackendError as error:
                    refused[request.key] = str(error)
        if refused and len(refused) == len(requests) and not self.asked and not self.found:
            first = next(iter(refused.values()))
            raise SourceError(f"the model takes none of {len(requests)} questions: {first}")
        return refused
