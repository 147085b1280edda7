# SPDX-License-Identifier: Apache-2.0
"""Offline training of an implicit PRM as the plan sees it."""

from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.algorithms.prm_losses import PRM_LOSSES
from prime_ext.offline_prm.settings import OfflineSettings
from prime_ext.plan.engines import frozen, read_engine
from prime_ext.plan.flops import Passes, training_passes
from prime_ext.plan.memory import EngineMemory, checkpoint_bytes
from prime_ext.plan.plan import Known, Part, Run

MODEL, REFERENCE = "PRM", "reference"


def read_offline(config: DictConfig, known: Known) -> Run:
    """A resolved configuration of ``prime_ext.offline_prm``; validation is not in the plan.

    Raises:
        PlanError: a model cannot be read, or the engine is none of FSDP's.
        SettingsError: see its message.
    """
    values: Any = OmegaConf.to_container(config)
    settings = OfflineSettings.from_mapping(values)
    cpu, longest = settings.trainer.device == "cpu", settings.data.max_length
    read = partial(read_engine, batches=config.batching, devices=known.devices, cpu=cpu, longest=longest)
    trained = read(MODEL, "model", config.model, config.engine)
    model = config.model.copy()
    OmegaConf.update(model, "path", config.prm.reference_path)
    reference = frozen(read(REFERENCE, "prm.reference_path", model, config.engine), cpu)
    engines = {MODEL: trained, REFERENCE: reference}
    parts = [Part("reference", REFERENCE, Passes(), of_prm=True)]
    # As the trainer: a loss may need scores before the update, or log-ratios of mismatched pairs, of both models.
    if not settings.prm.by_step and PRM_LOSSES[settings.prm.loss].needs_scores:
        parts = [Part("reference", REFERENCE, Passes().times(2), of_prm=True)]
        parts.append(Part("scores before the update", MODEL, Passes(), of_prm=True))
    parts.append(Part("update", MODEL, training_passes(trained.recompute), of_prm=True))
    steps = None
    if known.prompts is not None:
        prompts = round(known.prompts * (1 - settings.data.val_fraction))
        steps = settings.trainer.epochs * max(1, prompts // settings.data.prompts_per_step)
    sequences = settings.data.prompts_per_step * known.responses
    return Run(
        facts={
            "device": "cpu" if cpu else "cuda",
            "devices": known.devices,
            "loss": settings.prm.loss,
            "responses per step": sequences,
            "tokens per step at most": sequences * longest,
            "steps": "unknown; give --prompts" if steps is None else steps,
            "tokens per micro-batch and device": {engine.name: engine.tokens for engine in engines.values()},
            "parameters": {engine.name: engine.shape.weights for engine in engines.values()},
        },
        engines=engines,
        parts=parts,
        sequences=sequences,
        length=longest,
        share_of_length=min(known.mean_tokens or longest, longest) / longest,
        devices=known.devices,
        cpu=cpu,
        steps=steps,
        checkpoint={MODEL: checkpoint_bytes(trained, config.checkpoint.save_contents)},
        # The oldest goes when the next is complete.
        kept=settings.trainer.keep_checkpoints + 1 if settings.trainer.save_freq else 1,
        levers=_levers,
        device_bytes=known.device_bytes,
    )


def _levers(part: EngineMemory, waiting: float) -> dict[str, float]:
    return {
        "model.use_fused_kernels=true": part.logits,
        "a smaller batching.max_token_len_per_gpu, down to data.max_length": part.activations,
        "more devices": part.weights + part.gradients + part.optimizer,
    }
