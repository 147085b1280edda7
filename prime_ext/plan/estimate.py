# SPDX-License-Identifier: Apache-2.0
"""Hours and disk space of a run, from its FLOPs and the sizes of its models: estimates, nothing here was measured.

What is computed is divided by the peak of a device and a utilisation. Generation is bound by memory and not by FLOPs;
how long it takes beside the policy's update is taken over from the paper (arXiv 2502.01456, table 2: 8 A800,
Eurus-2-7B, responses of up to 3,072 tokens): rollout 281.7 s, policy update 156.6 s, all but those and the PRM 91.1 s.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omegaconf import DictConfig

from prime_ext.plan.memory import ADAM_STATES, Engine

# Dense bf16 FLOPs per second, from the vendor's data sheets.
DEVICES = {"A100": 312e12, "H100": 989e12, "H200": 989e12}
# An assumption. The paper's update of 156.6 s (6 N, 1,024 rollouts) is 18 % of the peak if they had 1,500 tokens on
# average, and 36 % at 3,000.
UTILISATION = 0.25
ROLLOUT_OVER_UPDATE, REST_OVER_UPDATE = 281.7 / 156.6, 91.1 / 156.6
FP32 = 4


@dataclass(frozen=True)
class Hours:
    """Time on one kind of device.

    Attributes:
        device: its name.
        step_seconds: of a training step.
        run_hours: of all steps; None where their number is not known before the data are.
        device_hours: the same times the number of devices.
    """

    device: str
    step_seconds: float
    run_hours: float | None
    device_hours: float | None


def estimate_hours(
    computed: float, policy_update: float, n_devices: int, steps: int | None, share_of_length: float
) -> list[Hours]:
    """Hours by kind of device.

    Args:
        computed: FLOPs per step of all training passes and scores, with responses of full length.
        policy_update: FLOPs of the policy's update among them.
        n_devices: of the run.
        steps: training steps; None if unknown.
        share_of_length: mean length of a prompt and its response over the longest.
    """
    found = []
    for name, peak in DEVICES.items():
        speed = n_devices * peak * UTILISATION
        # Prompts and other overhead grow with the update, so with the share too.
        beside = policy_update * (ROLLOUT_OVER_UPDATE + REST_OVER_UPDATE)
        seconds = share_of_length * (computed + beside) / speed
        hours = None if steps is None else steps * seconds / 3600
        found.append(Hours(name, seconds, hours, None if hours is None else hours * n_devices))
    return found


def training_steps(config: DictConfig) -> int | None:
    """Steps of a run, if the configuration alone says them."""
    steps = config.trainer.total_training_steps
    return None if steps is None else int(steps)


def checkpoint_bytes(config: DictConfig, engines: dict[str, Engine]) -> dict[str, float]:
    """Bytes of one checkpoint by model: weights and optimiser states as FSDP shards, and Hugging Face weights.

    Only models that are trained are saved; with an adapter, verl's FSDP engines save the whole model.
    """
    sections = {"policy": config.actor_rollout_ref.actor, "critic": config.get("critic"), "PRM": config.get("prm")}
    return {
        name: float(sum(checkpoint_parts(engines[name], section.checkpoint.save_contents)))
        for name, section in sections.items()
        if name in engines and engines[name].trained
    }


def checkpoint_parts(engine: Engine, contents: Iterable[str]) -> Iterable[float]:
    """Bytes of what a checkpoint of a model holds, by verl's names of its contents."""
    weights = engine.shape.weights + engine.adapter
    if "model" in contents:
        yield weights * engine.weight_bytes
    if "optimizer" in contents:
        yield ADAM_STATES * engine.trained * engine.weight_bytes
    if "hf_model" in contents:
        yield weights * FP32


def kept_checkpoints(config: DictConfig) -> int | None:
    """Checkpoints that are on disk at the end; None if all are kept and their number is not known."""
    trainer = config.trainer
    if trainer.save_freq is None or trainer.save_freq <= 0:
        return 0
    if trainer.max_actor_ckpt_to_keep:
        # The oldest goes when the next is complete.
        return int(trainer.max_actor_ckpt_to_keep) + 1
    steps = training_steps(config)
    return None if steps is None else -(-steps // int(trainer.save_freq))
