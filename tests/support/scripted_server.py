# SPDX-License-Identifier: Apache-2.0
"""A server with OpenAI's interface over real HTTP that answers by a script and can misbehave.

with ScriptedServer({"1+1?": "2"}) as server:
    backend = open_backend("server", "scripted", base_url=server.base_url)
"""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True)
class Answer:
    """Text of the model, and why it ended. Lengths are counted in words unless they are given."""

    text: str | None
    finish: str = "stop"
    tokens: int | None = None
    prompt_tokens: int | None = None


@dataclass
class ScriptedServer:
    """A server that runs in a thread during its ``with`` block.

    Faults are a status (429), a status with ``Retry-After`` ((429, "2")), ``hang``, ``cut`` (the
    connection breaks), ``cut_body`` (within the body), ``not_json``, ``no_choices``, ``no_text``,
    ``no_finish``, ``no_usage``, or bytes sent as they are. ``requests`` and ``headers`` are those
    that came, in order, ``counts`` the requests by prompt, ``most_active`` the most at the same
    time.
    """

    # Texts or answers by prompt (of a chat: its last message; others are echoed), or a function of
    # prompt and payload.
    answers: object = field(default_factory=dict)
    faults: list = field(
        default_factory=list
    )  # one per request, in the order they come, before proper answers
    faults_of: dict = field(default_factory=dict)  # the same by prompt
    always: object = None  # a fault of every request
    models: tuple | None = ("scripted",)  # None for a server without a list of models
    key: str | None = None  # that clients must send
    max_model_len: int | None = None  # in the list of models
    seconds: float = 0.0  # before every answer

    PATHS = ("/v1/completions", "/v1/chat/completions")

    def __post_init__(self):
        self.requests = []
        self.headers = []
        self.counts = Counter()
        self.active = self.most_active = 0

    def _prompt(self, payload):
        """Return the raw text, or the last message of the chat."""
        return payload["prompt"] if "prompt" in payload else payload["messages"][-1]["content"]

    def _completion(self, prompt, payload):
        answer = (
            self.answers(prompt, payload)
            if callable(self.answers)
            else self.answers.get(prompt, prompt)
        )
        answer = answer if isinstance(answer, Answer) else Answer(answer)
        chat = "messages" in payload
        said = (
            {"message": {"role": "assistant", "content": answer.text}}
            if chat
            else {"text": answer.text}
        )
        tokens = len((answer.text or "").split()) + 1 if answer.tokens is None else answer.tokens
        n_prompt = len(prompt.split()) if answer.prompt_tokens is None else answer.prompt_tokens
        return {
            "id": f"answer-{len(self.requests)}",
            "object": "chat.completion" if chat else "text_completion",
            "model": payload["model"],
            "choices": [{"index": 0, "finish_reason": answer.finish, **said}],
            "usage": {
                "prompt_tokens": n_prompt,
                "completion_tokens": tokens,
                "total_tokens": n_prompt + tokens,
            },
        }

    def _refusal(self, request):
        """Refuse a wrong key and repeat it, as some servers do."""
        said = request.headers.get("Authorization")
        if self.key is None or said == f"Bearer {self.key}":
            return None
        return web.json_response({"error": {"message": f"wrong {said}"}}, status=401)

    async def _complete(self, request):
        if (refused := self._refusal(request)) is not None:
            return refused
        payload = await request.json()
        prompt = self._prompt(payload)
        self.requests.append(payload)
        self.headers.append(dict(request.headers))
        self.counts[prompt] += 1
        own = self.faults_of.get(prompt)
        fault = own.pop(0) if own else self.faults.pop(0) if self.faults else self.always
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await asyncio.sleep(self.seconds)
            # A function may take its time, as a model does.
            completion = await asyncio.to_thread(self._completion, prompt, payload)
            return (
                web.json_response(completion)
                if fault is None
                else await self._fault(fault, completion, request)
            )
        finally:
            self.active -= 1

    async def _fault(self, fault, completion, request):
        if isinstance(fault, tuple):
            return web.Response(
                status=fault[0], headers={"Retry-After": fault[1]}, text="told\n to wait"
            )
        if isinstance(fault, int):
            return web.json_response(
                {"error": {"message": f"told\n to fail with {fault}"}}, status=fault
            )
        if isinstance(fault, bytes):
            return web.Response(body=fault, content_type="application/json")
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "cut":
            request.transport.close()
            return web.Response()
        if fault == "cut_body":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            request.transport.close()
            return response
        if fault == "not_json":
            return web.Response(text="<html>\nBad gateway</html>")
        choice = completion["choices"][0]
        if fault == "no_choices":
            completion["choices"] = []
        elif fault == "no_text":
            choice.pop("text", None), choice.pop("message", None)
        elif fault == "no_finish":
            choice["finish_reason"] = None
        elif fault == "no_usage":
            del completion["usage"]
        else:
            raise ValueError(f"no such fault: {fault!r}")
        return web.json_response(completion)

    async def _list(self, request):
        if (refused := self._refusal(request)) is not None:
            return refused
        if self.models is None:
            return web.Response(status=404)
        more = {} if self.max_model_len is None else {"max_model_len": self.max_model_len}
        return web.json_response(
            {"object": "list", "data": [{"id": name, **more} for name in self.models]}
        )

    async def _serve(self, ready):
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._list)
        for path in self.PATHS:
            app.router.add_post(path, self._complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        ready.set()
        await self._end.wait()
        await runner.cleanup()

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(600), "the scripted server did not start"
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
