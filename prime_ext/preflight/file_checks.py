# SPDX-License-Identifier: Apache-2.0
"""Checks of what a configuration names: data, the reward function, models, tools, servers."""

import asyncio
import fnmatch
import inspect
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from yaml import YAMLError

from prime_ext.config.engines import text_config
from prime_ext.config.step_scorer_settings import scorer_section
from prime_ext.environments.names import DATA_SOURCE
from prime_ext.methods.settings import prm_section, read_needs
from prime_ext.names import (
    PAYING_MANAGER,
    PRM_LOSSES,
    PROMPT_MANAGER,
    STEP_SCORES_MANAGER,
    TOOL_LOOPS,
)
from prime_ext.preflight.adapter_checks import check_adapter
from prime_ext.preflight.data_checks import check_data, has_tokenizer
from prime_ext.preflight.environment_checks import check_environments
from prime_ext.preflight.machine import get_attention
from prime_ext.preflight.prm_checks import check_output_layer
from prime_ext.preflight.step_scorer_checks import check_step_rm
from prime_ext.reward import user_function
from prime_ext.tasks.rl_rows import find_idle_verifiers, get_gold
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.gym_verifier import require
from prime_ext.verifiers.verdict import Verdict
from prime_ext.verifiers.worker_pool import Failure

# Bytes of a model's weights that are read whole, and rows of each tensor of a larger one.
_MOST_READ = 2**31
_ROWS = 64
# Seconds of a user's reward function for the first row, with what it imports.
FIRST_CALL_SECONDS = 120.0
_INSTALL = "flash-attn is not installed: docs/how_to/install.md has how to get it"


def check_files(config: DictConfig) -> Iterable[str]:
    """Yield a line for each problem of the files that the configuration names."""
    policy = config.actor_rollout_ref
    resume = config.trainer.resume_from_path
    first: dict[str, tuple[str, Any]] = {}
    needs_gold = read_needs(config).labels
    yield from check_data(config, needs_gold, first)
    models = {"actor_rollout_ref.model.path": policy.model.path}
    yield from _check_tokenizer("actor_rollout_ref.model", policy.model)
    yield from check_output_layer("actor_rollout_ref.model", policy.model, policy.actor.strategy)
    yield from check_adapter("actor_rollout_ref.model", policy.model)
    if prm_section(config) is not None:
        models["prm.model.path"] = config.prm.model.path
        if config.prm.reference == "frozen":
            models["prm.reference_path"] = config.prm.reference_path
        yield from _check_tokenizer("prm.model", config.prm.model)
        yield from check_output_layer(
            "prm.model", config.prm.model, config.prm.engine.get("strategy")
        )
        yield from check_adapter("prm.model", config.prm.model)
    if config.algorithm.adv_estimator == "gae":
        models["critic.model.path"] = config.critic.model.path
    for key, path in models.items():
        yield from _check_model(key, path, policy.model.path)
    for path in dict.fromkeys(path for path in models.values() if path):
        key = next(name for name, other in models.items() if other == path)
        yield from _check_numbers(key, Path(path).expanduser())
    yield from _check_attention(config)
    yield from check_step_rm(config)
    yield from _check_tools(config)
    scorer = scorer_section(config)
    if scorer is not None and scorer.kind == "token_classification":
        # With tokens of its own.
        yield from _check_model("step_scorer.model_path", scorer.model_path, scorer.model_path)
    yield from check_environments(config, first)
    if needs_gold or _have_gold(first):
        yield from _check_reward(config, first)
    if config.trainer.resume_mode == "resume_path" and not (resume and Path(resume).is_dir()):
        yield (
            f"trainer.resume_from_path={resume} is not a folder; it must be a .../global_step_N"
            " folder"
        )


def _have_gold(first: Mapping[str, tuple[str, Any]]) -> bool:
    """Return whether the first row of some data source has a gold answer."""
    return any(get_gold(row.get("reward_model")) is not None for _, row in first.values())


def has_flash_attention() -> bool:
    """Return whether the package is installed, which pip install ".[gpu]" leaves out."""
    return find_spec("flash_attn") is not None


