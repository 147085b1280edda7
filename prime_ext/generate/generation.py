# SPDX-License-Identifier: Apache-2.0
"""Batched text generation with torch and transformers only.

Requests join and leave a running batch at every step (continuous batching): the key/value cache of
a new request is joined to the running one, padded on the left; a finished row leaves the batch at
once.

The token at position p of a request (prompt included) is drawn by inverting the cumulative
distribution at the p-th uniform of a Philox stream keyed by the request's seed. So sampled tokens
depend neither on the other requests in the batch nor on the order of arrival. A model in float64
makes this hold to the last bit in practice; in float32 the logits of a row move by about 1e-7 with
the shape of the batch, so a uniform that close to a boundary can give another token.
"""

import hashlib
import inspect
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer

GREEDY_TEMPERATURE = 1e-5  # vLLM's bound: below it sampling is greedy

StopReason = Literal["stop", "length", "aborted"]


@dataclass(frozen=True)
class GenerationRequest:
    """One completion to generate. Raises ``ValueError`` for a value out of its range.

    A temperature below 1e-5 is greedy; ``top_k`` -1 or 0 means all tokens. The seed, below 2**64,
    is the key of the request's uniforms. ``stop_token_ids``, and the end-of-sequence tokens unless
    ``ignore_eos``, are not sampled before ``min_new_tokens``. ``ends`` is called with the new
    tokens after each one, and returns whether the completion ends.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    min_new_tokens: int = 0
    stop_token_ids: Collection[int] = ()
    ignore_eos: bool = False
    ends: Callable[[Sequence[int]], bool] | None = None

    def __post_init__(self) -> None:
        for holds, message in (
            (
                len(self.prompt_ids) > 0,
                "prompt_ids is empty; a request needs at least one prompt token",
            ),
            (self.max_new_tokens >= 1, f"max_new_tokens={self.max_new_tokens} must be at least 1"),
            (
                self.temperature >= 0,
                f"temperature={self.temperature} must be 0 (greedy) or positive",
            ),
            (0 < self.top_p <= 1, f"top_p={self.top_p} must be in (0, 1]"),
            (self.top_k >= -1, f"top_k={self.top_k} must be -1 (all tokens) or positive"),
            (0 <= self.seed < 2**64, f"seed={self.seed} must be in [0, 2**64)"),
        ):
            if not holds:
                raise ValueError(message)


@dataclass(frozen=True)
class GenerationOutput:
    """A completion: tokens (stop token included), log-probabilities as sampled, stop reason."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: StopReason


def stable_seed(*parts: object) -> int:
    """Hash the parts' textual form to a 64-bit seed, the same in every process on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def request_uniforms(seed: int, start: int, count: int) -> np.ndarray:
    """Return ``count`` uniforms in [0, 1) from place ``start`` of the Philox stream of a seed."""
    bits = np.random.Philox(key=seed).random_raw(start + count)[start:]
    return (bits >> np.uint64(11)) * 2.0**-53


def process_logits(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
) -> torch.Tensor:
    """Apply temperature, then top-k, then top-p, as vLLM orders them, to logits (B, V).

    Rows with a temperature below 1e-5 keep their logits. Excluded tokens get minus infinity.
    """
    greedy_B = temperature_B < GREEDY_TEMPERATURE
    divisor_B = torch.where(greedy_B, torch.ones_like(temperature_B), temperature_B).to(
        logits_BV.dtype
    )
    logits_BV = logits_BV / divisor_B[:, None]
    n_vocabulary = logits_BV.shape[-1]
    top_k_B = torch.where((top_k_B <= 0) | greedy_B, n_vocabulary, top_k_B.clamp(max=n_vocabulary))
    top_p_B = torch.where(greedy_B, torch.ones_like(top_p_B), top_p_B)
    truncated_B = (top_k_B < n_vocabulary) | (top_p_B < 1)
    if not truncated_B.any():
        return logits_BV
    rows = truncated_B.nonzero()[:, 0]
    sorted_RV, order_RV = logits_BV[rows].sort(dim=-1, descending=True)
    kth_R1 = sorted_RV.gather(-1, top_k_B[rows, None] - 1)
    sorted_RV = sorted_RV.masked_fill(sorted_RV < kth_R1, -torch.inf)
    probabilities_RV = sorted_RV.double().softmax(-1)
    mass_before_RV = probabilities_RV.cumsum(-1) - probabilities_RV
    excluded_RV = mass_before_RV >= top_p_B[rows, None]
    excluded_RV[:, 0] = False
    # Rows with top_p = 1 exclude nothing, whatever the rounding of the cumulative sum.
    excluded_RV &= (top_p_B[rows] < 1)[:, None]
    sorted_RV = sorted_RV.masked_fill(excluded_RV, -torch.inf)
    return logits_BV.index_copy(
        0, rows, torch.empty_like(sorted_RV).scatter_(-1, order_RV, sorted_RV)
    )


def sample_by_inversion(logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution, in order of ids, at the uniforms; return tokens (B,)."""
    cumulative_BV = logits_BV.double().softmax(-1).cumsum(-1)
    total_B = cumulative_BV[:, -1]
    # Below the total even after rounding, or a last token of probability zero could be chosen.
    target_B = torch.minimum(
        uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B))
    )
    return torch.searchsorted(cumulative_BV, target_B[:, None], right=True)[:, 0]


