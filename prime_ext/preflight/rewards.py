# SPDX-License-Identifier: Apache-2.0
"""Checks of how rewards become advantages, against the rest of the configuration. One line per problem."""

from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.reward_settings import GROUP_ESTIMATORS, OutcomeSettings, ProcessSettings
from prime_ext.config.settings import PrimeSettings, PRMSettings

DEFAULTS = Path(__file__).parents[1] / "config" / "prime" / "prime.yaml"
# Keys of prime.process that shape the rewards of sampled tokens.
OF_SAMPLED = (
    "clip",
    "reward_lambda",
    "redistribution",
    "normalization",
    "noise_per_token",
    "discount",
    "estimator",
    "trace",
    "baseline",
)


def check_rewards(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> Iterable[str]:
    """Whether everything is there that the chosen rewards and estimators read."""
    outcome, process = prime.outcome, prime.process
    if process.coefficient > 0 and not prm.enable:
        yield "prime.process.coefficient > 0 needs prm.enable=true; set the coefficient to 0 for outcome-only training"
    if prime.outcome_reads_prm and not prm.enable:
        yield f"prime.outcome.estimator={outcome.estimator} reads the PRM and needs prm.enable=true"
    if outcome.estimator == "segment" and prm.enable and prm.loss != "ce":
        yield (
            f"prime.outcome.estimator=segment reads sigmoid(beta * summed log-ratio) as a probability, which "
            f"prm.loss={prm.loss} does not train it to be; use prm.loss=ce"
        )
    if process.reliability_gate and not (prm.enable and outcome.coefficient > 0):
        yield "prime.process.reliability_gate=true needs prm.enable=true and prime.outcome.coefficient > 0"
    if process.warm_up_steps and outcome.coefficient == 0:
        yield "prime.process.warm_up_steps > 0 needs prime.outcome.coefficient > 0: nothing would be learned meanwhile"
    remove, n_rollouts = prime.selection.remove, config.actor_rollout_ref.rollout.n
    if remove and not prm.enable:
        yield f"prime.selection.remove={remove} reads the PRM and needs prm.enable=true"
    if remove and remove >= n_rollouts - 1:
        yield (
            f"prime.selection.remove={remove} leaves fewer than 2 of actor_rollout_ref.rollout.n={n_rollouts} rollouts "
            f"to compare; lower it"
        )
    sampler = config.trainer.v1.sampler.custom_sampler
    if prime.needs_greedy and sampler.path and sampler.name:
        yield "prime.outcome.estimator=remax needs the trainer's own sampler; unset trainer.v1.sampler.custom_sampler"
    if prime.needs_greedy and config.trainer.v1.trainer_mode != "prime_sync":
        yield "prime.outcome.estimator=remax needs rollouts of one policy version: trainer.v1.trainer_mode=prime_sync"
    yield from _check_rollouts_per_prompt(config.actor_rollout_ref.rollout.n, prime)
    yield from _check_targets(config, prime, prm)


def _check_targets(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> Iterable[str]:
    """What a pull over the whole vocabulary needs: logits of the policy, and targets that pack tokens as it does."""
    named = {"prime.process.form=kl": prime.distils, f"prime.anchor.kind={prime.anchor.kind}": prime.anchor.enable}
    wanting = [name for name, wants in named.items() if wants]
    if not wanting:
        return
    name, policy = wanting[0], config.actor_rollout_ref
    if policy.actor.strategy not in ("fsdp", "fsdp2"):
        yield f"{name} needs actor_rollout_ref.actor.strategy=fsdp or fsdp2, it is {policy.actor.strategy}"
    if policy.model.use_fused_kernels:
        yield (
            f"{name} compares distributions over the vocabulary, and fused kernels of the policy give none; set "
            f"actor_rollout_ref.model.use_fused_kernels=false (prm.model.use_fused_kernels may stay), or choose "
            f"variant=guarded"
        )
    if config.distillation.enabled:
        yield f"{name} and verl's distillation.enabled=true both change the policy's loss; choose one"
    if config.trainer.v1.trainer_mode == "prime_separate_async":
        yield f"{name} needs trainer.v1.trainer_mode=prime_sync or prime_colocate_async, or choose variant=guarded"
    if prime.distils:
        yield from _check_unread(config)
    if prime.distils and prm.enable:
        if prm.update_mode not in ("before", "none"):
            yield (
                f"prime.process.form=kl pulls the policy towards the PRM as it is after its update; set "
                f"prm.update_mode=before (it is {prm.update_mode}), or none for a PRM that is not trained"
            )
        ours = policy.actor.get("ulysses_sequence_parallel_size", 1)
        theirs = config.prm.engine.get("ulysses_sequence_parallel_size", 1)
        if ours != theirs:
            yield (
                f"prime.process.form=kl needs prm.engine.ulysses_sequence_parallel_size={ours} as the policy has, it "
                f"is {theirs}"
            )


def _check_unread(config: DictConfig) -> Iterable[str]:
    default, process = OmegaConf.load(DEFAULTS).process, config.prime.process
    for key in OF_SAMPLED:
        if process[key] != default[key]:
            yield (
                f"prime.process.{key}={process[key]} changes the rewards of sampled tokens, and there are none with "
                f"prime.process.form=kl; leave it at {default[key]}, or choose variant=guarded"
            )


def _check_rollouts_per_prompt(n_rollouts: int, prime: PrimeSettings) -> Iterable[str]:
    if n_rollouts >= 2:
        return
    sources: dict[str, OutcomeSettings | ProcessSettings] = {"outcome": prime.outcome, "process": prime.process}
    for name, source in sources.items():
        if source.coefficient > 0 and source.estimator in GROUP_ESTIMATORS:
            yield (
                f"actor_rollout_ref.rollout.n={n_rollouts}: prime.{name}.estimator={source.estimator} compares the "
                f"rollouts of a prompt and needs at least 2"
            )
    if prime.filter.enable:
        yield f"actor_rollout_ref.rollout.n={n_rollouts}: a single rollout is never inside prime.filter; disable it"


def check_critic(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """verl builds its critic for ``algorithm.adv_estimator=gae``; a source has to use it, and only then."""
    algorithm, critic = config.algorithm, config.critic
    sources = " and ".join(f"prime.{name}.estimator=gae" for name in prime.critic_sources)
    if prime.critic_sources and algorithm.adv_estimator != "gae":
        yield (
            f"{sources} needs a critic, which verl builds for algorithm.adv_estimator=gae; it is "
            f"{algorithm.adv_estimator}"
        )
    elif not prime.critic_sources and algorithm.adv_estimator == "gae":
        yield (
            "algorithm.adv_estimator=gae builds a critic, but neither prime.outcome.estimator nor "
            "prime.process.estimator is gae; set one of them (with its coefficient above 0), or leave it at rloo"
        )
    elif algorithm.adv_estimator not in ("rloo", "gae"):
        yield (
            f"algorithm.adv_estimator={algorithm.adv_estimator} would be computed and thrown away; PRIME has "
            f"its own advantage (prime.outcome, prime.process): leave it at rloo"
        )
    if critic.get("enable") is not None and bool(critic.enable) != bool(prime.critic_sources):
        need = "builds a critic that PRIME never reads" if critic.enable else f"builds none, but {sources} needs it"
        yield f"critic.enable={str(critic.enable).lower()} {need}; leave it unset"
    for key, ours in (("gamma", "discount"), ("lam", "trace")):
        if algorithm.get(key, 1.0) != 1.0:
            yield (
                f"algorithm.{key}={algorithm[key]} is not read by PRIME; set prime.outcome.{ours} and "
                f"prime.process.{ours} instead and leave it at 1.0"
            )
    if prime.critic_sources and not critic.use_dynamic_bsz and not critic.ppo_micro_batch_size_per_gpu:
        yield (
            "critic.ppo_micro_batch_size_per_gpu is not set; set it, or critic.use_dynamic_bsz=true to bound a forward "
            "pass by tokens"
        )
