# SPDX-License-Identifier: Apache-2.0
"""Checks of the configuration and of the files it names, before Ray or a model starts.

Each problem is one line: which key, what it got, what it wants.
"""

import inspect
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prime_ext.config.asynchronous import PRIME_MODES, check_async
from prime_ext.config.compose import compose_config
from prime_ext.config.pspo_settings import SECTION as PSPO_SECTION
from prime_ext.config.settings import LOSSES_OF_HARD_LABELS, PrimeSettings, PRMSettings, SettingsError
from prime_ext.preflight.machine import (
    Optimiser,
    actor_optimiser,
    check_adapter,
    check_attention,
    check_batches,
    check_cpu,
    check_fused_kernels,
    check_learning_rates,
    check_token_budgets,
    check_whole_numbers,
    critic_optimiser,
    policy_strategies,
)
from prime_ext.preflight.prm import check_output_layer, check_prm, check_trainable_layers
from prime_ext.preflight.pspo import check_manager_in_prime, check_pspo_config, check_step_rm
from prime_ext.preflight.rewards import check_critic, check_rewards
from prime_ext.run.console import check_console
from prime_ext.run.ray_cluster import address_words


def compose_for_verl(config_name: str, overrides: list[str]) -> DictConfig:
    """Compose and resolve, with ``RAY_ADDRESS``. Sets ``VERL_PLATFORM=cpu`` when the configuration asks for the CPU.

    Raises:
        SettingsError: it does not compose.
    """
    # Before composing, because Hydra looks for configurations in verl, and verl chooses its platform when imported.
    if config_name.endswith("_cpu") or "trainer.device=cpu" in overrides:
        os.environ.setdefault("VERL_PLATFORM", "cpu")
    return compose_config(config_name, [*overrides, *address_words(overrides, os.environ)])


def check_config(config: DictConfig) -> list[str]:
    """Everything that can be said from the configuration alone: of PRIME, or, without its sections, of PSPO-WRS.

    Returns one line per problem.
    """
    if "prime" not in config and PSPO_SECTION in config:
        return check_pspo_config(config)
    built: dict[str, PrimeSettings | PRMSettings] = {}
    problems = []
    for name, settings in (("prime", PrimeSettings), ("prm", PRMSettings)):
        section = config.get(name)
        values: Any = OmegaConf.to_container(section, resolve=True) if section else section
        try:
            built[name] = settings.from_mapping(values)
        except SettingsError as error:
            problems.append(str(error))
    problems.extend(check_whole_numbers(config))
    if problems:
        return problems
    prime, prm = built["prime"], built["prm"]
    assert isinstance(prime, PrimeSettings) and isinstance(prm, PRMSettings)
    optimisers = _optimisers(config, prime, prm)
    return [
        *_check_trainer(config, prime, prm),
        *check_async(config),
        *check_batches(config, optimisers),
        *check_token_budgets(config, optimisers),
        *check_learning_rates(config, optimisers),
        *check_adapter(config),
        *check_fused_kernels(config, _models(config, prm)),
        *check_attention(config, _models(config, prm)),
        *check_prm(config, prm),
        *check_cpu(config, _strategies(config, prime, prm)),
        *check_manager_in_prime(config, prime),
        *check_console(config),
    ]


