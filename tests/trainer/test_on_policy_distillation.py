# SPDX-License-Identifier: Apache-2.0
"""A teacher as the scorer: the same gradient as verl's own distillation, and what is made of its log-ratios."""

from functools import partial

import pytest
import torch
from small_batch import settings
from tensordict import TensorDict
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.utils import tensordict_utils as tu
from verl.workers.config import DistillationConfig, DistillationLossConfig, FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from prime_ext.config.variant import keys_of
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.reward_sources import advantages

PROMPTS, RESPONSES = (2, 3, 1, 2), (4, 1, 3, 4)
MASKS = ([1, 1, 0, 1], [1], [1, 1, 1], [0, 1, 1, 1])


def step_of(options, **tensors):
    rows, width = len(MASKS), max(RESPONSES)
    mask_BT = torch.zeros(rows, width)
    for row, mask in enumerate(MASKS):
        mask_BT[row, : len(mask)] = torch.tensor(mask, dtype=torch.float32)
    label_B = torch.tensor([1.0, 0.0, 1.0, 0.0])
    reward_BT = torch.zeros(rows, width)
    for row, mask in enumerate(MASKS):
        reward_BT[row, len(mask) - 1] = label_B[row]
    group_B, valid_B = torch.tensor([0, 0, 1, 1]), torch.ones(rows, dtype=torch.bool)
    return PrimeStep(options, mask_BT, reward_BT, label_B, group_B, valid_B, **tensors)


def log_probs(seed):
    generator = torch.Generator().manual_seed(seed)
    return -torch.rand(len(MASKS), max(RESPONSES), generator=generator) * 3


def distillation_settings(**changes):
    keys = keys_of("on_policy_distillation")
    prime = {key[len("prime.") :].replace(".", "__"): value for key, value in keys.items() if key.startswith("prime.")}
    return settings(**{**prime, **changes})


def scored(options, teacher_BT, policy_BT):
    step = step_of(options, old_log_prob_BT=policy_BT, reference_log_prob_BT=policy_BT)
    step.set_scores(teacher_BT, 1.0)
    return step


def whole_sequences(response_BT, column=False):
    """A model's output: the value of a response token stands at the token before it."""
    rows = []
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        value_S = torch.cat([response_BT.new_zeros(prompt - 1), response_BT[row, :response], response_BT.new_zeros(1)])
        rows.append(value_S[:, None] if column else value_S)
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def gradient(loss, data, policy_BT):
    log_prob_BT = policy_BT.clone().requires_grad_()
    value, _ = loss({"log_probs": whole_sequences(log_prob_BT)}, data)
    value.backward()
    return float(value.detach()), log_prob_BT.grad


def nested(rows):
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def responses(value_BT):
    return nested([value_BT[row, :length] for row, length in enumerate(RESPONSES)])


def test_value_and_gradient_are_those_of_verls_distillation():
    policy_BT, teacher_BT = log_probs(0), log_probs(1)
    step = scored(distillation_settings(), teacher_BT, policy_BT)
    advantage_BT, _ = advantages(step, 1.0)
    data = TensorDict(
        {
            "prompts": nested([torch.ones(length, dtype=torch.long) for length in PROMPTS]),
            "responses": nested([torch.ones(length, dtype=torch.long) for length in RESPONSES]),
            "response_mask": nested(MASKS),
            "old_log_probs": responses(policy_BT),
            "advantages": responses(advantage_BT),
            "teacher_logprobs": whole_sequences(teacher_BT, column=True),
        },
        batch_size=len(MASKS),
    )
    sizes = {"dp_size": 1, "batch_num_tokens": int(step.mask_BT.sum()), "global_batch_size": len(MASKS)}
    tu.assign_non_tensor(data, **sizes)
    actor = FSDPActorConfig(strategy="fsdp2", rollout_n=2, ppo_micro_batch_size_per_gpu=1, use_dynamic_bsz=True)
    k1 = DistillationLossConfig(
        loss_mode="k1", use_policy_gradient=True, use_task_rewards=False, loss_max_clamp=None, log_prob_min_clamp=None
    )
    theirs = gradient(partial(distillation_ppo_loss, actor, DistillationConfig(distillation_loss=k1)), data, policy_BT)
    ours = gradient(partial(ppo_loss, actor), data, policy_BT)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    torch.testing.assert_close(ours[1], theirs[1])
    assert ours[1].abs().sum() > 0


def test_the_outcome_may_be_added_and_the_ratio_extrapolated():
    policy_BT, teacher_BT, base_BT = log_probs(0), log_probs(1), log_probs(2)
    alone, _ = advantages(scored(distillation_settings(), teacher_BT, policy_BT), 1.0)
    both, _ = advantages(scored(distillation_settings(outcome__coefficient=1.0), teacher_BT, policy_BT), 1.0)
    outcome, _ = advantages(step_of(settings(process__coefficient=0.0, whitening=False)), 1.0)
    torch.testing.assert_close(both, alone + outcome)
    # G-OPD: c * log(pi_T / pi_ref) with c > 1 is prm.beta.
    step = step_of(distillation_settings(process__target="reference"), reference_log_prob_BT=base_BT)
    step.set_scores(teacher_BT, 1.25)
    extrapolated, _ = advantages(step, 1.0)
    torch.testing.assert_close(extrapolated, 1.25 * (teacher_BT - base_BT) * step.mask_BT)
