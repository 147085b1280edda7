# SPDX-License-Identifier: Apache-2.0
"""Requests to a backend and its responses, whatever runs the model."""

import queue
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tqdm import tqdm

from prime_ext.utils.report_page import join_lines
from prime_ext.utils.run_store import RunError

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal


@dataclass(frozen=True)
class Sampling:
    """Sampling of a response, which ends before the first of the texts ``stop``.

    Temperature 0 is greedy, and ``top_k`` 0 means all tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_new_tokens: int = 0
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """A request for one response to a chat or a text.

    The model sees a chat through its template, and a text as it is. It continues the last message
    of a chat if that is the assistant's. The same request with the same seed gives the same
    response where the backend can.
    """

    key: str
    prompt: tuple[Mapping[str, str], ...] | str
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True)
class Response:
    """The response to the request with the same key.

    ``tokens`` counts the end token, which is not in ``text``. ``finish`` is ``stop`` (an end token
    or stop text), ``length`` or ``failed``, which ``detail`` explains in one line.
    """

    key: str
    text: str
    tokens: int
    prompt_tokens: int
    finish: str
    detail: str = ""


Prompt: TypeAlias = Sequence[Mapping[str, str]] | str


def split_begun(prompt: Prompt) -> tuple[Prompt, str]:
    """Return a prompt without the begun response at the end of its chat, and that, or ""."""
    if isinstance(prompt, str) or not prompt or prompt[-1]["role"] != "assistant":
        return prompt, ""
    return prompt[:-1], prompt[-1]["content"]


def build_failure(request: Request, detail: str, prompt_tokens: int = 0) -> Response:
    """Return the response to a request that has none."""
    return Response(request.key, "", 0, prompt_tokens, "failed", join_lines(detail))


class BackendError(RunError):
    """A backend cannot do what it should; the message is one line and says what would be right."""


def stream(
    portal: "BlockingPortal",
    work: Callable[[Callable[[Response], None]], Coroutine[Any, Any, None]],
) -> Iterator[Response]:
    """Run ``work`` in the portal's event loop, yield what it puts; cancel it on an early stop."""
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
    """A model that answers requests; ``tokenizer`` is None where only its server has it."""

    tokenizer: Any = None

    def description(self) -> dict[str, Any]:
        """Return all that responses depend on, such as model and revision, ready for JSON."""
        raise NotImplementedError

    def check(self, requests: Sequence[Request]) -> None:
        """Raise ``BackendError`` for the first impossible request, such as one that is too long."""
        raise NotImplementedError

    def render_prompt(self, request: Request) -> str:
        """Return exactly the text that the model sees; raise ``BackendError`` if it is unknown."""
        raise NotImplementedError

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        """Yield responses, maybe failed ones, in any order to requests that pass :meth:`check`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release processes, memory and connections."""


def generate_with_progress(
    backend: Backend, requests: Sequence[Request], title: str = "", done: int = 0
) -> Iterator[Response]:
    """Yield a backend's responses with a bar of those done, tokens per second, failures, time left.

    ``done`` counts responses of an earlier run, which do not enter the speed.
    """
    tokens = failed = 0
    # One response may take minutes, so average over all (smoothing 0), not over the last ones.
    options: dict[str, Any] = {"unit": " responses", "smoothing": 0, "dynamic_ncols": True}
    with tqdm(total=done + len(requests), initial=done, desc=title or None, **options) as bar:
        for response in backend.generate(requests):
            tokens += response.tokens
            failed += response.finish == "failed"
            speed = tokens / max(bar.format_dict["elapsed"], 1e-9)
            bar.set_postfix_str(
                f"{speed:.0f} tokens/s" + (f", {failed} failed" if failed else ""), refresh=False
            )
            bar.update()
            yield response
