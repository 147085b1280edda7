# SPDX-License-Identifier: Apache-2.0
"""A server with OpenAI's interface as a backend; its client retries and heeds ``Retry-After``."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import openai
from anyio.from_thread import start_blocking_portal

from prime_ext.generate.backend import (
    Backend,
    BackendError,
    Request,
    Response,
    build_failure,
    split_begun,
    stream,
)
from prime_ext.utils.report_page import join_lines

# What servers call the end of a response: an end token or a stop text (vLLM, OpenAI; TGI's two
# names), or the length.
_FINISHES = {"stop": "stop", "eos_token": "stop", "stop_sequence": "stop", "length": "length"}
_LISTING_SECONDS = 60.0
_CONNECTING_SECONDS = 30.0
# Requests in a row that found no server before the others fail at once.
_UNREACHABLE = 8


class ServerBackend(Backend):
    """A model at ``/v1/chat/completions`` and ``/v1/completions`` of a server.

    Without a name it is the server's only one. ``/v1`` may be missing in ``base_url``; ``timeout``
    is in seconds, for one attempt. Raises ``BackendError``: not a URL, or the variable of the key
    is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str = "",
        api_key_env: str = "",
        concurrency: int = 16,
        attempts: int = 8,
        timeout: float = 1800.0,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.url = api_url(base_url)
        self.concurrency = concurrency
        self.attempts = attempts
        self.timeout = timeout
        self.chat_options = dict(chat_template_kwargs or {})
        self._requested_model = model
        self._key = os.environ.get(api_key_env, "") if api_key_env else ""
        if api_key_env and not self._key:
            raise BackendError(
                f"the environment variable {api_key_env} with the server's key is not set"
            )
        # Without a key the client would send $OPENAI_API_KEY to this server, whatever it is.
        self._address: dict[str, Any] = {"base_url": self.url, "api_key": self._key or "none"}

    @cached_property
    def _served(self) -> dict[str, Any]:
        """Return the model's listed entry, or its name without a list. Raises ``BackendError``."""
        url = f"{self.url}/models"
        try:
            with openai.OpenAI(**self._address, max_retries=0, timeout=_LISTING_SECONDS) as client:
                entries = {entry.id: entry.to_dict() for entry in client.models.list().data}
        except openai.APIStatusError as error:
            if error.status_code in (404, 405) and self._requested_model:
                return {"id": self._requested_model}
            raise BackendError(self._hide_key(f"{url} answers with {status_text(error)}")) from None
        except openai.APITimeoutError:
            raise BackendError(f"{url} does not answer in {_LISTING_SECONDS:g} s") from None
        except openai.APIConnectionError as error:
            raise BackendError(
                join_lines(f"{url} cannot be reached, is the server running? {error.__cause__}")
            ) from None
        except (AttributeError, TypeError, ValueError):
            raise BackendError(
                f"{url} is not OpenAI's interface: the answer has no list 'data' of models"
            ) from None
        if not self._requested_model and len(entries) == 1:
            return next(iter(entries.values()))
        if self._requested_model in entries:
            return entries[self._requested_model]
        request = (
            f"does not serve {self._requested_model!r}"
            if self._requested_model
            else "needs a model's name (--model)"
        )
        raise BackendError(
            join_lines(f"{self.url} {request}; it serves {', '.join(entries) or 'nothing'}")
        )

    def description(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            name: self._served[name] for name in ("root", "max_model_len") if name in self._served
        }
        if self.chat_options:
            body["chat_template_kwargs"] = self.chat_options
        return {"backend": "server", "model": str(self._served["id"]), **body}

    def check(self, requests: Sequence[Request]) -> None:
        # The server checks requests itself; this only checks that there is one.
        _ = self._served

    def render_prompt(self, request: Request) -> str:
        if isinstance(request.prompt, str):
            return request.prompt
        raise BackendError(
            "the server applies its own chat template and does not tell what the model sees; "
            "--backend transformers with the same model shows it"
        )

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        work = partial(self._answer_all, requests, str(self._served["id"]))
        with start_blocking_portal() as portal:
            yield from stream(portal, work)

    def _hide_key(self, text: str) -> str:
        """Return one line without the key, which servers repeat in their answer."""
        return join_lines(text.replace(self._key, "***") if self._key else text)

    async def _answer_all(
        self, requests: Sequence[Request], model: str, put: Callable[[Response], None]
    ) -> None:
        waiting = iter(requests)
        unreachable = 0
        timeout = openai.Timeout(self.timeout, connect=min(self.timeout, _CONNECTING_SECONDS))
        client = openai.AsyncOpenAI(**self._address, max_retries=self.attempts - 1, timeout=timeout)

        async def worker() -> None:
            nonlocal unreachable
            for request in waiting:
                if unreachable >= max(_UNREACHABLE, self.concurrency):
                    put(build_failure(request, f"not asked: {self.url} could not be reached"))
                    continue
                try:
                    response = await self._answer(client, request, model)
                    unreachable = 0
                except openai.APITimeoutError:
                    response = build_failure(
                        request, f"no answer in {self.timeout:g} s ({self.attempts} attempts)"
                    )
                except openai.APIConnectionError as error:
                    unreachable += 1
                    response = build_failure(
                        request, f"no connection: {error.__cause__} ({self.attempts} attempts)"
                    )
                except openai.APIStatusError as error:
                    response = build_failure(request, status_text(error))
                    unreachable = 0
                except ValueError as error:
                    response = build_failure(request, f"malformed answer: {error}")
                    unreachable = 0
                put(replace(response, detail=self._hide_key(response.detail)))

        async with client, anyio.create_task_group() as group:
            for _ in range(min(self.concurrency, len(requests))):
                group.start_soon(worker)

    async def _answer(self, client: openai.AsyncOpenAI, request: Request, model: str) -> Response:
        create: Any = (
            client.completions.create
            if isinstance(request.prompt, str)
            else client.chat.completions.create
        )
        arguments = payload(request, model, self.chat_options)
        for _ in range(self.attempts - 1):
            try:
                return read_completion(await create(**arguments), request)
            except ValueError:
                # A malformed answer, or a body that is not JSON; the client repeats all else.
                await asyncio.sleep(1.0)
        return read_completion(await create(**arguments), request)