def check_flash_attention(key: str, model: Any) -> Iterable[str]:
    """Check that flash-attn is installed if the model of the section ``key`` is loaded with it."""
    if get_attention(model).startswith("flash_attention") and not has_flash_attention():
        yield f"{key}: {_INSTALL}, or set +{key}.override_config.attn_implementation=sdpa"


def _check_attention(config: DictConfig) -> Iterable[str]:
    """Check that flash-attn is here if needed; the nodes of a cluster share one environment."""
    if config.trainer.device != "cuda":
        return
    keys = ["actor_rollout_ref.model", *(["prm.model"] if prm_section(config) is not None else [])]
    # The PRM follows the policy unless it is told otherwise, so one line is enough.
    lines = [check_flash_attention(key, OmegaConf.select(config, key)) for key in keys]
    yield from [line for each in lines for line in each][:1]
    if config.algorithm.adv_estimator == "gae" and not has_flash_attention():
        yield f"critic.model: {_INSTALL}; verl's critic has no other attention"


def _check_reward(config: DictConfig, first: Mapping[str, tuple[str, Any]]) -> Iterable[str]:
    """Check prime_ext's reward function, or call another one.

    Its arguments have to be right, and it has to be able to judge every data source.
    """
    from prime_ext.reward.compute_score import compute_score, prepare
    from prime_ext.verifiers.sources import BUILT_IN, UnknownSource, find_source

    function = config.reward.custom_reward_function
    section = "reward.custom_reward_function.reward_kwargs"
    if function.path != user_function.PRIME_EXT_FUNCTION or function.name != compute_score.__name__:
        yield from _try_reward_function(config, first)
        return
    arguments: Any = OmegaConf.to_container(
        function.get("reward_kwargs") or OmegaConf.create(), resolve=True
    )
    known = list(inspect.signature(prepare).parameters)
    unknown = [name for name in arguments if name not in known]
    if unknown:
        yield f"{section}.{unknown[0]} is not known; known: {', '.join(known)}"
        return
    try:
        prepare(**arguments)
    except ValueError as error:
        yield f"{section}: {error}"
        return
    yield from _check_patterns(config, arguments.get("sources") or {}, list(first), section)
    tasks = set()
    for source, (where, row) in sorted(first.items()):
        if source.startswith(DATA_SOURCE):
            continue
        try:
            task = find_source(source).task
            tasks.add(task)
            if task == "reasoning_gym":
                require(source.rpartition("/")[2])
            if task not in BUILT_IN and (
                fault := _try_verifier(task, row, arguments.get("verifiers") or {})
            ):
                yield f"{where}: the verifier {task!r} fails on its first row: {fault}"
        except (UnknownSource, SourceError) as error:
            yield f"{where}: {error}"
    manager = config.reward.reward_manager
    strict = arguments.get("math_strictness") != "lenient"
    tells_prompt = manager.source != "register" or manager.name in (
        PROMPT_MANAGER,
        PAYING_MANAGER,
        STEP_SCORES_MANAGER,
    )
    if "math" in tasks and strict and not tells_prompt:
        remedy = f"set it to {PROMPT_MANAGER}, or +{section}.math_strictness=lenient"
        yield (
            f"reward.reward_manager.name={manager.name} does not tell the reward function the"
            f" prompt; {remedy}"
        )
    prm = prm_section(config)
    loss = None if prm is None else prm.get("loss")
    hard_labels = loss is not None and not PRM_LOSSES[loss].allows_soft_labels
    if arguments.get("code_reward") == "fraction" and hard_labels:
        yield (
            f"{section}.code_reward=fraction makes labels between 0 and 1, but prm.loss={loss}"
            " takes 0 and 1 only"
        )
    code = (arguments.get("verifiers") or {}).get("code") or {}
    if "code" in tasks and not code.get("unsafe_no_sandbox"):
        from prime_ext.verifiers.sandbox.client import SandboxUnavailable, find_protection

        try:
            missing = "; ".join(find_protection().missing)
        except SandboxUnavailable as error:
            missing = str(error)
        if missing:
            yield f"code rewards need a sandbox, and this machine has none: {missing}"


