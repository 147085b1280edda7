# SPDX-License-Identifier: Apache-2.0
"""RL data from settings: sources, stages in order, parquet files, a report and a validation.

    python -m data_preprocessing.pipeline SETTINGS.yaml [KEY=VALUE ...] --output-dir DIR
    python -m data_preprocessing.pipeline data_preprocessing/settings/gsm8k_math.yaml data_dir=DATA \\
        --output-dir data/math
    python -m data_preprocessing.pipeline data_preprocessing/settings/code.yaml --input apps=my_apps.jsonl \\
        --output-dir data/code

Writes ``train.parquet``, ``validation.parquet`` and ``test.parquet``, as far as they have rows, ``removed.jsonl``
(every row that is not in them, why, and for duplicates and contaminated rows of what), ``choice.jsonl`` (what the math
rules remove as multiple choice, for ``data_preprocessing.rewrite_choice``), ``report.json`` and ``report.md``: all of
them or none. Interrupted, the same command goes on where it was; the result depends neither on that nor on --workers.
Afterwards the files are validated as by ``data_preprocessing.validate``.

Exits with 1 if the validation finds something, with 2 and one line when nothing can be written. See
docs/reference/data.md.
"""

import argparse
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BeforeValidator, Field, PositiveInt, TypeAdapter

from data_preprocessing import validate
from data_preprocessing.command import InputFiles, Made, finish, parser_of, positive, unfinished
from data_preprocessing.math_rules import MathRules
from data_preprocessing.report import BAD, Tally, markdown
from data_preprocessing.row_source import Problem, SplitRows, inputs_of
from data_preprocessing.stage import LISTED, SOURCES, Stage, read_problems, restored
from data_preprocessing.steps import STAGES, StepResult, run_steps
from prime_ext.tasks.action_prompt import NAMED_PROMPTS, read_system_prompt
from prime_ext.tasks.checked import NO_OTHER_KEYS, Wrong, checked
from prime_ext.tasks.rl_rows import MATH_SCHEMA, OUTPUTS, refuse_leftovers
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.machine import available_cores
from prime_ext.utils.rows import SourceError

Split = Literal["train", "validation", "test"]
Files = Annotated[
    Mapping[Literal["all", "train", "validation", "test"], Path],
    BeforeValidator(lambda given: {"train": given} if isinstance(given, str) else given),
]


@dataclass(frozen=True)
class SourceSettings:
    """Local files of a source by split (none: those below ``data_dir``, else the hub), and its splits (none: all)."""

    input: Files = field(default_factory=dict)
    splits: Annotated[tuple[Split, ...], LISTED] = ()


@dataclass(frozen=True)
class ValidateSettings:
    """The validator's tokenizer, and the tokens that a prompt may have."""

    tokenizer: str
    max_prompt_length: PositiveInt | None = None


@dataclass(frozen=True)
class PipelineSettings:
    """What a pipeline does.

    ``settings/gsm8k_math.yaml`` says what the keys mean. Of twins in two sources that of the first stays.
    """

    sources: Mapping[str, SourceSettings]
    stages: Mapping[str, Stage] = field(default_factory=dict)
    title: str = "RL data"
    data_dir: Path | None = None
    system_prompt: str = "none"
    seed: Annotated[int, Field(ge=0, le=2**32)] = 0
    generated_rows: Mapping[Split, PositiveInt] = field(default_factory=dict)
    chunk_rows: PositiveInt = 5_000
    validate: ValidateSettings | None = None


# Keys that name something: their values may be null, which leaves it out.
_Sources = make_dataclass("Sources", [(name, SourceSettings | None, None) for name in SOURCES])
_Stages = make_dataclass("Stages", [(name, kind | None, None) for name, kind in STAGES.items()])


