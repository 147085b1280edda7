# SPDX-License-Identifier: Apache-2.0
"""PSPO-WRS on verl's V1 trainers, as a mixin that goes before one of them."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.debug import marked_timer

from prime_ext.algorithms.prompt_filter import FAILED, KEPT
from prime_ext.algorithms.steps import find_valid_ends
from prime_ext.config.asynchronous import get_base_mode
from prime_ext.config.checks import refuse
from prime_ext.config.engines import shard_over_all_ranks
from prime_ext.config.pspo_settings import PSPOSettings, read_pspo_sections
from prime_ext.methods.store import group_uid
from prime_ext.names import compares_rollouts
from prime_ext.preflight.machine import check_amount
from prime_ext.reward.pspo_info import FAILURE, pspo_metrics
from prime_ext.step.step_watch import ScoringFailed, StepWatch
from prime_ext.utils.files import read_json, write_json
from prime_ext.verl_adapter.guarded_run import GuardedRunMixin
from prime_ext.verl_adapter.prompt_filter_buffer import POLL_SECONDS
from prime_ext.verl_adapter.prompts import set_uids
from prime_ext.verl_adapter.rollout_losses import WARN_RATE, RolloutsLost
from prime_ext.verl_adapter.rollout_store import TransferQueueStore, clear, fetch_reward_infos

logger = logging.getLogger(__name__)

STATE_FILE = "prime_ext.json"


def token_rewards(
    info: Mapping[str, Any], mask_T: torch.Tensor, settings: PSPOSettings
) -> torch.Tensor:
    """Return the rewards of the policy's tokens, ``(T,)`` float32, which sum to the reward.

    The reward of a step that ends in a tool's answer is at the policy's last token before that. A
    response without a token of the policy has no rewards. ``info`` is the manager's extra info on
    all tokens. Raises ValueError if it is about another output of the agent loop.
    """
    n_tokens = len(mask_T)
    own_T = mask_T.bool()
    if info["n_tokens"] != n_tokens:
        raise ValueError(
            f"the steps of a response of {info['n_tokens']} tokens cannot be paid in one of"
            f" {n_tokens}, as of an agent loop with several outputs; set"
            " pspo.accumulation.reward_position=last_token"
        )
    reward_T = torch.zeros(n_tokens, dtype=torch.float64)
    if info[FAILURE] or not own_T.any():
        return reward_T.float()
    if settings.accumulation is not None and settings.accumulation.reward_position == "tokens":
        reward_T[own_T] = info["score"] / int(own_T.sum())
    else:
        end_S = find_valid_ends(
            torch.tensor(json.loads(info["step_ends"]), dtype=torch.long), own_T
        )
        # The rewards of steps that end at the same token are added.
        reward_T.index_add_(
            0, end_S, torch.tensor(json.loads(info["step_rewards"]), dtype=torch.float64)
        )
    return reward_T.float()


def find_scored_rows(
    uids: Sequence[str], infos: Sequence[Mapping[str, Any]], settings: PSPOSettings, compares: bool
) -> list[int]:
    """Return the rows of the responses to train on, by their prompts and the manager's extra info.

    If the estimator ``compares`` the responses to a prompt, the only one left of several is dropped
    too. Raises ScoringFailed: with ``stop`` for any failure; with ``drop`` if no response is left.
    """
    failed = [bool(info[FAILURE]) for info in infos]
    if not any(failed):
        return list(range(len(infos)))
    detail = next(info["failure_detail"] for info, lost in zip(infos, failed, strict=True) if lost)
    problem = (
        f"{sum(failed)} of {len(failed)} responses could not be scored, the first because of:"
        f" {detail}"
    )
    if settings.on_failure == "stop":
        raise ScoringFailed(f"{problem}; pspo.on_failure is stop")
    if sum(failed) / len(failed) > WARN_RATE:
        logger.warning("%s; pspo.on_failure=%s", problem, settings.on_failure)
    if settings.on_failure == "zero":
        return list(range(len(infos)))
    left = Counter(uid for uid, lost in zip(uids, failed, strict=True) if not lost)
    before = Counter(uids)
    alone = {uid for uid in left if compares and left[uid] == 1 < before[uid]}
    kept = [row for row, uid in enumerate(uids) if not failed[row] and uid not in alone]
    if not kept:
        raise ScoringFailed(f"no response is left to train on: {problem}")
    return kept


class PSPOTrainerMixin(GuardedRunMixin):
    """Mixin that gives a verl trainer the extra info of the reward manager ``pspo_wrs``.

    Responses without a reward leave the batch, rewards are paid at steps or tokens, and the extra
    info becomes metrics. Rows keep the order of the data; checkpoints hold the adaptive coefficient
    of the KL penalty.
    """

    _method = "PSPO-WRS"

    def __init__(self, config: DictConfig):
        self.pspo, _ = read_pspo_sections(config)
        with open_dict(config):
            # verl compares the mode with its names to distinguish synchronous from asynchronous.
            config.trainer.v1.trainer_mode = get_base_mode(config)
        shard_over_all_ranks(config)
        super().__init__(config)
        # The step in which prompts were last fetched, and their number.
        self._fetched = (0, 0)
        self._watch = StepWatch("pspo.steps", "pspo", self.pspo.steps.name)

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = POLL_SECONDS.get(self.config.trainer.device, buffer.poll_interval)
        return buffer

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        refuse(check_amount(self.config, len(self.train_dataset)))

    def _fetch_one_gen_batch(self) -> TensorDict:
        """Return the next prompts, with reproducible ids that sort as the prompts do."""
        prompts = super()._fetch_one_gen_batch()
        step, fetched = self._fetched
        if step != self.global_steps:
            step = self.global_steps
            fetched = 0
        self._fetched = (step, fetched + len(prompts))
        numbers = range(fetched, fetched + len(prompts))
        set_uids(prompts, [f"{step:06d}-{number:06d}" for number in numbers])
        return prompts

    def _save_more(self, folder: Path) -> None:
        if self.config.algorithm.use_kl_in_reward:
            write_json(folder / STATE_FILE, {"kl_coefficient": float(self.kl_ctrl_in_reward.value)})

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0 or not self.config.algorithm.use_kl_in_reward:
            return
        path = Path(self.config.trainer.resume_from_path) / STATE_FILE
        if path.exists():
            self.kl_ctrl_in_reward.value = read_json(path)["kl_coefficient"]
        else:
            logger.warning(
                "%s is missing: the KL coefficient starts from algorithm.kl_ctrl.kl_coef again",
                path,
            )

    def _check_steps(self, store: TransferQueueStore, infos: Sequence[Mapping[str, Any]]) -> None:
        """Warn if few responses have two steps; raise ``ScoringFailed`` if none has for long."""
        if self.pspo.zeroes_single_steps:
            self._watch.look([info["n_steps"] for info in infos], partial(self._decode, store))

    def _drop_incomplete(self, store: TransferQueueStore) -> TransferQueueStore:
        """Drop prompts with lost rollouts, which verl's synchronous buffer keeps in the batch."""
        lost = self._losses.incomplete[store.batch.partition_id]
        if not lost:
            return store
        rows = [row for row, key in enumerate(store.keys) if group_uid(key) not in lost]
        if not rows:
            raise RolloutsLost(self._losses.describe_step("every prompt has lost rollouts"))
        clear(sorted(set(store.keys) - {store.keys[row] for row in rows}), store.batch.partition_id)
        return store.select(rows)

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict, *args: Any, **keywords: Any
    ) -> KVBatchMeta:
        """Drop responses without a reward, place rewards, then balance and pad as verl does."""
        store = TransferQueueStore(batch)
        store = store.select(sorted(range(len(store)), key=store.keys.__getitem__))
        store = self._drop_incomplete(store)
        infos = fetch_reward_infos(store.keys, batch.partition_id)
        metrics.update(pspo_metrics(infos))
        self._check_steps(store, infos)
        uids = [group_uid(key) for key in store.keys]
        rows = find_scored_rows(
            uids, infos, self.pspo, compares_rollouts(self.config.algorithm.adv_estimator)
        )
        metrics["pspo/dropped"] = len(store) - len(rows)
        if len(rows) < len(store):
            every = set(store.keys)
            left = {uids[row] for row in rows}
            lost = store.select(sorted(set(range(len(store))) - set(rows)))
            decisions = [KEPT if group_uid(key) in left else FAILED for key in lost.keys]
            self._transcripts.add_removed(lost, decisions)
            store = store.select(rows)
            infos = [infos[row] for row in rows]
            clear(sorted(every - set(store.keys)), batch.partition_id)
        if self.pspo.pays_tokens:
            masks = store.fetch_rows("response_mask")["response_mask"]
            rewards = [
                token_rewards(info, mask_T, self.pspo)
                for info, mask_T in zip(infos, masks, strict=True)
            ]
            store.write(rm_scores=torch.nn.utils.rnn.pad_sequence(rewards, batch_first=True))
        return super()._balance_batch(store.batch, metrics, *args, **keywords)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Run verl's computation, and record transcripts."""
        batch = super()._compute_advantage(batch, metrics)
        with marked_timer("transcripts", self.timing_raw):
            self._transcripts.add_pspo(TransferQueueStore(batch))
        return batch
