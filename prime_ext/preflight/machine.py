# SPDX-License-Identifier: Apache-2.0
"""Checks of sizes and kernels that every trainer of prime_ext shares, with a line per problem."""

import importlib.metadata
import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from packaging.version import Version
from yaml import YAMLError

from prime_ext.config.asynchronous import VERL_MODES, prompts_per_update
from prime_ext.config.checks import guess
from prime_ext.config.engines import (
    BACKENDS,
    CPU_BACKENDS,
    DTYPE_BYTES,
    sequence_parallel_ranks,
)
from prime_ext.preflight.learning_checks import ACTOR, CRITIC, PRM
from prime_ext.preflight.prm_checks import has_adapter
from prime_ext.upstream import resolve_agent_path

MEGATRON = "megatron"
# Ranks that share the weights or a sequence, so that only one of them counts as data-parallel.
MEGATRON_PARALLEL = ("tensor_model", "pipeline_model", "context")
# Where verl's keys say which engine each model has.
STRATEGIES = {
    ACTOR: ("actor_rollout_ref.actor.strategy", "actor_rollout_ref.ref.strategy"),
    CRITIC: ("critic.strategy",),
    PRM: ("prm.engine.strategy",),
}


# Keys that name an entry of a registry of verl's, to which a module of the user's may add.
_AGENT_LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"
REGISTRIES = {
    "actor_rollout_ref.actor.policy_loss.loss_mode": (
        "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY"
    ),
    "actor_rollout_ref.rollout.name": (
        "verl.workers.rollout.replica:RolloutReplicaRegistry._registry"
    ),
    "actor_rollout_ref.rollout.multi_turn.format": (
        "verl.experimental.agent_loop.tool_parser:ToolParser._registry"
    ),
    _AGENT_LOOP: "verl.experimental.agent_loop.agent_loop:_agent_loop_registry",
    "reward.reward_manager.name": (
        "verl.experimental.reward_loop.reward_manager.registry:REWARD_MANAGER"
    ),
}


def check_names(config: DictConfig) -> Iterable[str]:
    """Check that verl has the named entries, or a user's file those that it may define."""
    agents: set[str] = set()
    try:
        agents = read_own_agents(config)
    except ValueError as error:
        yield str(error)
        return
    for key, registry in REGISTRIES.items():
        name = OmegaConf.select(config, key)
        by_file = config.reward.reward_manager.source != "register"
        if name is None or (key == "reward.reward_manager.name" and by_file):
            continue
        user_agents = agents if key == _AGENT_LOOP else ()
        yield from check_name(key, name, {*user_agents, *pkgutil.resolve_name(registry)})


def list_agents(config: DictConfig) -> set[str]:
    """Return the agent loops that a run has. Raises ValueError, see :func:`read_own_agents`."""
    return {*read_own_agents(config), *pkgutil.resolve_name(REGISTRIES[_AGENT_LOOP])}


def read_own_agents(config: DictConfig) -> set[str]:
    """Return the names in ``agent.agent_loop_config_path``.

    Raises ValueError: it is not a list of agent loops that can be imported; the message is a line.
    """
    path = config.actor_rollout_ref.rollout.agent.agent_loop_config_path
    if not path:
        return set()
    where = f"actor_rollout_ref.rollout.agent.agent_loop_config_path={path}"
    names = set()
    try:
        entries: Any = OmegaConf.load(resolve_agent_path(path))
        for entry in entries:
            pkgutil.resolve_name(entry["_target_"])
            names.add(str(entry["name"]))
    except (YAMLError, KeyError, TypeError, IndexError, OmegaConfBaseException) as error:
        raise ValueError(f"{where} is not a list of entries with name and _target_") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{where}: a _target_ cannot be imported: {error}") from error
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error}") from error
    return names


def check_name(key: str, name: str, known: Iterable[str]) -> Iterable[str]:
    """Check that a name is one of those that are registered."""
    names = sorted(known)
    if name not in names:
        more = "; modules=[my_module] imports a module of yours that registers one"
        yield f"{key}={name} is not one of {', '.join(names)}{guess(name, names) or more}"


