# SPDX-License-Identifier: Apache-2.0
"""What the PRM reads where that is not the rollout itself: a prompt with a hint, or tokens of its own tokenizer.

For every rollout there is a row in the store with the PRM's own prompt and response. It is scored and trained on like
any other; its token values are then carried back to the policy's tokens.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta
from verl.utils import hf_tokenizer

from prime_ext.algorithms.token_shares import TokenShares, token_bounds
from prime_ext.config.prm_inputs import FIELD, OF_REWARD, PROMPT, SIBLING, InputSettings, row_text
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.step_rm.response_cut import TokenText
from prime_ext.trainer.policy_loss import PRM_PROMPT, PRM_READS
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# verl takes what stands before the first underscore in a key as the id of the prompt.
PREFIX = "scorer-"


class _NotScored(Exception):
    """The PRM has nothing to say about a row; the argument is why."""


@dataclass
class _Row:
    """One row for the PRM. Without ``shares`` its response has the rollout's tokens."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    shares: TokenShares | None = None


# The user's message for the PRM before it is filled in, and what is filled in; empty texts are missing.
_Hint = tuple[str, dict[str, str]]


@dataclass
class ScorerRows:
    """Rows that the PRM reads, one for each row of a batch and in its order.

    Attributes:
        batch: the rows in the store.
        scored_BT: response tokens of the rollouts that the PRM has something to say about.
        metrics: which share of the rows had no hint, was too long, or has characters that the PRM's tokenizer lacks.
    """

    batch: KVBatchMeta
    scored_BT: torch.Tensor
    metrics: dict[str, float]
    _shares: list[TokenShares | None]

    def fetch(self, name: str) -> torch.Tensor:
        """A field of the rows, carried to the tokens of the rollouts: ``(B, T)``, 0 where nothing was scored."""
        return self._returned(transfer.fetch_rows(self.batch, [name])[name])

    def put_prompts(self, rollouts: KVBatchMeta) -> KVBatchMeta:
        """Tell the rollouts the PRM's prompts, for the policy's loss; returns the batch that knows them."""
        prompts = transfer.fetch_rows(self.batch, ["prompts"])["prompts"]
        return transfer.put_rows(rollouts, {PRM_PROMPT: _nested(prompts), PRM_READS: self.scored_BT.any(-1).float()})

    def put(self, name: str, value_BT: torch.Tensor) -> None:
        """Write values of the rollouts' tokens as a field of the rows."""
        transfer.put_rows(self.batch, {name: _nested(self._carried(value_BT))})

    def smoothed(self, value_BT: torch.Tensor) -> torch.Tensor:
        """Values of the rollouts' tokens, carried to the PRM's and back: what :meth:`fetch` can be compared with.

        The difference of two token values is then taken on the PRM's tokens, and a word that is one token there and two
        here does not look as if one of the two were worth more.
        """
        return self._returned(self._carried(value_BT))

    def _returned(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Values of the rows' tokens on those of the rollouts, ``(B, T)``."""
        found_BT = torch.zeros(self.scored_BT.shape)
        for row, (value_S, shares) in enumerate(zip(values, self._shares, strict=True)):
            value_T = value_S.float() if shares is None else shares.to_target(value_S.float())
            found_BT[row, : len(value_T)] = value_T
        return found_BT.masked_fill_(~self.scored_BT, 0.0)

    def _carried(self, value_BT: torch.Tensor) -> list[torch.Tensor]:
        lengths = [tag["response_len"] for tag in self.batch.tags]
        return [
            value_T[:length] if shares is None else shares.to_source(value_T[: shares.n_target])
            for value_T, shares, length in zip(value_BT, self._shares, lengths, strict=True)
        ]


class ScorerRowsBuilder:
    """Writes the rows of the PRM.

    Args:
        settings: the section ``prm.inputs``.
        tokenizer: the policy's.
        own_tokenizer: the PRM's, with ``retokenize``: a fast one with a chat template and an end-of-sequence token.
        end_tokens: of the policy: those that end a response.
        chat_options: further arguments of the chat template (``data.apply_chat_template_kwargs``).
        limit: tokens of a row at most; longer ones are not scored. None: any.
    """

    def __init__(
        self,
        settings: InputSettings,
        tokenizer: Any,
        own_tokenizer: Any = None,
        end_tokens: Collection[int] = (),
        chat_options: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ):
        self._settings, self._own = settings, own_tokenizer or tokenizer
        self._text = TokenText(tokenizer)
        self._special = frozenset(tokenizer.all_special_ids)
        self._end_tokens, self._chat_options, self._limit = frozenset(end_tokens), dict(chat_options or {}), limit
        # Not all special tokens have a name that tokenizers list.
        named = {str(token) for token in self._own.added_tokens_decoder.values() if token.special}
        self._reserved = sorted(named | set(self._own.all_special_tokens), key=len, reverse=True)

    @classmethod
    def of(cls, prm: ImplicitPRM, tokenizer: Any, end_tokens: Collection[int]) -> "ScorerRowsBuilder":
        """As configured for this PRM."""
        inputs, model, own = prm.settings.inputs, prm.config.prm.model, None
        if inputs.retokenize:
            own = hf_tokenizer(model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code)
        options = prm.config.data.get("apply_chat_template_kwargs", None)
        return cls(inputs, tokenizer, own, end_tokens, options, prm.longest_row)

    def build(self, batch: KVBatchMeta, label_B: torch.Tensor, group_B: torch.Tensor) -> ScorerRows:
        """Write a row for each of these.

        Args:
            batch: rollouts, padding included.
            label_B: outcome in [0, 1].
            group_B: number of the prompt.

        Raises:
            RuntimeError: a rollout has images or videos, or there is a template and a prompt has no user's message.
        """
        transfer.refuse_images(batch, "prm.inputs; leave retokenize=false and template=null")
        fields = transfer.fetch_rows(batch, ["prompts", "responses", "response_mask"])
        padding = [transfer.is_padding(tag) for tag in batch.tags]
        messages = transfer.fetch_values(batch, "raw_prompt")
        hints = self._hints(batch, fields["responses"], padding, label_B, group_B)
        rows: list[_Row] = []
        lost: Counter[str] = Counter()
        for at, (prompt, response, mask) in enumerate(zip(*fields.values(), strict=True)):
            given = _Row(prompt.tolist(), response.tolist(), mask.long().tolist())
            try:
                rows.append(self._nothing(given) if padding[at] else self._row(given, messages[at], hints[at]))
            except _NotScored as reason:
                lost[str(reason)] += 1
                rows.append(self._nothing(given))
        if lost["too long"]:
            logger.warning(
                "%d rows of the PRM have more than %s tokens and are not scored", lost["too long"], self._limit
            )
        count = max(1, len(padding) - sum(padding))
        metrics = {"prm/inputs/too_long": lost["too long"] / count, "prm/inputs/unreadable": lost["unreadable"] / count}
        if self._settings.templates:
            metrics["prm/inputs/without_hint"] = lost["without hint"] / count
        masks = [torch.tensor(row.mask) if row.shares is None else row.shares.target_mask_T for row in rows]
        scored_BT = pad_sequence([mask_T.bool() for mask_T in masks], batch_first=True)
        # What is not scored is padding for the PRM, too.
        keys, unscored = [f"{PREFIX}{key}" for key in batch.keys], (~scored_BT.any(-1)).tolist()
        sequences = [(row.prompt, row.response, row.mask) for row in rows]
        put = transfer.put_sequences(keys, batch.partition_id, sequences, unscored)
        return ScorerRows(put, scored_BT, metrics, [row.shares for row in rows])

    # ---- one row -----------------------------------------------------------------------------------------------

    def _row(self, given: _Row, messages: Sequence[Mapping[str, Any]], hint: _Hint | None) -> _Row:
        if hint is not None and not all(text.strip() for text in hint[1].values()):
            raise _NotScored("without hint")
        changed = hint is not None or self._settings.retokenize
        prompt = self._prompt(messages, hint) if changed else given.prompt
        row = replace(given, prompt=prompt) if not self._settings.retokenize else self._retokenized(prompt, given)
        if self._limit is not None and len(row.prompt) + len(row.response) > self._limit:
            raise _NotScored("too long")
        return row

    def _nothing(self, given: _Row) -> _Row:
        """As short as a row can be, with nothing to score."""
        end, bound_T1 = self._own.eos_token_id, np.zeros(len(given.response) + 1)
        return _Row([end], [end], [0], TokenShares.of(np.zeros(2), bound_T1, np.zeros(len(given.response))))

    def _prompt(self, messages: Sequence[Mapping[str, Any]], hint: _Hint | None) -> list[int]:
        told = [dict(message) for message in messages]
        if hint is not None:
            last = max((at for at, message in enumerate(told) if message["role"] == "user"), default=None)
            if last is None:
                raise RuntimeError("a prompt has no message of the user, the place of prm.inputs.template")
            template, texts = hint
            values = {**texts, PROMPT: str(told[last]["content"])}
            # In one go: what is filled in is not looked at again.
            told[last]["content"] = FIELD.sub(lambda found: values[found[1]], template)
        text = self._own.apply_chat_template(told, tokenize=False, add_generation_prompt=True, **self._chat_options)
        return self._encoded(text)["input_ids"]

    def _encoded(self, text: str, **options: Any) -> Any:
        try:
            return self._own(text, add_special_tokens=False, **options)
        except Exception as error:
            # tokenizers raises nothing else for characters that a vocabulary without unknown tokens lacks.
            raise _NotScored("unreadable") from error

    def _retokenized(self, prompt: list[int], given: _Row) -> _Row:
        """The response in the PRM's tokens. An end-of-sequence token stays one."""
        pieces = self._text.pieces(given.response)
        ended = given.response[-1] in self._end_tokens
        if ended:
            # Some tokenizers show a text for tokens that end a response.
            pieces[-1] = ""
        ids: list[int] = []
        begins: list[int] = []
        end = 0
        for _, run in groupby(zip(pieces, given.mask, strict=True), key=itemgetter(1)):
            # Each turn and each tool's answer by itself: no token of the PRM is of both.
            text = "".join(piece for piece, _ in run)
            # Text of the policy that looks like a special token of the PRM is none.
            encoded = self._encoded(text, return_offsets_mapping=True, split_special_tokens=True)
            ids += encoded["input_ids"]
            begins += [end + begin for begin, _ in encoded["offset_mapping"]]
            end += len(text)
        own_lengths: list[int] = np.diff(np.maximum.accumulate([0, *begins[1:], end])).tolist() if ids else []
        lengths = [len(piece) for piece in pieces]
        joins = [not piece and token not in self._special for piece, token in zip(pieces, given.response, strict=True)]
        if ended:
            # As if the end were one more character of the text.
            ids, own_lengths, lengths[-1], joins[-1] = [*ids, self._own.eos_token_id], [*own_lengths, 1], 1, False
        if not ids:
            return self._nothing(given)
        own_bound_S1 = token_bounds(own_lengths, [length == 0 for length in own_lengths])
        shares = TokenShares.of(own_bound_S1, token_bounds(lengths, joins), np.array(given.mask))
        return _Row(prompt, ids, shares.source_mask_S.long().tolist(), shares)

    # ---- hints -------------------------------------------------------------------------------------------------

    def _hints(
        self,
        batch: KVBatchMeta,
        responses: Sequence[torch.Tensor],
        padding: Sequence[bool],
        label_B: torch.Tensor,
        group_B: torch.Tensor,
    ) -> list[_Hint | None]:
        """What is put into the prompt of each row; None for nothing."""
        if not self._settings.templates:
            return [None] * len(batch)
        wanted = self._settings.fields
        columns = {name: transfer.fetch_values(batch, name) for name in self._settings.columns}
        told = any(name.startswith(OF_REWARD) for name in wanted)
        infos = transfer.fetch_reward_infos(batch.keys, batch.partition_id) if told else []
        siblings = _siblings(label_B, group_B, padding) if SIBLING in wanted else []

        def value_of(name: str, at: int) -> Any:
            if name == SIBLING:
                other = siblings[at]
                return None if other is None else "".join(self._text.pieces(responses[other].tolist()))
            if name.startswith(OF_REWARD):
                return infos[at].get(name.removeprefix(OF_REWARD))
            return row_text(name, {column: values[at] for column, values in columns.items()})

        hints: list[_Hint | None] = []
        for at, source in enumerate(transfer.fetch_values(batch, "data_source")):
            template = self._settings.template_of(str(source))
            values = {name: value_of(name, at) for name in set(FIELD.findall(template or "")) - {PROMPT}}
            texts = {name: "" if value is None else self._allowed(str(value)) for name, value in values.items()}
            hints.append(None if template is None else (template, texts))
        return hints

    def _allowed(self, text: str) -> str:
        """Model text may hold what the chat template would turn into special tokens."""
        while any(token in text for token in self._reserved):
            for token in self._reserved:
                text = text.replace(token, "")
        return text


def _siblings(label_B: torch.Tensor, group_B: torch.Tensor, padding: Sequence[bool]) -> list[int | None]:
    """Of each row the next right response to the same prompt, another one than itself; None without one."""
    right_B = (label_B > 0.5) & ~torch.tensor(padding)
    found: list[int | None] = []
    for row in range(len(padding)):
        others = [other for other in (right_B & (group_B == group_B[row])).nonzero()[:, 0].tolist() if other != row]
        found.append(next((other for other in others if other > row), others[0] if others else None))
    return found


def _nested(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
