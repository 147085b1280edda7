# SPDX-License-Identifier: Apache-2.0
"""A step reward model in this process: all steps of all responses in few passes, by length."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from prime_ext.step_rm.description import Input, PairEncoder, PairFormat, read_description
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import (
    Chain,
    Outcome,
    Reading,
    StepScorer,
    calibrate,
    join_outcome,
)
from prime_ext.step_rm.scorers.response_reader import count_positions

T = TypeVar("T", bound=Sized)
# Tokens of a pass, padding included. On the CPU larger passes leave the processor's caches.
CPU_BATCH_TOKENS = 1024
BATCH_TOKENS = 16384


def length_buckets(inputs: Sequence[T], batch_tokens: int) -> Iterator[list[T]]:
    """Yield batches, longest inputs first: at most ``batch_tokens`` padded, or a single input."""
    ordered = sorted(inputs, key=len, reverse=True)
    while ordered:
        size = max(1, batch_tokens // len(ordered[0]))
        yield ordered[:size]
        ordered = ordered[size:]


def pad_inputs(inputs: Sequence[torch.Tensor], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask, (B, T), of inputs that are padded on the right."""
    id_BT = pad_sequence(list(inputs), batch_first=True, padding_value=pad)
    mask_BT = pad_sequence([torch.ones_like(ids) for ids in inputs], batch_first=True)
    return id_BT, mask_BT


def device_and_dtype(
    device: str | torch.device | None, dtype: str | None
) -> tuple[torch.device, torch.dtype]:
    """Choose device and dtype, by default CUDA in bfloat16 or the CPU in float32.

    Raises ``StepRMError``: no such dtype.
    """
    chosen_device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    chosen_dtype = getattr(
        torch, dtype or ("float32" if chosen_device.type == "cpu" else "bfloat16"), None
    )
    if not isinstance(chosen_dtype, torch.dtype):
        raise StepRMError(f"dtype={dtype!r} is not a dtype of torch")
    return chosen_device, chosen_dtype


def check_length(config: Any, max_length: int, where: str) -> None:
    """Raise ``StepRMError`` if inputs may be longer than the model's positions."""
    if max_length > (limit := count_positions(config)):
        raise StepRMError(f"{where} takes {limit} tokens, max_length={max_length} is more")


def check_fit(model: Any, tokenizer: Any, max_length: int, where: str) -> int:
    """Return the id to pad with. Raises ``StepRMError``: tokenizer or length do not fit."""
    size = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > size:
        raise StepRMError(f"{where}: the tokenizer has {len(tokenizer)} tokens, the model {size}")
    check_length(model.config, max_length, where)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise StepRMError(
            f"{where}: the tokenizer has neither a padding token nor an end token; set pad_token"
        )
    return pad


class StepModel(ABC):
    """A model of transformers in this process that scores steps; a wrong one: ``StepRMError``."""

    def __init__(self, path: str | Path, trust_remote_code: bool):
        self.where = str(path)
        self.trust_remote_code = trust_remote_code

    def _load(
        self,
        kind: Any,
        tokenizer: Any,
        max_length: int,
        device: str | torch.device | None,
        dtype: str | None,
    ) -> None:
        """Load ``self.where`` with a class of transformers; see :func:`device_and_dtype`."""
        self.device, chosen = device_and_dtype(device, dtype)
        model = kind.from_pretrained(
            self.where, dtype=chosen, trust_remote_code=self.trust_remote_code
        )
        self.pad = check_fit(model, tokenizer, max_length, self.where)
        # Decoders find the last token of each row by it.
        model.config.pad_token_id = self.pad
        self.model = model.eval().requires_grad_(False).to(self.device)

    def _logits(self, batch: Sequence[Any]) -> torch.Tensor:
        """Return the logits of inputs with ``ids`` from one pass."""
        id_BT, mask_BT = pad_inputs([torch.tensor(item.ids) for item in batch], self.pad)
        # Models with their own code may return a tuple.
        return self.model(input_ids=id_BT.to(self.device), attention_mask=mask_BT.to(self.device))[
            0
        ]

    @abstractmethod
    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        """Return the inputs of each response."""

    @abstractmethod
    def score_inputs(self, batch: Sequence[Any]) -> list[list[float]]:
        """Return the scores of each input's steps. Raises ``StepRMError``: they are not finite."""


class StepClassifier(StepModel):
    """A sequence classifier in a folder that reads one input per step; see ``read_description``."""

    def __init__(
        self,
        path: str | Path,
        pair_format: PairFormat | None = None,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
    ):
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        super().__init__(Path(path).expanduser(), trust_remote_code)
        self.description = read_description(path, pair_format)
        tokenizer = AutoTokenizer.from_pretrained(self.where, trust_remote_code=trust_remote_code)
        self.encoder = PairEncoder(tokenizer, self.description.pair_format)
        max_length = self.description.pair_format.max_length
        self._load(AutoModelForSequenceClassification, tokenizer, max_length, device, dtype)

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        return [*self.encoder.encode_chains([(chain.question, chain.steps) for chain in chains])]

    @torch.inference_mode()
    def score_inputs(self, batch: Sequence[Input]) -> list[list[float]]:
        order = self.description.labels
        temperature = self.description.temperature
        rows = self._logits(batch).float().softmax(-1).tolist()
        return [[calibrate(row, order, temperature, self.where)] for row in rows]


class LocalScorer(StepScorer):
    """A scorer with a model of this process: one thread works on all calls, one after the other."""

    def __init__(self, model: StepModel):
        super().__init__()
        self.model = model
        self.batch_tokens = CPU_BATCH_TOKENS if model.device.type == "cpu" else BATCH_TOKENS
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="step-rm")

    def score_now(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Score responses in this thread. Raises ``StepRMError``: scores that are not finite."""
        read = self.model.read(chains)
        known, missing = self.split_known(read)
        for batch in length_buckets(missing, self.batch_tokens):
            known |= zip(batch, self.model.score_inputs(batch), strict=True)
        self.remember(known)
        return [join_outcome(inputs, known) for inputs in read]

    async def score(self, chains: Sequence[Chain]) -> list[Outcome]:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self.score_now, chains
        )

    async def close(self) -> None:
        self._thread.shutdown(wait=True)
