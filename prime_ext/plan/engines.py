# SPDX-License-Identifier: Apache-2.0
"""The models of a run and how they are trained, read from a composed configuration."""

from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.engines import DTYPE_BYTES
from prime_ext.config.settings import forward_tokens
from prime_ext.plan.errors import PlanError
from prime_ext.plan.memory import Engine
from prime_ext.plan.model_shape import adapter_weights, read_shape
from prime_ext.prm.frozen_layers import number_of_layers


def read_engines(config: DictConfig) -> dict[str, Engine]:
    """The models of a run by name: ``policy``, and those it needs of ``critic``, ``KL reference``, ``policy average``,
    ``PRM``, ``PRM reference``.

    Raises:
        PlanError: a model cannot be read, or an engine is none of FSDP's.
    """
    policy, prm = config.actor_rollout_ref, config.get("prm")
    key = "actor_rollout_ref.model"
    engine = read_engine(config, "policy", key, policy.model, policy.actor.fsdp_config, policy.actor)
    engines = {"policy": _with_forward(engine, policy.actor, policy.rollout.log_prob_max_token_len_per_gpu)}
    penalty = policy.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    if penalty and not _lora_rank(policy.model):
        engine = read_engine(config, "KL reference", key, policy.model, policy.ref.fsdp_config, policy.actor)
        engines["KL reference"] = frozen(
            config, _with_forward(engine, policy.actor, policy.ref.log_prob_max_token_len_per_gpu)
        )
    if has_critic(config):
        critic = config.critic
        engine = read_engine(config, "critic", "critic.model", critic.model, critic.fsdp, critic)
        values = engine.shape.with_values()
        engines["critic"] = replace(engine, shape=values, trained=engine.adapter or values.weights)
    if has_average(config):
        engine = read_engine(config, "policy average", key, policy.model, policy.actor.fsdp_config, policy.actor)
        engines["policy average"] = frozen(config, engine)
    if not has_prm(config):
        return engines
    engine = read_engine(config, "PRM", "prm.model", prm.model, prm.engine, prm)
    engines["PRM"] = _with_forward(engine, prm, forward_tokens(prm) if prm.use_dynamic_bsz else None)
    if prm.reference == "frozen":
        model = prm.model.copy()
        OmegaConf.update(model, "path", prm.reference_path)
        OmegaConf.update(model, "lora_rank", 0)
        engine = read_engine(config, "PRM reference", "prm.reference_path", model, prm.engine, prm)
        engines["PRM reference"] = frozen(config, replace(engine, forward_tokens=engines["PRM"].forward_tokens))
    if prm.trainable_layers is not None:
        shape = engines["PRM"].shape
        layers = min(number_of_layers(prm.trainable_layers, shape.layers), shape.layers)
        engines["PRM"] = replace(engines["PRM"], trained=layers * shape.block_weights, trained_layers=layers)
    if prm.update_mode == "none":
        engines["PRM"] = _scoring(engines["PRM"])
    return engines


def _with_forward(engine: Engine, batches: Any, tokens: int | None) -> Engine:
    """The same, with a token budget of its own for passes without gradients."""
    return replace(engine, forward_tokens=int(tokens)) if batches.use_dynamic_bsz and tokens else engine


def _scoring(engine: Engine) -> Engine:
    """The same as a model that is never trained."""
    return replace(engine, trained=0, tokens=engine.forward_tokens or engine.tokens)


