# SPDX-License-Identifier: Apache-2.0
"""Memory per device and seconds of a step of PRIME and PSPO-WRS, from their resolved configuration."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.asynchronous import rollout_ranks
from prime_ext.config.engines import DTYPE_BYTES
from prime_ext.config.pspo_settings import scores_steps
from prime_ext.config.settings import forward_tokens
from prime_ext.plan.hours import Passes, step_seconds, training_passes
from prime_ext.plan.memory import Engine, EngineMemory, engine_memory, freeze, gathered_bytes, read_engine
from prime_ext.plan.model_shape import ModelShape
from prime_ext.prm.frozen_layers import number_of_layers

GIB = 2**30
# Interpreter, libraries, and on a GPU the context of CUDA and NCCL; not measured on GPUs.
PROCESS_BYTES = {"cpu": 0.65 * GIB, "cuda": 1.5 * GIB}
UPDATE = "policy update"


@dataclass
class Plan:
    """What a run needs. Sizes are bytes per device.

    Attributes:
        facts: sizes of the run that the numbers rest on.
        engines: the models by name.
        memory: of each engine.
        rollout: of the rollout engine: ``weights``, ``cache``, ``total``, and ``stays``, what remains of it while
            models are trained.
        phases: peak of each part of a step.
        passes: of a step, without generation: the model's name and its passes, by what they are for.
        seconds: of a step, by kind of device; empty on the CPU.
        steps: of the run; None where only the data set their number.
        device_bytes: memory of a device; None if unknown.
        warnings: one line each.
    """

    facts: dict[str, Any]
    engines: dict[str, Engine]
    memory: list[EngineMemory]
    rollout: dict[str, float]
    phases: dict[str, float]
    passes: dict[str, tuple[str, Passes]]
    seconds: dict[str, float]
    steps: int | None
    device_bytes: float | None
    warnings: list[str]

    @property
    def peak(self) -> tuple[str, float]:
        """The phase that needs most, and its bytes."""
        return max(self.phases.items(), key=lambda phase: phase[1])


def plan_run(config: DictConfig, device_bytes: float | None, mean_tokens: int | None = None) -> Plan:
    """Plan a run of ``prime_ext.train``.

    Args:
        config: resolved.
        device_bytes: memory of a device; None if unknown.
        mean_tokens: mean length of prompt and response, for the hours; None for the longest.

    Raises:
        PlanError: a model cannot be read, or an engine is not one of FSDP's.
    """
    engines = read_engines(config)
    memory = [engine_memory(engine) for engine in engines.values()]
    rollout, warnings = _rollout(config, engines["policy"].shape, device_bytes)
    cpu = config.trainer.device == "cpu"
    process = PROCESS_BYTES["cpu" if cpu else "cuda"]
    idle = sum(part.idle for part in memory)
    phases = {"rollout": process + idle + rollout["total"]}
    for part in memory:
        phases[part.name] = process + rollout["stays"] + idle - part.idle + part.working
    phases["policy"] += _target_bytes(config, engines)
    longest = longest_sequence(config)
    passes = _passes(config, engines)
    tokens = _rollouts(config) * longest
    flops = {name: times.flops(engines[model].shape, tokens, longest) for name, (model, times) in passes.items()}
    share = min(mean_tokens or longest, longest) / longest
    steps = config.trainer.total_training_steps
    plan = Plan(
        facts=_facts(config, engines),
        engines=engines,
        memory=memory,
        rollout=rollout,
        phases=phases,
        passes=passes,
        seconds={} if cpu else step_seconds(sum(flops.values()), flops[UPDATE], _devices(config), share),
        steps=None if steps is None else int(steps),
        device_bytes=device_bytes,
        warnings=warnings,
    )
    name, peak = plan.peak
    if device_bytes is not None and peak > device_bytes:
        needs = f"the part {name!r} needs about {peak / GIB:.1f} GiB of a device's {device_bytes / GIB:.1f}"
        plan.warnings.append(f"{needs}; docs/how_to/cost.md says what to change")
    return plan


# ---- models --------------------------------------------------------------------------------------------------------


def read_engines(config: DictConfig) -> dict[str, Engine]:
    """Return the models of a run by name: ``policy``, and those it needs of ``critic``, ``KL reference``,
    ``policy average``, ``PRM``, ``PRM reference``.

    Raises:
        PlanError: a model cannot be read, or an engine is not one of FSDP's.
    """
    policy, actor, prm = config.actor_rollout_ref, config.actor_rollout_ref.actor, config.get("prm")
    cpu = config.trainer.device == "cpu"
    read = partial(read_engine, run=config.trainer, longest=longest_sequence(config))
    key, budget = "actor_rollout_ref.model", policy.rollout.log_prob_max_token_len_per_gpu
    engines = {"policy": read("policy", key, policy.model, actor.get("fsdp_config") or {}, actor, budget)}
    if _has_kl_penalty(config) and not engines["policy"].adapter:
        budget = policy.ref.log_prob_max_token_len_per_gpu
        reference = read("KL reference", key, policy.model, policy.ref.fsdp_config, actor, budget)
        engines["KL reference"] = freeze(reference, cpu)
    if config.algorithm.adv_estimator == "gae":
        critic = read("critic", "critic.model", config.critic.model, config.critic.fsdp, config.critic)
        values = critic.shape.with_values()
        engines["critic"] = replace(critic, shape=values, trained=critic.adapter or values.weights)
    if "prime" in config and config.prime.anchor.kind != "none":
        # An average of the policy's weights, towards which the policy is pulled.
        average = read("policy average", key, policy.model, actor.fsdp_config, actor)
        engines["policy average"] = freeze(average, cpu)
    # The trainers of PSPO-WRS have no PRM.
    if not prm or not prm.enable:
        return engines
    engine = read("PRM", "prm.model", prm.model, prm.engine, prm, forward_tokens(prm))
    if prm.trainable_layers is not None:
        shape = engine.shape
        layers = min(number_of_layers(prm.trainable_layers, shape.layers), shape.layers)
        engine = replace(engine, trained=layers * shape.block_weights, trained_layers=layers)
    engines["PRM"] = freeze(engine, cpu) if prm.update_mode == "none" else engine
    if prm.reference == "frozen":
        model = OmegaConf.merge(prm.model, {"path": prm.reference_path, "lora_rank": 0})
        reference = read("PRM reference", "prm.reference_path", model, prm.engine, prm, forward_tokens(prm))
        engines["PRM reference"] = freeze(reference, cpu)
    return engines


def _has_kl_penalty(config: DictConfig) -> bool:
    return bool(config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward)


def _distills(config: DictConfig) -> bool:
    """Return whether the policy's update pulls it towards the PRM's distribution."""
    return bool("prime" in config and config.prime.process.form == "kl" and config.prime.process.coefficient > 0)


def _devices(config: DictConfig) -> int:
    return int(config.trainer.n_gpus_per_node * config.trainer.nnodes)


def _rollouts(config: DictConfig) -> int:
    return int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)


def longest_sequence(config: DictConfig) -> int:
    """Return the tokens of a prompt and a response of full length."""
    return int(config.data.max_prompt_length + config.data.max_response_length)


# ---- memory --------------------------------------------------------------------------------------------------------


def _rollout(config: DictConfig, shape: ModelShape, device_bytes: float | None) -> tuple[dict[str, float], list[str]]:
    """Return the bytes of the rollout engine, and a warning where its cache is too small."""
    rollout = config.actor_rollout_ref.rollout
    size = DTYPE_BYTES.get(str(rollout.dtype), 8)
    weights = shape.weights * size / int(rollout.tensor_model_parallel_size)
    per_token = 2.0 * shape.layers * shape.key_value_width * size / int(rollout.tensor_model_parallel_size)
    one_sequence, warnings = longest_sequence(config) * per_token, []
    if config.trainer.device == "cpu" or device_bytes is None:
        oversample = config.prime.filter.oversample if "prime" in config else 1
        cache = min(rollout.max_num_seqs, _rollouts(config) * oversample) * one_sequence
    else:
        cache = rollout.gpu_memory_utilization * device_bytes - weights
        if cache < one_sequence:
            key = f"actor_rollout_ref.rollout.gpu_memory_utilization={rollout.gpu_memory_utilization}"
            few = f"{cache / GIB:.1f} GiB for its cache, less than one sequence needs"
            warnings = [f"{key} leaves {few}; raise it or tensor_model_parallel_size"]
    total = weights + cache
    stays = 0.0 if rollout.free_cache_engine else total
    return {"weights": weights, "cache": cache, "total": total, "stays": stays}, warnings


def _target_bytes(config: DictConfig, engines: dict[str, Engine]) -> float:
    """Return what the targets of the policy's loss add to its update: their weights, gathered, and their logits.

    The logits of all targets are held until the backward pass, with ``prime.process.top_k`` those of one at a time.
    """
    names = ["PRM", "policy average"] if _distills(config) else ["policy average"]
    targets = [engines[name] for name in names if name in engines]
    if not targets:
        return 0.0
    logits = [engines["policy"].tokens * target.shape.vocabulary * target.compute_bytes for target in targets]
    held = max(logits) if config.prime.process.top_k else sum(logits)
    return held + max(gathered_bytes(target) for target in targets)


# ---- passes --------------------------------------------------------------------------------------------------------


def _passes(config: DictConfig, engines: dict[str, Engine]) -> dict[str, tuple[str, Passes]]:
    policy, epochs = engines["policy"], config.actor_rollout_ref.actor.ppo_epochs
    found = {
        "old log-probabilities": ("policy", Passes()),
        UPDATE: ("policy", training_passes(policy.recompute, bool(policy.adapter)).times(epochs)),
    }
    if _has_kl_penalty(config):
        found["KL reference"] = ("policy", Passes())
    if "critic" in engines:
        update = training_passes(engines["critic"].recompute, bool(engines["critic"].adapter))
        found["critic values"] = ("critic", Passes())
        found["critic update"] = ("critic", update.times(config.critic.ppo_epochs))
    if "policy average" in engines:
        found["policy average"] = ("policy average", Passes().times(epochs))
    if "PRM" not in engines:
        return found
    prm, engine = config.prm, engines["PRM"]
    # Other references are log-probabilities that exist anyway.
    if prm.reference in ("frozen", "base"):
        found["PRM reference"] = ("PRM reference" if "PRM reference" in engines else "PRM", Passes())
    trained = prm.update_mode != "none"
    if _distills(config):
        # The PRM's distribution comes from a pass for each of the policy's.
        found["PRM in the policy's update"] = ("PRM", Passes().times(epochs))
    if not trained or (prm.update_mode != "interleaved" and not _distills(config)):
        found["PRM score"] = ("PRM", Passes())
    if trained:
        update = training_passes(engine.recompute, bool(engine.adapter), engine.trained_share)
        found["PRM update"] = ("PRM", update.times(prm.epochs))
        if prm.accuracy_freq:
            found["PRM accuracy"] = ("PRM", Passes().times(1 / prm.accuracy_freq))
    return found


def _facts(config: DictConfig, engines: dict[str, Engine]) -> dict[str, Any]:
    servers = rollout_ranks(config)
    missing = {
        f"the {servers} devices that generate at the same time": servers,
        "the step reward model": scores_steps(config),
    }
    absent = [what for what, is_missing in missing.items() if is_missing]
    return ({"not in the plan": absent[0]} if absent else {}) | {
        "device": config.trainer.device,
        "devices": _devices(config),
        "rollouts per step": _rollouts(config),
        "tokens per rollout at most": longest_sequence(config),
        "tokens per micro-batch and device": {engine.name: engine.tokens for engine in engines.values()},
        "parameters": {engine.name: engine.shape.weights for engine in engines.values()},
        "trained parameters": {engine.name: engine.trained for engine in engines.values()},
    }
