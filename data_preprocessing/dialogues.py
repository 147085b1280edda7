# SPDX-License-Identifier: Apache-2.0
"""Dialogues of model stages: generators that yield questions and are sent the answers.

    def rewriting(problem):
        for attempt in range(4):
            (answer,) = yield [Ask(prompt(problem), attempt=attempt)]
            question = parse_question(answer.text)
            if question is not None:
                return question
        return Removal("malformed", answer.text)

A dialogue depends on nothing but its answers, so a run can resume from them. Finished answers are
kept in a file and never requested twice; the next run requests failed ones again.
"""

import hashlib
import json
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

from prime_ext.generate.backend import (
    Backend,
    BackendError,
    Request,
    Response,
    Sampling,
    generate_with_progress,
)
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import LineFile

from .grading import Judge, get_verdicts
from .pipeline_report import replace_half_characters

Messages = Sequence[Mapping[str, str]]
FIELDS = ("key", "text", "tokens", "prompt_tokens", "finish")


@dataclass(frozen=True)
class Ask:
    """A chat or text for the model; each ``sample`` and each ``attempt`` has its own seed."""

    prompt: Messages | str
    sample: int = 0
    attempt: int = 0

    @property
    def shown(self) -> tuple[dict[str, str], ...] | str:
        """Return the prompt of a request."""
        prompt = self.prompt
        return prompt if isinstance(prompt, str) else tuple(map(dict, prompt))

    def seed(self, base: int) -> int:
        """Return 31 bits that differ between prompts, samples and attempts."""
        query = json.dumps([base, self.shown, self.sample, self.attempt], sort_keys=True)
        return int.from_bytes(hashlib.blake2b(query.encode(), digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class Unanswered:
    """The end of a dialogue without an answer; ``refused``: the backend rejects the question."""

    detail: str
    refused: bool


Result = TypeVar("Result")
Effect: TypeAlias = Ask | Judge
Dialogue: TypeAlias = Generator[Sequence[Effect], list[Any], Result]


class Interviewer:
    """Runner of dialogues and judges; counts ``requested`` and ``reused`` answers."""

    def __init__(self, backend: Backend, store: LineFile, sampling: Sampling, seed: int) -> None:
        self.requested = 0
        self.reused = 0
        self._backend = backend
        self._store = store
        self._sampling = sampling
        self._seed = seed
        self._description = dict(backend.description())

    def results(self, dialogues: Sequence[Dialogue[Result]]) -> list[Result | Unanswered]:
        """Run all dialogues turn by turn. Raises SourceError: the backend rejects all questions."""
        results: dict[int, Result | Unanswered] = {}
        answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(dialogues)))
        while answers:
            waiting: dict[int, Sequence[Effect]] = {}
            for number, answered in answers.items():
                try:
                    # A generator is started with None.
                    waiting[number] = dialogues[number].send(answered)  # type: ignore[arg-type]
                except StopIteration as stop:
                    results[number] = stop.value
            flat = [effect for effects in waiting.values() for effect in effects]
            responses = iter(
                self._responses([effect for effect in flat if isinstance(effect, Ask)])
            )
            judged = iter(get_verdicts([effect for effect in flat if isinstance(effect, Judge)]))
            answers = {}
            for number, effects in waiting.items():
                replies = [
                    next(responses if isinstance(effect, Ask) else judged) for effect in effects
                ]
                failed = next((reply for reply in replies if isinstance(reply, Unanswered)), None)
                if failed is None:
                    answers[number] = replies
                else:
                    dialogues[number].close()
                    results[number] = failed
        return [results[number] for number in range(len(dialogues))]

    def _responses(self, asks: Sequence[Ask]) -> list[Response | Unanswered]:
        """Request the answers that the store lacks; refuse questions that the backend rejects."""
        requests: dict[str, Request] = {}
        keys = []
        for ask in asks:
            prompt = ask.shown
            seed = ask.seed(self._seed)
            # An answer is valid for one question, one model and one way of sampling.
            named = [self._description, prompt, asdict(self._sampling), seed, ask.attempt]
            key = hashlib.blake2b(
                json.dumps(named, sort_keys=True).encode(), digest_size=16
            ).hexdigest()
            keys.append(key)
            requests[key] = Request(key, prompt, self._sampling, seed)
        answers: dict[str, Response | Unanswered] = {}
        taken = []
        for key, request in requests.items():
            if key in self._store.rows:
                answers[key] = Response(**self._store.rows[key])
                self.reused += 1
                continue
            try:
                self._backend.check([request])
            except BackendError as error:
                answers[key] = Unanswered(str(error), refused=True)
            else:
                answers[key] = Unanswered("the backend gave no answer", refused=False)
                taken.append(request)
        if answers and not (taken or self.requested or self.reused):
            first: Any = next(iter(answers.values()))
            raise SourceError(f"the model takes none of {len(answers)} questions: {first.detail}")
        self.requested += len(taken)
        responses: Iterable[Response] = ()
        if taken and sys.stderr.isatty():
            responses = generate_with_progress(self._backend, taken, "answers")
        elif taken:
            responses = self._backend.generate(taken)
        for response in responses:
            if response.finish == "failed":
                answers[response.key] = Unanswered(
                    response.detail or "no reason given", refused=False
                )
            else:
                kept = replace(response, text=replace_half_characters(response.text), detail="")
                self._store.append({name: getattr(kept, name) for name in FIELDS})
                answers[response.key] = kept
        return [answers[key] for key in keys]
