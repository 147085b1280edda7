# SPDX-License-Identifier: Apache-2.0
"""Checks of sizes, kernels and machine that every trainer of prime_ext shares. One line per problem."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.asynchronous import prompts_per_update
from prime_ext.config.checks import Count, PositiveOrZero, wrong_values
from prime_ext.config.engines import BACKENDS, CPU_BACKENDS, sequence_parallel_ranks
from prime_ext.cpu import is_active
from prime_ext.preflight.prm import has_adapter
from prime_ext.run.console import STYLES
from prime_ext.run.ray_cluster import address_of, check_own_cpus, reservation

MEGATRON = "megatron"
# Ranks that share the weights or a sequence, so that only one of them counts as data-parallel.
MEGATRON_PARALLEL = ("tensor_model", "pipeline_model", "context")


@dataclass(frozen=True)
class Optimiser:
    """A model that is trained.

    Attributes:
        key: that of its mini-batch size.
        mini_batch: prompts per optimiser step.
        micro_batch: rollouts per forward pass and rank; None where tokens bound it.
        sequence_parallel: ranks that share a sequence, or the weights.
        budgets: by key, tokens per forward pass and rank, and the ranks that share a sequence; empty where rollouts
            bound it.
    """

    key: str
    mini_batch: int
    micro_batch: int | None
    sequence_parallel: int
    budgets: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def section(self) -> str:
        """Key of the model's section."""
        return self.key.rpartition(".")[0]