@dataclass
class _Row:
    """A request with its tokens so far, and its uniforms once it is decoded."""

    ticket: int
    request: GenerationRequest
    stop_ids: frozenset[int]
    uniforms: np.ndarray = field(default_factory=lambda: np.empty(0))
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def output(self, stop_reason: StopReason) -> GenerationOutput:
        return GenerationOutput(self.token_ids, self.log_probs, stop_reason)

    def find_stop_reason(self) -> StopReason | None:
        """Return why the completion ends with its last token; None if it continues."""
        ends = self.request.ends
        if self.token_ids[-1] in self.stop_ids or (ends is not None and ends(self.token_ids)):
            return "stop"
        return "length" if len(self.token_ids) >= self.request.max_new_tokens else None


@dataclass
class _Batch:
    """Rows decoded together, the attention mask (B, L) over their tokens, their keys and values."""

    rows: list[_Row]
    mask_BL: torch.Tensor
    cache: DynamicCache

    def keep(self, places: list[int]) -> None:
        """Drop the other rows."""
        self.rows = [self.rows[position] for position in places]
        index = torch.tensor(places, device=self.mask_BL.device)
        mask_BL = self.mask_BL[index]
        # Drop columns that only removed rows used, or the cache would grow with every request.
        first_column = int(mask_BL.any(0).int().argmax())
        self.mask_BL = mask_BL[:, first_column:]
        for layer in self.cache.layers:
            layer.keys = layer.keys[index, :, first_column:]
            layer.values = layer.values[index, :, first_column:]

    def join(self, other: "_Batch") -> None:
        """Add the rows of another batch; the shorter one is padded on the left."""
        length = max(self.mask_BL.shape[1], other.mask_BL.shape[1])
        self.rows = self.rows + other.rows
        masks = [
            pad(mask_BL, (length - mask_BL.shape[1], 0))
            for mask_BL in (self.mask_BL, other.mask_BL)
        ]
        self.mask_BL = torch.cat(masks)
        for layer, added in zip(self.cache.layers, other.cache.layers, strict=True):
            for name in ("keys", "values"):
                parts = [getattr(layer, name), getattr(added, name)]
                setattr(
                    layer,
                    name,
                    torch.cat(
                        [pad(tensor, (0, 0, length - tensor.shape[-2], 0)) for tensor in parts]
                    ),
                )


def end_tokens(tokenizer: Any, generation_config: GenerationConfig) -> set[int]:
    """Return end tokens of tokenizer and generation config (default: the model's), as vLLM does."""
    listed = generation_config.eos_token_id
    return {tokenizer.eos_token_id, *(listed if isinstance(listed, list | tuple) else [listed])} - {
        None
    }


