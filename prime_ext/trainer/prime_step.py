# SPDX-License-Identifier: Apache-2.0
"""One PRIME step on the driver: its tensors, from the store of rollouts to the scores.

A scorer (``prime.process.scorer``) is a function of the step and its batch that returns the batch with the fields it
has written: it sets :attr:`PrimeStep.process_reward_BT` and ``pairs_before`` and logs what it measures.
:mod:`prime_ext.trainer.reward_sources` makes advantages of them.
"""

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transfer_queue import KVBatchMeta

from prime_ext.algorithms.distillation import policy_relative_rewards
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.prm_accuracy import PairCount, absolute_accuracy, count_pairs
from prime_ext.algorithms.returns import last_token_mask
from prime_ext.algorithms.steps import StepSpans, step_spans
from prime_ext.algorithms.turns import WrongNumberOfRewards, place_turn_rewards, turn_boundaries
from prime_ext.config.reward_settings import StepSettings
from prime_ext.config.settings import PrimeSettings
from prime_ext.step_rm.response_cut import ResponseCutter
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# Rounding of low precision can push the log-probability of a certain token slightly above zero.
_POSITIVE_LOG_PROB = 1e-2


class ResponseSteps:
    """Finds steps as ``prime.steps`` says, in the valid tokens: a tool's answer in the middle makes no steps.

    Attributes:
        timed_out: responses of the last call on which the pattern took too long; each of them is one step.
    """

    def __init__(self, settings: StepSettings, tokenizer: Any):
        self._cutter = ResponseCutter(settings, tokenizer)
        self.timed_out = 0

    def boundaries(self, token_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Tokens after which a step ends, ``(B, T)`` bool; the end of the response is left to ``step_spans``."""
        self.timed_out = 0
        boundary_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
        for row, mask_T in enumerate(mask_BT.bool()):
            position_N = mask_T.nonzero()[:, 0]
            if len(position_N) == 0:
                continue
            cut = self._cutter.cut(token_BT[row, position_N].tolist())
            if cut.timed_out:
                self.timed_out += 1
                logger.warning(
                    "prime.steps.pattern took too long on a response of %d tokens: it is one step", len(position_N)
                )
            boundary_BT[row, position_N[list(cut.ends[:-1])]] = True
        return boundary_BT


@dataclass
class PrimeStep:
    """Rows are those of the batch, padding included; padding has an empty mask and takes part in nothing.

    Attributes:
        reward_BT: verl's token rewards: the outcome at the last valid token and, with the KL penalty in the reward, the
            penalty of each token; 0 outside the mask.
        label_B: the verifier's verdict in [0, 1].
        group_B: number of the prompt; padding rows have numbers of their own.
        metrics, timing: of the training step, by name; filled here.
        number: of the training step, from 1.
        process_reward_BT: r_t = beta * q_t, or log pi_prm - log pi_old (``prime.process.target``), or the score of each
            step at its last token (``prime.process.scorer``); not normalized.
        process_noise: standard deviation of the rounding noise of a process reward.
        pairs_before: how the PRM ordered the pairs of this batch before it trained on them.
        boundary_BT, turn_end_BT: tokens after which a step or a turn ends.
        turn_reward_BT: rewards of turns, each at its turn's end.
        steps_timed_out: responses on which the pattern of the steps took too long.
        value_BT: the critic's value of the state before each token.
        old_log_prob_BT: log-probabilities under the policy that wrote the responses.
        greedy_B: reward of the greedy response to the same prompt.
        verl_advantage_BT: the outcome's advantage, where verl has computed it.
        gamma, lam: ``algorithm.gamma`` and ``algorithm.lam``.
    """

    settings: PrimeSettings
    mask_BT: torch.Tensor
    reward_BT: torch.Tensor
    label_B: torch.Tensor
    group_B: torch.Tensor
    valid_B: torch.Tensor
    metrics: dict = field(default_factory=dict)
    timing: MutableMapping[str, float] = field(default_factory=dict)
    number: int = 1
    reference_log_prob_BT: torch.Tensor | None = None
    process_reward_BT: torch.Tensor | None = None
    process_noise: float = 0.0
    pairs_before: PairCount = PairCount(0.0, 0.0)
    boundary_BT: torch.Tensor | None = None
    steps_timed_out: int = 0
    value_BT: torch.Tensor | None = None
    old_log_prob_BT: torch.Tensor | None = None
    greedy_B: torch.Tensor | None = None
    verl_advantage_BT: torch.Tensor | None = None
    gamma: float = 1.0
    lam: float = 1.0
    turn_end_BT: torch.Tensor | None = None
    turn_reward_BT: torch.Tensor | None = None

    def spans(self) -> StepSpans | None:
        """The steps, if the settings need them."""
        return None if self.boundary_BT is None else step_spans(self.boundary_BT, self.mask_BT)

    # ---- from the store ----------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        batch: KVBatchMeta,
        settings: PrimeSettings,
        kl_in_reward: bool = False,
        response_steps: ResponseSteps | None = None,
        greedy: Mapping[str, float] | None = None,
        **more: Any,
    ) -> "PrimeStep":
        """Fetch the batch from the store of rollouts.

        ``kl_in_reward``: verl has put its KL penalty into the reward. ``greedy`` are the rewards of greedy responses by
        prompt id, ``more`` other attributes.
        """
        reward_field = "token_level_rewards" if kl_in_reward else "rm_scores"
        wanted = {
            "responses": settings.needs_steps,
            "values": settings.critic_sources,
            "advantages": settings.outcome.of_verl,
            "old_log_probs": settings.needs_probabilities,
            "loss_mask": settings.needs_turns,
        }
        names = [name for name, needed in wanted.items() if needed]
        data = transfer.fetch_padded(batch, ["response_mask", reward_field, *names])
        valid_B = torch.tensor([not transfer.is_padding(tag) for tag in batch.tags])
        real_keys = [key for key, valid in zip(batch.keys, valid_B.tolist(), strict=True) if valid]
        label_B = torch.zeros(len(batch))
        label_B[valid_B] = torch.tensor(transfer.fetch_labels(real_keys, batch.partition_id, settings.label_key))
        group_B = torch.tensor(transfer.group_numbers(batch.keys))
        mask_BT = data["response_mask"].float() * valid_B[:, None]
        # What has no token of the policy's own, as after a rejection, is padding for everything.
        own_B = valid_B & mask_BT.bool().any(-1)
        step = cls(settings, mask_BT, _within(data[reward_field].float(), mask_BT), label_B, group_B, own_B, **more)
        if settings.needs_steps:
            assert response_steps is not None
            step.boundary_BT = response_steps.boundaries(data["responses"], step.mask_BT)
            step.steps_timed_out = response_steps.timed_out
        if settings.outcome.of_verl:
            step.verl_advantage_BT = data["advantages"].float()
        if settings.critic_sources:
            step.value_BT = data["values"].float()
        if settings.needs_probabilities:
            step.old_log_prob_BT = data["old_log_probs"].float()
        if settings.needs_greedy:
            assert greedy is not None
            step.greedy_B = torch.zeros(len(batch))
            step.greedy_B[valid_B] = torch.tensor([greedy[transfer.group_uid(key)] for key in real_keys])
            # Without a verdict on the greedy response, the prompt's mean stands in; it is counted and warned about.
            mean_B = PromptGroups.of(group_B, step.valid_B).mean(step.reward_BT.sum(-1))
            step.greedy_B = torch.where(step.greedy_B.isnan(), mean_B, step.greedy_B)
        if settings.needs_turns:
            step._load_turns(batch, data)
        return step

    def _load_turns(self, batch: KVBatchMeta, data: Mapping[str, torch.Tensor]) -> None:
        """Turns as the policy wrote them: verl's loss mask has them whole where a rejection of tokens has not."""
        own_BT = data["loss_mask"].bool() & self.valid_B[:, None]
        self.turn_end_BT = turn_boundaries(own_BT, self.mask_BT)
        if self.settings.process.granularity == "turn":
            self.boundary_BT = self.turn_end_BT
        if self.settings.turns.pays:
            rows, name = self.valid_B.nonzero()[:, 0].tolist(), self.settings.turns.field
            rewards = transfer.fetch_turn_rewards([batch.keys[row] for row in rows], batch.partition_id, name)
            of_row = dict(zip(rows, rewards, strict=True))
            try:
                every = [of_row.get(row, []) for row in range(len(batch))]
                self.turn_reward_BT = place_turn_rewards(every, own_BT, self.mask_BT)
            except WrongNumberOfRewards as error:
                raise RuntimeError(
                    f"rollout {batch.keys[error.row]} has {error.problem} in {name}, which must be one for every turn, "
                    f"the last may be left out; let every tool return a number, and one tool be called in a turn"
                ) from error

    # ---- what scorers say --------------------------------------------------------------------------------------

    def set_scores(self, log_prob_BT: torch.Tensor, beta: float) -> None:
        """Take the PRM's log-probabilities as the process rewards of this step, and measure what they sum to."""
        highest = float(log_prob_BT.masked_fill(~self.mask_BT.bool(), 0.0).max())
        if highest > _POSITIVE_LOG_PROB or not torch.isfinite(log_prob_BT[self.mask_BT.bool()]).all():
            logger.warning("log-probabilities of the PRM are not in (-inf, 0]: the highest is %s", highest)
        implicit_BT = process_rewards(self._log_ratio(log_prob_BT), beta)
        self.process_reward_BT = implicit_BT
        if self.settings.process.target == "policy" and self.settings.rewards_tokens:
            assert self.old_log_prob_BT is not None
            self.process_reward_BT = policy_relative_rewards(log_prob_BT, self.old_log_prob_BT, self.mask_BT)
        self.measure_sums(implicit_BT.sum(-1))

    def measure_scores(self, log_prob_BT: torch.Tensor, when: str, mini_batch_B: torch.Tensor | None = None) -> None:
        """Log how well the PRM's log-probabilities order the batch ``before`` or ``after`` the update.

        ``mini_batch_B`` are the mini-batches of log-probabilities from training forward passes. Pairs over two of them
        do not count: the PRM has moved in between, on this very prompt.
        """
        total_B = self._log_ratio(log_prob_BT).sum(-1)
        group_B = self.group_B if mini_batch_B is None else self.group_B * len(self.group_B) + mini_batch_B
        self.measure_pairs(total_B, when, group_B)
        if self.valid_B.any():
            accuracy = absolute_accuracy(total_B[self.valid_B], self.label_B[self.valid_B])
            self.metrics[f"prm/absolute_accuracy/{when}_update"] = accuracy

    def _log_ratio(self, log_prob_BT: torch.Tensor) -> torch.Tensor:
        assert self.reference_log_prob_BT is not None
        return log_ratio(log_prob_BT, self.reference_log_prob_BT, self.mask_BT)

    def measure_sums(self, total_B: torch.Tensor) -> None:
        """Log what the process rewards of responses sum to; given for all rows, padding included."""
        total_B, label_B = total_B[self.valid_B], self.label_B[self.valid_B]
        if not len(total_B):
            return
        self.metrics["prm/reward_sum/mean"] = float(total_B.mean())
        self.metrics["prm/reward_sum/std"] = float(total_B.std()) if len(total_B) > 1 else 0.0
        for name, rows_B in (("correct", label_B > 0.5), ("wrong", label_B <= 0.5)):
            if rows_B.any():
                self.metrics[f"prm/reward_sum/{name}"] = float(total_B[rows_B].mean())

    def measure_pairs(self, score_B: torch.Tensor, when: str, group_B: torch.Tensor | None = None) -> None:
        """Log which share of the pairs of responses of one group the scores order correctly."""
        rows_B, group_B = self.valid_B, self.group_B if group_B is None else group_B
        pairs = count_pairs(score_B[rows_B], self.label_B[rows_B], group_B[rows_B])
        if pairs.accuracy is not None:
            self.metrics[f"prm/pair_accuracy/{when}_update"] = pairs.accuracy
        if when == "before":
            self.pairs_before = pairs


def _within(reward_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Move rewards outside of the mask to the last valid token: the outcome of a response that ends in a tool's answer,
    and what a rejection of tokens masks.
    """
    inside_BT, last_BT = mask_BT.bool(), last_token_mask(mask_BT).bool()
    outside_B1 = torch.where(inside_BT, 0.0, reward_BT).sum(-1, keepdim=True)
    return torch.where(inside_BT, reward_BT, 0.0) + torch.where(last_BT, outside_B1, 0.0)
