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
from prime_ext.config.checks import SettingsError, refuse
from prime_ext.config.compose import compose_config
from prime_ext.config.pspo_settings import MANAGER as PSPO_MANAGER
from prime_ext.config.pspo_settings import SECTION as PSPO_SECTION
from prime_ext.config.pspo_settings import scores_steps
from prime_ext.config.settings import LOSSES_OF_HARD_LABELS, PrimeSettings, PRMSettings
from prime_ext.config.step_scorer_settings import MANAGER as STEP_SCORES_MANAGER
from prime_ext.config.step_scorer_settings import SECTION as SCORER_SECTION
from prime_ext.preflight.machine import (
    Optimiser,
    actor_optimiser,
    check_machine,
    check_trainer,
    check_whole_numbers,
    critic_optimiser,
    policy_strategies,
)
from prime_ext.preflight.prm import check_output_layer, check_prm, check_trainable_layers
from prime_ext.preflight.prm_inputs import check_inputs
from prime_ext.preflight.pspo import check_manager_in_prime, check_step_rm, read_pspo
from prime_ext.preflight.rewards import check_critic, check_rewards
from prime_ext.preflight.tools import check_tools
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
    try:
        if "prime" not in config and PSPO_SECTION in config:
            read_pspo(config)
        else:
            read_prime(config)
    except SettingsError as error:
        return list(error.problems)
    return []


def read_prime(config: DictConfig) -> tuple[PrimeSettings, PRMSettings]:
    """The sections ``prime`` and ``prm`` of a configuration.

    Raises:
        SettingsError: with everything that can be said against them and the rest from the configuration alone.
    """
    problems = [*check_whole_numbers(config)]
    try:
        prime = PrimeSettings.from_mapping(_section(config, "prime"))
    except SettingsError as error:
        problems.extend(error.problems)
    try:
        prm = PRMSettings.from_mapping(_section(config, "prm"))
    except SettingsError as error:
        problems.extend(error.problems)
    refuse(problems)
    optimisers, strategies = [actor_optimiser(config)], policy_strategies(config)
    models = {"actor_rollout_ref.model": config.actor_rollout_ref.model}
    if prm.enable:
        optimisers.append(_prm_optimiser(config, prm))
        strategies["prm.engine.strategy"] = config.prm.engine.get("strategy", "fsdp2")
        models["prm.model"] = config.prm.model
    if prime.critic_sources:
        optimisers.append(critic_optimiser(config))
        strategies["critic.strategy"] = config.critic.strategy
    refuse(
        [
            *_check_trainer(config, prime, prm),
            *check_rewards(config, prime, prm),
            *check_critic(config, prime),
            *check_async(config),
            *check_machine(config, optimisers, models, strategies),
            *check_prm(config, prm),
            *check_manager_in_prime(config, prime),
        ]
    )
    return prime, prm


def _section(config: DictConfig, name: str) -> Any:
    section = config.get(name)
    return OmegaConf.to_container(section, resolve=True) if section else section


def _prm_optimiser(config: DictConfig, prm: PRMSettings) -> Optimiser:
    micro = None if prm.use_dynamic_bsz else prm.micro_batch_size_per_gpu
    parallel = config.prm.engine.get("ulysses_sequence_parallel_size", 1)
    keys = ("max_token_len_per_gpu", "infer_max_token_len_per_gpu") if prm.use_dynamic_bsz else ()
    # Where the second is null, it is no less than the first.
    budgets = {f"prm.{key}": (getattr(prm, key), parallel) for key in keys if getattr(prm, key) is not None}
    return Optimiser("prm.mini_batch_size", prm.mini_batch_size, micro, parallel, budgets)


def _check_trainer(config: DictConfig, prime: PrimeSettings, prm: PRMSettings) -> Iterable[str]:
    pool, sampler = config.reward.reward_model, config.trainer.v1.sampler
    yield from check_trainer(config, PRIME_MODES)
    if config.algorithm.filter_groups.enable:
        yield "algorithm.filter_groups.enable=true is verl's filter; use prime.filter instead and leave it false"
    if sampler.custom_sampler.path and sampler.custom_sampler.name and prime.filter.enable:
        yield "trainer.v1.sampler.custom_sampler replaces the prompt filter; set prime.filter.enable=false"
    if pool.enable and not pool.enable_resource_pool:
        yield "reward.reward_model.enable=true scores in time with enable_resource_pool=true only; set that, too"
    if prm.enable and config.prm.checkpoint.async_save or config.actor_rollout_ref.actor.checkpoint.async_save:
        yield "checkpoint.async_save=true leaves no moment at which a checkpoint is known to be whole; set it to false"