def _check_patterns(
    config: DictConfig, sources: Mapping[str, str], names: Sequence[str], section: str
) -> Iterable[str]:
    """Check that patterns of the user's match a row: those of modules, and ``sources``."""
    from prime_ext.verifiers.sources import BUILT_IN, TASKS

    files = [config.data.train_files, config.data.val_files]
    if not names or config.data.custom_cls.path or "://" in str(files):
        return
    rows = f"no data_source of the data ({', '.join(names)[:200]})"
    for pattern in sources:
        if not any(fnmatch.fnmatchcase(name.lower(), str(pattern).lower()) for name in names):
            yield f"{section}.sources.{pattern} matches {rows}; correct it, or leave it out"
    own_tasks = set(TASKS) - BUILT_IN
    idle = find_idle_verifiers(names)
    if config.modules and own_tasks and len(idle) == len(own_tasks):
        yield f"modules={list(config.modules)}: {'; '.join(idle)}; correct the pattern or the data"


def _try_verifier(task: str, row: Any, settings: Mapping[str, Any]) -> str:
    """Call a user's verifier with a gold answer as the response, in a process that can be killed.

    Returns why it gives no verdict; empty if it does.
    """
    with user_function.start_pool(FIRST_CALL_SECONDS, 1) as pool:
        result = pool.run(_judge_gold, task, row["reward_model"]["ground_truth"], settings)
    failed = isinstance(result, Failure) or result.grader_failure
    return result.detail if failed else ""


def _judge_gold(task: str, gold: Any, settings: Mapping[str, Any]) -> Verdict:
    """Judge a gold answer as a response to its problem."""
    from prime_ext.reward.compute_score import NodeVerifiers

    return asyncio.run(NodeVerifiers(settings).verify(task, str(gold), gold, {}))


def _try_reward_function(config: DictConfig, first: Mapping[str, tuple[str, Any]]) -> Iterable[str]:
    """Call a user's function on the first row, with the gold answer as the response.

    It runs in a process that can be killed.
    """
    function = config.reward.custom_reward_function
    key = "reward.custom_reward_function"
    if (
        function.path is None
        or config.reward.reward_manager.source != "register"
        or config.reward.reward_model.enable
    ):
        # verl's own, a manager that may call it in another way, or one that asks a model.
        return
    path = str(function.path).removeprefix("file://")
    is_file = "://" not in str(function.path).removeprefix("file://")
    if is_file and not Path(path).is_file():
        yield f"{key}.path={function.path} does not exist"
        return
    for where, row in [*first.values()][:1]:
        gold = row["reward_model"]["ground_truth"]
        info = {
            "raw_prompt": row[config.data.prompt_key],
            "num_turns": 2,
            "rollout_reward_scores": {},
        } | (row.get("extra_info") or {})
        arguments: Any = OmegaConf.to_container(
            function.get("reward_kwargs") or OmegaConf.create(), resolve=True
        )
        arguments |= {
            "data_source": row["data_source"],
            "solution_str": str(gold),
            "ground_truth": gold,
        }
        with user_function.start_pool(FIRST_CALL_SECONDS, 1) as pool:
            result = pool.run(
                user_function.call, function.path, function.name, {**arguments, "extra_info": info}
            )
        label = config.prime.label_key if "prime" in config else "score"
        if isinstance(result, Failure):
            detail = (result.detail.strip().splitlines() or [""])[-1]
            yield (
                f"{key}: {function.name} of {function.path} fails on the first row of {where}:"
                f" {detail}"
            )
        elif label not in result:
            yield (
                f"{key}: {function.name} returns no {label!r} ({', '.join(result)}), which"
                " prime.label_key names"
            )


def _has_config(path: Any) -> bool:
    return bool(path) and (Path(str(path)).expanduser() / "config.json").is_file()


