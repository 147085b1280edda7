# SPDX-License-Identifier: Apache-2.0
"""What prime_ext's trainers make of the extra info of the reward manager ``pspo_wrs``: rewards at tokens, and which
responses count."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from prime_ext.config.pspo_settings import PSPOSettings
from prime_ext.reward.pspo_info import FAILURE

logger = logging.getLogger(__name__)


class ScoringFailed(RuntimeError):
    """Responses could not be scored, and ``pspo.on_failure`` or their number ends the run."""


def token_rewards(info: Mapping[str, Any], n_tokens: int, settings: PSPOSettings) -> torch.Tensor:
    """Rewards at the tokens of a response, ``(n_tokens,)`` float32; they sum to its reward.

    Args:
        info: extra info of the manager.
        n_tokens: tokens of the response as the trainer has it.
        settings: the section ``pspo``.

    Raises:
        ValueError: the info is about another output of the agent loop.
    """
    if info["n_tokens"] != n_tokens:
        raise ValueError(
            f"the steps of a response of {info['n_tokens']} tokens cannot be paid in one of {n_tokens}, as of an agent "
            f"loop with several outputs; set pspo.accumulation.place=last_token"
        )
    reward_T = torch.zeros(n_tokens, dtype=torch.float64)
    if info[FAILURE]:
        return reward_T.float()
    if settings.accumulation.mode != "none" and settings.accumulation.place == "tokens":
        reward_T += info["chain_reward"] / n_tokens
    else:
        ends, paid = json.loads(info["step_ends"]), json.loads(info["step_rewards"])
        # Steps that share their only token are both paid there.
        reward_T.index_add_(0, torch.tensor(ends, dtype=torch.long), torch.tensor(paid, dtype=torch.float64))
    reward_T[-1] += info["outcome_reward"]
    return reward_T.float()


def scored_rows(
    uids: Sequence[str], infos: Sequence[Mapping[str, Any]], settings: PSPOSettings, compares: bool
) -> list[int]:
    """Numbers of the responses that are trained on.

    Args:
        uids: prompt of each response.
        infos: extra info of the manager.
        settings: the section ``pspo``.
        compares: the estimator compares the responses to a prompt, so one whose companions were all dropped leaves too.

    Raises:
        ScoringFailed: with ``stop`` any failure; with ``drop`` if no response is left.
    """
    failed = [bool(info[FAILURE]) for info in infos]
    if not any(failed):
        return list(range(len(infos)))
    detail = next(info["failure_detail"] for info, lost in zip(infos, failed, strict=True) if lost)
    problem = f"{sum(failed)} of {len(failed)} responses could not be scored, the first because of: {detail}"
    if settings.on_failure == "stop":
        raise ScoringFailed(f"{problem}; pspo.on_failure is stop")
    if sum(failed) / len(failed) > settings.warn_rate:
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
