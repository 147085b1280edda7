# SPDX-License-Identifier: Apache-2.0
"""Real HTTP servers with vLLM's ``/classify`` and ``/pooling``, around a local model, that can be told to misbehave."""

import asyncio
import contextlib

import torch
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from tiny_llama import byte_tokenizer
from tiny_llama import save_llama as save_causal
from tiny_step_rm import described, save_bert, save_llama
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)


class ClassifyServer:
    """Answers like vLLM.

    Args:
        model: a sequence-classification model.
        tokenizer: for texts.
        faults: one per request, in turn, before requests are answered properly: a status, ``hang``, ``drop``, or a
            function of the proper answer.
        always: the same for every request.
    """

    path = "/classify"

    def __init__(self, model, tokenizer, faults=(), always=None):
        self.model, self.tokenizer, self.faults, self.always = model, tokenizer, list(faults), always
        self.requests, self.active, self.most_active = [], 0, 0

    def _item(self, index, value):
        ids = value if isinstance(value, list) else self.tokenizer(value)["input_ids"]
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
        app.router.add_post(self.path, self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        finally:
            await runner.cleanup()

    @contextlib.contextmanager
    def in_thread(self):
        """The same, for what has an event loop of its own."""
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self.running()) as address:
            yield address


class PoolingServer(ClassifyServer):
    """Values of every token, as vLLM gives them of a model whose task is ``token_classify``.

    Args:
        model, tokenizer: a token classifier, or a causal model of which ``classes`` are columns of its output.
    """

    path = "/pooling"

    def __init__(self, model, tokenizer, classes=None, **options):
        super().__init__(model, tokenizer, **options)
        self.classes = slice(None) if classes is None else classes

    def _item(self, index, value):
        with torch.no_grad():
            logits_TC = self.model(input_ids=torch.tensor([value])).logits[0][:, self.classes]
        return {"index": index, "object": "pooling", "data": logits_TC.softmax(-1).tolist()}


def save_models(folder):
    """Folders of two classifiers of steps, a token classifier and two causal models, one without a chat template."""
    template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] | trim }}<eos>{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    options = {"chat_template": template, "size": 64, "max_positions": 1024}
    found = {"bert": described(save_bert(folder / "bert")), "llama": described(save_llama(folder / "llama"))}
    found["classifier"] = save_causal(folder / "classifier", 3, classes=2, **options)
    found["causal"] = save_causal(folder / "causal", 4, **options)
    return {**found, "bare": save_causal(folder / "bare", chat_template=None)}


_KINDS = {"classifier": AutoModelForTokenClassification, "causal": AutoModelForCausalLM}


def served(path, **options):
    """A server of one of these models; of the causal one it gives the probabilities of + and -."""
    model = _KINDS.get(path.name, AutoModelForSequenceClassification).from_pretrained(path).eval()
    kind = PoolingServer if path.name in _KINDS else ClassifyServer
    if path.name == "causal":
        options["classes"] = [byte_tokenizer()(token)["input_ids"][0] for token in "+-"]
    return kind(model, AutoTokenizer.from_pretrained(path), **options)
