# SPDX-License-Identifier: Apache-2.0
"""What a backend is asked and what it answers, whatever runs the model."""

import queue
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

_LONGEST_LINE = 300


@dataclass(frozen=True)
class Sampling:
    """How a response is made.

    Attributes:
        temperature: of sampling; 0 is greedy, or the best beam.
        top_p: of sampling.
        top_k: of sampling; 0 for all tokens.
        num_beams: beams; above 1 with a temperature they are sampled, as transformers does it.
        min_new_tokens: shortest response.
        max_new_tokens: longest response.
        stop: texts at which a response ends; they are not part of it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    num_beams: int = 1
    min_new_tokens: int = 0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One response that is wanted.

    Attributes:
        key: names it; the answer carries the same.
        prompt: a chat, shown through the model's template, or a text that is shown as it is.
        sampling: how the response is made.
        seed: of its random numbers; the same request with the same seed gives the same response where the backend can.
    """

    key: str
    prompt: tuple[Mapping[str, str], ...] | str
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True)
class Response:
    """What came of a request.

    Attributes:
        text: without end token and prompt; empty if it failed.
        tokens: length in tokens of the model, the end token included.
        prompt_tokens: length of what the model was shown.
        finish: ``stop`` (an end token or stop text), ``length`` (its longest length), ``failed`` (no response).
        detail: what went wrong, in one line, if it failed.
    """

    key: str
    text: str
    tokens: int
    prompt_tokens: int
    finish: str
    detail: str = ""


def failed(request: Request, detail: str, prompt_tokens: int = 0) -> Response:
    """The response to a request that has none, with the reason in one line."""
    return Response(request.key, "", 0, prompt_tokens, "failed", one_line(detail))


class BackendError(ValueError):
    """A backend cannot be used as asked; the message is one line and says what would be right."""


def one_line(text: str) -> str:
    """The beginning of a text without line breaks."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


def stream(
    portal: "BlockingPortal", work: Callable[[Callable[[Response], None]], Coroutine[Any, Any, None]]
) -> Iterator[Response]:
    """What a coroutine puts, as it comes. It runs in the event loop of the portal's thread, also while the caller works
    on a response, and is cancelled when the caller stops early.

    Raises:
        Exception: what the coroutine raised.
    """
    answers: queue.SimpleQueue[Response | None] = queue.SimpleQueue()
    task = portal.start_task_soon(work, answers.put)
    task.add_done_callback(lambda _: answers.put(None))
    try:
        while (answer := answers.get()) is not None:
            yield answer
        task.result()
    finally:
        task.cancel()


class Backend:
    """A model that answers."""

    def description(self) -> dict[str, Any]:
        """Backend, model, revision and everything else that responses depend on, ready for JSON."""
        raise NotImplementedError

    def problem(self, request: Request) -> str | None:
        """Why a request cannot be answered, in one line: a chat for a model without a chat template, a prompt that
        leaves no room for the longest response in the model's context, beams where there are none; None if it can."""
        raise NotImplementedError

    def check(self, requests: Sequence[Request]) -> None:
        """Whether the backend can answer these.

        Raises:
            BackendError: it cannot, see :meth:`problem`.
        """
        for request in requests:
            if (problem := self.problem(request)) is not None:
                raise BackendError(f"request {request.key}: {problem}")

    def shown(self, request: Request) -> str:
        """Exactly the text that the model sees for a request.

        Raises:
            BackendError: this backend cannot tell.
        """
        raise NotImplementedError

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        """A response for every request, as they finish, in any order; what fails is a response that says so."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back processes, memory and connections."""


def generate_with_progress(
    backend: Backend, requests: Sequence[Request], title: str = "", done: int = 0
) -> Iterator[Response]:
    """The responses of a backend, with a bar of those done, tokens per second, failures and time left.

    Args:
        backend: what answers.
        requests: what is asked of it.
        title: before the bar.
        done: responses of an earlier run, which are part of the whole but not of the speed.
    """
    tokens = failed = 0
    # One response may take minutes: the average over all (smoothing 0) says more than the last ones.
    options: dict[str, Any] = {"unit": " responses", "smoothing": 0, "dynamic_ncols": True}
    with tqdm(total=done + len(requests), initial=done, desc=title or None, **options) as bar:
        for response in backend.generate(requests):
            tokens += response.tokens
            failed += response.finish == "failed"
            seconds = bar.format_dict["elapsed"]
            said = f"{tokens / seconds:.0f} tokens/s" if seconds > 0 else ""
            bar.set_postfix_str(said + (f", {failed} failed" if failed else ""), refresh=False)
            bar.update()
            yield response
