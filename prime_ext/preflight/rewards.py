# SPDX-License-Identifier: Apache-2.0
"""Checks of rewards and advantages against the configuration, with a line per problem."""

from collections.abc import Iterable

from omegaconf import DictConfig

from prime_ext.config.engines import sequence_parallel_ranks
from prime_ext.config.reward_settings import TurnSettings
from prime_ext.config.settings import PrimeSettings, PRMSettings
from prime_ext.names import compares_rollouts, list_estimators
from prime_ext.preflight.machine import check_name

# verl's, and prime_ext.verl_adapter.cpu's.
SINGLE_TURN_LOOPS = ("single_turn_agent", "seeded_single_turn_agent")
TOOL_LOOPS = ("tool_agent", "bounded_tool_agent", "seeded_tool_agent")
# Estimators that verl's V1 trainer names but gives less than they need.
NOT_IN_V1 = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


def check_rewards(
    config: DictConfig, prime: PrimeSettings, prm: PRMSettings | None
) -> Iterable[str]:
    """Check that everything is there that the chosen rewards and estimators read."""
    outcome = prime.outcome
    n_rollouts = config.actor_rollout_ref.rollout.n
    if prime.scores_steps and prime.outcome_reads_prm:
        yield (
            f"prime.outcome.estimator={outcome.estimator} reads the implicit PRM, which a step"
            " scorer stands in for"
        )
    if prm is not None and prm.update_mode == "none" and prm.reference == "policy":
        if config.prm.model.path == config.actor_rollout_ref.model.path:
            yield (
                f"prm.model.path={config.prm.model.path} is the policy itself; name a teacher"
                " there, or train it"
            )
    if prime.gate is not None and outcome.coefficient == 0:
        yield (
            "prime.process.gate weighs rewards by outcomes: set prime.outcome.coefficient above 0,"
            " or it to null"
        )
    if outcome.of_verl:
        yield from check_estimator(
            "prime.outcome.estimator", outcome.estimator, list_estimators("outcome")
        )
    if prime.turns is not None:
        yield from _check_turn_rewards(config, prime.turns)
    if n_rollouts < 2:
        yield from _check_single_rollouts(n_rollouts, prime)
    if prime.distils or prime.anchor is not None:
        yield from _check_targets(config, prime, prm)


def check_estimator(key: str, name: str, ours: Iterable[str] = ()) -> Iterable[str]:
    """Check that an estimator is ``ours``, or one of verl's that its trainer can call."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    if name in NOT_IN_V1:
        yield f"{key}={name} needs more than verl's V1 trainer gives it; choose another"
    else:
        yield from check_name(key, name, {*ours, *ADV_ESTIMATOR_REGISTRY} - {*NOT_IN_V1})


def _check_turn_rewards(config: DictConfig, turns: TurnSettings) -> Iterable[str]:
    """Check that an agent loop reports one reward for each turn."""
    key = f"prime.turns.field={turns.field}"
    rollout = config.actor_rollout_ref.rollout
    loop = rollout.agent.default_agent_loop
    calls = rollout.multi_turn.max_parallel_calls
    if loop in SINGLE_TURN_LOOPS:
        remedy = "set it to tool_agent, or prime/turns=none"
        yield (
            f"{key}: actor_rollout_ref.rollout.agent.default_agent_loop={loop} has no rewards of"
            f" turns; {remedy}"
        )
    elif turns.field == "turn_scores" and loop in TOOL_LOOPS:
        yield f"{key}: {loop} reports none; set it to tool_rewards, or name an agent loop of yours"
    elif turns.field == "tool_rewards" and calls != 1:
        where = f"actor_rollout_ref.rollout.multi_turn.max_parallel_calls={calls}"
        yield f"{key} does not say which turn a reward is of with {where}; set it to 1"


def _check_single_rollouts(n_rollouts: int, prime: PrimeSettings) -> Iterable[str]:
    key = f"actor_rollout_ref.rollout.n={n_rollouts}"
    for name, estimator in prime.estimators.items():
        if compares_rollouts(estimator):
            yield (
                f"{key}: prime.{name}.estimator={estimator} compares the rollouts of a prompt; set"
                " 2 or more"
            )
    if prime.filter.enable:
        yield f"{key}: a single rollout is never inside prime.filter; disable it"


def _check_targets(
    config: DictConfig, prime: PrimeSettings, prm: PRMSettings | None
) -> Iterable[str]:
    """Check that a pull over the vocabulary has the policy's logits and equally packed targets."""
    name = "prime/process=kl" if prime.distils else "prime/anchor=ema"
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
    if not prime.distils or prm is None:
        return
    if prm.update_mode not in ("before", "none"):
        yield (
            f"{name} reads the PRM after its update; set prm.update_mode=before (it is"
            f" {prm.update_mode})"
        )
    ours = sequence_parallel_ranks(policy.actor)
    theirs = sequence_parallel_ranks(config.prm)
    if ours != theirs:
        size = "prm.engine.ulysses_sequence_parallel_size"
        yield f"{name} needs {size}={ours} as the policy has, it is {theirs}"


def check_critic(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """Check that a source uses verl's critic if ``algorithm.adv_estimator=gae``, and only then."""
    algorithm = config.algorithm
    critic = config.critic
    estimator = f"algorithm.adv_estimator={algorithm.adv_estimator}"
    sources = " and ".join(f"prime.{name}.estimator=gae" for name in prime.critic_sources)
    if prime.critic_sources and algorithm.adv_estimator != "gae":
        yield f"{sources} needs a critic, which verl builds for algorithm.adv_estimator=gae; set it"
    elif not prime.critic_sources and algorithm.adv_estimator == "gae":
        yield (
            f"{estimator} builds a critic that no source reads; set prime.outcome.estimator=gae, or"
            " leave rloo"
        )
    elif prime.critic_sources and prime.outcome.of_verl:
        yield (
            f"prime.outcome.estimator={prime.outcome.estimator} is computed by verl without the"
            f" critic of {sources}"
        )
    elif algorithm.adv_estimator not in ("rloo", "gae", prime.outcome.estimator):
        yield (
            f"{estimator} would be computed and thrown away; set prime.outcome.estimator, and leave"
            " it at rloo"
        )
    process = prime.paid_process
    if (
        len(prime.critic_sources) == 2
        and process is not None
        and process.discount != algorithm.gamma
    ):
        ours = f"prime.process.discount={process.discount}"
        yield (
            f"{ours} and algorithm.gamma={algorithm.gamma} must be equal: one critic values the sum"
            " of both sources"
        )
    if critic.get("enable") is not None and bool(critic.enable) != bool(prime.critic_sources):
        yield (
            f"critic.enable={str(critic.enable).lower()} contradicts prime.outcome.estimator; leave"
            " it unset"
        )