def _check_model(key: str, path: str | None, policy: str) -> Iterable[str]:
    """Check that a model exists with the policy's tokens; names of the hub are not checked."""
    if not path:
        yield f"{key} is not set"
        return
    folder = Path(path).expanduser()
    if not folder.is_dir():
        hub_name = path.count("/") <= 1 and not path.startswith((".", "/", "~"))
        if not hub_name and "://" not in path:
            yield f"{key}: {path} does not exist"
        return
    if not _has_config(path):
        yield f"{key}: {path} has no config.json, so it is not a Hugging Face model"
        return
    size = text_config(folder).get("vocab_size")
    vocabulary = _tokenizer_vocabulary(folder)
    expected = (
        _tokenizer_vocabulary(Path(policy).expanduser())
        if path != policy and _has_config(policy)
        else None
    )
    ids = max((vocabulary or expected or {"": 0}).values())
    if size is not None and ids >= size:
        yield (
            f"{key}: the tokenizer has token ids up to {ids}, the model in {folder} only {size}"
            " embeddings"
        )
    if vocabulary is not None and expected is not None and vocabulary != expected:
        yield (
            f"{key}: {path} has another vocabulary than the policy {policy}; they must share one"
            " tokenizer"
        )


def _check_numbers(key: str, folder: Path) -> Iterable[str]:
    """Check that weights are finite: all of a small model, of a large one some rows of each."""
    files = sorted(folder.glob("*.safetensors"))
    few = sum(file.stat().st_size for file in files) > _MOST_READ
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():
                    slices = tensors.get_slice(name)
                    rows = slices.get_shape()[:1]
                    whole = not few or not rows or rows[0] <= 2 * _ROWS
                    parts = (
                        [tensors.get_tensor(name)] if whole else [slices[:_ROWS], slices[-_ROWS:]]
                    )
                    if not all(
                        tensor.isfinite().all() for tensor in parts if tensor.is_floating_point()
                    ):
                        yield f"{key}: {name} in {file} has NaN or infinity; take another copy"
                        return
        except (SafetensorError, OSError) as error:
            yield f"{key}: {file} cannot be read: {error}; take another copy"
            return


def _check_tokenizer(section: str, model: DictConfig) -> Iterable[str]:
    """Check that there is a tokenizer in the folder of a model that names no other."""
    folder = Path(model.path or "").expanduser()
    if model.get("tokenizer_path") or not _has_config(model.path):
        return
    if not has_tokenizer(folder):
        yield (
            f"{section}.path: {folder} has no tokenizer; save it there, or set"
            f" {section}.tokenizer_path"
        )


def _tokenizer_vocabulary(folder: Path) -> dict[str, int] | None:
    path = folder / "tokenizer.json"
    return Tokenizer.from_file(str(path)).get_vocab() if path.is_file() else None


# ---- tools of an agent loop: verl would read their file in its workers, minutes after the start --


def _check_tools(config: DictConfig) -> Iterable[str]:
    """Check that a tool agent loop has tools whose classes can be imported."""
    turns = config.actor_rollout_ref.rollout.multi_turn
    loop = config.actor_rollout_ref.rollout.agent.default_agent_loop
    if loop not in TOOL_LOOPS:
        return
    section = "actor_rollout_ref.rollout.multi_turn"
    if not turns.get("tool_config_path") and not turns.get("function_tool_path"):
        yield (
            f"{section}.tool_config_path is not set: {loop} needs tools; recipes/agent/tools.yaml"
            " is an example"
        )
    for name in ("tool_config_path", "function_tool_path"):
        if turns.get(name) and not Path(turns[name]).expanduser().exists():
            yield f"{section}.{name}={turns[name]} does not exist"
        elif turns.get(name) and name == "tool_config_path":
            yield from _check_tool_classes(
                f"{section}.{name}={turns[name]}", Path(turns[name]).expanduser()
            )


def _check_tool_classes(named: str, path: Path) -> Iterable[str]:
    try:
        for tool in OmegaConf.load(path)["tools"]:
            pkgutil.resolve_name(tool["class_name"])
    except (YAMLError, KeyError, TypeError, IndexError):
        yield f"{named} is not a list `tools` of entries with class_name"
    except (ImportError, ValueError, AttributeError) as error:
        yield f"{named}: a class_name cannot be imported: {error}"
