# SPDX-License-Identifier: Apache-2.0
"""Memory per device and FLOPs per step of a composed configuration, from the models' config.json alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

from prime_ext.config.asynchronous import rollout_ranks
from prime_ext.config.engines import DTYPE_BYTES
from prime_ext.plan import flops as flops_module
from prime_ext.plan.engines import (
    devices,
    distils,
    has_average,
    has_critic,
    has_prm,
    longest_sequence,
    read_engines,
)
from prime_ext.plan.errors import PlanError
from prime_ext.plan.estimate import Hours, checkpoint_bytes, estimate_hours, kept_checkpoints, training_steps
from prime_ext.plan.flops import Passes, prm_passes, training_passes
from prime_ext.plan.memory import Engine, EngineMemory, engine_memory, gathered_bytes
from prime_ext.plan.model_shape import ModelShape

GIB = 2**30
# Interpreter, libraries, and on a GPU the context of CUDA and NCCL; not measured on GPUs.
PROCESS_BYTES = {"cpu": 0.65 * GIB, "cuda": 1.5 * GIB}

# How prm.reference is come by: a pass of its own, or log-probabilities that exist anyway.
REFERENCES = {"frozen": "own", "base": "own", "policy": "shared", "kl": "shared", "none": "shared"}
ROLLOUT, UPDATE = "rollout (the kept responses)", "policy update"

# reverse needs the scores of after and takes its rewards from the update.
UPDATE_MODES = {"reverse": "after"}


@dataclass(frozen=True)
class Work:
    """FLOPs of one part of a step, all devices together."""

    name: str
    flops_per_token_and_weight: float
    flops: float
    of_prm: bool


@dataclass(frozen=True)
class ForwardPasses:
    """Passes without gradients over the rollouts of a step, on one device, with responses of full length.

    Attributes:
        name: of the model.
        tokens, training_tokens: of a pass, and of a training pass.
        passes, passes_of_training: their number, and what it were with as few tokens as in training.
        copied: bytes that a pass copies from the host, for a model that stays there.
    """

    name: str
    tokens: int
    training_tokens: int
    passes: int
    passes_of_training: int
    copied: float


@dataclass
class Plan:
    """What a run would need.

    Attributes:
        facts: what the numbers rest on.
        memory: engines, bytes per device.
        rollout: bytes per device of the rollout engine: ``weights``, ``cache``, ``total``; empty without one.
        phases: peak bytes per device of each part of a step.
        work: FLOPs per step.
        forward: passes without gradients.
        hours: by kind of device, if the run is for accelerators.
        checkpoint: bytes of one checkpoint by model.
        kept: checkpoints on disk at the same time; None if that is not known.
        device_bytes: memory of a device, None if unknown.
        warnings: one line each.
    """

    facts: dict[str, Any]
    memory: list[EngineMemory]
    rollout: dict[str, float]
    phases: dict[str, float]
    work: list[Work]
    hours: list[Hours]
    checkpoint: dict[str, float]
    kept: int | None
    device_bytes: float | None
    warnings: list[str] = field(default_factory=list)
    forward: list[ForwardPasses] = field(default_factory=list)

    @property
    def peak(self) -> tuple[str, float]:
        """The phase that needs most, and how much."""
        name = max(self.phases, key=lambda phase: self.phases[phase])
        return name, self.phases[name]

    def warn_if_too_large(self, advice: Callable[[str], str]) -> None:
        """Add a warning if the peak is above a device's memory; ``advice`` says for the name of a phase what to do."""
        name, peak = self.peak
        if self.device_bytes is not None and peak > self.device_bytes:
            self.warnings.append(
                f"the part {name!r} needs about {peak / GIB:.1f} GiB of a device's {self.device_bytes / GIB:.1f}; "
                f"{advice(name)}"
            )

    @property
    def prm_share(self) -> float:
        """Part of the step's FLOPs that the PRM takes."""
        total = sum(work.flops for work in self.work)
        return sum(work.flops for work in self.work if work.of_prm) / total if total else 0.0


