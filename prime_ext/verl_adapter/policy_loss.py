# SPDX-License-Identifier: Apache-2.0
"""verl's policy loss plus a pull, over the full vocabulary, toward models of the same process.

    L = L_PPO + sum_j c_j * KL(pi_theta || target_j)

The targets are the implicit PRM and the running average of the policy's weights. Their forward
passes run inside the policy's micro-batch, so that nothing as wide as the vocabulary is stored or
sent. The divergences are averaged over tokens as the policy loss is (``actor.loss_agg_mode``).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine_workers import ActorRolloutRefWorker

from prime_ext.algorithms.distillation import log_probs_and_reverse_kl
from prime_ext.prm.loss import pad_responses
from prime_ext.verl_adapter.patches import engine_workers
from prime_ext.verl_adapter.worker_engines import get_engine, register_engine

# Option of an update of the policy: the coefficient of each target, by the role of its engine.
COEFFICIENTS = "prime_target_coefficients"


class TargetedPolicyLoss:
    """A loss that verl's engines call twice per micro-batch: with logits, then with its own result.

    ``policy_loss`` is verl's, a partial of ``ppo_loss`` with the actor's configuration.
    """

    def __init__(self, policy_loss: partial):
        self.policy_loss = policy_loss

    def __call__(
        self,
        model_output: dict | None = None,
        data: TensorDict | None = None,
        dp_group: object = None,
        student_logits: torch.Tensor | None = None,
    ) -> Any:
        """Return values per token from ``student_logits``; otherwise the loss and its metrics."""
        assert data is not None
        if student_logits is not None:
            return self._compute_per_token(student_logits, data)
        assert model_output is not None
        loss, metrics = self.policy_loss(model_output=model_output, data=data, dp_group=dp_group)
        config = self.policy_loss.keywords["config"]
        mask_BT = data["response_mask"].to_padded_tensor(0)
        for role, coefficient in get_targets(data).items():
            kl_BT = pad_responses(model_output[f"kl_{role}"], data["responses"])
            kl = agg_loss(kl_BT, mask_BT.bool(), config.loss_agg_mode, **config.global_batch_info)
            loss = loss + coefficient * kl
            metrics[f"kl_to_{role}"] = Metric(value=kl.detach(), aggregation=AggregationType.SUM)
        return loss, metrics

    def _compute_per_token(
        self, logits_1NV: torch.Tensor, data: TensorDict
    ) -> dict[str, torch.Tensor]:
        logits_NV = logits_1NV[0]
        roles = get_targets(data)
        with torch.autocast(logits_NV.device.type, enabled=False):
            targets, tokens = zip(*(target_logits(role, data) for role in roles), strict=True)
            fused = self.policy_loss.keywords["config"].use_torch_compile
            log_prob_N, kl_NJ = log_probs_and_reverse_kl(logits_NV, tokens[0], targets, fused=fused)
        named = zip(roles, kl_NJ.unbind(-1), strict=True)
        return {"log_probs": log_prob_N[None], **{f"kl_{role}": kl_N[None] for role, kl_N in named}}


def get_targets(data: TensorDict) -> dict[str, float]:
    """Return the coefficient of each target of this update whose coefficient is above 0."""
    return {
        role: value for role, value in (tu.get(data, key=COEFFICIENTS) or {}).items() if value > 0.0
    }


@torch.no_grad()
def target_logits(role: str, data: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a target's logits for the policy's micro-batch, and the next tokens.

    The logits are divided by the temperature. Both cover this rank's tokens, ``(N, V)`` and
    ``(N,)``, in the order in which verl's engine packs the policy's.
    """
    engine = get_engine(role)
    batch = data.copy()
    options = {"use_fused_kernels": False, "calculate_entropy": False}
    options["use_remove_padding"] = engine.engine_config.use_remove_padding
    # These options make verl pass logits to a function and compute nothing from them.
    tu.assign_non_tensor(batch, distillation_use_topk=True, distillation_only=True, **options)
    taken: list[torch.Tensor] = []

    def take(student_logits: torch.Tensor, data: TensorDict) -> dict[str, torch.Tensor]:
        taken.append(student_logits[0])
        return {}

    dtype = getattr(engine, "_autocast_dtype", torch.bfloat16)
    with engine.eval_mode(disable_auto_offload=True):
        inputs, arguments = engine.prepare_model_inputs(micro_batch=batch)
        with torch.autocast(get_device_name(), dtype=dtype, enabled=dtype != torch.float32):
            output = engine.module(**inputs, use_cache=False)
            engine.prepare_model_outputs(output, arguments, batch, logits_processor_func=take)
    return taken[0], arguments["input_ids_rmpad_rolled"].long()


@contextmanager
def prepare_targets(data: TensorDict) -> Iterator[None]:
    """Give the loss logits, and keep offloaded targets on the device, during an update.

    The loss gets logits only where ``data`` has targets. Targets move once for a whole update, not
    for every micro-batch.
    """
    if roles := get_targets(data):
        # With these options verl's engine passes logits to the loss.
        tu.assign_non_tensor(data, distillation_use_topk=True, distillation_only=True)
    weights = {"model": True, "optimizer": False, "grad": False}
    with ExitStack() as stack:
        for role in roles:
            engine = get_engine(role)
            if engine.is_param_offload_enabled:
                engine.to(get_device_name(), **weights)
                stack.callback(engine.to, "cpu", **weights)
        yield


def install_targets(worker: ActorRolloutRefWorker) -> DataProto:
    """Add the targets to the policy's updates; runs in verl's actor worker."""
    actor = worker.actor
    register_engine("policy", actor.engine)
    actor.set_loss_fn(TargetedPolicyLoss(actor.loss_fn))
    engine_workers.apply(actor, prepare_targets)
    return DataProto()
