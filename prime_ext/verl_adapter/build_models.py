# SPDX-License-Identifier: Apache-2.0
"""Models in addition to the policy, from the configuration: PRM, reference and policy average."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from verl.trainer.config import CheckpointConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, TrainingWorkerConfig

from prime_ext.methods.prm_settings import PRMSettings, TrainedPRMSettings, forward_tokens
from prime_ext.methods.settings import PrimeSettings
from prime_ext.prm.implicit_prm import FrozenPRM, TrainedPRM
from prime_ext.verl_adapter.side_models import (
    PRM_GROUP,
    REFERENCE_GROUP,
    PolicyAverage,
    PRMModels,
)

WEIGHTS_ONLY = {"save_contents": ["model"], "load_contents": ["model"]}


def build_prm(
    config: DictConfig, settings: PRMSettings, prime: PrimeSettings, end_token: int = 0
) -> PRMModels:
    """Build the implicit PRM from validated sections; ``end_token`` is of padding."""
    models = {PRM_GROUP: prm_model(config.prm, settings, is_target=prime.distils)}
    if settings.reference == "frozen":
        models[REFERENCE_GROUP] = prm_model(config.prm, settings, config.prm.reference_path)
    rollout = config.actor_rollout_ref.rollout
    # Both sides of the log-ratio need the same temperature; verl computes the policy's side at that
    # of the rollouts.
    as_policy = settings.reference == "policy" or prime.distils or prime.needs.old_log_probs
    temperature = rollout.temperature if as_policy else 1.0
    rows = settings.mini_batch_size * rollout.n
    folder = Path(config.trainer.default_local_dir)
    kind = TrainedPRM if isinstance(settings, TrainedPRMSettings) else FrozenPRM
    # verl's mixed precision is bf16 by default.
    precision = (models[PRM_GROUP].engine_config.mixed_precision or {}).get("param_dtype", "bf16")
    dtype = PrecisionType.to_dtype(precision)
    return PRMModels(kind(settings, prime, rows, temperature, end_token, folder, dtype), models)


def prm_model(
    section: DictConfig,
    settings: PRMSettings,
    frozen_path: str | None = None,
    is_target: bool = False,
) -> TrainingWorkerConfig:
    """Build the configuration of the PRM's worker from the section ``prm``.

    With ``frozen_path`` the model is another one, which is never trained.
    """
    model = section.model
    checkpoint = section.checkpoint
    is_frozen = frozen_path is not None or not isinstance(settings, TrainedPRMSettings)
    if is_frozen:
        checkpoint = OmegaConf.merge(checkpoint, WEIGHTS_ONLY)
    if frozen_path is not None:
        model = OmegaConf.merge(
            model, {"path": frozen_path, "lora_rank": 0, "lora_adapter_path": None}
        )
    engine = omega_conf_to_dataclass(section.engine)
    # verl copies the weights of forward_only engines from the host in every pass; the policy's loss
    # runs one in every micro-batch.
    engine.forward_only = is_frozen and not is_target
    engine.use_dynamic_bsz = settings.use_dynamic_bsz
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = (
        settings.micro_batch_size_per_gpu
    )
    engine.max_token_len_per_gpu = settings.max_token_len_per_gpu
    engine.infer_max_token_len_per_gpu = (
        forward_tokens(section) if settings.use_dynamic_bsz else None
    )
    optimizer = omega_conf_to_dataclass(section.optim)
    checkpoint = omega_conf_to_dataclass(checkpoint)
    return _worker(model, engine, optimizer, checkpoint)


def build_average(section: DictConfig, decay: float) -> PolicyAverage:
    """Build the policy's average from ``actor_rollout_ref``, on an engine without updates."""
    # Averages in 16 bit would stand still: a step of the policy is smaller than their rounding.
    changes = {"fsdp_config": {"model_dtype": "fp32"}, "checkpoint": WEIGHTS_ONLY}
    actor = omega_conf_to_dataclass(OmegaConf.merge(section.actor, changes))
    engine = actor.engine
    rows = section.actor.ppo_micro_batch_size_per_gpu
    engine.use_dynamic_bsz = section.actor.use_dynamic_bsz
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = (
        section.actor.ppo_max_token_len_per_gpu
    )
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = rows
    return PolicyAverage(_worker(section.model, engine, actor.optim, actor.checkpoint), decay)


def _worker(
    model: DictConfig,
    engine: FSDPEngineConfig,
    optimizer: FSDPOptimizerConfig,
    checkpoint: CheckpointConfig,
) -> TrainingWorkerConfig:
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=omega_conf_to_dataclass(model),
        engine_config=engine,
        optimizer_config=optimizer,
        checkpoint_config=checkpoint,
    )
