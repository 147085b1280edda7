# SPDX-License-Identifier: Apache-2.0
"""transformers as a backend, on CPU or GPU: one batch of :mod:`prime_ext.generate.generation`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from prime_ext.generate.backend import BackendError, Request, Response
from prime_ext.generate.generation import BatchedGenerator, GenerationRequest, end_tokens
from prime_ext.generate.local_model import LocalBackend, catch_loading_errors
from prime_ext.utils.threads import use_one_thread

# Below this number of parameters a pass on the CPU costs about the same for one row and hundreds.
_SMALL = 10_000_000
_BATCH = 64
_BATCH_OF_SMALL = 512


class TransformersBackend(LocalBackend):
    """A model of transformers. Raises ``BackendError``: no such model or device."""

    kind = "transformers"

    def __init__(
        self,
        model: str,
        *,
        device: str | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        with catch_loading_errors(f"--device {device}"):
            target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
            raise BackendError(
                f"--device {device} is not here: {torch.cuda.device_count()} CUDA devices"
            )
        super().__init__(model, on_cpu=target.type == "cpu", **options)
        with catch_loading_errors(self.path):
            dtype = getattr(torch, self.dtype)
            loaded = AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype, **self.hub)
            self.model = loaded.eval().requires_grad_(False).to(target)
        small = target.type == "cpu" and loaded.num_parameters() < _SMALL
        if small:
            use_one_thread()
        self.batch_size = batch_size or (_BATCH_OF_SMALL if small else _BATCH)
        pad = self.tokenizer.pad_token_id
        self.eos = end_tokens(self.tokenizer, self.model.generation_config)
        with catch_loading_errors(self.path):
            self.generator = BatchedGenerator(
                self.model,
                eos_token_ids=self.eos,
                pad_token_id=pad if pad is not None else min(self.eos, default=0),
                n_tokens=min(
                    len(self.tokenizer), self.model.get_output_embeddings().weight.shape[0]
                ),
                max_batch_size=self.batch_size,
            )

    def description(self) -> dict[str, Any]:
        return super().description() | {"device": self.model.device.type}

    def problem(self, request: Request) -> str | None:
        sampling = request.sampling
        if sampling.stop and sampling.min_new_tokens:
            return "stop texts do not go with a shortest length (min_new_tokens)"
        return super().problem(request)

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        # The longest first: too large a batch shows at once, and the last ones are done quickly.
        ordered = sorted(requests, key=lambda request: len(self.ids(request)), reverse=True)
        options = {
            self.generator.submit(self._build_request(request)): request for request in ordered
        }
        try:
            while self.generator.has_work:
                for ticket, output in self.generator.step().items():
                    yield self._response(options.pop(ticket), output.token_ids)
        except torch.OutOfMemoryError:
            raise BackendError(
                f"the memory of {self.model.device} does not hold {self.batch_size} responses at a"
                " time; use a smaller --batch-size"
            ) from None
        finally:
            # A caller that stops early leaves nothing to the next call.
            self.generator.abort()

    def close(self) -> None:
        self.model.to("meta")

    def _decode(self, ids: Sequence[int]) -> str:
        """Decode without special tokens and, like vLLM, without a character cut in half."""
        if ids and ids[-1] in self.eos:
            ids = ids[:-1]
        text = self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text).rstrip("\ufffd")

    def _stops(self, stop: Sequence[str], ids: Sequence[int]) -> bool:
        """Return whether a response contains a stop text that its last token completes."""
        # A token adds at least one byte, so these hold every stop text that ends with the last
        # token.
        tail = self._decode(ids[-max(len(text.encode()) for text in stop) - 8 :])
        return any(text in tail for text in stop)

    def _response(self, request: Request, ids: Sequence[int]) -> Response:
        text = self._decode(ids)
        ends = [position for stop in request.sampling.stop if (position := text.find(stop)) >= 0]
        finish = "stop" if ends or (ids and ids[-1] in self.eos) else "length"
        return Response(
            request.key, text[: min(ends, default=None)], len(ids), len(self.ids(request)), finish
        )

    def _build_request(self, request: Request) -> GenerationRequest:
        sampling = request.sampling
        return GenerationRequest(
            self.ids(request),
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=request.seed % 2**64,
            min_new_tokens=sampling.min_new_tokens,
            ends=partial(self._stops, sampling.stop) if sampling.stop else None,
        )
