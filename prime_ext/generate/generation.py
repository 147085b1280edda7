# SPDX-License-Identifier: Apache-2.0
"""Batched text generation with torch and transformers only.

One engine serves the rollout server of CPU mode and evaluation on the CPU. Requests join and leave a running batch at
every step (continuous batching): a new request is prefilled alone and its key/value cache is joined to the running one,
padded on the left; a finished row leaves the batch at once.

Randomness belongs to the request. The token at absolute position p of a request (prompt included) is drawn by inverting
the cumulative distribution at the p-th uniform of a Philox stream keyed by the request's seed, so the sampled tokens
depend neither on the other requests in the batch nor on the order of arrival. A model in float64 makes this hold to the
last bit in practice; in float32 the logits of a row move by about 1e-7 with the shape of the batch, so a uniform that
falls that close to a boundary of the cumulative distribution can give another token.
"""

import inspect
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

GREEDY_TEMPERATURE = 1e-5  # vLLM's bound: below it sampling is greedy

StopReason = Literal["stop", "length", "aborted"]
LogProbsMode = Literal["processed_logprobs", "raw_logprobs"]


@dataclass(frozen=True)
class GenerationRequest:
    """One completion to generate.

    Args:
        prompt_ids: token ids of the prompt, at least one.
        max_new_tokens: at least 1.
        temperature: below 1e-5 the most probable token is taken.
        top_p: nucleus in (0, 1].
        top_k: number of candidates; -1 or 0 for all.
        seed: key of the request's own stream of uniforms, 0 <= seed < 2**64.
        min_new_tokens: stop tokens cannot be sampled before this many tokens.
        stop_token_ids: stop tokens in addition to the end-of-sequence tokens of the engine.
        ignore_eos: do not stop at the end-of-sequence tokens of the engine.
        ends: told the new tokens after each one, whether the completion ends there; None for stop tokens only.

    Raises:
        ValueError: a value is out of its range.
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
        if len(self.prompt_ids) == 0:
            raise ValueError("prompt_ids is empty; a request needs at least one prompt token.")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1.")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or positive.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be in (0, 1].")
        if self.top_k < -1:
            raise ValueError(f"top_k is {self.top_k}; it must be -1 (all tokens) or positive.")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed is {self.seed}; it must be in [0, 2**64).")


@dataclass(frozen=True)
class GenerationOutput:
    """A completion: its tokens (the stop token included), their log-probabilities, and why it ended."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: StopReason


def request_uniforms(seed: int, start: int, count: int) -> np.ndarray:
    """Uniforms number ``start`` to ``start + count`` (exclusive) in [0, 1) of the Philox stream with key ``seed``."""
    bits = np.random.Philox(key=seed).random_raw(start + count)[start:]
    return (bits >> np.uint64(11)) * 2.0**-53


def processed_logits(
    logits_BV: torch.Tensor, temperature_B: torch.Tensor, top_k_B: torch.Tensor, top_p_B: torch.Tensor
) -> torch.Tensor:
    """Logits of the distribution that is sampled, (B, V): temperature, then top-k, then top-p, as vLLM orders them.

    Rows whose temperature is below 1e-5 keep their logits as they are. Excluded tokens get minus infinity.
    """
    greedy_B = temperature_B < GREEDY_TEMPERATURE
    divisor_B = torch.where(greedy_B, torch.ones_like(temperature_B), temperature_B).to(logits_BV.dtype)
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
    return logits_BV.index_copy(0, rows, torch.empty_like(sorted_RV).scatter_(-1, order_RV, sorted_RV))