def status_text(error: openai.APIStatusError) -> str:
    return f"HTTP {error.status_code}: {error.response.text}"


def api_url(base_url: str, name: str = "--base-url", key: str = "--api-key-env") -> str:
    """Add ``/v1`` to a URL without a path. Raises ``BackendError``: not http(s), or a password.

    The error calls the URL ``name``, and the setting for a key's variable ``key``.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BackendError(
            f"{name} {base_url} is not a URL; one looks like http://127.0.0.1:8000/v1"
        )
    if parts.username or parts.password:
        raise BackendError(
            f"{name} holds a user name or password; name the key's variable with {key}"
        )
    return f"{base_url.rstrip('/')}/v1" if parts.path in ("", "/") else base_url.rstrip("/")


def payload(request: Request, model: str, chat_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's arguments for a request; its signed seeds drop the highest bit."""
    sampling = request.sampling
    # Not part of OpenAI's interface, so they are only sent where they mean something.
    extensions: dict[str, Any] = {
        "top_k": sampling.top_k,
        "min_tokens": sampling.min_new_tokens,
        "chat_template_kwargs": {} if isinstance(request.prompt, str) else dict(chat_options),
    }
    begins = {"continue_final_message": True, "add_generation_prompt": False}
    return {
        "model": model,
        **(
            {"prompt": request.prompt}
            if isinstance(request.prompt, str)
            else {"messages": list(request.prompt)}
        ),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "n": 1,
        "stream": False,
        "seed": request.seed & (2**63 - 1),
        **({"stop": list(sampling.stop)} if sampling.stop else {}),
        "extra_body": {
            **{name: value for name, value in extensions.items() if value},
            **(begins if split_begun(request.prompt)[1] else {}),
        },
    }


def read_completion(completion: Any, request: Request) -> Response:
    """Read an answer; lengths not reported are 0. Raises ``ValueError``: it is malformed."""
    try:
        choice = completion.choices[0]
        text = choice.text if isinstance(request.prompt, str) else choice.message.content
        reason = choice.finish_reason
    except (AttributeError, IndexError, TypeError):
        raise ValueError(f"no choice with a text in {str(completion)!r}") from None
    # Servers that strip reasoning have no text left where the response was cut off within it.
    if not isinstance(reason, str) or not isinstance(
        text, str if reason != "length" else str | None
    ):
        raise ValueError(f"no text, or no reason why it ended (finish_reason), in {str(choice)!r}")
    tokens, prompt_tokens = (
        getattr(completion.usage, f"{kind}_tokens", None) for kind in ("completion", "prompt")
    )
    if reason not in _FINISHES:
        return build_failure(
            request, f"the server ended the response: {reason}", prompt_tokens or 0
        )
    unknown = tokens is None or prompt_tokens is None
    detail = "the server does not tell lengths (usage)" if unknown else ""
    return Response(
        request.key, text or "", tokens or 0, prompt_tokens or 0, _FINISHES[reason], detail
    )
