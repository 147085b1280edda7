# SPDX-License-Identifier: Apache-2.0
"""A step reward model in this process: all steps of all responses in few passes.

Inputs are sorted by length, so a batch holds little padding. Responses that arrive one by one are put together by
:class:`prime_ext.reward.node_scorer.MicroBatcher`.
"""

import asyncio
import math
from collections.abc import Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from prime_ext.step_rm.description import Input, PairEncoder, PairFormat, read_description
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import (
    Chain,
    Outcome,
    Probabilities,
    Reading,
    StepScorer,
    calibrated,
    outcome_of,
)

T = TypeVar("T", bound=Sized)
# Tokens of a pass, padding included, on the CPU and elsewhere: on the CPU larger passes leave the processor's caches.
CPU_BATCH_TOKENS = 1024
BATCH_TOKENS = 16384


def length_buckets(inputs: Sequence[T], batch_tokens: int) -> Iterator[list[T]]:
    """Batches of inputs of similar length, the longest first.

    Args:
        inputs: token ids, or what has their number as its length.
        batch_tokens: tokens of a batch at most, padding included; at least one input.
    """
    ordered = sorted(inputs, key=len, reverse=True)
    while ordered:
        size = max(1, batch_tokens // len(ordered[0]))
        yield ordered[:size]
        ordered = ordered[size:]


def padded(inputs: Sequence[torch.Tensor], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, (B, T), of inputs of different lengths, padded on the right."""
    id_BT = pad_sequence(list(inputs), batch_first=True, padding_value=pad)
    mask_BT = pad_sequence([torch.ones_like(ids) for ids in inputs], batch_first=True)
    return id_BT, mask_BT


def device_and_dtype(device: str | torch.device | None, dtype: str | None) -> tuple[torch.device, torch.dtype]:
    """Where a model works, and in what: by default an accelerator if there is one, in bfloat16, or the CPU, in float32.

    Raises:
        StepRMError: torch has no such dtype.
    """
    found = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    chosen = getattr(torch, dtype or ("float32" if found.type == "cpu" else "bfloat16"), None)
    if not isinstance(chosen, torch.dtype):
        raise StepRMError(f"dtype={dtype!r} is no dtype of torch")
    return found, chosen


def usable_positions(config: Any) -> float:
    """How many tokens a model can take: RoBERTa and its kin lose the positions up to the padding token's."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions < 0:
        return math.inf
    shifted = config.model_type in ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer")
    return positions - (config.pad_token_id + 1 if shifted else 0)


def check_fit(model: Any, tokenizer: Any, max_length: int, where: str) -> int:
    """Check that a model takes a tokenizer's ids and inputs of this length. Returns the id to pad with.

    Raises:
        StepRMError: it does not.
    """
    size = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > size:
        raise StepRMError(f"{where}: the tokenizer has {len(tokenizer)} tokens, the model {size}")
    if max_length > usable_positions(model.config):
        limit = usable_positions(model.config)
        raise StepRMError(f"{where} takes {limit} tokens, max_length={max_length} is more")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if pad is None:
        raise StepRMError(f"{where}: the tokenizer has neither a padding token nor an end token; set pad_token")
    return pad


class StepModel(Protocol):
    """A model of this process that scores steps."""

    device: torch.device

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        """What it reads of each response."""

    def score_inputs(self, batch: Sequence[Input]) -> list[list[Probabilities]]:
        """Probabilities of the steps of each input, from one pass. Raises ``StepRMError``: they are not finite."""


class StepClassifier:
    """A sequence-classification model of transformers, which reads an input for each step.

    Args:
        path: folder of the model, as ``python -m prime_ext.step_rm.train`` writes it.
        pair_format: for models without a description only.
        device, dtype: see :func:`device_and_dtype`.
        trust_remote_code: whether the model may bring its own code.

    Raises:
        StepRMError: see its message.
    """

    def __init__(
        self,
        path: str | Path,
        pair_format: PairFormat | None = None,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
    ):
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.where = str(path)
        self.description = read_description(path, pair_format)
        self.device, chosen = device_and_dtype(device, dtype)
        folder = Path(path).expanduser()
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        self.encoder = PairEncoder(tokenizer, self.description.pair_format)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=chosen, trust_remote_code=trust_remote_code
        )
        self.pad = check_fit(model, tokenizer, self.description.pair_format.max_length, self.where)
        # Decoders find the last token of each row by it.
        model.config.pad_token_id = self.pad
        self.model = model.eval().requires_grad_(False).to(self.device)

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        """An input for each step."""
        return [*self.encoder.encode_chains([(chain.question, chain.steps) for chain in chains])]

    @torch.inference_mode()
    def score_inputs(self, batch: Sequence[Input]) -> list[list[Probabilities]]:
        """Probabilities of the step of each input, from one pass. Raises ``StepRMError``: they are not finite."""
        id_BT, mask_BT = padded([torch.tensor(item.ids) for item in batch], self.pad)
        logits_BC = self.model(input_ids=id_BT.to(self.device), attention_mask=mask_BT.to(self.device)).logits.float()
        order, temperature = self.description.labels, self.description.temperature
        return [[calibrated(row, order, temperature, self.where)] for row in logits_BC.softmax(-1).tolist()]


class LocalScorer(StepScorer):
    """A scorer with a model of this process: one thread for all calls, which are worked on one after the other."""

    def __init__(self, model: StepModel):
        super().__init__()
        self.model = model
        self.batch_tokens = CPU_BATCH_TOKENS if model.device.type == "cpu" else BATCH_TOKENS
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="step-rm")

    def score_now(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Scores of responses, in this thread. Raises ``StepRMError``: scores that are not finite."""
        read = self.model.read(chains)
        known, missing = self.split_known(read)
        for batch in length_buckets(missing, self.batch_tokens):
            known |= zip(batch, self.model.score_inputs(batch), strict=True)
        self.remember(known)
        return [outcome_of(inputs, known) for inputs in read]

    async def score(self, chains: Sequence[Chain]) -> list[Outcome]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.score_now, chains)

    async def close(self) -> None:
        self._thread.shutdown(wait=True)