def check_files(config: DictConfig) -> list[str]:
    """Everything that can be said from the files the configuration names. Returns one line per problem."""
    return list(dict.fromkeys(_file_problems(config)))


def _file_problems(config: DictConfig) -> Iterable[str]:
    data, policy = config.data, config.actor_rollout_ref
    pspo = config.get(PSPO_SECTION) if "prime" not in config else None
    judged = [data.get("reward_fn_key", "data_source"), "reward_model"]
    # PSPO-WRS does without gold answers, and without a critic when the estimator has none.
    columns = [data.prompt_key, *(judged if pspo is None or pspo.outcome_coefficient else [])]
    for key in DATA_KEYS:
        if not data[key]:
            yield f"data.{key} is not set; name one or more parquet files"
    for key, name in _data_files(config):
        yield from _check_parquet(key, name, columns)
    models = {"actor_rollout_ref.model.path": policy.model.path}
    yield from _check_tokenizer("actor_rollout_ref.model", policy.model)
    yield from check_output_layer("actor_rollout_ref.model", policy.model, policy.actor.strategy)
    if pspo is None and config.prm.enable:
        models["prm.model.path"] = config.prm.model.path
        yield from _check_tokenizer("prm.model", config.prm.model)
        models |= {f"prm.teachers.{source}": path for source, path in (config.prm.teachers or {}).items()}
        yield from check_output_layer("prm.model", config.prm.model, config.prm.engine.get("strategy"))
        yield from check_trainable_layers(config)
        yield from _check_prm_server(config)
        yield from check_inputs(config, [name for key, name in _data_files(config) if key == "data.train_files"])
        if config.prm.reference == "frozen":
            models["prm.reference_path"] = config.prm.reference_path
    if config.algorithm.adv_estimator == "gae":
        models["critic.model.path"] = config.critic.model.path
    for key, path in models.items():
        yield from _check_model(key, path)
        if key.startswith("prm.") and config.prm.inputs.retokenize:
            yield from _check_same_vocabulary(key, path, config.prm.model.path, "prm.model.path")
        else:
            yield from _check_same_vocabulary(key, path, policy.model.path)
    yield from check_step_rm(config)
    yield from check_tools(config)
    scorer = config.get(SCORER_SECTION) if scores_steps(config) else None
    if scorer is not None and scorer.architecture == "token_classification":
        yield from _check_model(f"{SCORER_SECTION}.model_path", scorer.model_path)
    if pspo is None or pspo.judge:
        yield from _check_reward(config)
    resume = config.trainer.resume_from_path
    if config.trainer.resume_mode == "resume_path" and not (resume and Path(resume).is_dir()):
        yield f"trainer.resume_from_path={resume} is not a folder; it must be a .../global_step_N folder"


# ---- data and the reward function ----------------------------------------------------------------------------------

# Of all kinds: fast, of sentencepiece, of tiktoken.
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
DATA_KEYS = ("train_files", "val_files")
REWARD_FUNCTION = "pkg://prime_ext.reward.compute_score"


def _data_files(config: DictConfig) -> Iterable[tuple[str, str]]:
    """Key and name of every data file."""
    for key in DATA_KEYS:
        files = config.data[key]
        for name in [files] if isinstance(files, str) else files or []:
            yield f"data.{key}", str(name)


def _check_parquet(key: str, name: str, columns: list[str]) -> Iterable[str]:
    import pyarrow.parquet

    path = Path(name).expanduser()
    if "://" in name or path.is_file() and path.suffix != ".parquet":
        return
    if not path.is_file():
        yield f"{key}: {name} does not exist"
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