@torch.inference_mode()
def keeps_plain_cache(model: PreTrainedModel) -> bool:
    """Return whether all layers keep all tokens' keys and values, as continuous batching needs."""
    cache = DynamicCache()
    model(
        input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device),
        past_key_values=cache,
        use_cache=True,
    )
    return cache.get_seq_length() == 1 and all(
        type(layer) is DynamicLayer for layer in cache.layers
    )


class BatchedGenerator:
    """Continuous batching for a Hugging Face causal language model.

    Logits from the tokenizer's ``n_tokens`` on are masked, as verl's vLLM server does. At most
    ``max_batch_size`` rows are decoded, and ``max_prefill_tokens`` padded prompt tokens prefilled
    together (a longer prompt alone).

    Raises ``ValueError``: the model has too few tokens, or keeps other state than keys and values.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_token_ids: Collection[int],
        pad_token_id: int,
        n_tokens: int,
        max_batch_size: int = 256,
        max_prefill_tokens: int = 16384,
    ) -> None:
        n_vocabulary = model.get_output_embeddings().weight.shape[0]
        if not 0 < n_tokens <= n_vocabulary:
            raise ValueError(
                f"The tokenizer has {n_tokens} tokens but the model only {n_vocabulary} logits; "
                "use the tokenizer that was saved with the model, or resize the model's embeddings."
            )
        outside = [
            token for token in (*eos_token_ids, pad_token_id) if not 0 <= token < n_vocabulary
        ]
        if outside:
            raise ValueError(
                f"Special token {outside[0]} lies outside the vocabulary of {n_vocabulary} tokens."
            )
        if not keeps_plain_cache(model):
            raise ValueError(
                f"{type(model).__name__} does not keep plain keys and values in its cache; "
                "this generator supports attention models only."
            )
        self.model = model
        self._eos_token_ids = frozenset(eos_token_ids)
        self._pad_token_id = pad_token_id
        self._n_tokens = n_tokens
        self._max_batch_size = max_batch_size
        self._max_prefill_tokens = max_prefill_tokens
        self._forward_options = (
            {"logits_to_keep": 1}
            if "logits_to_keep" in inspect.signature(model.forward).parameters
            else {}
        )
        self._n_submitted = 0
        self._waiting: deque[_Row] = deque()
        self._batch: _Batch | None = None

    @property
    def has_work(self) -> bool:
        """Return whether a request is waiting or being decoded."""
        return bool(self._waiting) or self._batch is not None

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request, also during a step; return its ticket in the output of :meth:`step`."""
        self._n_submitted += 1
        stop_ids = frozenset(request.stop_token_ids) | (
            frozenset() if request.ignore_eos else self._eos_token_ids
        )
        row = _Row(self._n_submitted, request, stop_ids)
        self._waiting.append(row)
        return row.ticket

    @torch.inference_mode()
    def step(self) -> dict[int, GenerationOutput]:
        """Admit waiting requests, decode a token for every row, and return what ended by ticket."""
        finished: dict[int, GenerationOutput] = {}
        while self._waiting and self._n_active < self._max_batch_size:
            admitted = self._prefill(self._take_waiting(), finished)
            if self._batch is None or admitted is None:
                self._batch = self._batch or admitted
            else:
                self._batch.join(admitted)
        if (batch := self._batch) is not None:
            batch.mask_BL = pad(batch.mask_BL, (0, 1), value=1)
            last_B1 = torch.tensor([[row.token_ids[-1]] for row in batch.rows])
            position_B1 = torch.tensor(
                [[len(row.request.prompt_ids) + len(row.token_ids) - 1] for row in batch.rows]
            )
            self._batch = self._append_tokens(
                batch, self._forward(last_B1, position_B1, batch), finished
            )
        return finished

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Complete all requests and return the outputs in their order."""
        tickets = [self.submit(request) for request in requests]
        finished: dict[int, GenerationOutput] = {}
        while self.has_work:
            finished |= self.step()
        return [finished[ticket] for ticket in tickets]

    def abort(self) -> dict[int, GenerationOutput]:
        """Drop all requests; return what they have, by ticket, with the stop reason "aborted"."""
        rows = [*self._waiting, *(self._batch.rows if self._batch is not None else [])]
        aborted = {row.ticket: row.output("aborted") for row in rows}
        self._waiting.clear()
        self._batch = None
        return aborted

    @property
    def _n_active(self) -> int:
        return 0 if self._batch is None else len(self._batch.rows)

    def _take_waiting(self) -> list[_Row]:
        taken = [self._waiting.popleft()]
        longest = len(taken[0].request.prompt_ids)
        while self._waiting and self._n_active + len(taken) < self._max_batch_size:
            longest = max(longest, len(self._waiting[0].request.prompt_ids))
            if longest * (len(taken) + 1) > self._max_prefill_tokens:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _prefill(self, rows: list[_Row], finished: dict[int, GenerationOutput]) -> _Batch | None:
        """Decode the first token of rows; those that end with it are finished."""
        length = max(len(row.request.prompt_ids) for row in rows)
        token_BL = torch.full((len(rows), length), self._pad_token_id)
        mask_BL = torch.zeros(len(rows), length, dtype=torch.long)
        for position, row in enumerate(rows):
            request = row.request
            n_prompt = len(row.request.prompt_ids)
            token_BL[position, length - n_prompt :] = torch.as_tensor(list(request.prompt_ids))
            mask_BL[position, length - n_prompt :] = 1
            row.uniforms = request_uniforms(request.seed, n_prompt, request.max_new_tokens)
        batch = _Batch(rows, mask_BL.to(self.model.device), DynamicCache())
        position_BL = (mask_BL.cumsum(-1) - 1).clamp(min=0)
        return self._append_tokens(batch, self._forward(token_BL, position_BL, batch), finished)

    def _forward(
        self, token_BL: torch.Tensor, position_BL: torch.Tensor, batch: _Batch
    ) -> torch.Tensor:
        """Return the logits (B, V) of the tokens that follow."""
        output = self.model(
            input_ids=token_BL.to(self.model.device),
            attention_mask=batch.mask_BL,
            position_ids=position_BL.to(self.model.device),
            past_key_values=batch.cache,
            use_cache=True,
            **self._forward_options,
        )
        logits_BV = output.logits[:, -1]
        logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32), copy=True)
        logits_BV[:, self._n_tokens :] = -torch.inf
        return logits_BV

    def _append_tokens(
        self, batch: _Batch, logits_BV: torch.Tensor, finished: dict[int, GenerationOutput]
    ) -> _Batch | None:
        """Sample a token per row, report the rows that end, return the others' batch, if any."""
        rows = batch.rows
        requests = [row.request for row in batch.rows]

        def column(values: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=logits_BV.device)

        early = [
            position
            for position, row in enumerate(rows)
            if len(row.token_ids) < row.request.min_new_tokens
        ]
        if early:
            logits_BV = logits_BV.clone()
            for position in early:
                logits_BV[position, list(rows[position].stop_ids)] = -torch.inf
        temperature_B = column([request.temperature for request in requests])
        top_k_B = column([request.top_k for request in requests], torch.long)
        top_p_B = column([request.top_p for request in requests])
        uniform_B = column([row.uniforms[len(row.token_ids)] for row in rows])
        logits_BV = process_logits(logits_BV, temperature_B, top_k_B, top_p_B)
        token_B = sample_by_inversion(logits_BV, uniform_B)
        token_B = torch.where(temperature_B < GREEDY_TEMPERATURE, logits_BV.argmax(-1), token_B)
        log_prob_B = logits_BV.log_softmax(-1).gather(-1, token_B[:, None])[:, 0].double()

        kept = []
        for position, (row, token, log_prob) in enumerate(
            zip(rows, token_B.tolist(), log_prob_B.tolist(), strict=True)
        ):
            row.token_ids.append(token)
            row.log_probs.append(log_prob)
            if reason := row.find_stop_reason():
                finished[row.ticket] = row.output(reason)
            else:
                kept.append(position)
        if not kept:
            return None
        if len(kept) < len(rows):
            batch.keep(kept)
        return batch
