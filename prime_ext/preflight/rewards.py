# SPDX-License-Identifier: Apache-2.0
"""Checks of how rewards become advantages, against the rest of the configuration. One line per problem."""

from collections.abc import Iterable

from omegaconf import DictConfig

from prime_ext.config.checks import defaults_of, unread
from prime_ext.config.engines import sequence_parallel_ranks
from prime_ext.config.reward_settings import GROUP_ESTIMATORS, OutcomeSettings, ProcessSettings, TurnSettings
from prime_ext.config.settings import PrimeSettings, PRMSettings

# verl's, and prime_ext.cpu's.
SINGLE_TURN_LOOPS = ("single_turn_agent", "seeded_single_turn_agent")
TOOL_LOOPS = ("tool_agent", "bounded_tool_agent", "seeded_tool_agent")
# Keys of prime.process that shape the rewards of sampled tokens; with sign_preserving, clip is that of the factor.
_OF_RETURN = ("discount", "estimator", "gae_lambda", "baseline")
OF_SAMPLED = ("clip", "reward_lambda", "redistribution", "normalization", "noise_per_token", *_OF_RETURN)


def check_rewards(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> Iterable[str]:
    """Whether everything is there that the chosen rewards and estimators read."""
    outcome, process, remove = prime.outcome, prime.process, prime.selection.remove
    estimator, n_rollouts = f"prime.outcome.estimator={outcome.estimator}", config.actor_rollout_ref.rollout.n
    scorer, sampler = f"prime.process.scorer={process.scorer}", config.trainer.v1.sampler.custom_sampler
    if process.scores_steps and prm.enable:
        yield f"prm.enable=true: nothing reads the implicit PRM with {scorer}; set it to false"
    if not process.scores_steps and not prm.enable:
        readers = {
            "prime.process.coefficient > 0": process.coefficient > 0,
            estimator: prime.outcome_reads_prm,
            f"prime.selection.remove={remove}": remove > 0,
        }
        yield from (f"{name} reads the PRM and needs prm.enable=true" for name, reads in readers.items() if reads)
    if process.scorer == "answer_likelihood":
        yield from _check_answer_likelihood(prm)
    if process.scorer != "implicit_prm" and prime.outcome_reads_prm:
        yield f"{estimator} reads the implicit PRM, which {scorer} stands in for"
    told_more = prm.trained or prm.teachers or prm.inputs.template or prm.server.address
    untrained = prm.enable and process.scorer == "implicit_prm" and not told_more
    same = config.prm.model.path == config.actor_rollout_ref.model.path or prm.follow_policy.freq
    if untrained and prm.reference == "policy" and same and not prm.follow_policy.decay:
        key = f"prm.model.path={config.prm.model.path}"
        yield f"{key} is the policy itself; name a teacher, give it a hint with prm.inputs.template, or train it"
    if outcome.estimator == "segment" and prm.enable and prm.loss != "ce":
        yield f"{estimator} reads the PRM's scores as chances, which prm.loss={prm.loss} are not; set it to ce"
    scored = prm.enable or process.scores_steps
    if process.reliability_gate and not (scored and outcome.coefficient > 0):
        yield "prime.process.reliability_gate=true needs prm.enable=true and prime.outcome.coefficient > 0"
    if process.warm_up_steps and outcome.coefficient == 0:
        yield "prime.process.warm_up_steps > 0 needs prime.outcome.coefficient > 0: nothing would be learned meanwhile"
    if remove and remove >= n_rollouts - 1:
        yield f"prime.selection.remove={remove} leaves fewer than 2 of actor_rollout_ref.rollout.n={n_rollouts}"
    if prime.needs_greedy and sampler.path and sampler.name:
        yield f"{estimator} needs the trainer's own sampler; unset trainer.v1.sampler.custom_sampler"
    if prime.needs_greedy and config.trainer.v1.trainer_mode != "prime_sync":
        yield f"{estimator} needs rollouts of one policy version: trainer.v1.trainer_mode=prime_sync"
    if prime.turns.pays:
        yield from _check_turn_rewards(config, prime)
    if n_rollouts < 2:
        yield from _check_single_rollouts(n_rollouts, prime)
    if prime.distils or prime.scales_advantages:
        names = [name for name in OF_SAMPLED if name != "clip" or prime.distils]
        defaults, where = defaults_of("prime/prime.yaml")["process"], f"with prime.process.form={process.form}"
        yield from unread(process, defaults, "prime.process", [(names, False, where)])
    if prime.distils or prime.anchor.enable:
        yield from _check_targets(config, prime, prm)


def _check_answer_likelihood(prm: PRMSettings) -> Iterable[str]:
    """The PRM's model is asked for answers, and for nothing else."""
    scorer = "prime.process.scorer=answer_likelihood"
    if prm.trained:
        yield f"prm.update_mode={prm.update_mode}: {scorer} asks a model that is not trained by itself; set it to none"
    if prm.reference != "none":
        yield f"prm.reference={prm.reference}: {scorer} compares with no reference; set it to none"
    if prm.inputs.rewrites or prm.teachers:
        yield f"{scorer} asks prm.model.path in the policy's tokens; leave prm.inputs and prm.teachers as they are"


def _check_turn_rewards(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """An agent loop has to report them, one for each turn."""
    key, rollout = f"prime.turns.field={prime.turns.field}", config.actor_rollout_ref.rollout
    loop, calls = rollout.agent.default_agent_loop, rollout.multi_turn.max_parallel_calls
    if loop in SINGLE_TURN_LOOPS:
        remedy = "set it to tool_agent, or prime.turns.coefficient=0"
        yield f"{key}: actor_rollout_ref.rollout.agent.default_agent_loop={loop} has no rewards of turns; {remedy}"
    elif prime.turns.field == "turn_scores" and loop in TOOL_LOOPS:
        yield f"{key}: {loop} reports none; set it to tool_rewards, or name an agent loop of yours"
    elif prime.turns.field == "tool_rewards" and calls != 1:
        where = f"actor_rollout_ref.rollout.multi_turn.max_parallel_calls={calls}"
        yield f"{key} does not say which turn a reward is of with {where}; set it to 1"


def _check_single_rollouts(n_rollouts: int, prime: PrimeSettings) -> Iterable[str]:
    key = f"actor_rollout_ref.rollout.n={n_rollouts}"
    sources: dict[str, OutcomeSettings | ProcessSettings | TurnSettings]
    sources = {"outcome": prime.outcome, "process": prime.process, "turns": prime.turns}
    for name, source in sources.items():
        if source.coefficient > 0 and source.estimator in GROUP_ESTIMATORS:
            yield f"{key}: prime.{name}.estimator={source.estimator} compares the rollouts of a prompt; set 2 or more"
    if prime.filter.enable:
        yield f"{key}: a single rollout is never inside prime.filter; disable it"


def _check_targets(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> Iterable[str]:
    """What a pull over the whole vocabulary needs: logits of the policy, and targets that pack tokens as it does."""
    name = "prime.process.form=kl" if prime.distils else f"prime.anchor.kind={prime.anchor.kind}"
    policy = config.actor_rollout_ref
    if policy.actor.strategy not in ("fsdp", "fsdp2"):
        yield f"{name} needs actor_rollout_ref.actor.strategy=fsdp or fsdp2, it is {policy.actor.strategy}"
    if policy.model.use_fused_kernels:
        yield f"{name} needs its logits: actor_rollout_ref.model.use_fused_kernels=false (the PRM's may stay)"
    if config.distillation.enabled:
        yield f"{name} and verl's distillation.enabled=true both change the policy's loss; choose one"
    if config.trainer.v1.trainer_mode == "prime_separate_async":
        yield f"{name} needs trainer.v1.trainer_mode=prime_sync or prime_colocate_async, or choose variant=guarded"
    if not prime.distils:
        return
    if prm.teachers:
        yield f"{name} reads one model, and prm.teachers are several; set prime.process.form=sampled"
    if prm.enable and prm.update_mode not in ("before", "none"):
        yield f"{name} reads the PRM after its update; set prm.update_mode=before (it is {prm.update_mode}), or none"
    ours, theirs = sequence_parallel_ranks(policy.actor), sequence_parallel_ranks(config.prm)
    if prm.enable and ours != theirs:
        size = "prm.engine.ulysses_sequence_parallel_size"
        yield f"{name} needs {size}={ours} as the policy has, it is {theirs}"


def check_critic(config: DictConfig, prime: PrimeSettings) -> Iterable[str]:
    """verl builds its critic for ``algorithm.adv_estimator=gae``; a source has to use it, and only then."""
    algorithm, critic = config.algorithm, config.critic
    estimator = f"algorithm.adv_estimator={algorithm.adv_estimator}"
    sources = " and ".join(f"prime.{name}.estimator=gae" for name in prime.critic_sources)
    if prime.critic_sources and algorithm.adv_estimator != "gae":
        yield f"{sources} needs a critic, which verl builds for algorithm.adv_estimator=gae; set it"
    elif not prime.critic_sources and algorithm.adv_estimator == "gae":
        yield f"{estimator} builds a critic that no source reads; set prime.outcome.estimator=gae, or leave rloo"
    elif algorithm.adv_estimator not in ("rloo", "gae"):
        yield f"{estimator} would be computed and thrown away; set prime.outcome.estimator, and leave it at rloo"
    if critic.get("enable") is not None and bool(critic.enable) != bool(prime.critic_sources):
        need = "builds a critic that PRIME never reads" if critic.enable else f"builds none, but {sources} needs it"
        yield f"critic.enable={str(critic.enable).lower()} {need}; leave it unset"
    for key, ours in (("gamma", "discount"), ("lam", "gae_lambda")):
        if algorithm.get(key, 1.0) != 1.0:
            yield f"algorithm.{key}={algorithm[key]} is not read; set {ours} of prime.outcome and prime.process instead"