def check_amount(config: DictConfig, prompts: int) -> Iterable[str]:
    """Check that the prompts fill a batch, and that the epochs are long enough for all steps."""
    batch = config.data.train_batch_size
    epochs = config.trainer.total_epochs
    steps = config.trainer.total_training_steps
    warmup = config.trainer.critic_warmup
    if config.trainer.val_only:
        return
    if prompts < batch:
        few = f"{prompts} usable prompts, fewer than data.train_batch_size={batch}"
        yield f"data.train_files has {few}; lower it, or add data"
    elif steps and steps > prompts // batch * epochs:
        end = (
            f"trainer.total_epochs={epochs} over {prompts} prompts ends after step"
            f" {prompts // batch * epochs}"
        )
        yield (
            f"trainer.total_training_steps={steps}: {end}; set"
            f" trainer.total_epochs={-(-steps // (prompts // batch))}"
        )
    elif warmup > (last := steps or prompts // batch * epochs):
        yield (
            f"trainer.critic_warmup={warmup} holds the policy for all {last} steps of the run;"
            " lower it"
        )


def check_trainer(config: DictConfig, modes: Sequence[str]) -> Iterable[str]:
    """Check what verl's V1 trainers of both methods need."""
    mode = config.trainer.v1.trainer_mode
    pool = config.reward.reward_model
    if (
        longest := config.actor_rollout_ref.rollout.max_model_len
    ) and longest <= config.data.max_prompt_length:
        limit = f"data.max_prompt_length={config.data.max_prompt_length}"
        yield (
            f"actor_rollout_ref.rollout.max_model_len={longest} leaves no room for a response after"
            f" {limit}; raise it"
        )
    if not config.trainer.use_v1:
        yield "trainer.use_v1=false selects verl's deprecated trainer; set trainer.use_v1=true"
    if mode not in modes:
        yield f"trainer.v1.trainer_mode={mode} is not one of {', '.join(modes)}{guess(mode, modes)}"
    for section in (ACTOR, PRM) if mode not in VERL_MODES else ():
        if OmegaConf.select(config, f"{section}.checkpoint.async_save"):
            key = f"{section}.checkpoint.async_save=true"
            yield (
                f"{key} leaves no moment at which a checkpoint is known to be whole; set it to"
                " false"
            )
    trace = config.actor_rollout_ref.rollout.get("trace") or {}
    if trace.get("backend"):
        yield (
            f"actor_rollout_ref.rollout.trace.backend={trace['backend']} has no effect: verl"
            " 0.9.1's V1 trainers trace no rollout; set it to null, and transcripts.every for"
            " rollouts with their rewards (prime-ext transcripts)"
        )
    if pool.enable and not pool.enable_resource_pool:
        yield (
            "reward.reward_model.enable=true scores in time with enable_resource_pool=true only;"
            " set that, too"
        )


def check_machine(config: DictConfig, trained: Sequence[str]) -> Iterable[str]:
    """Check that the ``trained`` models' sizes divide, passes are large enough, kernels exist."""
    for section in trained:
        parallel, budgets = _parallel_ranks(config, section)
        yield from _check_batches(config, section, parallel)
        yield from _check_passes(config, section, budgets)
    yield from _check_model(config, "actor_rollout_ref.model", config.actor_rollout_ref.actor)
    if PRM in trained:
        yield from _check_model(config, "prm.model", config.prm)
    rollout = config.actor_rollout_ref.rollout
    model = config.actor_rollout_ref.model
    merged = (model.get("lora") or {}).get("merge", False)
    if rollout.get("name") == "transformers" and has_adapter(model) and not merged:
        yield (
            "actor_rollout_ref.model.lora.merge must be true: rollout.name=transformers cannot"
            " serve LoRA adapters"
        )
    elif has_adapter(model) and not merged and rollout.load_format == "dummy":
        # verl would send it once as float32 from the host, where an embedding of 2 GiB does not fit
        # a bucket.
        key = "actor_rollout_ref.rollout.load_format"
        yield (
            f"{key}=dummy leaves the model below a LoRA adapter to a first transfer; set it to"
            " safetensors"
        )
    named = {
        key: OmegaConf.select(config, key, default="fsdp2")
        for section in trained
        for key in STRATEGIES[section]
    }
    if config.trainer.device == "cpu":
        for key, strategy in named.items():
            if strategy != "fsdp2":
                yield f"{key}={strategy} does not work on CPU; set it to fsdp2"
    elif config.trainer.n_gpus_per_node * config.trainer.nnodes == 1 and "fsdp" in named.values():
        keys = ", ".join(key for key, strategy in named.items() if strategy == "fsdp")
        yield (
            f"{keys}: fsdp does not shard on one GPU, where verl's offloading frees nothing; set"
            " fsdp2"
        )
    yield from _check_tied_weights(config)


def _check_tied_weights(config: DictConfig) -> Iterable[str]:
    """Check that a policy with tied embeddings reaches vLLM 0.29 or later in one bucket.

    verl 0.9.1 sends these weights under both names and loads each bucket alone. vLLM then rejects a
    bucket that has the output layer and not the embeddings (vllm#51665, verl#8014).
    """
    rollout = config.actor_rollout_ref.rollout
    model = config.actor_rollout_ref.model
    adapter = has_adapter(model) and not (model.get("lora") or {}).get("merge", False)
    strategy = str(config.actor_rollout_ref.actor.strategy)
    if rollout.get("name") != "vllm" or adapter or not strategy.startswith("fsdp"):
        return
    try:
        number = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return
    if Version(number).release < (0, 29):
        return
    itemsize = DTYPE_BYTES.get(str(config.actor_rollout_ref.actor.fsdp_config.model_dtype), 4)
    needed = -(-_count_tied_weights(model) * itemsize // 2**20)
    bucket = rollout.checkpoint_engine.update_weights_bucket_megabytes
    if needed > bucket:
        key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
        yield (
            f"{key}={bucket} parts the tied embeddings of {model.path} from its output layer, which"
            f" vllm {number} rejects; set it to {needed}, which takes as much GPU memory, or"
            " install vllm 0.24.0"
        )


def _count_tied_weights(model: Any) -> int:
    """Return the weights that verl sends of a model with tied embeddings; 0 if it has none.

    The embeddings count twice. Of a model that is not here yet nothing is known: 0.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(str(model.path)).expanduser()
    remote_code = bool(model.trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(
            str(folder) if folder.is_dir() else str(model.path),
            trust_remote_code=remote_code,
            local_files_only=True,
        )
    except OSError:
        return 0
    if not config.tie_word_embeddings:
        return 0
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, trust_remote_code=remote_code)
    return sum(weight.numel() for weight in built.state_dict().values())


def _parallel_ranks(config: DictConfig, section: str) -> tuple[int, dict[str, int]]:
    """Return the ranks that share a sequence or the weights, and those of a sequence.

    The latter are by key of a token budget.
    """
    if section == CRITIC:
        parallel = config.critic.fsdp.get("ulysses_sequence_parallel_size", 1)
        # verl 0.9.1 reads it for updates and values alike; only prime_ext's configurations have it.
        key = "ppo_infer_max_token_len_per_gpu"
        return parallel, {f"critic.{key}": parallel} if key in config.critic else {}
    if section == PRM:
        parallel = config.prm.engine.get("ulysses_sequence_parallel_size", 1)
        keys = ("max_token_len_per_gpu", "infer_max_token_len_per_gpu")
        # Where the second is null, it is at least the first.
        return parallel, {f"prm.{key}": parallel for key in keys if config.prm[key] is not None}
    policy = config.actor_rollout_ref
    parallel = share = sequence_parallel_ranks(policy.actor)
    of_reference = sequence_parallel_ranks(policy.ref)
    if policy.actor.strategy == MEGATRON:
        parallel = math.prod(
            policy.actor.megatron[f"{name}_parallel_size"] for name in MEGATRON_PARALLEL
        )
        share = of_reference = policy.actor.megatron.context_parallel_size
    key = "log_prob_max_token_len_per_gpu"
    budgets = {
        f"{ACTOR}.ppo_max_token_len_per_gpu": share,
        f"actor_rollout_ref.rollout.{key}": share,
    }
    if policy.actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        budgets[f"actor_rollout_ref.ref.{key}"] = of_reference
    return parallel, budgets


def _check_batches(config: DictConfig, section: str, parallel: int) -> Iterable[str]:
    """Check that a batch divides into mini-batches, and these over ranks and micro-batches."""
    prompts = prompts_per_update(config)
    rollouts = config.actor_rollout_ref.rollout.n
    batch = f"data.train_batch_size={prompts}"
    if prompts != config.data.train_batch_size:
        batch = (
            f"the {prompts} prompts of an update (data.train_batch_size over parameter_sync_step)"
        )
    override: Any = OmegaConf.select(config, section)
    prefix = "" if section == PRM else "ppo_"
    mini_batch = override[f"{prefix}mini_batch_size"]
    size = f"{prefix}micro_batch_size_per_gpu"
    micro = None if override.use_dynamic_bsz else override[size]
    key = f"{section}.{prefix}mini_batch_size={mini_batch}"
    together = mini_batch * rollouts
    ranks = max(1, config.trainer.n_gpus_per_node * config.trainer.nnodes // (parallel or 1))
    if mini_batch > prompts:
        yield f"{key} is above {batch}"
    elif prompts % mini_batch:
        yield f"{batch} is not a multiple of {key}"
    elif together % ranks:
        yield (
            f"{key} times rollout.n={rollouts} is {together}, which do not divide over {ranks}"
            " data-parallel ranks"
        )
    elif not micro and not override.use_dynamic_bsz:
        yield f"{section}.{size} is not set; set it, or {section}.use_dynamic_bsz=true"
    elif micro and (together // ranks) % micro:
        yield (
            f"{key} is {together // ranks} rollouts per rank, not a multiple of the micro-batch of"
            f" {micro}"
        )


def _check_passes(config: DictConfig, section: str, budgets: Mapping[str, int]) -> Iterable[str]:
    """Check that a sequence of full length fits into every pass."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    if not OmegaConf.select(config, f"{section}.use_dynamic_bsz"):
        return
    for key, ranks in budgets.items():
        tokens = OmegaConf.select(config, key)
        if not isinstance(tokens, int) or tokens * ranks < longest:
            shared = f" times ulysses_sequence_parallel_size={ranks}" if ranks > 1 else ""
            expected = f"data.max_prompt_length + data.max_response_length = {longest}"
            yield (
                f"{key}={tokens}{shared} is less than {expected}; set it to"
                f" {-(-longest // ranks)} or more"
            )


def get_attention(model: Any) -> str:
    """Return which attention verl loads a model with."""
    return (model.get("override_config") or {}).get("attn_implementation", "flash_attention_2")


def _check_model(config: DictConfig, key: str, section: DictConfig) -> Iterable[str]:
    """Check that fused kernels exist, and that sequences are not cut without flash-attn.

    verl exchanges the parts of a sequence inside of flash-attn only.
    """
    model: Any = OmegaConf.select(config, key)
    allowed = CPU_BACKENDS if config.trainer.device == "cpu" else BACKENDS
    device = config.trainer.device
    backend = (model.get("fused_kernel_options") or {}).get("impl_backend")
    if model.get("use_fused_kernels") and backend not in allowed:
        named = f"{key}.fused_kernel_options.impl_backend={backend}"
        yield f"{named} is not one of {', '.join(allowed)} (trainer.device={device})"
    ranks = sequence_parallel_ranks(section)
    attention = get_attention(model)
    if ranks > 1 and not attention.startswith("flash_attention"):
        named = f"{key}.override_config.attn_implementation={attention}"
        yield (
            f"{named} cuts sequences with ulysses_sequence_parallel_size={ranks}; leave it at"
            " flash_attention_2"
        )