@dataclass(frozen=True)
class _SettingsFile(PipelineSettings):
    """The settings as a file has them."""

    __pydantic_config__ = NO_OTHER_KEYS

    sources: _Sources  # type: ignore[valid-type, assignment]
    stages: _Stages = field(default_factory=_Stages)  # type: ignore[valid-type, assignment]


def load_settings(path: Path, overrides: Sequence[str] = ()) -> PipelineSettings:
    """Read and check a file, with words such as ``stages.deduplicate.threshold=0.9`` put over it, else SourceError."""
    if not path.is_file():
        raise SourceError(f"no settings at {path}")
    for word in overrides:
        if "=" not in word:
            raise SourceError(f"{word!r} must be KEY=VALUE")
    try:
        merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
        content: Any = OmegaConf.to_container(merged, resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError, ValueError) as error:
        raise SourceError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if value is not None}
    try:
        found = checked(TypeAdapter(_SettingsFile), content)
    except Wrong as error:
        raise SourceError(f"{path.name}: {error}") from error
    # In the order of the file.
    named = {
        part: {name: own for name in content.get(part, {}) if (own := getattr(getattr(found, part), name)) is not None}
        for part in ("sources", "stages")
    }
    if not named["sources"]:
        raise SourceError(f"{path.name}: sources needs some of {', '.join(SOURCES)}")
    return PipelineSettings(**{**vars(found), **named})


def run(settings: PipelineSettings, folder: Path, *, workers: int = 1, strict: bool = False) -> Made:
    """Run the pipeline and put the parts together: all files or none. Returns the report and the parquet files."""
    system = read_system_prompt(settings.system_prompt, NAMED_PROMPTS)
    inputs = [
        rows
        for name, given in settings.sources.items()
        for rows in inputs_of(
            SOURCES[name], given.input, settings.data_dir, given.splits, settings.generated_rows, settings.seed
        )
    ]
    # Before the work, not after it.
    refuse_leftovers(folder, {given.split for given in inputs})
    result = run_steps(
        inputs,
        settings.stages,
        folder / ".parts",
        chunk_rows=settings.chunk_rows,
        workers=workers,
        strict=strict,
        data_dir=settings.data_dir,
    )
    with unfinished(folder) as hidden, ExitStack() as stack:
        tally = Tally(result.read)
        with (hidden / "removed.jsonl").open("w", encoding="utf-8") as removed:
            for records in result.records():
                # In the order of the rows, whichever stage removed them.
                removed.writelines(line for _, line in sorted((row["row"], tally.remove(row)) for row in records))
        if MathRules.name in settings.stages:
            with (hidden / "choice.jsonl").open("w", encoding="utf-8") as choice:
                aside = (row["problem"] for records in result.records() for row in records if "problem" in row)
                choice.writelines(json.dumps(_rl_row(restored(found), system)) + "\n" for found in aside)
        report = _report(settings, bool(system), inputs, result, tally)
        left = {found["split"] for found in report["sources"] if found["written"]}
        if not left:
            raise SourceError(_nothing(report))
        splits = [split for split in OUTPUTS if split in left]
        refuse_leftovers(folder, splits)
        write_json(hidden / "report.json", report)
        write_text(hidden / "report.md", markdown(report))
        writers = {
            split: stack.enter_context(pq.ParquetWriter(hidden / f"{split}.parquet", MATH_SCHEMA)) for split in splits
        }
        for path in result.rows:
            # A part has one source and one split.
            problems = list(read_problems(path))
            if problems:
                rows = pa.Table.from_pylist([_rl_row(problem, system) for problem in problems], MATH_SCHEMA)
                writers[problems[0].split].write_table(rows)
    shutil.rmtree(folder / ".parts")
    return report, [folder / f"{split}.parquet" for split in splits]


def _rl_row(problem: Problem, system: str) -> dict[str, Any]:
    return SOURCES[problem.source].rl_row(problem, system)


