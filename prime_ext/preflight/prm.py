# SPDX-License-Identifier: Apache-2.0
"""What can be said against the settings of the PRM from the configuration alone."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.engines import CHUNKED, DTYPE_BYTES, VERL_BACKENDS, sequence_parallel_ranks
from prime_ext.config.settings import PRMSettings

# Engines of verl on which the PRM's worker works.
ENGINES = ("fsdp", "fsdp2")


def lora_rank(model: Any) -> int:
    """Rank of the LoRA adapter of a model section (``lora.rank`` of Megatron, ``lora_rank`` of FSDP); 0 without one."""
    nested = model.get("lora", None) or {}
    return int(nested.get("rank", 0) or model.get("lora_rank", 0) or 0)


def has_adapter(model: Any) -> bool:
    """Whether the model is trained through an adapter, a new one or one that is loaded."""
    return lora_rank(model) > 0 or model.get("lora_adapter_path", None) is not None


def check_prm(config: DictConfig, prm: PRMSettings) -> Iterable[str]:
    """One line per combination of settings that cannot work."""
    if not prm.enable:
        return
    strategy = config.prm.engine.get("strategy")
    if strategy not in ENGINES:
        yield (
            f"prm.engine.strategy={strategy}: the PRM runs on {' and '.join(ENGINES)} only, because its worker counts "
            f"passes with hooks on one whole model; set prm.engine.strategy=fsdp2, whatever the policy's engine is"
        )
    yield from check_weights("prm.engine", config.prm.engine)
    yield from _check_reference(config, prm)
    yield from _check_inputs(config, prm)
    temperature = config.actor_rollout_ref.rollout.temperature
    as_policy = prm.temperature_of_policy or config.prime.process.target == "policy"
    if prm.server.address is not None and as_policy and temperature != 1:
        yield (
            f"prm.server gives log-probabilities at temperature 1, and they are compared with the policy's at "
            f"actor_rollout_ref.rollout.temperature={temperature}; set that to 1"
        )
    if prm.server.address is not None and config.prime.process.form == "kl":
        yield "prm.server gives no distributions; set prime.process.form to sampled or sign_preserving"
    yield from _check_adapter(config, prm)
    if prm.train_on == "judged":
        yield from _check_judged(config)
    if prm.update_mode == "none":
        read_in_updates = {
            "update_freq": (prm.update_freq, 1),
            "epochs": (prm.epochs, 1),
            "bias.enable": (prm.bias.enable, False),
            "trainable_layers": (prm.trainable_layers, None),
            "replay.batches": (prm.replay.batches, 0),
            "train_on": (prm.train_on, "kept"),
        }
        for key, (value, plain) in read_in_updates.items():
            if value != plain:
                given, wanted = json.dumps(value), json.dumps(plain)
                yield f"prm.{key}={given} has no effect with prm.update_mode=none; leave it at {wanted}"


def check_weights(key: str, engine: Any) -> Iterable[str]:
    """Whether the weights of the PRM and of its reference, on the engine ``key``, are kept in float32."""
    dtype = engine.get("model_dtype")
    if DTYPE_BYTES.get(str(dtype)) != 4:
        yield (
            f"{key}.model_dtype={dtype}: verl would round the weights, in which small learning rates are lost, and the "
            f"frequencies of rotary embeddings, differently for PRM and reference; set it to fp32 (passes run in "
            f"{key}.mixed_precision.param_dtype, bf16 by default)"
        )


def check_output_layer(key: str, model: Any, strategy: str) -> Iterable[str]:
    """Whether verl's fused kernels reach the output layer of the model section ``key``; reads its config.json."""
    backend = (model.get("fused_kernel_options") or {}).get("impl_backend")
    if not model.get("use_fused_kernels") or backend not in VERL_BACKENDS or strategy != "fsdp2":
        return
    found = _local_config(model)
    if found is not None and not found.tie_word_embeddings:
        yield (
            f"{key}.fused_kernel_options.impl_backend={backend} reads the output layer's weights, which fsdp2 leaves "
            f"sharded where they are not those of the embeddings, as in {model.path}; set it to {CHUNKED}"
        )


def check_trainable_layers(config: DictConfig) -> Iterable[str]:
    """Whether the PRM has as many decoder layers as are to be trained; reads its config.json."""
    wanted, model = config.prm.trainable_layers, config.prm.model
    found = None if wanted is None else _local_config(model)
    if found is not None and wanted > (layers := found.get_text_config().num_hidden_layers):
        yield f"prm.trainable_layers={wanted} must be at most {layers}, the decoder layers of {model.path}"