def sample_by_inversion(logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Token (B,) whose interval of the cumulative distribution, in the order of the token ids, contains the uniform."""
    cumulative_BV = logits_BV.double().softmax(-1).cumsum(-1)
    total_B = cumulative_BV[:, -1]
    # Below the total even after rounding, so that a token of probability zero at the end is never chosen.
    target_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    return torch.searchsorted(cumulative_BV, target_B[:, None], right=True)[:, 0]


@dataclass
class _Rows:
    """State of the requests in a batch, one row each. Suffixes: B rows, L cache columns, T new tokens, S stop ids."""

    ticket_B: torch.Tensor
    mask_BL: torch.Tensor
    token_BT: torch.Tensor
    log_prob_BT: torch.Tensor
    uniform_BT: torch.Tensor
    stop_id_BS: torch.Tensor
    n_prompt_B: torch.Tensor
    n_new_B: torch.Tensor
    max_new_B: torch.Tensor
    min_new_B: torch.Tensor
    temperature_B: torch.Tensor
    top_p_B: torch.Tensor
    top_k_B: torch.Tensor

    def __len__(self) -> int:
        return self.ticket_B.shape[0]

    def select(self, index_R: torch.Tensor) -> "_Rows":
        return _Rows(**{field.name: getattr(self, field.name)[index_R] for field in fields(self)})

    def to(self, device: torch.device) -> "_Rows":
        return _Rows(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def join(self, other: "_Rows") -> "_Rows":
        """Rows of both. The mask is padded on the left, as the key/value cache is; the others on the right."""
        joined = {}
        for field in fields(self):
            parts = [getattr(self, field.name), getattr(other, field.name)]
            if parts[0].dim() == 2:
                width = max(part.shape[1] for part in parts)
                left = field.name == "mask_BL"
                value = -1 if field.name == "stop_id_BS" else 0
                parts = [
                    pad(part, (width - part.shape[1], 0) if left else (0, width - part.shape[1]), value=value)
                    for part in parts
                ]
            joined[field.name] = torch.cat(parts)
        return _Rows(**joined)


class BatchedGenerator:
    """Continuous batching for a Hugging Face causal language model.

    Args:
        model: the model, in evaluation mode.
        eos_token_ids: tokens at which a completion ends.
        pad_token_id: fills the prompts on the left; masked, so any valid id will do.
        n_tokens: number of tokens of the tokenizer; logits from there on are masked, as verl's vLLM server does.
        max_batch_size: rows decoded together at most.
        max_prefill_tokens: padded prompt tokens prefilled together at most (a longer prompt is prefilled alone).
        log_probs_mode: "processed_logprobs" gives log-probabilities of the distribution that was sampled, after
            temperature, top-k and top-p (the default of verl); "raw_logprobs" those of the plain softmax.

    Raises:
        ValueError: n_tokens or an end-of-sequence token lies outside the model's vocabulary.
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
        log_probs_mode: LogProbsMode = "processed_logprobs",
    ) -> None:
        n_vocabulary = model.get_output_embeddings().weight.shape[0]
        if not 0 < n_tokens <= n_vocabulary:
            raise ValueError(
                f"The tokenizer has {n_tokens} tokens but the model only {n_vocabulary} logits; "
                "use the tokenizer that was saved with the model, or resize the model's embeddings."
            )
        outside = [token for token in (*eos_token_ids, pad_token_id) if not 0 <= token < n_vocabulary]
        if outside:
            raise ValueError(f"Special token {outside[0]} lies outside the vocabulary of {n_vocabulary} tokens.")
        if log_probs_mode not in ("processed_logprobs", "raw_logprobs"):
            raise ValueError(f"log_probs_mode is {log_probs_mode!r}; use processed_logprobs or raw_logprobs.")
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size is {max_batch_size}; it must be at least 1.")
        self.model = model
        self._eos_token_ids = sorted(set(eos_token_ids))
        self._pad_token_id = pad_token_id
        self._n_tokens = n_tokens
        self._max_batch_size = max_batch_size
        self._max_prefill_tokens = max_prefill_tokens
        self._log_probs_mode = log_probs_mode
        self._forward_options = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        )
        self._next_ticket = 0
        self._waiting: deque[tuple[int, GenerationRequest]] = deque()
        self._ends: dict[int, Callable[[Sequence[int]], bool]] = {}
        self._rows: _Rows | None = None
        self._cache: DynamicCache | None = None

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or being decoded."""
        return bool(self._waiting) or self._rows is not None

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request; returns the ticket under which :meth:`step` will report it. Safe while a step runs."""
        ticket = self._next_ticket
        self._next_ticket += 1
        if request.ends is not None:
            self._ends[ticket] = request.ends
        self._waiting.append((ticket, request))
        return ticket

    @torch.inference_mode()
    def step(self) -> dict[int, GenerationOutput]:
        """Admit waiting requests, decode one token for every row, and return what finished, by ticket."""
        finished: dict[int, GenerationOutput] = {}
        while self._waiting and self._n_active < self._max_batch_size:
            self._prefill(self._take_waiting(), finished)
        if self._rows is not None and self._cache is not None:
            rows, cache = self._rows, self._cache
            last_token_B1 = rows.token_BT.gather(1, rows.n_new_B[:, None] - 1)
            rows.mask_BL = pad(rows.mask_BL, (0, 1), value=1)
            position_B1 = (rows.n_prompt_B + rows.n_new_B - 1)[:, None]
            logits_BV = self._forward(last_token_B1, rows.mask_BL, position_B1, cache)
            self._rows, self._cache = self._append_tokens(rows, cache, logits_BV, finished)
        return finished

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Complete all requests and return the outputs in their order."""
        tickets = [self.submit(request) for request in requests]
        finished: dict[int, GenerationOutput] = {}
        while self.has_work:
            finished |= self.step()
        return [finished[ticket] for ticket in tickets]

    def abort(self) -> dict[int, GenerationOutput]:
        """Drop all requests and return what they have so far, by ticket, with the stop reason "aborted"."""
        aborted = {ticket: GenerationOutput([], [], "aborted") for ticket, _ in self._waiting}
        if self._rows is not None:
            for row in range(len(self._rows)):
                aborted[int(self._rows.ticket_B[row])] = self._output(self._rows, row, "aborted")
        self._waiting.clear()
        self._ends.clear()
        self._rows = self._cache = None
        return aborted

    @property
    def _n_active(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def _take_waiting(self) -> list[tuple[int, GenerationRequest]]:
        taken = [self._waiting.popleft()]
        longest = len(taken[0][1].prompt_ids)
        while self._waiting and self._n_active + len(taken) < self._max_batch_size:
            longest = max(longest, len(self._waiting[0][1].prompt_ids))
            if longest * (len(taken) + 1) > self._max_prefill_tokens:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _prefill(self, admitted: list[tuple[int, GenerationRequest]], finished: dict[int, GenerationOutput]) -> None:
        requests = [request for _, request in admitted]
        length = max(len(request.prompt_ids) for request in requests)
        token_BL = torch.full((len(requests), length), self._pad_token_id)
        mask_BL = torch.zeros(len(requests), length, dtype=torch.long)
        n_new = max(request.max_new_tokens for request in requests)
        uniform_BT = torch.zeros(len(requests), n_new, dtype=torch.float64)
        stop_ids = []
        for row, request in enumerate(requests):
            n_prompt = len(request.prompt_ids)
            token_BL[row, length - n_prompt :] = torch.as_tensor(list(request.prompt_ids))
            mask_BL[row, length - n_prompt :] = 1
            uniforms = request_uniforms(request.seed, n_prompt, request.max_new_tokens)
            uniform_BT[row, : request.max_new_tokens] = torch.from_numpy(uniforms)
            stop_ids.append([*request.stop_token_ids, *([] if request.ignore_eos else self._eos_token_ids)])
        n_stop = max(len(ids) for ids in stop_ids)
        rows = _Rows(
            ticket_B=torch.tensor([ticket for ticket, _ in admitted]),
            mask_BL=mask_BL,
            token_BT=torch.zeros(len(requests), n_new, dtype=torch.long),
            log_prob_BT=torch.zeros(len(requests), n_new, dtype=torch.float64),
            uniform_BT=uniform_BT,
            stop_id_BS=torch.tensor([ids + [-1] * (n_stop - len(ids)) for ids in stop_ids], dtype=torch.long),
            n_prompt_B=torch.tensor([len(request.prompt_ids) for request in requests]),
            n_new_B=torch.zeros(len(requests), dtype=torch.long),
            max_new_B=torch.tensor([request.max_new_tokens for request in requests]),
            min_new_B=torch.tensor([request.min_new_tokens for request in requests]),
            temperature_B=torch.tensor([request.temperature for request in requests], dtype=torch.float64),
            top_p_B=torch.tensor([request.top_p for request in requests], dtype=torch.float64),
            top_k_B=torch.tensor([request.top_k for request in requests]),
        ).to(self.model.device)
        position_BL = (rows.mask_BL.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache()
        logits_BV = self._forward(token_BL.to(self.model.device), rows.mask_BL, position_BL, cache)
        plain = cache.get_seq_length() == length and all(type(layer) is DynamicLayer for layer in cache.layers)
        if not plain:
            raise ValueError(
                f"{type(self.model).__name__} does not keep plain keys and values in its cache; "
                "this generator supports attention models only."
            )
        survivors, cache = self._append_tokens(rows, cache, logits_BV, finished)
        if survivors is None or self._rows is None:
            self._rows, self._cache = (survivors, cache) if self._rows is None else (self._rows, self._cache)
            return
        self._cache = _join_caches(self._cache, cache)
        self._rows = self._rows.join(survivors)

    def _forward(
        self, token_BL: torch.Tensor, mask_BL: torch.Tensor, position_BL: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        output = self.model(
            input_ids=token_BL,
            attention_mask=mask_BL,
            position_ids=position_BL,
            past_key_values=cache,
            use_cache=True,
            **self._forward_options,
        )
        logits_BV = output.logits[:, -1]
        logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32), copy=True)
        logits_BV[:, self._n_tokens :] = -torch.inf
        return logits_BV

    def _append_tokens(
        self, rows: _Rows, cache: DynamicCache, logits_BV: torch.Tensor, finished: dict[int, GenerationOutput]
    ) -> tuple[_Rows | None, DynamicCache | None]:
        """Sample one token per row, report the rows that end, and return the others with their cache."""
        raw_BV = logits_BV
        early_B = rows.n_new_B < rows.min_new_B
        if early_B.any():
            stops = ((rows.stop_id_BS >= 0) & early_B[:, None]).nonzero()
            logits_BV = logits_BV.clone()
            logits_BV[stops[:, 0], rows.stop_id_BS[stops[:, 0], stops[:, 1]]] = -torch.inf
        logits_BV = processed_logits(logits_BV, rows.temperature_B, rows.top_k_B, rows.top_p_B)
        uniform_B = rows.uniform_BT.gather(1, rows.n_new_B[:, None])[:, 0]
        token_B = sample_by_inversion(logits_BV, uniform_B)
        token_B = torch.where(rows.temperature_B < GREEDY_TEMPERATURE, logits_BV.argmax(-1), token_B)
        reported_BV = logits_BV if self._log_probs_mode == "processed_logprobs" else raw_BV
        log_prob_B1 = reported_BV.log_softmax(-1).gather(-1, token_B[:, None])
        rows.token_BT.scatter_(1, rows.n_new_B[:, None], token_B[:, None])
        rows.log_prob_BT.scatter_(1, rows.n_new_B[:, None], log_prob_B1.double())
        rows.n_new_B = rows.n_new_B + 1

        stopped_B = (token_B[:, None] == rows.stop_id_BS).any(-1)
        if self._ends:
            stopped_B |= self._asked_to_end(rows)
        ended_B = stopped_B | (rows.n_new_B >= rows.max_new_B)
        if not ended_B.any():
            return rows, cache
        for row in ended_B.nonzero()[:, 0].tolist():
            ticket = int(rows.ticket_B[row])
            self._ends.pop(ticket, None)
            finished[ticket] = self._output(rows, row, "stop" if stopped_B[row] else "length")
        if ended_B.all():
            return None, None
        kept_R = (~ended_B).nonzero()[:, 0]
        rows = rows.select(kept_R)
        # Columns that only the rows now gone were using; without this the cache would grow as long as requests arrive.
        first_column = int(rows.mask_BL.any(0).int().argmax())
        rows = replace(rows, mask_BL=rows.mask_BL[:, first_column:])
        for layer in cache.layers:
            layer.keys = layer.keys[kept_R, :, first_column:]
            layer.values = layer.values[kept_R, :, first_column:]
        return rows, cache

    def _asked_to_end(self, rows: _Rows) -> torch.Tensor:
        """Rows (B,) whose requests say that they end here."""
        n_new = rows.n_new_B.tolist()
        ended = [
            ticket in self._ends and self._ends[ticket](rows.token_BT[row, : n_new[row]].tolist())
            for row, ticket in enumerate(rows.ticket_B.tolist())
        ]
        return torch.tensor(ended, device=rows.ticket_B.device)

    @staticmethod
    def _output(rows: _Rows, row: int, stop_reason: StopReason) -> GenerationOutput:
        n_new = int(rows.n_new_B[row])
        return GenerationOutput(
            rows.token_BT[row, :n_new].tolist(), rows.log_prob_BT[row, :n_new].tolist(), stop_reason
        )


def _join_caches(first: DynamicCache, second: DynamicCache) -> DynamicCache:
    """Join two caches along the batch, padding the shorter one on the left (the attention mask hides the padding)."""
    length = max(first.get_seq_length(), second.get_seq_length())
    for layer, other in zip(first.layers, second.layers, strict=True):
        for name in ("keys", "values"):
            parts = [getattr(layer, name), getattr(other, name)]
            setattr(layer, name, torch.cat([pad(part, (0, 0, length - part.shape[-2], 0)) for part in parts]))
    return first