def make_plan(config: DictConfig, device_bytes: float | None, mean_tokens: int | None = None) -> Plan:
    """Plan a resolved configuration.

    Args:
        config: of the run.
        device_bytes: memory of a device; None if unknown.
        mean_tokens: expected mean length of a prompt and its response, for the hours; None for the longest.

    Raises:
        PlanError: a model cannot be read, or an engine is none of FSDP's.
    """
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy not in ("fsdp", "fsdp2"):
        raise PlanError(f"the plan knows the strategies fsdp and fsdp2, not {strategy} of the policy")
    engines = read_engines(config)
    memory = [engine_memory(engine) for engine in engines.values()]
    rollout, problems = _rollout(config, engines["policy"].shape, device_bytes)
    cpu = config.trainer.device == "cpu"
    process = PROCESS_BYTES["cpu" if cpu else "cuda"]
    idle = sum(part.idle for part in memory)
    remains = 0.0 if config.actor_rollout_ref.rollout.free_cache_engine else rollout["total"]
    phases = {"rollout": process + idle + rollout["total"]}
    phases |= {part.name: process + remains + idle - part.idle + part.working for part in memory}
    phases["policy"] += _target_bytes(config, engines)
    work = _work(config, engines)
    plan = Plan(
        facts=_facts(config, engines),
        memory=memory,
        rollout=rollout,
        phases=phases,
        work=work,
        hours=[] if cpu else _hours(config, work, mean_tokens),
        checkpoint=checkpoint_bytes(config, engines),
        kept=kept_checkpoints(config),
        device_bytes=device_bytes,
        warnings=problems,
        forward=list(_forward_passes(config, engines, work)),
    )
    plan.warn_if_too_large(lambda name: _advice(config, plan, name))
    if any(engine.shape.mixture for engine in engines.values()):
        plan.warnings.append("a model has experts: its FLOPs are counted as if every token used all of them")
    return plan


def _target_bytes(config: DictConfig, engines: dict[str, Engine]) -> float:
    """What the targets of the policy's loss add to its update: their weights, gathered, and their logits.

    Those of all targets are held until the backward pass, with ``prime.process.top_k`` those of one at a time.
    """
    policy, targets = engines["policy"], [engines["PRM"]] if distils(config) else []
    targets += [engines["policy average"]] if has_average(config) else []
    if not targets:
        return 0.0
    logits = [policy.tokens * target.shape.vocabulary * target.compute_bytes for target in targets]
    held = max(logits) if config.prime.process.top_k else sum(logits)
    return held + max(gathered_bytes(target) for target in targets)


def _rollout(config: DictConfig, shape: ModelShape, device_bytes: float | None) -> tuple[dict[str, float], list[str]]:
    rollout = config.actor_rollout_ref.rollout
    size = DTYPE_BYTES.get(str(rollout.dtype), 8)
    weights = shape.weights * size / int(rollout.tensor_model_parallel_size)
    per_token = 2.0 * shape.layers * shape.key_value_width * size / int(rollout.tensor_model_parallel_size)
    if config.trainer.device == "cpu" or device_bytes is None:
        oversample = config.prime.filter.oversample if "prime" in config else 1
        rows = min(rollout.max_num_seqs, config.data.train_batch_size * rollout.n * oversample)
        cache = rows * longest_sequence(config) * per_token
        return {"weights": weights, "cache": cache, "total": weights + cache, "cache_bytes_per_token": per_token}, []
    total = rollout.gpu_memory_utilization * device_bytes
    parts = {"weights": weights, "cache": total - weights, "total": total, "cache_bytes_per_token": per_token}
    if parts["cache"] < longest_sequence(config) * per_token:
        return parts, [
            f"actor_rollout_ref.rollout.gpu_memory_utilization={rollout.gpu_memory_utilization} leaves "
            f"{parts['cache'] / GIB:.1f} GiB for the cache of the rollout engine, less than one sequence needs; raise "
            f"it or tensor_model_parallel_size"
        ]
    return parts, []


def _hours(config: DictConfig, work: list[Work], mean_tokens: int | None) -> list[Hours]:
    longest = longest_sequence(config)
    share = min(mean_tokens or longest, longest) / longest
    computed = sum(part.flops for part in work if part.name != ROLLOUT)
    update = sum(part.flops for part in work if part.name == UPDATE)
    return estimate_hours(computed, update, devices(config), training_steps(config), share)


# ---- FLOPs ---------------------------------------------------------------------------------------------------------


def _rollouts(config: DictConfig) -> int:
    return int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)


def _work(config: DictConfig, engines: dict[str, Engine]) -> list[Work]:
    policy = engines["policy"]
    once = Passes(forward=1)
    updates = training_passes(policy.recompute, bool(policy.adapter))
    work = [
        _one(config, ROLLOUT, policy, once),
        _one(config, "old log-probabilities", policy, once),
        _one(config, UPDATE, policy, updates, config.actor_rollout_ref.actor.ppo_epochs),
    ]
    if config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        work.insert(2, _one(config, "KL reference", policy, once))
    if has_critic(config):
        critic = engines["critic"]
        updates = training_passes(critic.recompute, bool(critic.adapter))
        work.append(_one(config, "critic values", critic, once))
        work.append(_one(config, "critic update", critic, updates, config.critic.ppo_epochs))
    if has_average(config):
        epochs = config.actor_rollout_ref.actor.ppo_epochs
        work.append(_one(config, "policy average", engines["policy average"], once, epochs))
    return work + (list(_prm_work(config, engines)) if has_prm(config) else [])