def _local_config(model: Any) -> Any:
    """The config.json of a model section as transformers reads it; None if it is not in a folder here."""
    folder = Path(str(model.path)).expanduser()
    if not (folder / "config.json").is_file():
        return None
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, trust_remote_code=bool(model.trust_remote_code))


def _check_inputs(config: DictConfig, prm: PRMSettings) -> Iterable[str]:
    """What the PRM may read in place of the rollouts, and the weights that it may take from the policy."""
    model, policy = config.prm.model, config.actor_rollout_ref
    if prm.inputs.rewrites:
        if config.prime.process.form == "kl" and prm.inputs.retokenize:
            yield (
                "prm.inputs.retokenize=true gives the PRM other tokens than the policy has, and prime.process.form=kl "
                "compares distributions token by token; set prime.process.form to sampled or sign_preserving"
            )
        elif config.prime.process.form == "kl" and sequence_parallel_ranks(policy.actor) > 1:
            yield (
                "prm.inputs.template with prime.process.form=kl needs whole responses on a rank; set "
                "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=1, or prime.process.form=sampled"
            )
        if policy.rollout.multi_turn.enable:
            yield "prm.inputs rewrites responses of one turn; leave actor_rollout_ref.rollout.multi_turn.enable=false"
    if prm.inputs.retokenize and model.tokenizer_path and model.tokenizer_path == policy.model.tokenizer_path:
        yield "prm.inputs.retokenize=true with the policy's tokenizer; set prm.model.tokenizer_path=null, or to its own"
    refreshed = prm.reference_refresh_freq and prm.reference_refresh_source == "policy"
    if prm.inputs.retokenize and (prm.follow_policy.freq or refreshed):
        yield "prm.inputs.retokenize=true is for another family than the policy's, whose weights it cannot take over"
    if prm.follow_policy.freq:
        yield from _check_copies(config, "prm.follow_policy", "policy")


def _check_reference(config: DictConfig, prm: PRMSettings) -> Iterable[str]:
    policy = config.actor_rollout_ref
    penalty = policy.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    if prm.reference == "kl" and not penalty:
        yield "prm.reference=kl reads that of the policy's KL penalty; set actor_rollout_ref.actor.use_kl_loss=true"
    if prm.reference == "base" and not has_adapter(config.prm.model):
        yield "prm.reference=base switches the PRM's LoRA adapter off, and it has none; set prm.model.lora_rank"
    if prm.reference_refresh_freq:
        yield from _check_copies(
            config, f"prm.reference_refresh_source={prm.reference_refresh_source}", prm.reference_refresh_source
        )


def _check_copies(config: DictConfig, key: str, source: str) -> Iterable[str]:
    """Whether a model of the section ``prm`` can take over the weights of ``policy`` or ``prm``."""
    policy = config.actor_rollout_ref
    side = policy.actor if source == "policy" else config.prm.engine
    theirs, ours = side.get("strategy"), config.prm.engine.get("strategy")
    if theirs != ours or ours not in ENGINES:
        yield (
            f"{key} copies weights shard by shard, between engines of one strategy ({' or '.join(ENGINES)}); that of "
            f"{source} is {theirs}, that of prm.engine is {ours}"
        )
    if has_adapter(policy.model if source == "policy" else config.prm.model):
        yield f"{key} copies the weights of {source}, which is trained through a LoRA adapter that the copy lacks"


def _check_judged(config: DictConfig) -> Iterable[str]:
    """``prm.train_on=judged`` needs the filter of the synchronous trainer, which holds what it rejects."""
    mode = config.trainer.v1.trainer_mode
    sampler = config.trainer.v1.sampler.custom_sampler
    if mode != "prime_sync":
        yield f"prm.train_on=judged needs trainer.v1.trainer_mode=prime_sync, where a batch ends the search, not {mode}"
    if not config.prime.filter.enable:
        yield "prm.train_on=judged has no effect with prime.filter.enable=false, which drops nothing; leave it at kept"
    if sampler.path and sampler.name:
        yield "prm.train_on=judged needs the prompt filter, which trainer.v1.sampler.custom_sampler replaces"
    if OmegaConf.select(config, "skip.rollout_tq.enable"):
        yield "prm.train_on=judged needs what the filter drops, and skip.rollout_tq.enable=true replays only the rest"


def _check_adapter(config: DictConfig, prm: PRMSettings) -> Iterable[str]:
    if not has_adapter(config.prm.model):
        return
    if prm.trainable_layers is not None:
        yield f"prm.trainable_layers={prm.trainable_layers} is not for a model with a LoRA adapter; set it to null"
    if "hf_model" in config.prm.checkpoint.save_contents:
        yield (
            "prm.checkpoint.save_contents has hf_model, which verl writes without merging a LoRA adapter; leave it out "
            "and use `python -m prime_ext.generate.export` on the checkpoint"
        )
