# SPDX-License-Identifier: Apache-2.0
"""Checks of rows, as the policy's chat template and the reward function will get them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from omegaconf import DictConfig, OmegaConf

from prime_ext.config.checks import guess
from prime_ext.names import TOOL_LOOPS
from prime_ext.preflight.machine import check_amount, list_agents
from prime_ext.tasks.rl_rows import (
    JudgedRow,
    NoChatTemplate,
    PromptRow,
    count_tokens,
    find_row_faults,
    load_tokenizer,
)
from prime_ext.upstream import load_tools
from prime_ext.utils.rows import BadRow, SourceError, read_source
from prime_ext.utils.text_tokens import find_unread_option

TRAIN_FILES = "data.train_files"
_AGENT = "agent_name"
FORMATS = (".parquet", ".json", ".jsonl")
Measure = Callable[[Any], int]
# Of tokenizers of all kinds: fast, of sentencepiece, of tiktoken.
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")


def check_data(
    config: DictConfig, judged: bool, first: dict[str, tuple[str, Any]]
) -> Iterable[str]:
    """Check the rows of all files; fill ``first`` with place and first row of each data source."""
    if config.data.custom_cls.path:
        # A class of the user's reads them.
        return
    prompts = 0
    reads_media = _reads_media(config.actor_rollout_ref.model)
    try:
        agents = list_agents(config)
    except ValueError:
        # Another check says why.
        return
    try:
        measure = _prompt_measure(config)
    except SourceError as error:
        remedy = (
            "; set actor_rollout_ref.model.custom_chat_template, as"
            " recipes/pspo_wrs/run_abel-7b_ppo_fsdp.sh does"
        )
        yield (
            f"actor_rollout_ref.model: {error}{remedy if isinstance(error, NoChatTemplate) else ''}"
        )
        measure = None
    for key in (TRAIN_FILES, "data.val_files"):
        files = OmegaConf.select(config, key)
        if not files:
            yield f"{key} is not set; name one or more parquet files"
        for name in [files] if isinstance(files, str) else files or []:
            path = Path(name).expanduser()
            if "://" in name:
                prompts = -(2**31)  # Not known.
            elif not path.is_file():
                yield f"{key}: {name} does not exist"
            elif path.suffix not in FORMATS:
                yield (
                    f"{key}: {name} is not one of the formats that verl reads: {', '.join(FORMATS)}"
                )
            else:
                problems, usable = _check_file(
                    f"{key}: {name}", path, config, judged, measure, first, agents, reads_media
                )
                yield from problems
                prompts += usable if key == TRAIN_FILES else 0
    if prompts > 0:
        most = config.data.train_max_samples
        yield from check_amount(config, min(prompts, most) if most > 0 else prompts)


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has the files of a tokenizer."""
    return any(path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern))


def load_policy_tokenizer(config: DictConfig) -> Any:
    """Return the policy's tokenizer with its chat template; None: it is not on this machine.

    Raises SourceError: there is none, or it has no template.
    """
    model = config.actor_rollout_ref.model
    name = model.get("tokenizer_path") or model.path or ""
    folder = Path(name).expanduser()
    if not folder.exists():
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            # Not a name of the hub, or not downloaded yet.
            return None
    if not has_tokenizer(folder):
        return None
    template = (
        {"chat_template": model.custom_chat_template} if model.get("custom_chat_template") else {}
    )
    return load_tokenizer(str(folder), trust_remote_code=model.trust_remote_code, **template)


def _prompt_measure(config: DictConfig) -> Measure | None:
    """Return a function from messages to their tokens in the policy's chat template.

    It returns 0 if they are surely few enough. None: the tokenizer is not on this machine. Raises
    SourceError: there is none, or it has no template.
    """
    data = config.data
    tokenizer = load_policy_tokenizer(config)
    if tokenizer is None:
        return None
    options: Any = OmegaConf.to_container(data.apply_chat_template_kwargs, resolve=True)
    if (unread := find_unread_option(tokenizer, options)) is not None:
        raise SourceError(
            f"the chat template of {tokenizer.name_or_path} does not read"
            f" data.apply_chat_template_kwargs.{unread}; correct the name, or leave it out"
        )
    if config.actor_rollout_ref.rollout.agent.default_agent_loop in TOOL_LOOPS:
        options["tools"] = _tool_schemas(config.actor_rollout_ref.rollout.multi_turn)
    overheads: dict[tuple[str, ...], int] = {}

    def measure(messages: Any) -> int:
        if not all(isinstance(message["content"], str) for message in messages):
            return 0
        roles = tuple(message["role"] for message in messages)
        if roles not in overheads:
            overheads[roles] = count_tokens(
                tokenizer, [{"role": role, "content": ""} for role in roles], **options
            )
        # A token has at least one byte.
        if (
            overheads[roles] + sum(len(message["content"].encode()) for message in messages)
            <= data.max_prompt_length
        ):
            return 0
        return count_tokens(tokenizer, messages, **options)

    return measure