def _check_reward(config: DictConfig) -> Iterable[str]:
    """The arguments of prime_ext's reward function, and whether it knows a verifier for every row."""
    from prime_ext.reward.compute_score import compute_score, prepare
    from prime_ext.reward.managers import NAME as PROMPT_MANAGER
    from prime_ext.verifiers.sources import UnknownSource, source_of

    function, section = config.reward.custom_reward_function, "reward.custom_reward_function.reward_kwargs"
    if function.path != REWARD_FUNCTION or function.name != compute_score.__name__:
        return
    arguments = OmegaConf.to_container(function.get("reward_kwargs") or OmegaConf.create(), resolve=True)
    parameters = inspect.signature(compute_score).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    unknown = [name for name in arguments if name not in known]
    if unknown:
        yield f"{section}.{unknown[0]} is not known; known: {', '.join(known)}"
        return
    try:
        prepare(**arguments)
    except (ImportError, ValueError) as error:
        yield f"{section}{'.modules' if isinstance(error, ImportError) else ''}: {error}"
        return
    tasks = set()
    for key, name in _data_files(config):
        for source in _values(Path(name).expanduser(), config.data.get("reward_fn_key", "data_source")):
            try:
                tasks.add(source_of(source).task)
            except UnknownSource as error:
                yield f"{key}: {name}: {error}"
    manager, strict = config.reward.reward_manager, arguments.get("math_strictness") != "lenient"
    tells_prompt = manager.source != "register" or manager.name in (PROMPT_MANAGER, PSPO_MANAGER, STEP_SCORES_MANAGER)
    if "math" in tasks and strict and not tells_prompt:
        yield (
            f"reward.reward_manager.name={manager.name} does not tell the reward function the prompt; set it to "
            f"{PROMPT_MANAGER}, or +{section}.math_strictness=lenient"
        )
    prm = config.get("prm")
    hard_labels = prm is not None and prm.enable and prm.loss in LOSSES_OF_HARD_LABELS
    if arguments.get("code_reward") == "fraction" and hard_labels:
        yield f"{section}.code_reward=fraction makes labels between 0 and 1, but prm.loss={prm.loss} takes 0 and 1 only"
    code = (arguments.get("verifiers") or {}).get("code") or {}
    if "code" in tasks and not (code.get("sandbox_fusion_url") or code.get("unsafe_no_sandbox")):
        yield from _check_sandbox()


def _check_sandbox() -> Iterable[str]:
    from prime_ext.verifiers.sandbox import SandboxUnavailable, find_protection

    said = "code rewards need a sandbox, and this machine has none"
    try:
        protection = find_protection()
    except SandboxUnavailable as error:
        yield f"{said}: {error}"
        return
    if not protection.sufficient:
        yield f"{said}: {'; '.join(protection.missing)}"


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


def _check_prm_server(config: DictConfig) -> Iterable[str]:
    """Whether the server of the PRM answers with what it is asked for."""
    if config.prm.server.address is None:
        return
    from prime_ext.prm.served_prm import check_server

    try:
        longest = int(config.data.max_prompt_length) + int(config.data.max_response_length)
        check_server(PRMSettings.from_mapping(_section(config, "prm")).server, longest)
    except SettingsError as error:
        yield from error.problems


# ---- models --------------------------------------------------------------------------------------------------------


def _check_model(key: str, path: str | None) -> Iterable[str]:
    """Whether there is a model, with an embedding for each token; names of the hub are left to those who load them."""
    if not path:
        yield f"{key} is not set"
        return
    folder = Path(path).expanduser()
    if not folder.is_dir():
        hub_name = path.count("/") <= 1 and not path.startswith((".", "/", "~"))
        if not hub_name and "://" not in path:
            yield f"{key}: {path} does not exist"
    elif not (folder / "config.json").is_file():
        yield f"{key}: {path} has no config.json, so it is not a Hugging Face model"
    else:
        size, ids = _n_embeddings(folder), (_tokenizer_vocabulary(folder) or {}).values()
        if size is not None and ids and max(ids) >= size:
            yield f"{key}: the tokenizer of {folder} has token ids up to {max(ids)}, its model only {size} embeddings"


def _check_tokenizer(section: str, model: DictConfig) -> Iterable[str]:
    """Whether there is a tokenizer in the folder of a model that names no other."""
    folder = Path(model.path or "").expanduser()
    if model.get("tokenizer_path") or not (folder / "config.json").is_file():
        return
    if not any(path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern)):
        yield f"{section}.path: {folder} has no tokenizer; save it beside the weights, or set {section}.tokenizer_path"


def _check_same_vocabulary(key: str, path: str | None, other: str, name: str = "the policy") -> Iterable[str]:
    if not path or path == other:
        return
    ours, theirs = Path(path).expanduser(), Path(other).expanduser()
    if not ((ours / "config.json").is_file() and (theirs / "config.json").is_file()):
        return
    vocabulary, expected, size = _tokenizer_vocabulary(ours), _tokenizer_vocabulary(theirs), _n_embeddings(ours)
    if vocabulary is not None and expected is not None and vocabulary != expected:
        yield f"{key}: {path} has another vocabulary than {name} {other}; they must share one tokenizer"
    elif size is not None and expected and size <= max(expected.values()):
        yield f"{key}: {path} has fewer embeddings than the tokenizer of {name} has tokens"


def _n_embeddings(folder: Path) -> int | None:
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
