# SPDX-License-Identifier: Apache-2.0
"""Runs of PRIME and PSPO-WRS as the plan sees them."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.asynchronous import rollout_ranks
from prime_ext.config.engines import DTYPE_BYTES
from prime_ext.config.pspo_settings import scores_steps
from prime_ext.config.settings import forward_tokens
from prime_ext.plan.flops import Passes, training_passes
from prime_ext.plan.memory import (
    STRATEGIES,
    Engine,
    EngineMemory,
    checkpoint_bytes,
    frozen,
    gathered_bytes,
    lora_rank,
    read_engine,
    with_forward,
)
from prime_ext.plan.model_shape import ModelShape, PlanError
from prime_ext.plan.plan import GIB, ROLLOUT, UPDATE, ForwardPasses, Known, Part, Run
from prime_ext.prm.frozen_layers import number_of_layers


def read_rl(config: DictConfig, known: Known) -> Run:
    """A resolved configuration of ``prime_ext.train``.

    Raises:
        PlanError: a model cannot be read, or an engine is none of FSDP's.
    """
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy not in STRATEGIES:
        raise PlanError(f"the plan knows the strategies fsdp and fsdp2, not {strategy} of the policy")
    engines, trainer, longest = read_engines(config), config.trainer, longest_sequence(config)
    parts = list(_parts(config, engines))
    rollout, warnings = _rollout(config, engines["policy"].shape, known.device_bytes)
    steps = None if trainer.total_training_steps is None else int(trainer.total_training_steps)
    sections = {"policy": config.actor_rollout_ref.actor, "critic": config.get("critic"), "PRM": config.get("prm")}
    return Run(
        facts=_facts(config, engines),
        engines=engines,
        parts=parts,
        sequences=_rollouts(config),
        length=longest,
        share_of_length=min(known.mean_tokens or longest, longest) / longest,
        devices=_devices(config),
        cpu=trainer.device == "cpu",
        steps=steps,
        # Only models that are trained are saved.
        checkpoint={
            name: checkpoint_bytes(engines[name], section.checkpoint.save_contents)
            for name, section in sections.items()
            if name in engines and engines[name].trained
        },
        kept=_kept_checkpoints(trainer, steps),
        levers=_levers,
        device_bytes=known.device_bytes,
        rollout=rollout,
        added={"policy": _target_bytes(config, engines)},
        forward=list(_forward_passes(config, engines, {part.name for part in parts})),
        warnings=warnings,
    )


# ---- models --------------------------------------------------------------------------------------------------------


def read_engines(config: DictConfig) -> dict[str, Engine]:
    """The models of a run by name: ``policy``, and those it needs of ``critic``, ``KL reference``, ``policy average``,
    ``PRM``, ``PRM reference``. Raises ``PlanError``."""
    policy, prm = config.actor_rollout_ref, config.get("prm")
    actor, cpu = policy.actor, config.trainer.device == "cpu"
    read = partial(read_engine, devices=_devices(config), cpu=cpu, longest=longest_sequence(config))
    key = "actor_rollout_ref.model"
    trained = read("policy", key, policy.model, actor.fsdp_config, actor)
    engines = {"policy": with_forward(trained, actor, policy.rollout.log_prob_max_token_len_per_gpu)}
    if _has_kl_penalty(config) and not lora_rank(policy.model):
        engine = read("KL reference", key, policy.model, policy.ref.fsdp_config, actor)
        engines["KL reference"] = frozen(with_forward(engine, actor, policy.ref.log_prob_max_token_len_per_gpu), cpu)
    if config.algorithm.adv_estimator == "gae":
        engine = read("critic", "critic.model", config.critic.model, config.critic.fsdp, config.critic)
        values = engine.shape.with_values()
        engines["critic"] = replace(engine, shape=values, trained=engine.adapter or values.weights)
    if "prime" in config and config.prime.anchor.kind != "none":
        # An average of its own weights, towards which the policy is pulled.
        engines["policy average"] = frozen(replace(trained, name="policy average"), cpu)
    # The trainers of PSPO-WRS have none, and one behind a server is not on these devices.
    if not prm or not prm.enable or prm.server.address is not None:
        return engines
    engine = read("PRM", "prm.model", prm.model, prm.engine, prm)
    engine = with_forward(engine, prm, forward_tokens(prm) if prm.use_dynamic_bsz else None)
    engines["PRM"] = engine
    others = [("PRM reference", "prm.reference_path", prm.reference_path)] if prm.reference == "frozen" else []
    teachers = sorted(set((prm.teachers or {}).values()))
    others += [(f"PRM teacher {number}", "prm.teachers", path) for number, path in enumerate(teachers, start=1)]
    for name, key, path in others:
        model = prm.model.copy()
        OmegaConf.update(model, "path", path)
        OmegaConf.update(model, "lora_rank", 0)
        other = read(name, key, model, prm.engine, prm)
        engines[name] = frozen(replace(other, forward_tokens=engine.forward_tokens), cpu)
    if prm.trainable_layers is not None:
        shape = engine.shape
        layers = min(number_of_layers(prm.trainable_layers, shape.layers), shape.layers)
        engines["PRM"] = replace(engine, trained=layers * shape.block_weights, trained_layers=layers)
    if prm.update_mode == "none":
        engines["PRM"] = frozen(engines["PRM"], cpu)
    return engines


def _has_kl_penalty(config: DictConfig) -> bool:
    return bool(config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward)


def _distils(config: DictConfig) -> bool:
    """Whether the policy is pulled towards the PRM as a distribution, inside of its update."""
    return bool("prime" in config and config.prime.process.form == "kl" and config.prime.process.coefficient > 0)


def _devices(config: DictConfig) -> int:
    return int(config.trainer.n_gpus_per_node * config.trainer.nnodes)


def _rollouts(config: DictConfig) -> int:
    return int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)


def longest_sequence(config: DictConfig) -> int:
    """Tokens of a prompt and a response of full length."""
    return int(config.data.max_prompt_length + config.data.max_response_length)


# ---- memory --------------------------------------------------------------------------------------------------------


def _rollout(config: DictConfig, shape: ModelShape, device_bytes: float | None) -> tuple[dict[str, float], list[str]]:
    """Bytes of the rollout engine, and what is wrong with them."""
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
    sizes = {"weights": weights, "cache": cache, "total": total, "stays": stays, "cache_bytes_per_token": per_token}
    return sizes, warnings


def _target_bytes(config: DictConfig, engines: dict[str, Engine]) -> float:
    """What the targets of the policy's loss add to its update: their weights, gathered, and their logits.

    Those of all targets are held until the backward pass, with ``prime.process.top_k`` those of one at a time.
    """
    names = ["PRM", "policy average"] if _distils(config) else ["policy average"]
    targets = [engines[name] for name in names if name in engines]
    if not targets:
        return 0.0
    logits = [engines["policy"].tokens * target.shape.vocabulary * target.compute_bytes for target in targets]
    held = max(logits) if config.prime.process.top_k else sum(logits)
    return held + max(gathered_bytes(target) for target in targets)


def _levers(part: EngineMemory, waiting: float) -> dict[str, float]:
    section, tokens = "actor_rollout_ref", "actor.ppo_max_token_len_per_gpu"
    if part.name.startswith("PRM"):
        section, tokens = "prm", "prm.max_token_len_per_gpu"
    elif part.name == "critic":
        section, tokens = "critic", "critic.ppo_max_token_len_per_gpu"
    return {
        f"{section}.model.use_fused_kernels=true": part.logits,
        f"a smaller micro-batch ({tokens})": part.activations,
        "param_offload=true and optimizer_offload=true for the models that wait": waiting,
        f"{section}.model.lora_rank=16, or more devices": part.gradients + part.optimizer,
    }


def _kept_checkpoints(trainer: Any, steps: int | None) -> int | None:
    """Checkpoints that are on disk at the end; None if all are kept and their number is not known."""
    if trainer.save_freq is None or trainer.save_freq <= 0:
        return 0
    if trainer.max_actor_ckpt_to_keep:
        # The oldest goes when the next is complete.
        return int(trainer.max_actor_ckpt_to_keep) + 1
    return None if steps is None else -(-steps // int(trainer.save_freq))


# ---- passes --------------------------------------------------------------------------------------------------------


def _parts(config: DictConfig, engines: dict[str, Engine]) -> Iterable[Part]:
    policy, epochs = engines["policy"], config.actor_rollout_ref.actor.ppo_epochs
    yield Part(ROLLOUT, "policy", Passes())
    yield Part("old log-probabilities", "policy", Passes())
    if _has_kl_penalty(config):
        yield Part("KL reference", "policy", Passes())
    yield Part(UPDATE, "policy", training_passes(policy.recompute, bool(policy.adapter)).times(epochs))
    if "critic" in engines:
        critic = engines["critic"]
        update = training_passes(critic.recompute, bool(critic.adapter))
        yield Part("critic values", "critic", Passes())
        yield Part("critic update", "critic", update.times(config.critic.ppo_epochs))
    if "policy average" in engines:
        yield Part("policy average", "policy average", Passes().times(epochs))
    if "PRM" in engines:
        yield from _prm_parts(config, engines)


def _prm_parts(config: DictConfig, engines: dict[str, Engine]) -> Iterable[Part]:
    prm, engine = config.prm, engines["PRM"]
    # Other references are log-probabilities that exist anyway.
    if prm.reference in ("frozen", "base"):
        model = "PRM reference" if "PRM reference" in engines else "PRM"
        yield Part("PRM reference", model, Passes(), of_prm=True)
    trains = 0.0 if prm.update_mode == "none" else 1 / prm.update_freq
    # Where scores are those of the training pass, a step without an update scores in a pass of its own.
    scores = 1 - trains if prm.update_mode == "interleaved" else 1
    if _distils(config):
        # So do the scores of `before`; the PRM's distribution comes from a pass for each of the policy's.
        scores = 1 - trains
        epochs = config.actor_rollout_ref.actor.ppo_epochs
        yield Part("PRM in the policy's update", "PRM", Passes().times(epochs), of_prm=True)
    if scores:
        yield Part("PRM score", "PRM", Passes().times(scores), of_prm=True)
    if trains:
        update = training_passes(engine.recompute, bool(engine.adapter), engine.trained_share)
        # Rollouts of dropped prompts (prm.train_on=judged) are not in the plan: nobody knows how many there will be.
        replayed = prm.replay.ratio if prm.replay.batches else 0.0
        yield Part("PRM update", "PRM", update.times(trains * prm.epochs * (1 + replayed)), of_prm=True)
    if trains and prm.accuracy_freq:
        yield Part("PRM accuracy", "PRM", Passes().times(1 / prm.accuracy_freq), of_prm=True)


def _forward_passes(config: DictConfig, engines: dict[str, Engine], parts: set[str]) -> Iterable[ForwardPasses]:
    """Those of models with a token budget of their own for them."""
    trained_like = {"policy": "policy", "KL reference": "policy", "PRM reference": "PRM"}
    # Its own scores, or those of its base weights as the reference.
    if "PRM score" in parts or ("PRM reference" in parts and "PRM reference" not in engines):
        trained_like["PRM"] = "PRM"
    tokens = -(-_rollouts(config) * longest_sequence(config) // _devices(config))
    for name, model in trained_like.items():
        engine = engines.get(name)
        if engine is None or engine.forward_tokens is None:
            continue
        own, training = engine.forward_tokens, engines[model].tokens
        copied = engine.shape.weights * engine.weight_bytes / engine.shards if engine.stays_on_host else 0.0
        yield ForwardPasses(name, own, training, -(-tokens // own), -(-tokens // training), copied)


def _facts(config: DictConfig, engines: dict[str, Engine]) -> dict[str, Any]:
    scorer, servers = config.prime.process.scorer if "prime" in config else None, rollout_ranks(config)
    missing = {
        f"the {servers} devices that generate at the same time": servers,
        "of K steps, (K + 1) / 2 passes ask for the answer; one is counted (PRM score)": scorer == "answer_likelihood",
        "the server of the PRM": config.get("prm") and config.prm.enable and "PRM" not in engines,
        "the step reward model": scores_steps(config),
    }
    first = next((what for what, is_missing in missing.items() if is_missing), None)
    return ({} if first is None else {"not in the plan": first}) | {
        "device": config.trainer.device,
        "devices": _devices(config),
        "rollouts per step": _rollouts(config),
        "tokens per rollout at most": longest_sequence(config),
        "tokens per micro-batch and device": {engine.name: engine.tokens for engine in engines.values()},
        "parameters": {engine.name: engine.shape.weights for engine in engines.values()},
        "trained parameters": {engine.name: engine.trained for engine in engines.values()},
    }
