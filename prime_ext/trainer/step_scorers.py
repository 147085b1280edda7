# SPDX-License-Identifier: Apache-2.0
"""Scorers of steps: a step reward model, whose scores came with the rewards, and how likely the gold answer is."""

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta
from verl.utils.debug import marked_timer

from prime_ext.algorithms.answer_likelihood import answer_likelihood, potential_rewards
from prime_ext.algorithms.steps import StepSpans, valid_ends
from prime_ext.config.prm_inputs import GOLD, row_text
from prime_ext.config.reward_settings import AnswerSettings
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.prm.worker import PRM_LOG_PROBS, TEXT_FIELDS
from prime_ext.reward.pspo_info import score_metrics
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.prm_phase import pass_metrics
from prime_ext.trainer.reward_sources import shaping_of
from prime_ext.utils import transfer_queue as transfer

# A prefix of a response, and the answer behind it, as tokens.
Asked = tuple[tuple[int, ...], tuple[int, ...]]


def step_scorer(step: PrimeStep, batch: KVBatchMeta) -> KVBatchMeta:
    """The scores that the manager ``naive_with_step_scores`` told with the rewards.

    The score of a step is put at the step's last token. Where that is outside of the mask, as at the end of a
    tool's answer, it is the last one before; steps that share it are one, with the lowest of their scores. A
    response that could not be scored (``prime.verifier.on_failure=zero``) has the score 0 for every step.

    Raises:
        RuntimeError: the steps are those of another output of the agent loop.
    """
    rows = step.valid_B.nonzero()[:, 0].tolist()
    infos = transfer.fetch_reward_infos([batch.keys[row] for row in rows], batch.partition_id)
    reward_BT = torch.zeros_like(step.mask_BT)
    step.boundary_BT = torch.zeros_like(step.mask_BT, dtype=torch.bool)
    for row, info in zip(rows, infos, strict=True):
        if info["n_tokens"] != (n_tokens := batch.tags[row]["response_len"]):
            raise RuntimeError(
                f"rollout {batch.keys[row]} has {n_tokens} tokens, and the step scorer read {info['n_tokens']}, as "
                f"with agent loops of several outputs; use prime.process.scorer=implicit_prm"
            )
        end_S = torch.tensor(json.loads(info["step_ends"]), dtype=torch.long)
        score_S = torch.tensor(json.loads(info["step_scores"]) or [0.0] * len(end_S))
        if len(end_S):
            token_S = valid_ends(end_S, step.mask_BT[row])
            reward_BT[row].scatter_reduce_(0, token_S, score_S, "amin", include_self=False)
            step.boundary_BT[row, token_S] = True
    step.steps_timed_out = int(sum(info["steps_timed_out"] for info in infos))
    step.metrics.update(score_metrics(infos))
    _set_rewards(step, reward_BT)
    return batch


def _set_rewards(step: PrimeStep, reward_BT: torch.Tensor) -> None:
    """Take these rewards at the ends of steps as the process rewards, and measure what they pay."""
    step.process_reward_BT = reward_BT
    pay_B = response_pay(step)
    step.measure_sums(pay_B)
    # What differs by the rounding of float32 is a tie.
    step.measure_pairs(pay_B.round(decimals=6), "before")


def response_pay(step: PrimeStep) -> torch.Tensor:
    """Compute what the process rewards pay a response in all, ``(B,)``: with ``min_form`` a soft minimum of its scores.

    The normalization, which changes no order, comes later.
    """
    assert step.process_reward_BT is not None
    paid_BT, _ = shaping_of(step.settings)(step.process_reward_BT, step.mask_BT, step.spans())
    return paid_BT.sum(-1)


