# SPDX-License-Identifier: Apache-2.0
"""One PRIME step on the driver: from the store of rollouts to advantages."""

import json
import logging
from collections.abc import Mapping

import torch
from transfer_queue import KVBatchMeta

from prime_ext.algorithms.advantage import combine_sources, last_token_mask
from prime_ext.algorithms.distillation import policy_relative_rewards
from prime_ext.algorithms.groups import PromptGroups
from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.normalization import OutcomeRelativeScale
from prime_ext.algorithms.prm_accuracy import PairCount, absolute_accuracy, count_pairs
from prime_ext.algorithms.prof_selection import process_consistency, select_consistent
from prime_ext.algorithms.sign_preserving import sign_preserving
from prime_ext.algorithms.steps import sum_over_steps, valid_ends
from prime_ext.algorithms.turns import WrongNumberOfRewards, place_turn_rewards, turn_boundaries, turn_states
from prime_ext.config.settings import PrimeSettings
from prime_ext.reward.pspo_info import score_metrics
from prime_ext.trainer.response_steps import ResponseSteps
from prime_ext.trainer.reward_sources import build_sources, critic_return, response_pay
from prime_ext.trainer.step_tensors import StepTensors
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# Rounding of low precision can push the log-probability of a certain token slightly above zero.
_POSITIVE_LOG_PROB = 1e-2


