# SPDX-License-Identifier: Apache-2.0
"""A teacher as the scorer: the same loss and gradient as verl's own distillation."""

from functools import partial

import pytest
import torch
from small_batch import Case, scored_as, settings
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.utils import tensordict_utils as tu
from verl.workers.config import DistillationConfig, DistillationLossConfig, FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from prime_ext.methods.changed_keys import read_keys
from prime_ext.methods.rollouts import Rollouts
from prime_ext.verl_adapter.rollout_store import TransferQueueStore

PROMPTS = (2, 3, 1, 2)
MASKS = ([1, 1, 0, 1], [1], [1, 1, 1], [0, 1, 1, 1])
KEYS = {
    key.removeprefix("prime.").replace(".", "__"): value
    for key, value in read_keys("on_policy_distillation").items()
}
VARIANT = {key: value for key, value in KEYS.items() if not key.startswith("prm__")}


def get_case(teacher_BT, reference_BT, policy_BT=None, beta=1.0, **changes):
    """Return two prompts with two responses each, the first of them right."""
    mask_BT = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(mask).float() for mask in MASKS], batch_first=True
    )
    reward_BT = torch.zeros_like(mask_BT)
    label_B = torch.tensor([1.0, 0.0, 1.0, 0.0])
    reward_BT[torch.arange(4), torch.tensor([len(mask) - 1 for mask in MASKS])] = label_B
    nobody = TransferQueueStore(KVBatchMeta())
    group_B = torch.tensor([0, 0, 1, 1])
    rollouts = Rollouts(nobody, [], mask_BT, reward_BT, label_B, group_B, old_log_prob_BT=policy_BT)
    options = settings(**VARIANT | changes)
    return Case(rollouts, scored_as(rollouts, options, teacher_BT, reference_BT, beta), options)


def log_probs(seed):
    return -torch.rand(4, 4, generator=torch.Generator().manual_seed(seed)) * 3


def nested(rows):
    return torch.nested.as_nested_tensor(
        [torch.as_tensor(row) for row in rows], layout=torch.jagged
    )


def responses(value_BT):
    return nested([value_T[: len(mask)] for value_T, mask in zip(value_BT, MASKS, strict=True)])


def whole_sequences(value_BT):
    """Return values as a model's output: that of a response token is at the token before it."""
    rows = zip(value_BT, PROMPTS, MASKS, strict=True)
    return nested(
        [torch.nn.functional.pad(row[: len(mask)], (prompt - 1, 1)) for row, prompt, mask in rows]
    )


def gradient(loss, data, policy_BT):
    log_prob_BT = policy_BT.clone().requires_grad_()
    value, _ = loss({"log_probs": whole_sequences(log_prob_BT)}, data)
    value.backward()
    return float(value.detach()), log_prob_BT.grad


def test_value_and_gradient_are_those_of_verls_distillation():
    policy_BT = log_probs(0)
    teacher_BT = log_probs(1)
    case = get_case(teacher_BT, policy_BT, policy_BT)
    advantage_BT = case.step().advantage_BT
    data = TensorDict(
        {
            "prompts": nested([torch.ones(length, dtype=torch.long) for length in PROMPTS]),
            "responses": nested([torch.ones(len(mask), dtype=torch.long) for mask in MASKS]),
            "response_mask": nested(MASKS),
            "old_log_probs": responses(policy_BT),
            "advantages": responses(advantage_BT),
            "teacher_logprobs": nested(
                [row[:, None] for row in whole_sequences(teacher_BT).unbind()]
            ),
        },
        batch_size=len(MASKS),
    )
    tu.assign_non_tensor(
        data,
        dp_size=1,
        batch_num_tokens=int(case.rollouts.mask_BT.sum()),
        global_batch_size=len(MASKS),
    )
    actor = FSDPActorConfig(
        strategy="fsdp2", rollout_n=2, ppo_micro_batch_size_per_gpu=1, use_dynamic_bsz=True
    )
    k1 = DistillationLossConfig(
        loss_mode="k1",
        use_policy_gradient=True,
        use_task_rewards=False,
        loss_max_clamp=None,
        log_prob_min_clamp=None,
    )
    theirs = gradient(
        partial(distillation_ppo_loss, actor, DistillationConfig(distillation_loss=k1)),
        data,
        policy_BT,
    )
    ours = gradient(partial(ppo_loss, actor), data, policy_BT)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    torch.testing.assert_close(ours[1], theirs[1])
    assert ours[1].abs().sum() > 0


def test_the_ratio_may_be_extrapolated():
    """G-OPD: c * log(pi_T / pi_ref) with c > 1 is prm.beta."""
    case = get_case(log_probs(1), log_probs(2), beta=1.25, process__target="reference")
    expected_BT = 1.25 * (log_probs(1) - log_probs(2)) * case.rollouts.mask_BT
    torch.testing.assert_close(case.step().advantage_BT, expected_BT)
