# SPDX-License-Identifier: Apache-2.0
"""What a backend is asked and what it answers, whatever runs the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Why a response ended: an end token or stop text, its longest length, or no response at all.
FINISHES = ("stop", "length", "failed")


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
        key: of the request.
        text: without end token and prompt; empty if it failed.
        tokens: length in tokens of the model, the end token included.
        prompt_tokens: length of what the model was shown.
        finish: one of :data:`FINISHES`.
        detail: what went wrong, in one line, if it failed.
    """

    key: str
    text: str
    tokens: int
    prompt_tokens: int
    finish: str
    detail: str = ""


class BackendError(ValueError):
    """A backend cannot be used as asked; the message is one line and says what would be right."""


class Backend(Protocol):
    """A model that answers."""

    def description(self) -> dict[str, Any]:
        """Backend, model, revision and everything else that responses depend on, ready for JSON."""
        ...

    def check(self, requests: Sequence[Request]) -> None:
        """Whether the backend can answer these.

        Raises:
            BackendError: a chat for a model without a chat template, a prompt that leaves no room for the longest
                response in the model's context, beams where there are none.
        """
        ...

    def shown(self, request: Request) -> str:
        """Exactly the text that the model sees for a request.

        Raises:
            BackendError: this backend cannot tell.
        """
        ...

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        """A response for every request, as they finish, in any order; what fails is a response that says so."""
        ...

    def close(self) -> None:
        """Give back processes, memory and connections."""
        ...
