# SPDX-License-Identifier: Apache-2.0
"""Check of the methods that pull the policy toward a model over the vocabulary. No torch."""

from collections.abc import Iterable

from omegaconf import DictConfig


def check_pull(config: DictConfig, name: str) -> Iterable[str]:
    """Check that the policy's loss has logits and equally packed targets; ``name`` is the choice.

    The targets are packed as the policy's rows are, in the same process.
    """
    policy = config.actor_rollout_ref
    if policy.actor.strategy not in ("fsdp", "fsdp2"):
        yield (
            f"{name} needs actor_rollout_ref.actor.strategy=fsdp or fsdp2, it is"
            f" {policy.actor.strategy}"
        )
    if policy.model.use_fused_kernels:
        yield (
            f"{name} needs its logits: actor_rollout_ref.model.use_fused_kernels=false (the PRM's"
            " may stay)"
        )
    if config.distillation.enabled:
        yield (
            f"{name} and verl's distillation.enabled=true both change the policy's loss; choose one"
        )
    if config.trainer.v1.trainer_mode == "prime_separate_async":
        yield (
            f"{name} needs trainer.v1.trainer_mode=prime_sync or prime_colocate_async, or choose"
            " variant=guarded"
        )