def _within(reward_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """The rewards inside the mask, and those outside of it at the last valid token: nothing that was paid is lost.

    The outcome of a response that was cut off in a tool's answer stands there, and what a rejection of tokens masks.
    """
    inside_BT, last_BT = mask_BT.bool(), last_token_mask(mask_BT).bool()
    outside_B1 = torch.where(inside_BT, 0.0, reward_BT).sum(-1, keepdim=True)
    return torch.where(inside_BT, reward_BT, 0.0) + torch.where(last_BT, outside_B1, 0.0)


class NotFinite(RuntimeError):
    """NaN or infinity where the policy would be trained on it; the message is one line."""


class PrimeStep(StepTensors):
    """A step: its tensors, and how they are fetched, scored and turned into advantages."""

    @classmethod
    def load(
        cls,
        batch: KVBatchMeta,
        settings: PrimeSettings,
        kl_in_reward: bool,
        response_steps: ResponseSteps | None = None,
        greedy: Mapping[str, float] | None = None,
    ) -> "PrimeStep":
        """Fetch the batch from the store of rollouts.

        Args:
            batch: the rollouts.
            settings: the section ``prime``.
            kl_in_reward: whether verl has put its KL penalty into the reward.
            response_steps: finds steps; for settings that need them.
            greedy: reward of the greedy response by prompt id; for settings that need it.
        """
        reward_field = "token_level_rewards" if kl_in_reward else "rm_scores"
        wanted = {"responses": settings.needs_steps or settings.needs_states, "values": settings.critic_sources}
        wanted.update({"old_log_probs": settings.needs_probabilities, "loss_mask": settings.needs_turns})
        names = [name for name, needed in wanted.items() if needed]
        data = transfer.fetch_padded(batch, ["response_mask", reward_field, *names])
        padding = [transfer.is_padding(tag) for tag in batch.tags]
        real_keys = [key for key, skip in zip(batch.keys, padding, strict=True) if not skip]
        label_B = torch.zeros(len(batch))
        valid_B = torch.tensor([not skip for skip in padding])
        label_B[valid_B] = torch.tensor(transfer.fetch_labels(real_keys, batch.partition_id, settings.label_key))
        group_B = torch.tensor(transfer.group_numbers(batch.keys))
        mask_BT = data["response_mask"].float() * valid_B[:, None]
        step = cls(
            settings=settings,
            mask_BT=mask_BT,
            reward_BT=_within(data[reward_field].float(), mask_BT),
            label_B=label_B,
            group_B=group_B,
            # What has no token of the policy's own, as after a rejection, is padding for everything.
            valid_B=valid_B & mask_BT.bool().any(-1),
        )
        if settings.needs_steps:
            if response_steps is None:
                raise RuntimeError("the settings need the steps of the responses, but nothing was given to find them")
            already = response_steps.timed_out
            step.boundary_BT = response_steps.boundaries(data["responses"], step.mask_BT)
            step.steps_timed_out = response_steps.timed_out - already
        if settings.critic_sources:
            step.value_BT = data["values"].float()
        if settings.needs_probabilities:
            step.old_log_prob_BT = data["old_log_probs"].float()
        if settings.needs_greedy:
            if greedy is None:
                raise RuntimeError("the settings need greedy responses, but their rewards were not given")
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
        if self.settings.needs_states:
            prompts = [prompt.tolist() for prompt in transfer.fetch_rows(batch, ["prompts"])["prompts"]]
            only = self.settings.turns.state == "observation"
            self.state_BT = turn_states(prompts, data["responses"], own_BT, self.group_B, only)

    @staticmethod
    def _report_not_finite(returns: dict[str, torch.Tensor], metrics: dict) -> None:
        """verl would skip the update of the policy, of this step and most likely of all that follow."""
        which = [name for name, value in returns.items() if not value.isfinite().all()]
        loss = metrics.get("prm/loss")
        raise NotFinite(
            f"the advantages of this step are not finite because of {', '.join(which) or 'their sum'} (prm/loss: "
            f"{loss}); nothing of this step was saved. Look at prm/grad_norm of the steps before, lower prm.optim.lr, "
            f"check the weights of prm.model.path"
        )

    def _log_ratio(self, log_prob_BT: torch.Tensor) -> torch.Tensor:
        if self.reference_log_prob_BT is None:
            raise RuntimeError("the PRM was scored before its reference")
        return log_ratio(log_prob_BT, self.reference_log_prob_BT, self.scored_mask_BT)

    def set_scores(
        self,
        log_prob_BT: torch.Tensor,
        beta: float,
        metrics: dict,
        when: str,
        mini_batch_B: torch.Tensor | None = None,
    ) -> None:
        """Take the PRM's log-probabilities as the process rewards of this step, and measure them."""
        highest = float(log_prob_BT.masked_fill(~self.mask_BT.bool(), 0.0).max())
        if highest > _POSITIVE_LOG_PROB or not torch.isfinite(log_prob_BT[self.mask_BT.bool()]).all():
            logger.warning("log-probabilities of the PRM are not in (-inf, 0]: the highest is %s", highest)
        ratio_BT = self._log_ratio(log_prob_BT)
        implicit_BT = process_rewards(ratio_BT, beta)
        self.process_reward_BT = implicit_BT
        if self.settings.process.target == "policy" and self.settings.rewards_tokens:
            old_BT = self.old_log_prob_BT if self.compared_log_prob_BT is None else self.compared_log_prob_BT
            assert old_BT is not None
            self.process_reward_BT = policy_relative_rewards(log_prob_BT, old_BT, self.scored_mask_BT)
        self._measure_sums(implicit_BT.sum(-1), metrics)
        self.measure_pairs(log_prob_BT, metrics, when, mini_batch_B)

    def set_step_scores(self, batch: KVBatchMeta, metrics: dict) -> None:
        """Take the scores that came with the rewards as the process rewards of this step, and measure them.

        The score of a step is put at the step's last token. Where that is outside of the mask, as at the end of a
        tool's answer, it is the last one before; steps that share it are one, with the lowest of their scores. A
        response that could not be scored (``prime.verifier.on_failure=zero``) has the score 0 for every step.

        Args:
            batch: the rollouts, rewarded by the manager ``naive_with_step_scores``.
            metrics: receives what there is to say.

        Raises:
            RuntimeError: the steps are those of another output of the agent loop.
        """
        rows = self.valid_B.nonzero()[:, 0].tolist()
        infos = transfer.fetch_reward_infos([batch.keys[row] for row in rows], batch.partition_id)
        self.process_reward_BT = torch.zeros_like(self.mask_BT)
        self.boundary_BT = torch.zeros_like(self.mask_BT, dtype=torch.bool)
        for row, info in zip(rows, infos, strict=True):
            if info["n_tokens"] != (n_tokens := batch.tags[row]["response_len"]):
                raise RuntimeError(
                    f"rollout {batch.keys[row]} has {n_tokens} tokens, and the step scorer read {info['n_tokens']}, as "
                    f"with agent loops of several outputs; use prime.process.scorer=implicit_prm"
                )
            end_S = torch.tensor(json.loads(info["step_ends"]), dtype=torch.long)
            score_S = torch.tensor(json.loads(info["step_scores"]) or [0.0] * len(end_S))
            if len(end_S):
                token_S = valid_ends(end_S, self.mask_BT[row])
                self.process_reward_BT[row].scatter_reduce_(0, token_S, score_S, "amin", include_self=False)
                self.boundary_BT[row, token_S] = True
        self.steps_timed_out = int(sum(info["steps_timed_out"] for info in infos))
        metrics.update(score_metrics(infos))
        self._measure_pay(metrics)

    def set_step_rewards(self, reward_BT: torch.Tensor, metrics: dict) -> None:
        """Take these rewards at the ends of steps as the process rewards of this step, and measure them."""
        self.process_reward_BT = reward_BT
        self._measure_pay(metrics)

    def _measure_pay(self, metrics: dict) -> None:
        pay_B = response_pay(self)
        self._measure_sums(pay_B, metrics)
        # What differs by the rounding of float32 is a tie.
        self.pairs_before = self._count_pairs(pay_B.round(decimals=6), self.group_B, metrics, "before")

    def _measure_sums(self, total_B: torch.Tensor, metrics: dict) -> None:
        """Log what the process rewards of responses sum to; given for all rows, padding included."""
        total_B, label_B = total_B[self.measured_B], self.label_B[self.measured_B]
        if not len(total_B):
            return
        metrics["prm/reward_sum/mean"] = float(total_B.mean())
        metrics["prm/reward_sum/std"] = float(total_B.std()) if len(total_B) > 1 else 0.0
        for name, rows_B in (("correct", label_B > 0.5), ("wrong", label_B <= 0.5)):
            if rows_B.any():
                metrics[f"prm/reward_sum/{name}"] = float(total_B[rows_B].mean())

    def measure_pairs(
        self, log_prob_BT: torch.Tensor, metrics: dict, when: str, mini_batch_B: torch.Tensor | None = None
    ) -> None:
        """Log how well these log-probabilities order the batch.

        Args:
            log_prob_BT: of the PRM.
            metrics: receives what there is to say.
            when: ``before``, ``during`` or ``after`` the update.
            mini_batch_B: of log-probabilities from training forward passes, in which mini-batch each row was. A prompt
                with missing rollouts may be spread over two of them, and the PRM has moved in between, on this very
                prompt: pairs over that gap do not count.
        """
        total_B = self._log_ratio(log_prob_BT).sum(-1)
        group_B = self.group_B if mini_batch_B is None else self.group_B * len(self.group_B) + mini_batch_B
        pairs = self._count_pairs(total_B, group_B, metrics, when)
        if self.measured_B.any():
            accuracy = absolute_accuracy(total_B[self.measured_B], self.label_B[self.measured_B])
            metrics[f"prm/absolute_accuracy/{when}_update"] = accuracy
        if when == "before":
            self.pairs_before = pairs

    def _count_pairs(self, score_B: torch.Tensor, group_B: torch.Tensor, metrics: dict, when: str) -> PairCount:
        """Pairs of scored responses of one group, and log the share that the scores order correctly."""
        rows_B = self.measured_B
        pairs = count_pairs(score_B[rows_B], self.label_B[rows_B], group_B[rows_B])
        if pairs.accuracy is not None:
            metrics[f"prm/pair_accuracy/{when}_update"] = pairs.accuracy
        return pairs

    def drop_inconsistent(self, metrics: dict) -> None:
        """Empty the masks of the rollouts that PROF leaves out, so that they take part in nothing from here on."""
        spans, selection = self.spans(), self.settings.selection
        if spans is None or self.process_reward_BT is None:
            raise RuntimeError("prime.selection needs the PRM's scores and the steps, which were not set")
        score_BS = sum_over_steps(self.process_reward_BT, spans)
        bounds = (selection.fewest_steps, selection.most_steps)
        consistency_B = process_consistency(score_BS, spans.mask_BS, self.label_B, selection.length_penalty, bounds)
        keep_B = select_consistent(consistency_B, self.label_B, self.group_B, self.valid_B, selection.remove)
        dropped_B = self.valid_B & ~keep_B
        metrics["prime/selection/dropped_correct"] = int((dropped_B & (self.label_B > 0.5)).sum())
        metrics["prime/selection/dropped_wrong"] = int((dropped_B & (self.label_B <= 0.5)).sum())
        metrics["prime/selection/consistency"] = float(consistency_B[self.valid_B].mean())
        self.mask_BT = self.mask_BT * keep_B[:, None]
        self.process_reward_BT = self.process_reward_BT * self.mask_BT
        self.valid_B = keep_B

    def advantages(
        self, gate: float, metrics: dict, scale: OutcomeRelativeScale | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Combined advantages and returns, ``(B, T)`` each, 0 outside the mask.

        Args:
            gate: factor on the coefficient of the process rewards.
            metrics: receives what there is to say.
            scale: the running scale of ``outcome_relative``; updated here.

        Returns:
            The advantages; and the critic's targets where there is a critic, else the advantages before whitening.

        Raises:
            NotFinite: an advantage is NaN or infinite.
        """
        sources = build_sources(self, gate, scale, metrics)
        advantage_BT, return_BT, per_source = combine_sources(
            sources, self.mask_BT, self.group_B, self.settings.whitening
        )
        if self.settings.critic_sources and self.value_BT is not None:
            return_BT = critic_return(self, sources)
        valid_BT = self.mask_BT.bool()
        if not advantage_BT[valid_BT].isfinite().all():
            self._report_not_finite({name: value_BT[valid_BT] for name, value_BT in per_source.items()}, metrics)
        if self.settings.scales_advantages and self.process_reward_BT is not None:
            advantage_BT = self._scaled(advantage_BT, self.settings.process.coefficient * gate, metrics)
        for name, value_BT in per_source.items():
            metrics[f"prime/{name}/return_std"] = float(value_BT[valid_BT].std())
        if {"outcome", "process"} <= per_source.keys() and metrics["prime/outcome/return_std"] > 0:
            ratio = metrics["prime/process/return_std"] / metrics["prime/outcome/return_std"]
            metrics["prime/process/return_std_over_outcome"] = ratio
        alone = (PromptGroups.of(self.group_B, self.valid_B).size_B == 1).sum()
        metrics["prime/rollouts_without_baseline"] = int(alone)
        if alone:
            logger.warning("%d rollouts are alone in their group: no baseline, no advantage", int(alone))
        return advantage_BT, return_BT

    def _scaled(self, advantage_BT: torch.Tensor, weight: float, metrics: dict) -> torch.Tensor:
        """The outcome's advantage times what the process rewards say of each token."""
        assert self.process_reward_BT is not None and self.settings.process.clip is not None
        scaled_BT = sign_preserving(
            advantage_BT, self.process_reward_BT, self.mask_BT, weight, self.settings.process.clip
        )
        change_N = ((scaled_BT - advantage_BT) / advantage_BT)[advantage_BT != 0]
        metrics["prime/process/advantage_change"] = float(change_N.abs().mean()) if len(change_N) else 0.0
        return scaled_BT
