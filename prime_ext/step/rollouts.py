# SPDX-License-Identifier: Apache-2.0
"""The rollouts of a training step, as they are in the store when the step begins."""

import logging
from typing import Any

import torch

from prime_ext.algorithms.returns import mark_last_token
from prime_ext.algorithms.steps import step_spans
from prime_ext.algorithms.turns import WrongNumberOfRewards, place_turn_rewards, turn_boundaries
from prime_ext.methods.rollouts import Rollouts, Steps, Turns
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.store import RolloutStore, read_label, reward_info, turn_rewards
from prime_ext.step_rm.response_cut import ResponseCutter

logger = logging.getLogger(__name__)


def load_rollouts(
    store: RolloutStore,
    settings: PrimeSettings,
    number: int = 1,
    kl_in_reward: bool = False,
    cutter: ResponseCutter | None = None,
) -> Rollouts:
    """Fetch the rollouts of step ``number``, with the fields that the settings need.

    ``kl_in_reward``: verl has put its KL penalty into the reward. ``cutter`` finds the steps of
    responses; None if no setting needs them.
    """
    needs = settings.needs
    needed = {
        "responses": cutter is not None,
        "values": bool(settings.critic_sources),
        "advantages": settings.outcome.of_verl,
        "old_log_probs": needs.old_log_probs,
        "loss_mask": needs.turns,
    }
    # The penalty belongs to the outcome, or to the process rewards if they alone count.
    penalizes_outcome = kl_in_reward and settings.outcome.coefficient > 0
    needed["token_level_rewards"] = kl_in_reward
    names = [name for name in needed if needed[name]]
    data = store.fetch("response_mask", "extra_fields", "rm_scores", *names)
    real = [not padding for padding in store.padding]
    extras = data["extra_fields"]
    mask_BT = data["response_mask"].float() * torch.tensor(real)[:, None]
    group_B = torch.tensor(store.groups)
    reward = data["token_level_rewards" if penalizes_outcome else "rm_scores"].float()
    reward_BT = _move_inside(reward, mask_BT)
    penalty_BT = None
    if kl_in_reward and not penalizes_outcome:
        penalty_BT = _move_inside(data["token_level_rewards"].float() - reward, mask_BT)
    rows = list(zip(store.keys, extras, real, strict=True))
    labels = [
        read_label(key, reward_info(key, extra), settings.label_key, needs.labels)
        if is_real
        else 0.0
        for key, extra, is_real in rows
    ]
    verl_names = {
        "value_BT": "values",
        "old_log_prob_BT": "old_log_probs",
        "advantage_BT": "advantages",
    }
    fields = {field: data[name].float() for field, name in verl_names.items() if name in data}
    steps = None if cutter is None else cut_steps(cutter, data["responses"], mask_BT)
    turns = None
    if needs.turns:
        turns = find_turns(store, settings, data["loss_mask"], mask_BT, extras)
        if settings.granularity == "turn":
            steps = Steps(step_spans(turns.end_BT, mask_BT))
    return Rollouts(
        store,
        extras,
        mask_BT,
        reward_BT,
        label_B=torch.tensor(labels),
        group_B=group_B,
        number=number,
        steps=steps,
        turns=turns,
        penalty_BT=penalty_BT,
        **fields,
    )


def cut_steps(cutter: ResponseCutter, token_BT: torch.Tensor, mask_BT: torch.Tensor) -> Steps:
    """Find the steps in the valid tokens of responses, which leave out the answers of tools."""
    boundary_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
    timed_out = 0
    for row, mask_T in enumerate(mask_BT.bool()):
        position_N = mask_T.nonzero()[:, 0]
        if len(position_N) == 0:
            continue
        cut = cutter.cut(token_BT[row, position_N].tolist())
        if cut.timed_out:
            timed_out += 1
            logger.warning(
                "the pattern of prime.steps took too long on a response of %d tokens: it is one"
                " step",
                len(position_N),
            )
        boundary_BT[row, position_N[list(cut.ends[:-1])]] = True
    return Steps(step_spans(boundary_BT, mask_BT), timed_out)


def find_turns(
    store: RolloutStore,
    settings: PrimeSettings,
    loss_mask_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    extras: list[Any],
) -> Turns:
    """Find the turns in verl's loss mask, which keeps rejected tokens, so that no turn is split."""
    valid_B = mask_BT.bool().any(-1)
    own_BT = loss_mask_BT.bool() & valid_B[:, None]
    end_BT = turn_boundaries(own_BT, mask_BT)
    if settings.turns is None:
        return Turns(end_BT)
    name = settings.turns.field
    rows = zip(store.keys, extras, valid_B.tolist(), strict=True)
    rewards = [turn_rewards(key, extra, name) if valid else [] for key, extra, valid in rows]
    try:
        return Turns(end_BT, place_turn_rewards(rewards, own_BT, mask_BT))
    except WrongNumberOfRewards as error:
        raise RuntimeError(
            f"rollout {store.keys[error.row]} has {error.problem} in {name}, which must be one for"
            " every turn, the last may be left out; let every tool return a number, and one tool"
            " be called in a turn"
        ) from error


def _move_inside(reward_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Move rewards outside the mask (last tool answer, rejected tokens) to the last valid token."""
    inside_BT = mask_BT.bool()
    last_BT = mark_last_token(mask_BT).bool()
    outside_B1 = torch.where(inside_BT, 0.0, reward_BT).sum(-1, keepdim=True)
    return torch.where(inside_BT, reward_BT, 0.0) + torch.where(last_BT, outside_B1, 0.0)