class AnswerScorer:
    """Forced decoding with the PRM's worker: a row for each prefix of each response, with the gold answer behind it.

    Args:
        prm: scores; never trained.
        settings: the section ``prime.process.answer``.
        tokenizer: of the policy, and of the model that scores.
        end_tokens: those that end a response; the answer is asked for before them.
    """

    def __init__(self, prm: ImplicitPRM, settings: AnswerSettings, tokenizer: Any, end_tokens: Collection[int]):
        self._prm, self._settings, self._tokenizer = prm, settings, tokenizer
        self._end_tokens, self._limit = frozenset(end_tokens), prm.longest_row
        lead, self._tail = settings.parts
        self._lead = self._ids(lead)

    def __call__(self, step: PrimeStep, batch: KVBatchMeta) -> KVBatchMeta:
        """Score the batch. Raises RuntimeError where a rollout has images or videos."""
        self._prm.follow_policy(step.number)
        spans = step.spans()
        assert spans is not None
        transfer.refuse_images(batch, "prime.process.scorer=answer_likelihood")
        with marked_timer("prm_rows", step.timing):
            asked, place_BS1 = self._questions(batch, step, spans)
        with marked_timer("prm_score", step.timing):
            value_N = self._values(batch, asked)
        value_BS1 = torch.cat((value_N, torch.zeros(1)))[place_BS1]
        scored_B = place_BS1[:, 0] >= 0
        step.scored_BT = scored_B[:, None] & step.mask_BT.bool()
        _set_rewards(step, potential_rewards(value_BS1, spans))
        if scored_B.any():
            last_B1 = spans.count_B[:, None]
            step.metrics["prime/answer_likelihood/prompt"] = float(value_BS1[scored_B, 0].mean())
            step.metrics["prime/answer_likelihood/response"] = float(value_BS1.gather(1, last_B1)[scored_B].mean())
        step.metrics.update(pass_metrics(self._prm, batch))
        return batch

    def _questions(self, batch: KVBatchMeta, step: PrimeStep, spans: StepSpans) -> tuple[list[Asked], torch.Tensor]:
        """Every different question, and where in this list those of each row are, ``(B, S + 1)``; -1 without any.

        The prompt alone is the same for all of its responses.
        """
        fields = transfer.fetch_rows(batch, ["prompts", "responses"])
        sections = transfer.fetch_values(batch, "reward_model")
        place_of: dict[Asked, int] = {}
        place_BS1 = torch.full((len(batch), spans.mask_BS.shape[1] + 1), -1)
        missing = too_long = 0
        for row in step.valid_B.nonzero()[:, 0].tolist():
            gold = row_text(GOLD, {"reward_model": sections[row]})
            answer = () if gold is None else tuple(self._ids(f"{gold}{self._tail}"))
            ends = spans.end_BS[row, : int(spans.count_B[row])].tolist()
            prefixes = self._prefixes(fields["prompts"][row].tolist(), fields["responses"][row].tolist(), ends)
            if not answer:
                missing += 1
            elif self._limit is not None and len(prefixes[len(ends)]) + len(answer) > self._limit:
                too_long += 1
            else:
                for number, prefix in prefixes.items():
                    place_BS1[row, number:] = place_of.setdefault((prefix, answer), len(place_of))
        count = max(1, int(step.valid_B.sum()))
        step.metrics.update({"prm/inputs/without_hint": missing / count, "prm/inputs/too_long": too_long / count})
        return list(place_of), place_BS1

    def _values(self, batch: KVBatchMeta, asked: list[Asked]) -> torch.Tensor:
        """P(gold | prefix) of each question."""
        if not asked:
            return torch.zeros(0)
        keys = [f"answer{number:07d}_0_0" for number in range(len(asked))]
        sequences = [(prefix, answer, [1] * len(answer)) for prefix, answer in asked]
        put = transfer.with_fields(transfer.put_sequences(keys, batch.partition_id, sequences), TEXT_FIELDS)
        padded = transfer.padded(put, self._prm.data_parallel_size(), self._tokenizer.eos_token_id)
        self._prm.score(padded)
        log_probs = transfer.fetch_rows(put, [PRM_LOG_PROBS])[PRM_LOG_PROBS]
        transfer.clear(padded.keys, batch.partition_id)
        mask_NT = pad_sequence([torch.ones(len(answer)) for _, answer in asked], batch_first=True)
        return answer_likelihood(pad_sequence(log_probs, batch_first=True), mask_NT, self._settings.per_token)

    def _prefixes(self, prompt: list[int], response: list[int], ends: list[int]) -> dict[int, tuple[int, ...]]:
        """The prompt alone, then with each step more, up to where the answer is asked for; by the number of steps.

        Of too many steps only some, evenly spread and with the last one; those between them have V of the one before.
        """
        said = response[:-1] if response[-1] in self._end_tokens else response
        asked = np.unique(np.linspace(0, len(ends), min(len(ends), self._settings.most) + 1).round().astype(int))
        places = (-1, *ends)
        return {int(number): (*prompt, *said[: places[number] + 1], *self._lead) for number in asked}

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]