def _prm_work(config: DictConfig, engines: dict[str, Engine]) -> Iterable[Work]:
    prm, engine = config.prm, engines["PRM"]
    mode = UPDATE_MODES.get(prm.update_mode, prm.update_mode)
    if REFERENCES[prm.reference] == "own":
        yield _one(config, "PRM reference", engines.get("PRM reference", engine), Passes(forward=1), of_prm=True)
    trains = 0.0 if mode == "none" else 1 / prm.update_freq
    # A step without an update scores in a pass of its own.
    scores = prm_passes(mode, "shared", False).forward - (mode != "none")
    scoring = trains * scores + (1 - trains)
    if distils(config):
        # The scores of `before` are those of the training passes; the PRM's distribution comes from a pass for each of
        # the policy's.
        scoring = 1 - trains
        epochs = config.actor_rollout_ref.actor.ppo_epochs
        yield _one(config, "PRM in the policy's update", engine, Passes(forward=1), epochs, of_prm=True)
    if scoring:
        yield _one(config, "PRM score", engine, Passes(forward=1), scoring, of_prm=True)
    if trains:
        passes = training_passes(engine.recompute, bool(engine.adapter), engine.trained_share)
        # Rollouts of dropped prompts (prm.train_on=judged) are not in the plan: nobody knows how many there will be.
        replayed = prm.replay.ratio if prm.replay.batches else 0.0
        yield _one(config, "PRM update", engine, passes, trains * prm.epochs * (1 + replayed), of_prm=True)
    if trains and prm.accuracy_freq:
        yield _one(config, "PRM accuracy", engine, Passes(forward=1), 1 / prm.accuracy_freq, of_prm=True)


def _forward_passes(config: DictConfig, engines: dict[str, Engine], work: list[Work]) -> Iterable[ForwardPasses]:
    """Those of models with a token budget of their own for them."""
    trained_like = {"policy": "policy", "KL reference": "policy", "PRM reference": "PRM"}
    names = {part.name for part in work}
    # Its own scores, or those of its base weights as the reference.
    if "PRM score" in names or ("PRM reference" in names and "PRM reference" not in engines):
        trained_like["PRM"] = "PRM"
    tokens = -(-_rollouts(config) * longest_sequence(config) // devices(config))
    for name, model in trained_like.items():
        engine = engines.get(name)
        if engine is None or engine.forward_tokens is None:
            continue
        training = engines[model].tokens
        copied = engine.shape.weights * engine.weight_bytes / engine.shards if engine.stays_on_host else 0.0
        own = engine.forward_tokens
        yield ForwardPasses(name, own, training, -(-tokens // own), -(-tokens // training), copied)


def _one(
    config: DictConfig, name: str, engine: Engine, passes: Passes, times: float = 1.0, of_prm: bool = False
) -> Work:
    length, shape = longest_sequence(config), engine.shape
    width = shape.layers * shape.attention_width
    count = times * flops_module.flops(passes, shape.product_weights, width, _rollouts(config) * length, length)
    return Work(name, times * passes.flops_per_token_and_weight, count, of_prm)


# ---- words ---------------------------------------------------------------------------------------------------------


def _facts(config: DictConfig, engines: dict[str, Engine]) -> dict[str, Any]:
    missing = {"not in the plan": "the step reward model"} if "pspo" in config and "prime" not in config else {}
    if rollout_ranks(config):
        missing = {"not in the plan": f"the {rollout_ranks(config)} devices that generate at the same time"}
    return missing | {
        "device": config.trainer.device,
        "devices": devices(config),
        "rollouts per step": _rollouts(config),
        "tokens per rollout at most": longest_sequence(config),
        "tokens per micro-batch and device": {engine.name: engine.tokens for engine in engines.values()},
        "parameters": {engine.name: engine.shape.weights for engine in engines.values()},
        "trained parameters": {engine.name: engine.trained for engine in engines.values()},
    }


def _advice(config: DictConfig, plan: Plan, phase: str) -> str:
    """The largest lever for the phase that does not fit."""
    if phase == "rollout":
        return "lower rollout.gpu_memory_utilization, or set actor.fsdp_config.param_offload=true and optimizer_offload"
    part = next(part for part in plan.memory if part.name == phase)
    section = "prm" if phase.startswith("PRM") else "critic" if phase == "critic" else "actor_rollout_ref"
    waiting = sum(other.idle for other in plan.memory if other.name != phase)
    tokens = {
        "prm": "prm.max_token_len_per_gpu",
        "critic": "critic.ppo_max_token_len_per_gpu",
        "actor_rollout_ref": "actor.ppo_max_token_len_per_gpu",
    }[section]
    levers = {
        f"{section}.model.use_fused_kernels=true": part.logits,
        f"a smaller micro-batch ({tokens})": part.activations,
        "param_offload=true and optimizer_offload=true for the models that wait": waiting,
        f"{section}.model.lora_rank=16, or more devices": part.gradients + part.optimizer,
    }
    return f"try {max(levers, key=lambda lever: levers[lever])}"
