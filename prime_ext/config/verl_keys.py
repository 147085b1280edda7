# SPDX-License-Identifier: Apache-2.0
"""Keys and values that a configuration may have, from verl's YAML files and dataclasses."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from prime_ext.config.checks import (
    Count,
    CountOrZero,
    Positive,
    PositiveOrZero,
    Share,
    Text,
    explain,
    guess,
    limit_to,
)
from prime_ext.config.engines import DTYPE_BYTES

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
# Sections of ours, whose settings classes have their keys.
OWN = ("prime", "pspo", "step_scorer")
# Sections that verl's V1 trainers do not read, and where their keys are now if not in the same
# place below reward.
LEGACY = ("custom_reward_function.", "reward_model.", "sandbox_fusion.")
MOVED = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.model.path": "reward.reward_model.model_path",
}
# Types that verl has in prose only, by key, or by dataclass and field.
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
_KL = Annotated[str, Field(pattern=r"^(kl|k1|abs|mse|k2|low_var_kl|k3|full)\+?$")]
KINDS: dict[str, Any] = {
    "modules": list[Text],
    "transcripts.every": CountOrZero,
    "transcripts.prompts": Count,
    "data.train_files": _Paths,
    "data.val_files": _Paths,
    "data.seed": CountOrZero | None,
    "trainer.logger": Annotated[list[_Logger], _LISTED],
    "trainer.resume_mode": Literal["auto", "disable", "resume_path"],
    "trainer.device": Literal["cpu", "cuda", "npu"],
    "trainer.total_training_steps": Count | None,
    "trainer.v1.colocate_async.num_warmup_batches": PositiveOrZero,
    "trainer.v1.separate_async.num_warmup_batches": PositiveOrZero,
    "trainer.v1.separate_async.parameter_sync_step": Count,
    "trainer.v1.sampler.max_off_policy_threshold": Count | None,
    "trainer.v1.sampler.max_off_policy_strategy": Literal["drop", "wait"],
    "reward.reward_manager.source": Literal["register", "importlib"],
    "actor_rollout_ref.rollout.temperature": Positive,
    "KLControlConfig.type": Literal["fixed", "adaptive"],
    **dict.fromkeys(
        [
            f"ActorConfig.{name}"
            for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "kl_loss_coef")
        ],
        PositiveOrZero,
    ),
    "ActorConfig.loss_agg_mode": Literal[
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ],
    "OptimizerConfig.lr": PositiveOrZero,
    "FSDPOptimizerConfig.lr_scheduler_type": Literal["constant", "cosine"],
    "FSDPEngineConfig.strategy": Literal["fsdp", "fsdp2", "fsdp_turbo"],
    "FSDPEngineConfig.model_dtype": Annotated[str, limit_to(DTYPE_BYTES)],
    "RolloutConfig.top_p": Share,
    "RolloutConfig.gpu_memory_utilization": Share,
    "RolloutConfig.dtype": Literal[
        "float32", "bfloat16", "float16", "float64", "half", "float", "auto"
    ],
    "AlgoConfig.kl_penalty": _KL,
    "ActorConfig.kl_loss_type": _KL,
    "CheckpointConfig.save_contents": list[Literal["model", "optimizer", "extra", "hf_model"]],
    **dict.fromkeys(
        (
            *(
                f"data.{name}"
                for name in ("train_batch_size", "max_prompt_length", "max_response_length")
            ),
            *(f"trainer.{name}" for name in ("n_gpus_per_node", "nnodes", "total_epochs")),
            "actor_rollout_ref.rollout.n",
            "reward.num_workers",
            "ActorConfig.ppo_mini_batch_size",
            "ActorConfig.ppo_epochs",
            "CriticConfig.ppo_mini_batch_size",
        ),
        Count,
    ),
}


def check_values(given: Any, resolved: Any, defaults: Any, expected: Any) -> Iterable[str]:
    """Return a line for each key that nothing reads, and for each value of a wrong type.

    Args:
        given, resolved: a configuration as it was composed, and with its interpolations resolved.
        defaults, expected: the same two without any value of the user's.
    """
    from hydra.utils import get_class

    def check(
        section: Mapping[str, Any], usual: Mapping[str, Any], path: str, owner: Any
    ) -> Iterable[str]:
        """Check a section; ``owner`` is its dataclass of verl, unless it names one itself."""
        owner = get_class(usual["_target_"]) if "_target_" in usual else owner
        hints = get_type_hints(owner) if owner else {}
        for name, given in section.items():
            key = f"{path}{name}"
            default = usual.get(name)
            if key.startswith(FREE) or key in OWN or (name in usual and given == default):
                continue
            value = _look_up(resolved, key)
            hint = hints.get(name, Any)
            members = [one for one in get_args(hint) if one is not type(None)]
            optional = type(None) in get_args(hint)
            kind = members[0] if optional else hint
            has_keys = bool(default) and isinstance(default, Mapping) or is_dataclass(kind)
            if (
                name not in usual
                and name not in hints
                and name not in READ_UNLISTED.get(path[:-1], ())
            ):
                yield f"nothing reads {key}={value!r}{guess_key(key, expected)}"
            elif has_keys and isinstance(given, Mapping):
                if dict not in (kind, get_origin(kind)):
                    yield from check(
                        given, default or {}, f"{key}.", kind if is_dataclass(kind) else None
                    )
            elif path.startswith(LEGACY):
                yield f"{key}={value} is not read any more; set {MOVED.get(key, f'reward.{key}')}"
            elif has_keys and not optional:
                yield (
                    f"{key} must be a section with keys such as"
                    f" {', '.join(list(default or ())[:3])}, got {value!r}"
                )
            elif not has_keys:
                yield from _check_type(key, value, _look_up(expected, key), owner, hint)

    return check(given, defaults, "", None)


def _check_type(key: str, value: Any, default: Any, owner: Any, hint: Any) -> Iterable[str]:
    name = key.rpartition(".")[2]
    places = [key, *(f"{one.__name__}.{name}" for one in getattr(owner, "__mro__", ()))]
    kind = next((KINDS[place] for place in places if place in KINDS), None)
    usual = _find_kind(key, default) if hint is Any else hint
    if kind is None and default is not _NOTHING and _errors(usual, default, key):
        # verl's own annotation is wrong.
        return ()
    return _errors(usual if kind is None else kind, value, key)


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
    from verl.trainer import config

    return OmegaConf.to_container(
        OmegaConf.load(Path(config.__file__).parent / "_generated_ppo_trainer.yaml")
    )


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
    elsewhere = (one for one, _ in walk_items(known) if one.endswith(f".{name}"))
    near = guess(name, list(section), above) or "".join(
        f"; did you mean {one}?" for one in [*elsewhere][:1]
    )
    # More would bury the line.
    return near or (f"; there is {', '.join(sorted(section))}" if len(section) <= 12 else "")


def walk_items(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, those of sections below too, named with dots."""
    for name, value in section.items():
        yield f"{above}{name}", value
        if isinstance(value, Mapping):
            yield from walk_items(value, f"{above}{name}.")
