# SPDX-License-Identifier: Apache-2.0
"""Responses of a run: those that are missing are asked for, each is kept as soon as it is there."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.run_plan import Planned, RunError
from eval.run_store import Key, LineFile, Row
from prime_ext.generate.backend import Backend, Request, Response
from prime_ext.generate.progress import generate_with_progress
from prime_ext.utils.files import write_json_lines

RESPONSES = "responses.jsonl"
FAILED = "failed.jsonl"
FIELDS = {
    "problem": str,
    "sample": int,
    "seed": int,
    "text": str,
    "tokens": int,
    "prompt_tokens": int,
    "finish": str,
    "detail": str,
}


@dataclass(frozen=True)
class Generated:
    """What a session added to a task.

    Attributes:
        failed: lines of the responses that failed, in order; the next session tries them again.
        responses: number of new ones.
        tokens: of them.
        seconds: that they took.
    """

    failed: list[Row]
    responses: int
    tokens: int
    seconds: float


def open_responses(planned: Planned, folder: Path) -> LineFile:
    """The finished responses of a task.

    Raises:
        RunError: see :class:`LineFile`; or this run did not make one.
    """
    lines = LineFile(folder / RESPONSES, FIELDS, planned.keys)
    for (problem, sample), row in lines.rows.items():
        if row["seed"] != planned.seed_of(problem, sample) or row["finish"] not in ("stop", "length"):
            raise RunError(
                f"{lines.path}: this run did not make the response to {problem} ({sample}); choose another --output"
            )
    return lines


def generate(planned: Planned, backend: Backend, responses: LineFile) -> Generated:
    """Ask for the responses that are missing, and put those that failed into a file of their own.

    Args:
        planned: the task.
        backend: that answers.
        responses: from :func:`open_responses`; afterwards with the new ones, in order.

    Raises:
        BackendError: the backend cannot go on. What is finished is kept.
    """
    asked = {planned.request(*key).key: key for key in planned.keys if key not in responses.rows}
    requests = [planned.request(*key) for key in asked.values()]
    if not requests:
        with responses:
            return Generated([], 0, 0, 0.0)
    failed: dict[Key, Row] = {}
    new = tokens = 0
    started = time.perf_counter()
    in_parts = _InParts(backend, planned.decoding.batch_size or len(requests))
    with responses:
        for response in generate_with_progress(in_parts, requests, planned.name, done=len(responses.rows)):
            key = asked[response.key]
            row = _row(planned, key, response)
            if response.finish == "failed":
                failed[key] = row
            else:
                responses.append(row)
                new, tokens = new + 1, tokens + response.tokens
    seconds = time.perf_counter() - started
    in_order = [failed[key] for key in planned.keys if key in failed]
    path = responses.path.with_name(FAILED)
    if in_order:
        write_json_lines(path, in_order)
    else:
        path.unlink(missing_ok=True)
    return Generated(in_order, new, tokens, seconds)


class _InParts:
    """A backend that is asked for some of the responses at a time, and that leaves none out."""

    def __init__(self, backend: Backend, size: int) -> None:
        self._backend, self._size = backend, size

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        for start in range(0, len(requests), self._size):
            part = requests[start : start + self._size]
            missing = {request.key for request in part}
            for response in self._backend.generate(part):
                missing.remove(response.key)
                yield response
            if missing:
                raise RuntimeError(f"the backend left {len(missing)} requests without a response, e.g. {min(missing)}")


def _row(planned: Planned, key: Key, response: Response) -> Row:
    problem, sample = key
    return {
        "problem": problem,
        "sample": sample,
        "seed": planned.seed_of(problem, sample),
        "text": response.text,
        "tokens": response.tokens,
        "prompt_tokens": response.prompt_tokens,
        "finish": response.finish,
        "detail": response.detail,
    }
