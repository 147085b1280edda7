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
"""The rollouts that the PRM is trained on in a step: the batch of the policy, and others that only the PRM sees."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transfer_queue import KVBatchMeta

from prime_ext import transfer
from prime_ext.algorithms.implicit_reward import log_ratio
from prime_ext.prm.worker import INPUT_FIELDS, PRM_LOG_PROBS, REFERENCE_LOG_PROBS
from prime_ext.trainer.prime_step import PrimeStep


@dataclass
class PRMRows:
    """Rows of an update of the PRM, padding included.

    Attributes:
        batch: those of the step's batch come first, in its order.
        label_B: outcome in [0, 1].
        group_B: number of the prompt; padding rows have numbers of their own.
        valid_B: False for padding.
        added: keys of the rows that are no part of the step's batch; whoever is done with them clears them.
    """

    batch: KVBatchMeta
    label_B: torch.Tensor
    group_B: torch.Tensor
    valid_B: torch.Tensor
    added: list[str] = field(default_factory=list)

    @classmethod
    def of_step(cls, step: PrimeStep, batch: KVBatchMeta) -> "PRMRows":
        """The step's batch and nothing else."""
        return cls(batch, step.label_B, step.group_B, step.valid_B)

    def plus(self, more: KVBatchMeta, labels: Sequence[float], multiple: int, end_token: int) -> "PRMRows":
        """These rows and some more of other prompts, padded to a multiple of so many.

        Args:
            more: rollouts in the same partition of the store; they need none but the fields of a rollout.
            labels: their outcomes.
            multiple: rows of a mini-batch.
            end_token: what padding is made of.
        """
        joined = transfer.joined(self.batch, more, INPUT_FIELDS)
        padded = transfer.padded(joined, multiple, end_token)
        filled = len(padded) - len(joined)
        number = {group: place for place, group in enumerate(dict.fromkeys(map(transfer.group_uid, more.keys)))}
        first = int(self.group_B.max()) + 1
        groups = [first + number[transfer.group_uid(key)] for key in more.keys]
        padding = [first + len(number) + place for place in range(filled)]
        return PRMRows(
            padded,
            torch.cat((self.label_B, torch.tensor(labels), torch.zeros(filled))),
            torch.cat((self.group_B, torch.tensor([*groups, *padding]))),
            torch.cat((self.valid_B, torch.arange(len(more) + filled) < len(more))),
            [*self.added, *padded.keys[len(self.batch) :]],
        )

    def score_sum(self) -> torch.Tensor:
        """Summed log-ratio of each row, from the last pass that scored it."""
        data = transfer.fetch_padded(self.batch, [PRM_LOG_PROBS, REFERENCE_LOG_PROBS, "response_mask"])
        mask_BT = data["response_mask"].float() * self.valid_B[:, None]
        return log_ratio(data[PRM_LOG_PROBS], data[REFERENCE_LOG_PROBS], mask_BT).sum(-1)

    def clear(self) -> None:
        """Forget the rows that are no part of the step's batch."""
        if self.added:
            transfer.clear(self.added, self.batch.partition_id)
