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
"""PSPO-WRS on verl's V1 trainers, as a mixin that goes before one of them."""

from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from prime_ext import transfer
from prime_ext.compat import check_verl
from prime_ext.preflight_pspo import check_pspo_config
from prime_ext.pspo_settings import GROUP_ESTIMATORS, sections_of
from prime_ext.reward.pspo_info import pspo_metrics
from prime_ext.settings import SettingsError
from prime_ext.trainer.guarded_run import GuardedRunMixin
from prime_ext.trainer.pspo_batch import scored_rows, token_rewards
from prime_ext.trainer.sharding import shard_over_all_ranks

# verl looks for finished rollouts every two seconds; small models on a CPU have finished long before.
CPU_POLL_SECONDS = 0.05


class PSPOTrainerMixin(GuardedRunMixin):
    """Adds to a verl trainer what the reward manager ``pspo_wrs`` knows beside one number for each response.

    Responses without a reward leave the batch, rewards are paid at steps or tokens, and what the manager saw becomes
    metrics of the step. Everything else, estimators included, is verl's. A subclass names in ``base_mode`` the verl
    mode it builds on.
    """

    base_mode: str

    def __init__(self, config: DictConfig):
        problems = [*check_verl(), *check_pspo_config(config)]
        if problems:
            raise SettingsError("; ".join(problems))
        self.pspo, _ = sections_of(config)
        with open_dict(config):
            # verl compares the mode with its own names to decide between synchronous and asynchronous behaviour.
            config.trainer.v1.trainer_mode = self.base_mode
        shard_over_all_ranks(config)
        super().__init__(config)

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        if self.config.trainer.device == "cpu":
            buffer.poll_interval = CPU_POLL_SECONDS
        return buffer

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args: Any, **keywords: Any) -> KVBatchMeta:
        """verl's balancing, which also fills up the batch, of the responses that count."""
        infos = transfer.fetch_reward_infos(batch.keys, batch.partition_id)
        metrics.update(pspo_metrics(infos))
        uids = [transfer.group_uid(key) for key in batch.keys]
        compares = self.config.algorithm.adv_estimator in GROUP_ESTIMATORS
        rows = scored_rows(uids, infos, self.pspo, compares)
        metrics["pspo/dropped"] = len(batch) - len(rows)
        if len(rows) < len(batch):
            kept = set(rows)
            transfer.clear([key for row, key in enumerate(batch.keys) if row not in kept], batch.partition_id)
            batch = transfer.select(batch, rows)
            infos = [infos[row] for row in rows]
        if self.pspo.pays_tokens:
            lengths = [tag["response_len"] for tag in batch.tags]
            reward_BT = torch.nn.utils.rnn.pad_sequence(
                [token_rewards(info, length, self.pspo) for info, length in zip(infos, lengths, strict=True)],
                batch_first=True,
            )
            transfer.put_tokens(batch, {"rm_scores": reward_BT})
        return super()._balance_batch(batch, metrics, *args, **keywords)
