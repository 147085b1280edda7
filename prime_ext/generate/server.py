# SPDX-License-Identifier: Apache-2.0
"""Any server with OpenAI's interface as a backend."""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from prime_ext.generate.backend import BackendError, Request, Response
from prime_ext.generate.http_retry import GaveUp, MalformedAnswer, RetryPolicy, one_line, post_json, read_limited
from prime_ext.generate.openai_protocol import api_url, endpoint, payload, read_completion, read_models

# Endpoints beside completions answer at once; /v1/models is asked with this limit.
_LISTING_SECONDS = 60.0
# Requests in a row that found no server before the rest is given up.
_UNREACHABLE = 8

Put = Callable[[Response], None]


def stream_from_loop(work: Callable[[Put], Coroutine[Any, Any, None]]) -> Iterator[Response]:
    """What a coroutine puts, as it comes. It runs in an event loop of a thread of its own, so that the requests go on
    while the caller works on a response; when the caller stops early it is cancelled.

    Raises:
        Exception: what the coroutine raised.
    """
    answers: queue.SimpleQueue[Response | BaseException | None] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(answers.put))

    def thread_main() -> None:
        try:
            loop.run_until_complete(task)
            answers.put(None)
        except BaseException as error:  # noqa: B036  (raised again in the caller's thread)
            answers.put(error)
        finally:
            loop.close()

    thread = threading.Thread(target=thread_main, name="inference-server", daemon=True)
    thread.start()
    try:
        while (answer := answers.get()) is not None:
            if isinstance(answer, BaseException):
                raise answer
            yield answer
    finally:
        # The loop may have ended by itself, or do so between a question and the call.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)
        thread.join()


class ServerBackend:
    """A model behind ``/v1/chat/completions`` and ``/v1/completions``.

    Args:
        base_url: ``http://host:port/v1``; ``/v1`` may be left out.
        model: the name it is served under; empty for the only one of the server.
        api_key_variable: environment variable with the key that is sent as a bearer token; empty for none.
        concurrency: requests at a time.
        policy: time limits and further attempts.

    Raises:
        BackendError: the URL is none, or the variable of the key is not set.
    """

    def __init__(
        self,
        base_url: str,
        model: str = "",
        api_key_variable: str = "",
        concurrency: int = 16,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.url = api_url(base_url)
        self.concurrency = concurrency
        self.policy = policy or RetryPolicy()
        self._wanted = model
        self._entry: dict[str, Any] | None = None
        self._key = ""
        if api_key_variable:
            self._key = os.environ.get(api_key_variable, "")
            if not self._key:
                raise BackendError(f"the environment variable {api_key_variable} with the server's key is not set")

    # ---- what is served --------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The name of the model, asked for once."""
        return str(self._served()["id"])

    def _served(self) -> dict[str, Any]:
        if self._entry is None:
            found: list[dict[str, Any] | None] = []

            async def work(put: Put) -> None:
                found.append(await self._listing())

            for _ in stream_from_loop(work):
                pass
            self._entry = found[0] or {"id": self._wanted}
        return self._entry

    async def _listing(self) -> dict[str, Any] | None:
        """The entry of the model in the server's list; None if the server has no list.

        Raises:
            BackendError: no server, no access, or it does not serve the model.
        """
        url = f"{self.url}/models"
        try:
            async with self._session() as session:
                status, body = await asyncio.wait_for(self._get(session, url), _LISTING_SECONDS)
            if status in (404, 405) and self._wanted:
                return None
            if status >= 300:
                text = self._without_key(body.decode(errors="replace"))
                raise BackendError(one_line(f"{url} answers with HTTP {status}: {text}"))
            entries = read_models(body)
        except (TimeoutError, asyncio.TimeoutError):
            raise BackendError(f"{url} does not answer in {_LISTING_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(one_line(f"{url} cannot be reached, is the server running? {error}")) from None
        except (GaveUp, MalformedAnswer) as error:
            raise BackendError(f"{url} is not OpenAI's interface: {error}") from None
        names = [str(entry["id"]) for entry in entries]
        if not self._wanted and len(entries) == 1:
            return entries[0]
        if self._wanted in names:
            return entries[names.index(self._wanted)]
        asked = f"does not serve {self._wanted!r}" if self._wanted else "needs a model's name (--model)"
        raise BackendError(one_line(f"{self.url} {asked}; it serves {', '.join(names) or 'nothing'}"))

    async def _get(self, session: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
        async with session.get(url) as response:
            return response.status, await read_limited(response, self.policy.max_answer_bytes)

    # ---- Backend ---------------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        served = self._served()
        told: dict[str, Any] = {name: served[name] for name in ("root", "max_model_len") if name in served}
        return {"backend": "server", "model": self.model, **told}

    def check(self, requests: Sequence[Request]) -> None:
        """As in :class:`~prime_ext.generate.backend.Backend`; the lengths of prompts are known to the server only."""
        context = self._served().get("max_model_len")
        for request in requests:
            sampling = request.sampling
            if sampling.num_beams > 1:
                raise BackendError(
                    f"request {request.key}: servers have no beams (num_beams {sampling.num_beams}); "
                    "use --backend transformers"
                )
            if isinstance(context, int) and sampling.max_new_tokens >= context:
                raise BackendError(
                    f"request {request.key}: {sampling.max_new_tokens} new tokens leave no room for a prompt in the "
                    f"{context} tokens of {self.model}; ask for fewer, or start the server with a larger context"
                )

    def shown(self, request: Request) -> str:
        if isinstance(request.prompt, str):
            return request.prompt
        raise BackendError(
            "the server applies its own chat template and does not tell what the model sees; "
            "--backend transformers with the same model shows it"
        )

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        model = self.model

        async def work(put: Put) -> None:
            await self._answer_all(requests, model, put)

        return stream_from_loop(work)

    def close(self) -> None:
        """Connections live as long as a call of ``generate``."""

    # ---- requests --------------------------------------------------------------------------------------------------

    def _session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        connector = aiohttp.TCPConnector(limit=self.concurrency)
        return aiohttp.ClientSession(
            headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=30)
        )

    def _without_key(self, text: str) -> str:
        """Servers repeat a wrong key in their answer."""
        return text.replace(self._key, "***") if self._key else text

    async def _answer_all(self, requests: Sequence[Request], model: str, put: Put) -> None:
        waiting = iter(requests)
        unreachable = 0

        async def worker(session: aiohttp.ClientSession) -> None:
            nonlocal unreachable
            for request in waiting:
                if unreachable >= max(_UNREACHABLE, self.concurrency):
                    put(Response(request.key, "", 0, 0, "failed", f"not asked: {self.url} could not be reached"))
                    continue
                try:
                    response = await post_json(
                        session,
                        self.url + endpoint(request),
                        payload(request, model),
                        self.policy,
                        lambda body, request=request: read_completion(body, request),  # type: ignore[misc]
                    )
                    unreachable = 0
                except GaveUp as failure:
                    unreachable = unreachable + 1 if failure.unreachable else 0
                    response = Response(request.key, "", 0, 0, "failed", str(failure))
                put(replace(response, detail=self._without_key(response.detail)))

        async with self._session() as session:
            workers = [asyncio.ensure_future(worker(session)) for _ in range(min(self.concurrency, len(requests)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for each in workers:
                    each.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
