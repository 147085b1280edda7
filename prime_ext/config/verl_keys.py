# SPDX-License-Identifier: Apache-2.0
"""Keys and values that a configuration may have, from verl's YAML files and dataclasses."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from prime_ext.config.checks import (
    Count,
    CountOrZero,
    Number,
    Positive,
    PositiveOrZero,
    Share,
    Text,
    explain,
    guess,
    limit_to,
)
from prime_ext.config.engines import DTYPE_BYTES
from prime_ext.upstream import find_configurations

# Read by verl 0.9.1 although neither its YAML files nor its dataclasses have them.
READ_UNLISTED = {
    "data": ("cache_dir", "chat_template_func", "filter_prompts", "need_tools_kwargs"),
    "reward": ("reward_kwargs", "timeout"),
    "reward.custom_reward_function": ("reward_kwargs",),
    "trainer": ("remove_previous_ckpt_in_save", "wandb_proxy"),
}
# Passed on to Ray, TransferQueue and profilers. Other sections that take any key are empty or
# dictionaries in verl.
FREE = ("ray_kwargs", "transfer_queue", "global_profiler.global_tool_config")
# Sections of prime_ext, whose settings classes check their keys.
PRIME_EXT_SECTIONS = ("prime", "step_scorer")
# Sections of prm that are verl's own dataclasses.
PRM_SECTIONS = ("model", "engine", "optim", "checkpoint")
# Sections that verl's V1 trainers do not read, and where their keys are now if not in the same
# place below reward.
LEGACY = ("custom_reward_function.", "reward_model.", "sandbox_fusion.")
MOVED = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.model.path": "reward.reward_model.model_path",
}
# Keys that nothing in verl's V1 trainers reads, and those that are read in their place.
UNREAD = {
    "actor_rollout_ref.actor.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "critic.grad_clip": "critic.optim.clip_grad",
    "actor_rollout_ref.rollout.do_sample": "actor_rollout_ref.rollout.temperature",
}


def _forbid_zero(value: int) -> int:
    if value < -1 or value == 0:
        raise PydanticCustomError("above_zero", "must be -1 or greater than 0")
    return value


def _allow_sampling(value: int) -> int:
    if value < -1 or value == 1:
        # 0 and -1: no limit.
        raise PydanticCustomError("samples", "must be -1 or at least 2: 1 makes rollouts alike")
    return value


def _from_tuple(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Types and ranges that verl has in prose only, by key, or by dataclass and field: of policy, critic
# and PRM alike. Outside of the ranges nothing is learned, or what is learned is lost.
_Logger = Literal[
    "wandb",
    "mlflow",
    "swanlab",
    "vemlp_wandb",
    "tensorboard",
    "console",
    "clearml",
    "trackio",
    "file",
    "rl_insight",
]
_LISTED = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
_Paths = Annotated[list[Text], _LISTED] | None
_AboveZeroToOne = Annotated[float, Field(strict=True, gt=0, le=1)]
_BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1)]
_OrMinusOne = Annotated[int, Field(strict=True, ge=-1)]
_Every = Annotated[int, Field(strict=True), AfterValidator(_forbid_zero)]
_Contents = Annotated[
    list[Literal["model", "optimizer", "extra", "hf_model"]], BeforeValidator(_from_tuple)
]
_Dtype = Annotated[str, limit_to(DTYPE_BYTES.keys)]
_KL = Annotated[str, Field(pattern=r"^(kl|k1|abs|mse|k2|low_var_kl|k3|full)\+?$")]
KINDS: dict[str, Any] = {
    "modules": list[Text],
    "transcripts.every": CountOrZero,
    "transcripts.prompts": Count,
    "data.train_files": _Paths,
    "data.val_files": _Paths,
    "data.seed": CountOrZero | None,
    "data.truncation": Literal["error", "left", "right", "middle"],
    "trainer.logger": Annotated[list[_Logger], _LISTED],
    "trainer.resume_mode": Literal["auto", "disable", "resume_path"],
    "trainer.device": Literal["cpu", "cuda", "npu"],
    "trainer.v1.colocate_async.num_warmup_batches": PositiveOrZero,
    "trainer.v1.separate_async.num_warmup_batches": PositiveOrZero,
    "trainer.v1.sampler.max_off_policy_strategy": Literal["drop", "wait"],
    "reward.reward_manager.source": Literal["register", "importlib"],
    "reward.timeout": Positive | None,
    "KLControlConfig.type": Literal["fixed", "adaptive"],
    "ActorConfig.clip_ratio_c": Annotated[float, Field(strict=True, gt=1, allow_inf_nan=False)],
    "ActorConfig.loss_agg_mode": Literal[
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ],
    "OptimizerConfig.betas": Annotated[
        tuple[_BelowOne, _BelowOne], BeforeValidator(lambda value: tuple(value))
    ],
    "FSDPOptimizerConfig.lr_scheduler_type": Literal["constant", "cosine"],
    "FSDPOptimizerConfig.warmup_style": Literal["constant", "cosine"] | None,
    "FSDPOptimizerConfig.min_lr_ratio": Share | None,
    "FSDPEngineConfig.strategy": Literal["fsdp", "fsdp2", "fsdp_turbo"],
    "FSDPEngineConfig.model_dtype": _Dtype,
    "FSDPEngineConfig.mixed_precision": dict[
        Literal["param_dtype", "reduce_dtype", "buffer_dtype"], _Dtype
    ]
    | None,
    "FSDPEngineConfig.fsdp_size": _Every,
    "HFModelConfig.lora_rank": CountOrZero,
    "HFModelConfig.target_modules": Text | Annotated[list[Text], Field(min_length=1)] | None,
    "RolloutConfig.dtype": Literal[
        "float32", "bfloat16", "float16", "float64", "half", "float", "auto"
    ],
    "RolloutConfig.top_k": Annotated[int, Field(strict=True), AfterValidator(_allow_sampling)],
    "RolloutConfig.over_sample_rate": _BelowOne,
    "SamplingConfig.top_k": _OrMinusOne,
    "SamplingConfig.temperature": PositiveOrZero,
    "MultiTurnConfig.tool_response_truncate_side": Literal["left", "middle", "right"],
    "AlgoConfig.kl_penalty": _KL,
    "ActorConfig.kl_loss_type": _KL,
    "RolloutCorrectionConfig.rollout_is": Literal["token", "sequence"] | None,
    "RolloutCorrectionConfig.rollout_is_threshold": Positive | Text,
    **dict.fromkeys(
        ("CheckpointConfig.save_contents", "CheckpointConfig.load_contents"), _Contents
    ),
    **dict.fromkeys(
        (
            *(f"ActorConfig.{name}" for name in ("clip_ratio", "tau_pos", "tau_neg")),
            "CriticConfig.cliprange_value",
            *(f"OptimizerConfig.{name}" for name in ("lr", "clip_grad")),
            "FSDPOptimizerConfig.num_cycles",
            "KLControlConfig.target_kl",
            "RolloutConfig.temperature",
            "RolloutConfig.repetition_penalty",
        ),
        Positive,
    ),
    **dict.fromkeys(
        (
            *(f"ActorConfig.{name}" for name in ("clip_ratio_low", "clip_ratio_high")),
            "OptimizerConfig.grad_clip",
            "PolicyLossConfig.dro_beta",
        ),
        Positive | None,
    ),
    **dict.fromkeys(
        (
            "ActorConfig.kl_loss_coef",
            "OptimizerConfig.weight_decay",
            "KLControlConfig.kl_coef",
            "PolicyLossConfig.ppo_kl_coef",
        ),
        PositiveOrZero,
    ),
    "ActorConfig.entropy_coeff": Number,
    **dict.fromkeys(
        ("OptimizerConfig.lr_warmup_steps_ratio", "AlgoConfig.gamma", "AlgoConfig.lam"), Share
    ),
    **dict.fromkeys(
        (
            "RolloutConfig.top_p",
            "RolloutConfig.gpu_memory_utilization",
            "SamplingConfig.top_p",
            "PolicyLossConfig.clip_cov_ratio",
            "PolicyLossConfig.kl_cov_ratio",
        ),
        _AboveZeroToOne,
    ),
    **dict.fromkeys(
        (
            *(
                f"data.{name}"
                for name in ("train_batch_size", "max_prompt_length", "max_response_length")
            ),
            *(f"trainer.{name}" for name in ("n_gpus_per_node", "nnodes", "total_epochs")),
            "trainer.v1.separate_async.parameter_sync_step",
            "reward.num_workers",
            *(
                f"{owner}.{name}"
                for owner in ("ActorConfig", "CriticConfig")
                for name in ("ppo_mini_batch_size", "ppo_epochs", "ppo_max_token_len_per_gpu")
            ),
            "FSDPEngineConfig.ulysses_sequence_parallel_size",
            "HFModelConfig.lora_alpha",
            *(f"{section}.model.lora.alpha" for section in ("actor_rollout_ref", "critic", "prm")),
            *(
                f"RolloutConfig.{name}"
                for name in (
                    "n",
                    "max_num_seqs",
                    "max_num_batched_tokens",
                    "tensor_model_parallel_size",
                    "data_parallel_size",
                    "pipeline_model_parallel_size",
                    "log_prob_max_token_len_per_gpu",
                )
            ),
            "SamplingConfig.n",
            "AgentLoopConfig.num_workers",
            "CheckpointEngineConfig.update_weights_bucket_megabytes",
            *(
                f"MultiTurnConfig.{name}"
                for name in ("max_parallel_calls", "max_tool_response_length")
            ),
            "KLControlConfig.horizon",
        ),
        Count,
    ),
    **dict.fromkeys(
        (
            "trainer.total_training_steps",
            "trainer.max_actor_ckpt_to_keep",
            "trainer.max_critic_ckpt_to_keep",
            "trainer.v1.sampler.max_off_policy_threshold",
            "data.gen_batch_size",
            "data.val_batch_size",
            "ActorConfig.ppo_micro_batch_size_per_gpu",
            "ActorConfig.loss_scale_factor",
            "CriticConfig.ppo_micro_batch_size_per_gpu",
            "CriticConfig.loss_scale_factor",
            "RolloutConfig.max_model_len",
            "RolloutConfig.log_prob_micro_batch_size_per_gpu",
            *(f"MultiTurnConfig.{name}" for name in ("max_assistant_turns", "max_user_turns")),
        ),
        Count | None,
    ),
    **dict.fromkeys(
        (
            "trainer.critic_warmup",
            "trainer.log_val_generations",
            "data.dataloader_num_workers",
            "RolloutConfig.nnodes",
        ),
        CountOrZero,
    ),
    **dict.fromkeys(("trainer.save_freq", "trainer.test_freq"), _OrMinusOne),
    "OptimizerConfig.lr_warmup_steps": _OrMinusOne | None,
    **dict.fromkeys(
        ("OptimizerConfig.total_training_steps", "data.train_max_samples", "data.val_max_samples"),
        _Every,
    ),
}


def check_values(unresolved: Any, resolved: Any, defaults: Any, expected: Any) -> Iterable[str]:
    """Return a line for each key that nothing reads, and for each value of a wrong type.

    Args:
        unresolved, resolved: a configuration as it was composed, and with its interpolations
            resolved.
        defaults, expected: the same two without any value of the user's.
    """
    from hydra.utils import get_class

    def check(
        section: Mapping[str, Any], usual: Mapping[str, Any], path: str, owner: Any
    ) -> Iterable[str]:
        """Check a section; ``owner`` is its dataclass of verl, unless it names one itself."""
        owner = get_class(usual["_target_"]) if "_target_" in usual else owner
        hints = get_type_hints(owner) if owner else {}
        for name, unresolved in section.items():
            key = f"{path}{name}"
            default = usual.get(name)
            # 4.0 equals 4 but is not a valid count.
            same = (
                unresolved == default
                and type(unresolved) is type(default)
                and not _is_filled(unresolved)
            )
            if key.startswith(FREE) or key in PRIME_EXT_SECTIONS or (name in usual and same):
                continue
            if key in UNREAD:
                yield f"nothing reads {key}={unresolved}; set {UNREAD[key]}"
                continue
            value = _look_up(resolved, key)
            hint = hints.get(name, Any)
            members = [member for member in get_args(hint) if member is not type(None)]
            optional = type(None) in get_args(hint)
            kind = members[0] if optional else hint
            has_keys = bool(default) and isinstance(default, Mapping) or is_dataclass(kind)
            if (
                name not in usual
                and name not in hints
                and name not in READ_UNLISTED.get(path[:-1], ())
            ):
                yield f"nothing reads {key}={value!r}{guess_key(key, expected)}"
            elif has_keys and isinstance(unresolved, Mapping):
                if dict not in (kind, get_origin(kind)):
                    yield from check(
                        unresolved, default or {}, f"{key}.", kind if is_dataclass(kind) else None
                    )
                elif _find_range(key, owner) is not None:
                    yield from _check_type(key, value, _look_up(expected, key), owner, hint)
            elif path.startswith(LEGACY):
                yield f"{key}={value} is not read any more; set {MOVED.get(key, f'reward.{key}')}"
            elif has_keys and not optional:
                yield (
                    f"{key} must be a section with keys such as"
                    f" {', '.join(list(default or ())[:3])}, got {value!r}"
                )
            elif not has_keys:
                yield from _check_type(key, value, _look_up(expected, key), owner, hint)

    yield from _find_missing(unresolved, defaults)
    yield from check(unresolved, defaults, "", None)


def _find_missing(
    section: Mapping[str, Any], usual: Mapping[str, Any], path: str = ""
) -> Iterable[str]:
    """Yield a line for each key that the user removed; settings classes of ours check theirs."""
    for name, value in usual.items():
        key = f"{path}{name}"
        if name not in section:
            # Which keys prm has depends on prm.update_mode.
            if path != "prm." or name in PRM_SECTIONS:
                yield f"{key} is missing, which ~{key} takes away; leave it"
        elif isinstance(value, Mapping) and isinstance(section[name], Mapping):
            # The keys of our sections depend on choices; their classes reject missing ones.
            below = dict.fromkeys(value) if key == "prime" else value
            if key != "step_scorer":
                yield from _find_missing(section[name], below, f"{key}.")


def _check_type(key: str, value: Any, default: Any, owner: Any, hint: Any) -> Iterable[str]:
    kind = _find_range(key, owner)
    usual = _find_kind(key, default) if hint is Any else hint
    if kind is None and default is not _NOTHING and _errors(usual, default, key):
        # verl's own annotation is wrong.
        return ()
    return _errors(usual if kind is None else kind, value, key)


def _find_range(key: str, owner: Any) -> Any:
    """Return the entry of :data:`KINDS` for a key of the dataclass ``owner``, or None."""
    name = key.rpartition(".")[2]
    places = [key, *(f"{base.__name__}.{name}" for base in getattr(owner, "__mro__", ()))]
    return next((KINDS[entry] for entry in places if entry in KINDS), None)


def _errors(kind: Any, value: Any, key: str) -> list[str]:
    adapter: TypeAdapter[Any] = TypeAdapter(
        kind, config=ConfigDict(strict=True, arbitrary_types_allowed=True)
    )
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        return explain(error, adapter, key)
    return []


def _find_kind(key: str, default: Any) -> Any:
    """Return the type of a key of verl's without a dataclass: its default's, any for null."""
    stock = _look_up(_read_stock(), key)
    if stock is _NOTHING or default is None:
        return Any
    if default == {}:
        return dict[str, Any] | None
    return type(default) | None if stock is None else type(default)


@functools.cache
def _read_stock() -> Any:
    return OmegaConf.to_container(
        OmegaConf.load(find_configurations() / "_generated_ppo_trainer.yaml")
    )


def _is_filled(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


_NOTHING: Any = object()


def _look_up(section: Any, key: str) -> Any:
    for name in key.split("."):
        section = section.get(name, _NOTHING) if isinstance(section, Mapping) else _NOTHING
    return section


def guess_key(key: str, known: Mapping[str, Any]) -> str:
    """Return a hint for an unknown key: one like it in its section, or of its name elsewhere."""
    section = known
    above = ""
    *parents, name = key.split(".")
    for parent in parents:
        if parent not in section:
            return guess(parent, list(section), above)
        section = section[parent]
        above = f"{above}{parent}."
        if not isinstance(section, Mapping):
            return f"; {above[:-1]} has no keys below it"
    elsewhere = (known_key for known_key, _ in walk_items(known) if known_key.endswith(f".{name}"))
    near = guess(name, list(section), above) or "".join(
        f"; did you mean {known_key}?" for known_key in [*elsewhere][:1]
    )
    # A longer list would hide the message.
    return near or (f"; there is {', '.join(sorted(section))}" if len(section) <= 12 else "")


def walk_items(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, those of sections below too, named with dots."""
    for name, value in section.items():
        yield f"{above}{name}", value
        if isinstance(value, Mapping):
            yield from walk_items(value, f"{above}{name}.")
