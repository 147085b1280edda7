# SPDX-License-Identifier: Apache-2.0
"""Real HTTP server with vLLM's ``/classify``, around a local model, that can be told to misbehave."""

import asyncio
import contextlib

import torch
from aiohttp import web
from tiny_llama import save_llama as save_causal
from tiny_step_rm import described, save_bert, save_llama
from transformers import AutoModelForSequenceClassification


class ClassifyServer:
    """Answers like vLLM, but for faults: a status, ``hang``, ``drop``, or a function of the proper answer.

    ``faults`` are for the first requests, in turn, ``always`` for all others.
    """

    def __init__(self, path, faults=(), always=None):
        self.model = AutoModelForSequenceClassification.from_pretrained(path).eval()
        self.faults, self.always = list(faults), always
        self.requests, self.active, self.most_active = [], 0, 0

    def _item(self, index, ids):
        with torch.no_grad():
            probabilities = self.model(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
        label = self.model.config.id2label[int(probabilities.argmax())]
        return {"index": index, "label": label, "probs": probabilities.tolist(), "num_classes": len(probabilities)}

    async def handle(self, request):
        payload = await request.json()
        self.requests.append((payload, dict(request.headers)))
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        await asyncio.sleep(0.01)
        self.active -= 1
        fault = self.faults.pop(0) if self.faults else self.always
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop":
            request.transport.close()
            return web.Response()
        if isinstance(fault, int):
            return web.Response(status=fault, text="told\n to fail")
        answer = {"object": "list", "data": [self._item(*pair) for pair in enumerate(payload["input"])]}
        if fault is None:
            return web.json_response(answer)
        answer = fault(answer)
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    @contextlib.asynccontextmanager
    async def running(self):
        """The address while it runs."""
        app = web.Application()
        app.router.add_post("/classify", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        finally:
            await runner.cleanup()


def save_models(folder):
    """Folders of two classifiers of steps, a token classifier and a causal model."""
    template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] | trim }}<eos>{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    options = {"chat_template": template, "size": 64, "max_positions": 1024}
    found = {"bert": described(save_bert(folder / "bert")), "llama": described(save_llama(folder / "llama"))}
    found["classifier"] = save_causal(folder / "classifier", 3, classes=2, **options)
    return {**found, "causal": save_causal(folder / "causal", 4, **options)}
