# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The tensors of one PRIME step on the driver, and what is computed from them."""

import logging
from dataclasses import dataclass, field

import torch
from transfer_queue import KVBatchMeta

from prime_ext import transfer
from prime_ext.algorithms.advantage import RewardSource, combine_sources, last_token_mask
from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.leave_one_out import group_sizes
from prime_ext.algorithms.normalization import NORMALIZATIONS
from prime_ext.algorithms.prm_accuracy import absolute_accuracy, pair_accuracy
from prime_ext.settings import PrimeSettings

logger = logging.getLogger(__name__)

# Rounding of low precision can push the log-probability of a certain token slightly above zero.
_POSITIVE_LOG_PROB = 1e-2


@dataclass
class PrimeStep:
    """Rows are those of the batch, padding included; padding has an empty mask and takes part in nothing.

    Attributes:
        mask_BT: response mask.
        outcome_B: outcome reward, verl's KL penalty included when it is on.
        label_B: the verifier's verdict in [0, 1].
        group_B: number of the prompt; padding rows have numbers of their own.
        reference_log_prob_BT: the PRM's reference.
        process_reward_BT: r_t = beta * q_t, before normalisation.
        pair_accuracy_before: how the PRM ordered the pairs of this batch before it trained on them.
    """

    settings: PrimeSettings
    mask_BT: torch.Tensor
    outcome_B: torch.Tensor
    label_B: torch.Tensor
    group_B: torch.Tensor
    valid_B: torch.Tensor
    reference_log_prob_BT: torch.Tensor | None = None
    process_reward_BT: torch.Tensor | None = None
    pair_accuracy_before: float | None = field(default=None)

    @classmethod
    def load(cls, batch: KVBatchMeta, settings: PrimeSettings, kl_in_reward: bool) -> "PrimeStep":
        """Fetch the batch from the store of rollouts."""
        reward_field = "token_level_rewards" if kl_in_reward else "rm_scores"
        data = transfer.fetch_padded(batch, ["response_mask", reward_field])
        padding = [transfer.is_padding(tag) for tag in batch.tags]
        real_keys = [key for key, skip in zip(batch.keys, padding, strict=True) if not skip]
        label_B = torch.zeros(len(batch))
        valid_B = torch.tensor([not skip for skip in padding])
        label_B[valid_B] = torch.tensor(transfer.fetch_labels(real_keys, batch.partition_id, settings.label_key))
        number: dict[str, int] = {}
        group_B = torch.tensor([number.setdefault(transfer.group_uid(key), len(number)) for key in batch.keys])
        return cls(
            settings=settings,
            mask_BT=data["response_mask"].float() * valid_B[:, None],
            outcome_B=data[reward_field].float().sum(-1),
            label_B=label_B,
            group_B=group_B,
            valid_B=valid_B,
        )

    def _log_ratio(self, log_prob_BT: torch.Tensor) -> torch.Tensor:
        if self.reference_log_prob_BT is None:
            raise RuntimeError("the PRM was scored before its reference")
        return log_ratio(log_prob_BT, self.reference_log_prob_BT, self.mask_BT)

    def score_sum(self, log_prob_BT: torch.Tensor) -> torch.Tensor:
        """Summed log-ratio of each response."""
        return self._log_ratio(log_prob_BT).sum(-1)

    def set_scores(self, log_prob_BT: torch.Tensor, beta: float, metrics: dict, when: str) -> None:
        """Take the PRM's log-probabilities as the process rewards of this step."""
        highest = float(log_prob_BT.masked_fill(~self.mask_BT.bool(), 0.0).max())
        if highest > _POSITIVE_LOG_PROB or not torch.isfinite(log_prob_BT[self.mask_BT.bool()]).all():
            logger.warning("log-probabilities of the PRM are not in (-inf, 0]: the highest is %s", highest)
        ratio_BT = self._log_ratio(log_prob_BT)
        self.process_reward_BT = process_rewards(ratio_BT, beta)
        total_B = self.process_reward_BT.sum(-1)[self.valid_B]
        label_B = self.label_B[self.valid_B]
        metrics["prm/reward_sum/mean"] = float(total_B.mean())
        metrics["prm/reward_sum/std"] = float(total_B.std()) if len(total_B) > 1 else 0.0
        for name, rows_B in (("correct", label_B > 0.5), ("wrong", label_B <= 0.5)):
            if rows_B.any():
                metrics[f"prm/reward_sum/{name}"] = float(total_B[rows_B].mean())
        self.measure_pairs(log_prob_BT, metrics, when)

    def measure_pairs(self, log_prob_BT: torch.Tensor, metrics: dict, when: str) -> None:
        """Log how well these log-probabilities order the batch; ``when`` is ``before`` or ``after`` the update."""
        total_B = self._log_ratio(log_prob_BT).sum(-1)[self.valid_B]
        label_B, group_B = self.label_B[self.valid_B], self.group_B[self.valid_B]
        accuracy = pair_accuracy(total_B, label_B, group_B)
        if accuracy is not None:
            metrics[f"prm/pair_accuracy/{when}_update"] = accuracy
        metrics[f"prm/absolute_accuracy/{when}_update"] = absolute_accuracy(total_B, label_B)
        if when == "before":
            self.pair_accuracy_before = accuracy

    def sources(self, gate: float, metrics: dict) -> dict[str, RewardSource]:
        """The reward sources with their coefficients; the process source is normalised over the global batch."""
        outcome, process = self.settings.outcome, self.settings.process
        last_BT = last_token_mask(self.mask_BT)
        sources = {
            "outcome": RewardSource(
                self.outcome_B[:, None] * last_BT,
                last_BT,
                outcome.coefficient,
                outcome.discount,
                process.baseline,
                outcome.estimator,
                lone="zero",
            )
        }
        if process.coefficient > 0 and self.process_reward_BT is not None:
            normalize = NORMALIZATIONS[process.normalization]
            reward_BT, normalizer = normalize(self.process_reward_BT, self.mask_BT, process.discount)
            metrics["prime/process/normalizer"] = float(normalizer)
            sources["process"] = RewardSource(
                reward_BT,
                self.mask_BT,
                process.coefficient * gate,
                process.discount,
                process.baseline,
                process.estimator,
                lone="zero",
            )
        return sources

    def advantages(self, gate: float, metrics: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """Combined advantages and returns, ``(B, T)`` each, 0 outside the mask."""
        sources = self.sources(gate, metrics)
        advantage_BT, return_BT, per_source = combine_sources(
            sources, self.mask_BT, self.group_B, self.settings.whitening
        )
        valid_BT = self.mask_BT.bool()
        for name, value_BT in per_source.items():
            metrics[f"prime/{name}/return_std"] = float(value_BT[valid_BT].std())
        if {"outcome", "process"} <= per_source.keys() and metrics["prime/outcome/return_std"] > 0:
            ratio = metrics["prime/process/return_std"] / metrics["prime/outcome/return_std"]
            metrics["prime/process/return_std_over_outcome"] = ratio
        alone = (group_sizes(self.group_B, self.valid_B) == 1).sum()
        metrics["prime/rollouts_without_baseline"] = int(alone)
        if alone:
            logger.warning("%d rollouts are alone in their group: no baseline, no advantage", int(alone))
        return advantage_BT, return_BT
