# SPDX-License-Identifier: Apache-2.0
"""Real HTTP servers with vLLM's ``/classify`` and ``/pooling``, which can misbehave on request."""

import torch
from aiohttp import web
from scripted_server import ScriptedServer
from tiny_llama import save_llama as save_causal
from tiny_step_rm import described, save_bert, save_llama
from transformers import AutoModelForSequenceClassification

from prime_ext.step_rm.scorers.response_reader import ResponseReader
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier


class VllmServer(ScriptedServer):
    """Answers like vLLM; a fault may be a function of the proper answer, too."""

    def __init__(self, faults=(), always=None, seconds=0.01):
        super().__init__(faults=list(faults), always=always, seconds=seconds)

    @property
    def address(self):
        return self.base_url.removeprefix("http://").removesuffix("/v1")

    def _prompt(self, payload):
        return str(payload["input"])

    async def _fault(self, fault, answer, request):
        if not callable(fault):
            return await super()._fault(fault, answer, request)
        changed = fault(answer)
        return changed if isinstance(changed, web.Response) else web.json_response(changed)

    def _completion(self, prompt, payload):
        return {
            "object": "list",
            "data": [self._item(*pair) for pair in enumerate(payload["input"])],
        }


class ClassifyServer(VllmServer):
    PATHS = ("/classify",)

    def __init__(self, path, faults=(), always=None):
        super().__init__(faults, always)
        self.model = AutoModelForSequenceClassification.from_pretrained(path).eval()

    def _item(self, index, ids):
        with torch.no_grad():
            probabilities = self.model(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
        label = self.model.config.id2label[int(probabilities.argmax())]
        return {
            "index": index,
            "label": label,
            "probs": probabilities.tolist(),
            "num_classes": len(probabilities),
        }


class PoolingServer(VllmServer):
    """A server of a token classifier, or of a causal model that vLLM converted to one.

    With the id of a separator it returns only the rows of its tokens, as for Qwen2.5-Math-PRM.
    """

    PATHS = ("/pooling",)

    def __init__(self, path, answer_tokens=None, faults=(), always=None, separator=None):
        super().__init__(faults, always)
        reader = ResponseReader(str(path), answer_tokens=answer_tokens)
        self.classifier = TokenClassifier(reader, device="cpu")
        self.separator = separator

    def _item(self, index, ids):
        columns = self.classifier.reader.columns
        with torch.no_grad():
            logits_TC = self.classifier.model(input_ids=torch.tensor([ids])).logits[0, :, columns]
        rows = logits_TC.softmax(-1).tolist()
        if self.separator is not None:
            rows = [row for row, token in zip(rows, ids, strict=True) if token == self.separator]
        return {"index": index, "object": "pooling", "data": rows}


def save_models(folder):
    """Save two step classifiers, a token classifier and a causal model; return their folders."""
    template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] | trim }}<eos>{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    options = {"chat_template": template, "size": 64, "max_positions": 1024}
    folders = {
        "bert": described(save_bert(folder / "bert")),
        "llama": described(save_llama(folder / "llama")),
    }
    folders["classifier"] = save_causal(folder / "classifier", 3, classes=2, **options)
    return {**folders, "causal": save_causal(folder / "causal", 4, **options)}