def _tool_schemas(turns: DictConfig) -> list[Any]:
    """Return the schemas of an agent loop's tools; none where another check refuses them."""
    try:
        tools = load_tools(turns.get("tool_config_path"), turns.get("function_tool_path"))
    except Exception:
        return []
    return [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in tools]


def _check_file(
    named: str,
    path: Path,
    config: DictConfig,
    judged: bool,
    measure: Measure | None,
    first: dict[str, tuple[str, Any]],
    agents: Collection[str],
    reads_media: bool,
) -> tuple[list[str], int]:
    """Return the problems of a file, and how many prompts it has that are not too long."""
    data = config.data
    problems = []
    lengths: list[int] = []
    faulty: list[tuple[int, str]] = []
    media = [data.image_key, data.video_key, data.audio_key]
    columns = [data.prompt_key, "data_source", "reward_model", "extra_info", _AGENT, *media]
    try:
        for number, row in read_source(path, columns):
            try:
                _check_agent(row, agents)
                if not reads_media:
                    _refuse_media(row, media)
                lengths.append(
                    _prompt_length(
                        row, data.prompt_key, JudgedRow if judged else PromptRow, measure
                    )
                )
            except BadRow as fault:
                faulty.append((number, str(fault)))
                continue
            if isinstance(row, Mapping) and (judged or not find_row_faults(row, JudgedRow)):
                first.setdefault(row["data_source"], (named, row))
    except SourceError as error:
        return [f"{named}: {error}"], 0
    if faulty:
        number, problem = faulty[0]
        problems.append(
            f"{named} row {number}{f' and {len(faulty) - 1:,} more' if faulty[1:] else ''}:"
            f" {problem}"
        )
    elif not lengths:
        problems.append(f"{named} has no rows")
    long = [length for length in lengths if length > data.max_prompt_length]
    problem = (
        f"{len(long):,} of {len(lengths):,} prompts are longer than"
        f" data.max_prompt_length={data.max_prompt_length}"
    )
    if long and data.filter_overlong_prompts:
        print(
            f"prime_ext: {named}: {problem} and left out (data.filter_overlong_prompts)", flush=True
        )
    elif long:
        remedy = "raise it, or leave them out with data.filter_overlong_prompts=true"
        problems.append(f"{named}: {problem} (up to {max(long):,} tokens); {remedy}")
    return problems, len(lengths) + len(faulty) - len(long)


def _check_agent(row: Any, agents: Collection[str]) -> None:
    """Raise BadRow if a row names an agent loop that the run does not have."""
    name = row.get(_AGENT) if isinstance(row, Mapping) else None
    if name is not None and name not in agents:
        raise BadRow(
            f"{_AGENT} {name!r} is not one of {', '.join(sorted(agents))}{guess(name, agents)}"
        )


def _refuse_media(row: Any, media: Iterable[str]) -> None:
    """Raise BadRow if a row has images, videos or sound."""
    for name in media:
        if isinstance(row, Mapping) and row.get(name):
            raise BadRow(
                f"it has {name}, and the model of actor_rollout_ref.model.path has no processor for"
                " them; drop the column, or choose a model that reads them"
            )


def _reads_media(model: DictConfig) -> bool:
    """Return whether a model may read images; one that is not here counts as one that does."""
    folder = Path(str(model.get("tokenizer_path") or model.path or "")).expanduser()
    return not folder.is_dir() or any(folder.glob("*processor_config.json"))


def _prompt_length(row: Any, key: str, kind: type[PromptRow], measure: Measure | None) -> int:
    """Return the tokens of a row's prompt, as far as ``measure`` counts them.

    Raises BadRow: the row cannot be used.
    """
    if isinstance(row, BadRow):
        raise row
    for fault in find_row_faults({**row, "prompt": row.get(key)}, kind):
        raise BadRow(fault)
    try:
        return measure(row[key]) if measure else 0
    except Exception as error:
        raise BadRow(f"the chat template refuses its prompt: {error}") from error
