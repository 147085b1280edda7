# SPDX-License-Identifier: Apache-2.0
"""transformers as a backend, on the CPU or a GPU.

Without beams, requests run in the batch of :mod:`prime_ext.generate.generation`. Beams are transformers' own; sampled
ones are made one request at a time, since transformers has one stream of random numbers for a batch.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from prime_ext.generate.backend import BackendError, Request, Response, Sampling, failed
from prime_ext.generate.generation import BatchedGenerator, GenerationRequest, end_tokens, keeps_plain_cache
from prime_ext.generate.local_model import LocalBackend, loading

# Parameters below which a pass on the CPU costs much the same for one row and for hundreds, and the rows of a batch.
_SMALL = 10_000_000
_BATCH = 64
_BATCH_OF_SMALL = 512


class TransformersBackend(LocalBackend):
    """A model of transformers. Raises ``BackendError``: no such model or device."""

    kind = "transformers"

    def __init__(self, model: str, *, device: str | None = None, batch_size: int | None = None, **options: Any) -> None:
        with loading(f"--device {device}"):
            place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
            raise BackendError(f"--device {device} is not here: {torch.cuda.device_count()} CUDA devices")
        super().__init__(model, on_cpu=place.type == "cpu", **options)
        with loading(self.path):
            dtype = getattr(torch, self.dtype)
            loaded = AutoModelForCausalLM.from_pretrained(self.path, dtype=dtype, **self.hub)
            self.model = loaded.eval().requires_grad_(False).to(place)
        small = place.type == "cpu" and loaded.num_parameters() < _SMALL
        if small and "OMP_NUM_THREADS" not in os.environ:
            # Threads wait for each other longer than they compute, five times as long where the cores have other work.
            torch.set_num_threads(1)
        self.batch_size = batch_size or (_BATCH_OF_SMALL if small else _BATCH)
        pad = self.tokenizer.pad_token_id
        self.eos = end_tokens(self.tokenizer, self.model.generation_config)
        self.pad = pad if pad is not None else min(self.eos, default=0)
        # Only the request decides how a response is made, no sampling defaults of the model.
        self.model.generation_config = GenerationConfig(eos_token_id=sorted(self.eos), pad_token_id=self.pad)
        self.generator: BatchedGenerator | None = None
        if keeps_plain_cache(self.model):
            n_tokens = min(len(self.tokenizer), self.model.get_output_embeddings().weight.shape[0])
            tokens: dict[str, Any] = {"eos_token_ids": self.eos, "pad_token_id": self.pad, "n_tokens": n_tokens}
            with loading(self.path):
                self.generator = BatchedGenerator(self.model, **tokens, max_batch_size=self.batch_size)

    def description(self) -> dict[str, Any]:
        return super().description() | {"device": self.model.device.type}

    def problem(self, request: Request) -> str | None:
        sampling = request.sampling
        if sampling.stop and (sampling.num_beams > 1 or sampling.min_new_tokens):
            return "stop texts go with neither beams nor a shortest length (min_new_tokens)"
        if sampling.num_beams == 1 and self.generator is None:
            return (
                f"{type(self.model).__name__} does not keep plain keys and values, so --backend transformers has only "
                "beams for it; use --backend vllm"
            )
        return super().problem(request)

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        answerable: list[Request] = []
        for request in requests:
            if (problem := self.problem(request)) is not None:
                yield failed(request, problem)
            else:
                answerable.append(request)
        # The longest first: too large a batch shows at once, and the last ones are done quickly.
        answerable.sort(key=lambda request: len(self.ids(request)), reverse=True)
        try:
            if self.generator is not None:
                plain = [request for request in answerable if request.sampling.num_beams == 1]
                yield from self._continuous(self.generator, plain)
            yield from self._beams([request for request in answerable if request.sampling.num_beams > 1])
        except torch.OutOfMemoryError:
            raise BackendError(
                f"the memory of {self.model.device} does not hold {self.batch_size} responses at a time; use a smaller "
                "--batch-size"
            ) from None

    def close(self) -> None:
        self.model.to("meta")

    def _decode(self, ids: Sequence[int]) -> str:
        """Decode without special tokens and, as vLLM, without a character that the end cut in half."""
        if ids and ids[-1] in self.eos:
            ids = ids[:-1]
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text).rstrip("\ufffd")

    def _stops(self, stop: Sequence[str], ids: Sequence[int]) -> bool:
        """Whether a response contains a stop text that its last token completes."""
        # A token adds at least one byte, so these hold every stop text that ends with the last token.
        tail = self._decode(ids[-max(len(text.encode()) for text in stop) - 8 :])
        return any(text in tail for text in stop)

    def _response(self, request: Request, ids: Sequence[int]) -> Response:
        text = self._decode(ids)
        ends = [place for stop in request.sampling.stop if (place := text.find(stop)) >= 0]
        finish = "stop" if ends or (ids and ids[-1] in self.eos) else "length"
        return Response(request.key, text[: min(ends, default=None)], len(ids), len(self.ids(request)), finish)

    def _continuous(self, generator: BatchedGenerator, requests: Sequence[Request]) -> Iterator[Response]:
        asked: dict[int, Request] = {}
        for request in requests:
            sampling = request.sampling
            ticket = generator.submit(
                GenerationRequest(
                    self.ids(request),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    seed=request.seed % 2**64,
                    min_new_tokens=sampling.min_new_tokens,
                    ends=partial(self._stops, sampling.stop) if sampling.stop else None,
                )
            )
            asked[ticket] = request
        try:
            while generator.has_work:
                for ticket, output in generator.step().items():
                    yield self._response(asked.pop(ticket), output.token_ids)
        finally:
            # A caller that stops early leaves nothing to the next call.
            generator.abort()

    def _beams(self, requests: Sequence[Request]) -> Iterator[Response]:
        # Neighbors have equal settings and similar lengths, so that a batch has little padding.
        ordered = sorted(requests, key=lambda request: repr(request.sampling))
        for sampling, group in groupby(ordered, key=lambda request: request.sampling):
            waiting = list(group)
            size = 1 if sampling.temperature > 0 else max(1, self.batch_size // sampling.num_beams)
            for start in range(0, len(waiting), size):
                yield from self._beam_batch(waiting[start : start + size], sampling)

    @torch.inference_mode()
    def _beam_batch(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        sampled = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        config = GenerationConfig(
            num_beams=sampling.num_beams,
            do_sample=sampling.temperature > 0,
            min_new_tokens=sampling.min_new_tokens,
            max_new_tokens=sampling.max_new_tokens,
            eos_token_id=sorted(self.eos),
            pad_token_id=self.pad,
            use_cache=True,
            **(sampled if sampling.temperature > 0 else {}),
        )
        rows = [self.ids(request) for request in requests]
        longest = max(map(len, rows))
        token_BL = torch.tensor([[self.pad] * (longest - len(row)) + row for row in rows])
        mask_BL = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        device = self.model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(requests[0].seed % 2**64)
            output_BL = self.model.generate(
                input_ids=token_BL.to(device), attention_mask=mask_BL.to(device), generation_config=config
            )
        # After the first end token is padding; a row without one has all its tokens.
        new_BL = output_BL[:, longest:].tolist()
        ends = [next((place for place, token in enumerate(ids) if token in self.eos), len(ids)) for ids in new_BL]
        return [
            self._response(request, ids[: end + 1]) for request, ids, end in zip(requests, new_BL, ends, strict=True)
        ]