def actor_optimiser(config: DictConfig) -> Optimiser:
    """The policy's, with the passes of its rollouts' log-probabilities and of the KL penalty's reference."""
    policy = config.actor_rollout_ref
    actor = policy.actor
    micro = None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
    parallel = share = sequence_parallel_ranks(actor)
    share_of_reference = sequence_parallel_ranks(policy.ref)
    if actor.strategy == MEGATRON:
        parallel = math.prod(actor.megatron[f"{name}_parallel_size"] for name in MEGATRON_PARALLEL)
        share = share_of_reference = actor.megatron.context_parallel_size
    budgets = {}
    if actor.use_dynamic_bsz:
        budgets["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] = (actor.ppo_max_token_len_per_gpu, share)
        key = "log_prob_max_token_len_per_gpu"
        budgets[f"actor_rollout_ref.rollout.{key}"] = (policy.rollout[key], share)
        if actor.use_kl_loss or config.algorithm.use_kl_in_reward:
            budgets[f"actor_rollout_ref.ref.{key}"] = (policy.ref[key], share_of_reference)
    return Optimiser("actor_rollout_ref.actor.ppo_mini_batch_size", actor.ppo_mini_batch_size, micro, parallel, budgets)


def critic_optimiser(config: DictConfig) -> Optimiser:
    """The critic's."""
    critic = config.critic
    micro = None if critic.use_dynamic_bsz else critic.ppo_micro_batch_size_per_gpu
    parallel = critic.fsdp.get("ulysses_sequence_parallel_size", 1)
    # Which verl 0.9.1 reads for updates and values alike; only prime_ext's configurations have it.
    key = "ppo_infer_max_token_len_per_gpu"
    budgets = {f"critic.{key}": (critic[key], parallel)} if critic.use_dynamic_bsz and key in critic else {}
    return Optimiser("critic.ppo_mini_batch_size", critic.ppo_mini_batch_size, micro, parallel, budgets)


def policy_strategies(config: DictConfig) -> dict[str, str]:
    """Engines of the policy and its reference, by key."""
    return {
        "actor_rollout_ref.actor.strategy": config.actor_rollout_ref.actor.strategy,
        "actor_rollout_ref.ref.strategy": config.actor_rollout_ref.ref.get("strategy", "fsdp2"),
    }


def check_trainer(config: DictConfig, modes: Sequence[str]) -> Iterable[str]:
    """What verl's V1 trainers of both methods need."""
    mode, temperature = config.trainer.v1.trainer_mode, config.actor_rollout_ref.rollout.temperature
    if not config.trainer.use_v1:
        yield "trainer.use_v1=false selects verl's deprecated trainer; set trainer.use_v1=true"
    if mode not in modes:
        yield f"trainer.v1.trainer_mode={mode} is not one of {', '.join(modes)}"
    if temperature <= 0:
        yield f"actor_rollout_ref.rollout.temperature={temperature} must be above 0"


def check_whole_numbers(config: DictConfig) -> Iterable[str]:
    """The sizes that the other checks calculate with."""
    keys = (
        "data.train_batch_size",
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "trainer.n_gpus_per_node",
        "trainer.nnodes",
    )
    return wrong_values(config, dict.fromkeys(keys, Count))


def check_machine(
    config: DictConfig,
    optimisers: Sequence[Optimiser],
    models: Mapping[str, DictConfig],
    strategies: Mapping[str, str],
) -> Iterable[str]:
    """Whether sizes divide, passes are large enough and kernels exist, for any trainer.

    Args:
        config: the whole configuration.
        optimisers: of every model that is trained.
        models: by key, the sections of the language models.
        strategies: by key, the engine of every model.
    """
    style = config.trainer.get("console", "lines")
    if style not in STYLES:
        yield f"trainer.console={style!r} is not one of {', '.join(STYLES)}"
    for optimiser in optimisers:
        yield from _check_batches(config, optimiser)
        yield from _check_passes(config, optimiser)
    for key, model in models.items():
        yield from _check_model(config, key, model)
    yield from _check_adapter(config)
    if config.trainer.device == "cpu":
        yield from check_cpu(config, strategies)


def _check_batches(config: DictConfig, optimiser: Optimiser) -> Iterable[str]:
    """Whether a batch divides into mini-batches, and these over ranks and micro-batches."""
    prompts, rollouts = prompts_per_update(config), config.actor_rollout_ref.rollout.n
    batch = f"data.train_batch_size={prompts}"
    if prompts != config.data.train_batch_size:
        batch = f"the {prompts} prompts of an update (data.train_batch_size over parameter_sync_step)"
    key, micro = f"{optimiser.key}={optimiser.mini_batch}", optimiser.micro_batch
    ranks = config.trainer.n_gpus_per_node * config.trainer.nnodes
    ranks = max(1, ranks // (optimiser.sequence_parallel or 1))
    together = optimiser.mini_batch * rollouts
    if optimiser.mini_batch > prompts:
        yield f"{key} is above {batch}"
    elif prompts % optimiser.mini_batch:
        yield f"{batch} is not a multiple of {key}"
    elif together % ranks:
        yield f"{key} times rollout.n={rollouts} is {together}, which do not divide over {ranks} data-parallel ranks"
    elif not micro and not OmegaConf.select(config, f"{optimiser.section}.use_dynamic_bsz"):
        size = f"{optimiser.section}.ppo_micro_batch_size_per_gpu"
        yield f"{size} is not set; set it, or {optimiser.section}.use_dynamic_bsz=true"
    elif micro and (together // ranks) % micro:
        yield f"{key} is {together // ranks} rollouts per rank, not a multiple of the micro-batch of {micro}"


def _check_passes(config: DictConfig, optimiser: Optimiser) -> Iterable[str]:
    """Learning rates that would turn weights into NaN, and passes into which no sequence of full length fits."""
    yield from wrong_values(config, {f"{optimiser.section}.optim.lr": PositiveOrZero})
    longest = config.data.max_prompt_length + config.data.max_response_length
    for key, (tokens, ranks) in optimiser.budgets.items():
        if not isinstance(tokens, int) or tokens * ranks < longest:
            shared = f" times ulysses_sequence_parallel_size={ranks}" if ranks > 1 else ""
            yield (
                f"{key}={tokens}{shared} is less than data.max_prompt_length + data.max_response_length = {longest}; "
                f"set it to {-(-longest // ranks)} or more"
            )


def _check_model(config: DictConfig, key: str, model: DictConfig) -> Iterable[str]:
    """Whether fused kernels exist on the device, and ranks that share a sequence see all of it.

    verl exchanges the parts of a sequence inside of flash-attn only.
    """
    allowed = CPU_BACKENDS if config.trainer.device == "cpu" else BACKENDS
    backend = (model.get("fused_kernel_options") or {}).get("impl_backend")
    if model.get("use_fused_kernels") and backend not in allowed:
        named = f"{key}.fused_kernel_options.impl_backend={backend}"
        yield f"{named} is not one of {', '.join(allowed)} (trainer.device={config.trainer.device})"
    section = config.prm if key == "prm.model" else config.actor_rollout_ref.actor
    ranks = sequence_parallel_ranks(section)
    attention = (model.get("override_config") or {}).get("attn_implementation", "flash_attention_2")
    if ranks > 1 and not attention.startswith("flash_attention"):
        yield (
            f"{key}.override_config.attn_implementation={attention}: with ulysses_sequence_parallel_size={ranks} every "
            f"rank would see its part of a sequence only; leave it at flash_attention_2, or set the size to 1"
        )


def _check_adapter(config: DictConfig) -> Iterable[str]:
    """Whether the rollout engine can serve the policy's LoRA adapter, where it has one."""
    model = config.actor_rollout_ref.model
    served_merged = (model.get("lora") or {}).get("merge", False)
    if config.actor_rollout_ref.rollout.get("name") == "transformers" and has_adapter(model) and not served_merged:
        yield "actor_rollout_ref.model.lora.merge must be true: rollout.name=transformers cannot serve LoRA adapters"


def check_cpu(config: DictConfig, strategies: Mapping[str, str]) -> Iterable[str]:
    """What CPU mode needs: the platform, FSDP2, and enough logical slots where the run starts Ray itself."""
    if not is_active():
        yield "trainer.device=cpu needs the environment variable VERL_PLATFORM=cpu in every process"
    for key, strategy in strategies.items():
        if strategy != "fsdp2":
            yield f"{key}={strategy} does not work on CPU; set it to fsdp2"
    if address_of(config) is not None:
        # What a running cluster has is no part of the configuration.
        return
    yield from check_own_cpus(config)
    reserved = reservation(config)
    needed, gpus = reserved.ranks + reserved.rollouts, config.ray_kwargs.ray_init.get("num_gpus", 0) or 0
    if gpus < needed:
        yield f"ray_kwargs.ray_init.num_gpus={gpus}: CPU mode needs {needed} logical GPU slots, one for each rank"
