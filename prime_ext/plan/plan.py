# SPDX-License-Identifier: Apache-2.0
"""Memory per device, FLOPs per step and hours of a run, whatever trains it, from its models' config.json alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prime_ext.plan.estimate import Hours, estimate_hours
from prime_ext.plan.flops import Passes, flops
from prime_ext.plan.memory import Engine, EngineMemory, engine_memory

GIB = 2**30
# Interpreter, libraries, and on a GPU the context of CUDA and NCCL; not measured on GPUs.
PROCESS_BYTES = {"cpu": 0.65 * GIB, "cuda": 1.5 * GIB}
# Parts of a step that the hours treat apart.
ROLLOUT, UPDATE = "rollout (the kept responses)", "policy update"


@dataclass(frozen=True)
class Part:
    """Passes of one model in a step: the part's name, the model's, and whether it is work for the PRM."""

    name: str
    model: str
    passes: Passes
    of_prm: bool = False


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


@dataclass(frozen=True)
class Known:
    """What is known of a run beside its configuration.

    Attributes:
        device_bytes: memory of a device; None if unknown.
        mean_tokens: mean length of a sequence (prompt and response, or a row); None for the longest.
        devices: of trainers whose configuration does not say.
        rows: of the training data of supervised runs; None if unknown.
        prompts: of the training data of offline PRMs; None if unknown.
        responses: of each of those prompts.
    """

    device_bytes: float | None = None
    mean_tokens: int | None = None
    devices: int = 1
    rows: int | None = None
    prompts: int | None = None
    responses: int = 8


@dataclass(frozen=True)
class Run:
    """A run as the plan sees it. rl.py and supervised.py read it from the configurations of their trainers.

    Attributes:
        facts: what the numbers rest on.
        engines: the models by name.
        parts: of a step, in order.
        sequences: of a step, on all devices.
        length: tokens of each, for the FLOPs.
        share_of_length: what the hours take of that.
        devices: of the run.
        cpu: whether these are no accelerators.
        steps: of the run; None where the data say it and are not known.
        checkpoint: bytes of one checkpoint by model.
        kept: checkpoints on disk at the same time; None if that is not known.
        levers: settings that lower the need of one model, by the bytes they are about; from its memory, and what all
            others hold meanwhile.
        device_bytes: memory of a device; None if unknown.
        rollout: bytes per device of the rollout engine: ``weights``, ``cache``, ``total``, and ``stays``, what of it
            remains while models are trained; empty without one.
        added: bytes by model that its pass needs for other models.
        forward: passes without gradients.
        warnings: one line each.
        not_here: files that the run needs and that are not on this machine, one line each.
    """

    facts: dict[str, Any]
    engines: dict[str, Engine]
    parts: list[Part]
    sequences: int
    length: int
    share_of_length: float
    devices: int
    cpu: bool
    steps: int | None
    checkpoint: dict[str, float]
    kept: int | None
    levers: Callable[[EngineMemory, float], dict[str, float]]
    device_bytes: float | None
    rollout: dict[str, float] = field(default_factory=dict)
    added: dict[str, float] = field(default_factory=dict)
    forward: list[ForwardPasses] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    not_here: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Of a step, on all devices."""
        return self.sequences * self.length


@dataclass(frozen=True)
class Work:
    """FLOPs of one part of a step, all devices together."""

    name: str
    flops_per_token_and_weight: float
    flops: float
    of_prm: bool


@dataclass
class Plan:
    """What a run would need.

    Attributes:
        run: what the plan rests on.
        memory: engines, bytes per device.
        phases: peak bytes per device of each part of a step.
        work: FLOPs per step.
        hours: by kind of device, if the run is for accelerators.
        warnings: one line each.
    """

    run: Run
    memory: list[EngineMemory]
    phases: dict[str, float]
    work: list[Work]
    hours: list[Hours]
    warnings: list[str]

    @property
    def peak(self) -> tuple[str, float]:
        """The phase that needs most, and how much."""
        name = max(self.phases, key=lambda phase: self.phases[phase])
        return name, self.phases[name]

    @property
    def flops(self) -> float:
        """Of a step."""
        return sum(work.flops for work in self.work)

    @property
    def prm_share(self) -> float:
        """Part of the step's FLOPs that the PRM takes."""
        return sum(work.flops for work in self.work if work.of_prm) / self.flops if self.flops else 0.0


def make_plan(run: Run) -> Plan:
    """Plan a run."""
    memory = [engine_memory(engine) for engine in run.engines.values()]
    process, idle = PROCESS_BYTES["cpu" if run.cpu else "cuda"], sum(part.idle for part in memory)
    phases = {"rollout": process + idle + run.rollout["total"]} if run.rollout else {}
    for part in memory:
        others = process + run.rollout.get("stays", 0.0) + idle - part.idle
        phases[part.name] = others + part.working + run.added.get(part.name, 0.0)
    work = [_work(run, part) for part in run.parts]
    computed = sum(part.flops for part in work if part.name != ROLLOUT)
    update = sum(part.flops for part in work if part.name == UPDATE)
    hours = [] if run.cpu else estimate_hours(computed, update, run.devices, run.steps, run.share_of_length)
    plan = Plan(run, memory, phases, work, hours, list(run.warnings))
    name, peak = plan.peak
    if run.device_bytes is not None and peak > run.device_bytes:
        what, has = "a step" if len(phases) == 1 else f"the part {name!r}", f"{run.device_bytes / GIB:.1f}"
        plan.warnings.append(f"{what} needs about {peak / GIB:.1f} GiB of a device's {has}; {_advice(plan, name)}")
    if any(engine.shape.mixture for engine in run.engines.values()):
        plan.warnings.append("a model has experts: its FLOPs are counted as if every token used all of them")
    return plan


def _work(run: Run, part: Part) -> Work:
    shape, passes = run.engines[part.model].shape, part.passes
    size = flops(passes, shape.product_weights, shape.layers * shape.attention_width, run.tokens, run.length)
    return Work(part.name, passes.flops_per_token_and_weight, size, part.of_prm)


def _advice(plan: Plan, phase: str) -> str:
    """The largest lever for the phase that does not fit."""
    if phase == "rollout":
        return "lower rollout.gpu_memory_utilization, or set actor.fsdp_config.param_offload=true and optimizer_offload"
    part = next(part for part in plan.memory if part.name == phase)
    levers = plan.run.levers(part, sum(other.idle for other in plan.memory if other.name != phase))
    return f"try {max(levers, key=lambda lever: levers[lever])}"