def _check_trainer(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> Iterable[str]:
    mode = config.trainer.v1.trainer_mode
    if not config.trainer.use_v1:
        yield "trainer.use_v1=false selects verl's deprecated trainer; PRIME needs trainer.use_v1=true"
    if mode not in PRIME_MODES:
        yield f"trainer.v1.trainer_mode={mode} is not one of {', '.join(PRIME_MODES)}"
    if config.algorithm.filter_groups.enable:
        yield "algorithm.filter_groups.enable=true is verl's filter; use prime.filter instead and leave it false"
    yield from check_rewards(config, prime, prm)
    yield from check_critic(config, prime)
    if config.actor_rollout_ref.rollout.temperature <= 0:
        yield f"actor_rollout_ref.rollout.temperature={config.actor_rollout_ref.rollout.temperature} must be above 0"
    sampler = config.trainer.v1.sampler.custom_sampler
    if sampler.path and sampler.name and prime.filter.enable:
        yield "trainer.v1.sampler.custom_sampler replaces the prompt filter; set prime.filter.enable=false"
    reward_model = config.reward.reward_model
    if reward_model.enable and not reward_model.enable_resource_pool:
        yield (
            "reward.reward_model.enable=true without its own resource pool scores after sampling, too late for PRIME's "
            "filter; set reward.reward_model.enable_resource_pool=true"
        )
    if prm.enable and config.prm.checkpoint.async_save or config.actor_rollout_ref.actor.checkpoint.async_save:
        yield "checkpoint.async_save=true leaves no moment at which a checkpoint is known to be whole; set it to false"


def _optimisers(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> list[Optimiser]:
    found = [actor_optimiser(config)]
    if prm.enable:
        micro = None if prm.use_dynamic_bsz else prm.micro_batch_size_per_gpu
        parallel = config.prm.engine.get("ulysses_sequence_parallel_size", 1)
        keys = ("max_token_len_per_gpu", "infer_max_token_len_per_gpu") if prm.use_dynamic_bsz else ()
        # Where the second is null, it is no less than the first.
        budgets = {f"prm.{key}": (getattr(prm, key), parallel) for key in keys if getattr(prm, key) is not None}
        found.append(Optimiser("prm.mini_batch_size", prm.mini_batch_size, micro, parallel, budgets))
    return [*found, critic_optimiser(config)] if prime.critic_sources else found


def _models(config: DictConfig, prm: PRMSettings) -> dict[str, DictConfig]:
    models = {"actor_rollout_ref.model": config.actor_rollout_ref.model}
    return {**models, "prm.model": config.prm.model} if prm.enable else models


def _strategies(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> dict[str, str]:
    found = policy_strategies(config)
    if prm.enable:
        found["prm.engine.strategy"] = config.prm.engine.get("strategy", "fsdp2")
    return {**found, "critic.strategy": config.critic.strategy} if prime.critic_sources else found


def check_files(config: DictConfig) -> list[str]:
    """Everything that can be said from the files the configuration names. Returns one line per problem."""
    data = config.data
    problems = []
    pspo = config.get(PSPO_SECTION) if "prime" not in config else None
    judged = [data.get("reward_fn_key", "data_source"), "reward_model"]
    # PSPO-WRS does without gold answers, and without a critic when the estimator has none.
    columns = [data.prompt_key, *(judged if pspo is None or pspo.outcome_coefficient else [])]
    for key in ("train_files", "val_files"):
        files = data[key]
        if not files:
            problems.append(f"data.{key} is not set; name one or more parquet files")
        for name in [files] if isinstance(files, str) else files or []:
            problems.extend(_check_parquet(f"data.{key}", str(name), columns))
    policy = config.actor_rollout_ref.model.path
    problems.extend(_check_model("actor_rollout_ref.model.path", policy))
    actor = config.actor_rollout_ref.actor.strategy
    problems.extend(check_output_layer("actor_rollout_ref.model", config.actor_rollout_ref.model, actor))
    if pspo is None and config.prm.enable:
        problems.extend(_check_model("prm.model.path", config.prm.model.path))
        problems.extend(check_output_layer("prm.model", config.prm.model, config.prm.engine.get("strategy")))
        problems.extend(check_trainable_layers(config))
        same = {"prm.model.path": config.prm.model.path}
        if config.prm.reference == "frozen":
            problems.extend(_check_model("prm.reference_path", config.prm.reference_path))
            same["prm.reference_path"] = config.prm.reference_path
        for key, path in same.items():
            problems.extend(_check_same_vocabulary(key, path, policy))
    if config.algorithm.adv_estimator == "gae":
        problems.extend(_check_model("critic.model.path", config.critic.model.path))
        problems.extend(_check_same_vocabulary("critic.model.path", config.critic.model.path, policy))
    problems.extend(check_step_rm(config))
    if pspo is None or pspo.judge:
        problems.extend(_check_reward(config))
    resume = config.trainer.resume_from_path
    if config.trainer.resume_mode == "resume_path" and not (resume and Path(resume).is_dir()):
        problems.append(f"trainer.resume_from_path={resume} is not a folder; it must be a .../global_step_N folder")
    return list(dict.fromkeys(problems))


def _check_parquet(key: str, name: str, columns: list[str]) -> Iterable[str]:
    import pyarrow.parquet

    if "://" in name:
        return
    path = Path(name).expanduser()
    if not path.is_file():
        yield f"{key}: {name} does not exist"
        return
    if path.suffix != ".parquet":
        return
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except Exception as error:
        yield f"{key}: {name} cannot be read as parquet ({str(error).splitlines()[0]})"
        return
    missing = [column for column in columns if column not in file.schema_arrow.names]
    if missing:
        yield f"{key}: {name} has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}"
    if file.metadata.num_rows == 0:
        yield f"{key}: {name} has no rows"


REWARD_FUNCTION = "pkg://prime_ext.reward.compute_score"


def _check_reward(config: DictConfig) -> Iterable[str]:
    """The arguments of prime_ext's reward function, and whether it knows a verifier for every row."""
    from prime_ext.config.pspo_settings import MANAGER as PSPO_MANAGER
    from prime_ext.reward.compute_score import compute_score, prepare
    from prime_ext.reward.prompt_manager import NAME as PROMPT_MANAGER
    from prime_ext.verifiers.sources import UnknownSource, source_of

    function = config.reward.custom_reward_function
    if function.path != REWARD_FUNCTION or function.name != compute_score.__name__:
        return
    arguments = OmegaConf.to_container(function.get("reward_kwargs") or OmegaConf.create(), resolve=True)
    parameters = inspect.signature(compute_score).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for name in arguments:
        if name not in known:
            yield f"reward.custom_reward_function.reward_kwargs.{name} is not known; known: {', '.join(known)}"
            return
    try:
        prepare(**arguments)
    except (ImportError, ValueError) as error:
        yield f"reward.custom_reward_function.reward_kwargs: {error}"
        return
    column = config.data.get("reward_fn_key", "data_source")
    tasks = set()
    for key in ("train_files", "val_files"):
        files = config.data[key]
        for name in [files] if isinstance(files, str) else files or []:
            for source in _values(Path(str(name)).expanduser(), column):
                try:
                    tasks.add(source_of(source).task)
                except UnknownSource as error:
                    yield f"data.{key}: {name}: {error}"
    manager = config.reward.reward_manager
    if (
        "math" in tasks
        and arguments.get("math_strictness") != "lenient"
        and manager.source == "register"
        and manager.name not in (PROMPT_MANAGER, PSPO_MANAGER)
    ):
        yield (
            f"reward.reward_manager.name={manager.name} does not tell the reward function the prompt; set it to "
            f"{PROMPT_MANAGER}, or +reward.custom_reward_function.reward_kwargs.math_strictness=lenient"
        )
    code = (arguments.get("verifiers") or {}).get("code") or {}
    if arguments.get("code_reward") == "fraction" and config.prm.enable and config.prm.loss in LOSSES_OF_HARD_LABELS:
        yield (
            f"reward.custom_reward_function.reward_kwargs.code_reward=fraction makes labels between 0 and 1, but "
            f"prm.loss={config.prm.loss} takes 0 and 1 only"
        )
    if "code" in tasks and not (code.get("sandbox_fusion_url") or code.get("unsafe_no_sandbox")):
        yield from _check_sandbox()


def _check_sandbox() -> Iterable[str]:
    from prime_ext.verifiers.sandbox import SandboxUnavailable, find_protection

    try:
        protection = find_protection()
    except SandboxUnavailable as error:
        yield f"code rewards need a sandbox, and this machine has none: {error}"
        return
    if not protection.sufficient:
        yield f"code rewards need a sandbox, and this machine has none: {'; '.join(protection.missing)}"


def _values(path: Path, column: str) -> list[str]:
    """The different values of a column; none if the file or the column cannot be read, which others report."""
    import pyarrow.parquet

    if path.suffix != ".parquet" or not path.is_file():
        return []
    try:
        table = pyarrow.parquet.read_table(path, columns=[column])
    except (OSError, ValueError, KeyError):
        return []
    return sorted({str(value) for value in table[column].unique().to_pylist()})


def _looks_like_hub_id(path: str) -> bool:
    return path.count("/") <= 1 and not path.startswith((".", "/", "~"))


def _check_model(key: str, path: str | None) -> Iterable[str]:
    if not path:
        yield f"{key} is not set"
        return
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            yield f"{key}: {path} has no config.json, so it is not a Hugging Face model"
        else:
            yield from _check_vocabulary_covers_tokenizer(key, folder)
    elif not _looks_like_hub_id(path) and "://" not in path:
        yield f"{key}: {path} does not exist"


def _vocabulary_size(folder: Path) -> int | None:
    config = json.loads((folder / "config.json").read_text())
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    return size if isinstance(size, int) else None


def _tokenizer_vocabulary(folder: Path) -> dict[str, int] | None:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    vocabulary = content["model"].get("vocab", {})
    if isinstance(vocabulary, list):
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    return {**vocabulary, **{token["content"]: token["id"] for token in content.get("added_tokens", [])}}


def _check_vocabulary_covers_tokenizer(key: str, folder: Path) -> Iterable[str]:
    size, vocabulary = _vocabulary_size(folder), _tokenizer_vocabulary(folder)
    if size is not None and vocabulary and max(vocabulary.values()) >= size:
        yield (
            f"{key}: the tokenizer of {folder} has token ids up to {max(vocabulary.values())}, its model only {size} "
            f"embeddings"
        )


def _check_same_vocabulary(key: str, path: str | None, policy: str) -> Iterable[str]:
    if not path or path == policy:
        return
    ours, theirs = Path(path).expanduser(), Path(policy).expanduser()
    if not ((ours / "config.json").is_file() and (theirs / "config.json").is_file()):
        return
    vocabulary, expected = _tokenizer_vocabulary(ours), _tokenizer_vocabulary(theirs)
    if vocabulary is not None and expected is not None and vocabulary != expected:
        yield f"{key}: {path} has another vocabulary than the policy {policy}; they must share one tokenizer"
        return
    size = _vocabulary_size(ours)
    if size is not None and expected and size <= max(expected.values()):
        yield f"{key}: {path} has fewer embeddings than the policy's tokenizer has tokens"