def _report(
    settings: PipelineSettings, system: bool, inputs: Sequence[SplitRows], result: StepResult, tally: Tally
) -> dict[str, Any]:
    rules = {BAD: "no row of this source: unreadable, or a column is missing or empty, or its id is repeated"}
    stages = {name: asdict(stage) for name, stage in settings.stages.items()}  # type: ignore[call-overload]
    for name, stage in settings.stages.items():
        rules |= stage.meanings()
        # Nothing about the machine.
        if stages[name].get("data"):
            stages[name]["data"] = Path(stages[name]["data"]).name
    return {
        "title": settings.title,
        "settings": {"system_prompt": system, "seed": settings.seed, "stages": stages},
        "inputs": [f"{given.source.name} {given.split}: {given.name}" for given in inputs],
        "rules": rules,
        **tally.described(),
        "notes": dict(sorted(result.notes.items())),
        "compared": result.used,
        "contamination": _contamination(result),
    }


def _contamination(result: StepResult) -> list[dict[str, Any]]:
    """What was hit: by task and level, how many training rows went and how many test rows they gave away."""
    hits: dict[tuple[str, str], list[str]] = defaultdict(list)
    for details in (record["details"] for records in result.records() for record in records):
        if "task" in details:
            hits[details["task"], details["level"]].append(str(details["task_row"]))
    return [
        {"task": task, "level": level, "training_rows": len(rows), "test_rows": len(set(rows))}
        for (task, level), rows in sorted(hits.items())
    ]


def _nothing(report: Mapping[str, Any]) -> str:
    """Why no row is left."""
    if any(set(found["removed"]) - {BAD} for found in report["sources"]):
        return "nothing is left: the stages removed all rows"
    row = report["samples"][0]["rows"][0]
    return f"nothing can be used: {row['file']} row {row['row']}: {row['evidence']}"


def add_run_arguments(top: argparse.ArgumentParser) -> None:
    """The options that ``rl_data`` has as well."""
    top.set_defaults(input={})
    about = "local files; repeatable; the pipeline leaves out the other sources of the settings"
    top.add_argument("--input", nargs="+", action=InputFiles, metavar="SOURCE[:SPLIT]=FILE", help=about)
    top.add_argument("--output-dir", type=Path, required=True)
    cores = available_cores()
    top.add_argument("--workers", type=int, default=cores, help=f"processes (default: one per core, {cores})")
    top.add_argument("--strict", action="store_true", help="stop at the first bad row")


def parser() -> argparse.ArgumentParser:
    stages = "\n".join(f"  {kind.name}: {kind.title}" for kind in STAGES.values())
    sources = "\n".join(f"  {source.name}: {source.title}" for source in SOURCES.values())
    top = parser_of("pipeline", f"{__doc__}\nstages:\n{stages}\n\nsources:\n{sources}")
    top.add_argument("settings", type=Path, metavar="SETTINGS.yaml")
    top.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. stages.deduplicate.threshold=0.9")
    add_run_arguments(top)
    return top


def with_files(settings: PipelineSettings, files: Mapping[str, Mapping[Any, Path]]) -> PipelineSettings:
    """The settings with local files for some sources, and only these."""
    for name in files:
        if name not in SOURCES:
            raise SourceError(f"--input names {name}, which must be one of {', '.join(SOURCES)}")
    return replace(settings, sources={name: SourceSettings(given) for name, given in files.items()} or settings.sources)


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_intermixed_args(words)
    checks: list[str] = []

    def made() -> Made:
        positive(options, "workers")
        settings = with_files(load_settings(options.settings, options.overrides), options.input)
        if settings.validate is not None:
            checks.extend(["--tokenizer", settings.validate.tokenizer])
            limit = settings.validate.max_prompt_length
            checks.extend(["--max-prompt-length", str(limit)] if limit else [])
        return run(settings, options.output_dir, workers=options.workers, strict=options.strict)

    return finish("pipeline", made, lambda _, paths: validate.main([*map(str, paths), *checks]))


if __name__ == "__main__":
    sys.exit(main())