def read_engine(config: DictConfig, name: str, key: str, model: Any, engine: Any, batches: Any) -> Engine:
    """What the configuration says about one model, as if it were trained.

    Args:
        config: with ``trainer.{device,n_gpus_per_node,nnodes}`` and ``data.{max_prompt_length,max_response_length}``.
        name: in the table.
        key: of the model's section, for messages; or of its path, if it ends in that.
        model, engine: verl's sections.
        batches: how mini-batches are cut.

    Raises:
        PlanError: the model cannot be read, or the engine is none of FSDP's.
    """
    strategy = batches.get("strategy") or engine.get("strategy")
    if engine.get("strategy", strategy) not in ("fsdp", "fsdp2"):
        raise PlanError(f"the plan knows the strategies fsdp and fsdp2, not {engine.strategy} of {name}")
    cpu = config.trainer.device == "cpu"
    shape = read_shape(key if key.endswith("path") else f"{key}.path", str(model.path), bool(model.trust_remote_code))
    rank = _lora_rank(model)
    adapter = adapter_weights(key, shape, rank, model.target_modules, bool(model.trust_remote_code)) if rank else 0
    # verl's mixed precision is bf16 unless told otherwise.
    precision = (engine.get("mixed_precision") or {}).get("param_dtype", "bf16")
    parallel = engine.get("ulysses_sequence_parallel_size", 1) or 1
    return Engine(
        name=name,
        shape=shape,
        trained=adapter or shape.weights,
        adapter=adapter,
        weight_bytes=DTYPE_BYTES[engine.model_dtype or "fp32"],
        compute_bytes=DTYPE_BYTES[precision],
        shards=_shards(config, engine),
        tokens=_micro_batch_tokens(config, batches, parallel),
        recompute=bool(model.enable_gradient_checkpointing),
        backend=(model.get("fused_kernel_options") or {}).get("impl_backend") if model.use_fused_kernels else None,
        # On the CPU the weights are in host memory anyway, and prime_ext leaves them there.
        param_offload=bool(engine.param_offload) and not cpu,
        optimizer_offload=bool(engine.optimizer_offload) and not cpu,
        stays_on_host=bool(engine.get("offload_policy")) and not cpu,
    )


def frozen(config: DictConfig, engine: Engine) -> Engine:
    """A model that is never trained; on accelerators verl keeps its weights on the host."""
    on_host = config.trainer.device != "cpu"
    return replace(
        _scoring(engine), recompute=False, param_offload=False, optimizer_offload=False, stays_on_host=on_host
    )


def has_critic(config: DictConfig) -> bool:
    """Whether verl trains a critic."""
    return config.algorithm.adv_estimator == "gae"


def has_prm(config: DictConfig) -> bool:
    """Whether there is an implicit PRM; the trainers of PSPO-WRS have none."""
    return bool(config.get("prm") and config.prm.enable)


def has_average(config: DictConfig) -> bool:
    """Whether the policy is pulled towards an average of its own weights."""
    return bool("prime" in config and config.prime.anchor.kind != "none")


def distils(config: DictConfig) -> bool:
    """Whether the policy is pulled towards the PRM as a distribution, inside of its update."""
    return bool("prime" in config and config.prime.process.form == "kl" and config.prime.process.coefficient > 0)


def _lora_rank(model: Any) -> int:
    return int(model.get("lora_rank", 0) or 0)


def devices(config: DictConfig) -> int:
    """Accelerators of the run."""
    return int(config.trainer.n_gpus_per_node * config.trainer.nnodes)


def _shards(config: DictConfig, engine: Any) -> int:
    every, size = devices(config), int(engine.get("fsdp_size", -1))
    return every if size < 0 or size >= every else size


def longest_sequence(config: DictConfig) -> int:
    """Tokens of a prompt and a response of full length."""
    return int(config.data.max_prompt_length + config.data.max_response_length)


def _micro_batch_tokens(config: DictConfig, batches: Any, parallel: int) -> int:
    """Tokens of the largest micro-batch on one device, with responses of full length."""
    length = longest_sequence(config)
    if batches.use_dynamic_bsz:
        # The first one is a critic's, the last one a PRM's.
        keys = ("ppo_infer_max_token_len_per_gpu", "ppo_max_token_len_per_gpu", "max_token_len_per_gpu")
        budget = next(batches[key] for key in keys if batches.get(key))
        return max(int(budget), -(-length // parallel))
    rows = batches.get("ppo_micro_batch_size_per_gpu") or batches.get("micro_batch_size_per_gpu")
    if not rows:
        raise PlanError("neither use_dynamic_bsz=true nor a micro-batch size per GPU is set")
    return -(-int(rows) * length // parallel)
