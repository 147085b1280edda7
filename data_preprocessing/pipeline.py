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
them or none. The result does not depend on --workers. Afterwards the files are validated as by
``data_preprocessing.validate``.

Exits with 1 if the validation finds something, with 2 and one line when nothing can be written. See
docs/reference/data.md.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BeforeValidator, PositiveInt, TypeAdapter

from data_preprocessing import validate
from data_preprocessing.check_solutions import CheckSolutions
from data_preprocessing.code_rules import CodeRules, CodeTests
from data_preprocessing.code_sources import CODE_SOURCES
from data_preprocessing.command import InputFiles, Made, build_parser, check_positive, finish, unfinished
from data_preprocessing.decontaminate import Decontaminate
from data_preprocessing.deduplicate import Deduplicate
from data_preprocessing.math_rules import MathRules
from data_preprocessing.math_sources import MATH_SOURCES
from data_preprocessing.problems import Problem, Raw, Source, SplitRows, find_splits, numbered_rows
from data_preprocessing.report import BAD, Tally, markdown
from data_preprocessing.stages import LISTED, Changed, Removal, Run, Stage, Workers, show_progress
from prime_ext.tasks.action_prompt import NAMED_PROMPTS, read_system_prompt
from prime_ext.tasks.cells import RowError
from prime_ext.tasks.checked import NO_OTHER_KEYS, Wrong, checked
from prime_ext.tasks.rl_rows import MATH_SCHEMA, OUTPUTS, refuse_leftovers
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.machine import available_cores
from prime_ext.utils.rows import BadRow, SourceError

SOURCES: dict[str, Source] = {**MATH_SOURCES, **CODE_SOURCES}
STAGES: dict[str, type[Stage]] = {
    kind.name: kind for kind in (MathRules, CodeRules, CodeTests, Deduplicate, Decontaminate, CheckSolutions)
}
READING = "reading"
CHOICE = "choice"
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
class PipelineSettings:
    """What a pipeline does.

    ``settings/gsm8k_math.yaml`` says what the keys mean. Of twins in two sources that of the first stays.
    """

    sources: Mapping[str, SourceSettings]
    stages: Mapping[str, Stage] = field(default_factory=dict)
    title: str = "RL data"
    data_dir: Path | None = None
    system_prompt: str = "none"
    chunk_rows: PositiveInt = 5_000


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
    """Run the pipeline and write all files or none. Returns the report and the parquet files."""
    system = read_system_prompt(settings.system_prompt, NAMED_PROMPTS)
    inputs = [
        rows
        for name, given in settings.sources.items()
        for rows in find_splits(SOURCES[name], given.input, settings.data_dir, given.splits)
    ]
    # Before the work, not after it.
    refuse_leftovers(folder, {given.split for given in inputs})
    with unfinished(folder) as hidden:
        tally = Tally([READING, *settings.stages])
        with ExitStack() as stack:
            pool = stack.enter_context(Workers(workers, settings.chunk_rows))
            state = Run(pool, folder, settings.data_dir)
            problems = read_problems(inputs, tally, pool, strict)
            for stage in settings.stages.values():
                problems = apply_stage(stage, problems, tally, state)
            if MathRules.name in settings.stages:
                choice = stack.enter_context((hidden / "choice.jsonl").open("w", encoding="utf-8"))
                tally.put_aside[CHOICE] = lambda problem: choice.write(json.dumps(problem.rl_row(system)) + "\n")
            writers: dict[str, pq.ParquetWriter] = {}
            # What is left of consecutive rows of a source becomes one row group.
            groups = groupby(
                show_progress(problems, "rows"), lambda row: (row.file, row.split, row.index // settings.chunk_rows)
            )
            for (_, split, _), group in groups:
                if split not in writers:
                    writers[split] = stack.enter_context(pq.ParquetWriter(hidden / f"{split}.parquet", MATH_SCHEMA))
                rows = [problem.rl_row(system) for problem in group]
                writers[split].write_table(pa.Table.from_pylist(rows, MATH_SCHEMA))
        tally.write_removed(hidden / "removed.jsonl")
        report = _report(settings, bool(system), inputs, state, tally)
        if not writers:
            raise SourceError(_nothing(report))
        splits = [split for split in OUTPUTS if split in writers]
        refuse_leftovers(folder, splits)
        write_json(hidden / "report.json", report)
        write_text(hidden / "report.md", markdown(report))
    return report, [folder / f"{split}.parquet" for split in splits]


def read_problems(inputs: Sequence[SplitRows], tally: Tally, workers: Workers, strict: bool) -> Iterator[Problem]:
    """Yield the problems of all inputs; bad rows are counted, or with ``strict`` a SourceError."""
    for (given, _, number, row), problem in workers.map(parse_row, numbered_rows(inputs)):
        if isinstance(problem, BadRow):
            if strict:
                raise SourceError(f"{given.name} row {number}: {problem}")
            tally.read[given.split, given.source.name] += 1
            shown = {} if isinstance(row, BadRow) else {"problem": str(dict(row)), "answer": ""}
            removal = Removal(BAD, str(problem))
            tally.remove(READING, removal, given.split, given.source.name, given.name, number, shown)
        else:
            tally.read[given.split, problem.data_source] += 1
            yield problem


def parse_row(numbered: tuple[SplitRows, int, int, Raw]) -> Problem | BadRow:
    """Turn a row into a problem, or into the reason why it is none."""
    given, index, number, row = numbered
    try:
        return given.source.problem(row, given.split, index, file=given.name, row=number)
    except (BadRow, RowError) as error:
        return BadRow(str(error))


def apply_stage(stage: Stage, problems: Iterator[Problem], tally: Tally, state: Run) -> Iterator[Problem]:
    """Yield what a stage leaves; count the rest."""
    for problem, result in stage.run(problems, state):
        if isinstance(result, Removal):
            shown = {"problem": problem.problem, "answer": problem.gist()}
            place = problem.split, problem.data_source, problem.file, problem.row
            tally.remove(stage.name, result, *place, shown)
            if result.rule in tally.put_aside:
                tally.put_aside[result.rule](problem)
        elif isinstance(result, Changed):
            tally.notes.update({f"{stage.name}: {note}": n for note, n in result.notes.items()})
            yield result.problem
        else:
            yield problem


def _report(
    settings: PipelineSettings, system: bool, inputs: Sequence[SplitRows], state: Run, tally: Tally
) -> dict[str, Any]:
    rules = {BAD: "no row of this source: unreadable, or a column is missing or empty, or its id is repeated"}
    stages = {name: asdict(stage) for name, stage in settings.stages.items()}  # type: ignore[call-overload]
    for name, stage in settings.stages.items():
        rules |= stage.meanings()
        # Nothing about the machine.
        if stages[name].get("data"):
            stages[name]["data"] = Path(stages[name]["data"]).name
    given_away = [
        {"task": task, "level": level, "training_rows": len(rows), "test_rows": len(set(rows))}
        for (task, level), rows in sorted(tally.given_away.items())
    ]
    return {
        "title": settings.title,
        "settings": {"system_prompt": system, "stages": stages},
        "inputs": [f"{given.source.name} {given.split}: {given.name}" for given in inputs],
        **tally.describe(rules),
        "notes": dict(sorted(tally.notes.items())),
        "compared": state.compared,
        "contamination": given_away,
    }


def _nothing(report: Mapping[str, Any]) -> str:
    """Return why no row is left."""
    if any(set(found["removed"]) - {BAD} for found in report["sources"]):
        return "nothing is left: the stages removed all rows"
    row = report["samples"][0]["rows"][0]
    return f"nothing can be used: {row['file']} row {row['row']}: {row['evidence']}"


def parser() -> argparse.ArgumentParser:
    stages = "\n".join(f"  {kind.name}: {kind.title}" for kind in STAGES.values())
    sources = "\n".join(f"  {source.name}: {source.title}" for source in SOURCES.values())
    top = build_parser("pipeline", f"{__doc__}\nstages:\n{stages}\n\nsources:\n{sources}")
    top.add_argument("settings", type=Path, metavar="SETTINGS.yaml")
    top.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. stages.deduplicate.threshold=0.9")
    top.set_defaults(input={})
    about = "local files; repeatable; the other sources of the settings are left out"
    top.add_argument("--input", nargs="+", action=InputFiles, metavar="SOURCE[:SPLIT]=FILE", help=about)
    top.add_argument("--output-dir", type=Path, required=True)
    cores = available_cores()
    top.add_argument("--workers", type=int, default=cores, help=f"processes (default: one per core, {cores})")
    top.add_argument("--strict", action="store_true", help="stop at the first bad row")
    return top


def with_files(settings: PipelineSettings, files: Mapping[str, Mapping[Any, Path]]) -> PipelineSettings:
    """The settings with local files for some sources, and only these."""
    for name in files:
        if name not in SOURCES:
            raise SourceError(f"--input names {name}, which must be one of {', '.join(SOURCES)}")
    return replace(settings, sources={name: SourceSettings(given) for name, given in files.items()} or settings.sources)


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_intermixed_args(words)

    def made() -> Made:
        check_positive(options, "workers")
        settings = with_files(load_settings(options.settings, options.overrides), options.input)
        return run(settings, options.output_dir, workers=options.workers, strict=options.strict)

    return finish("pipeline", made, lambda _, paths: validate.main(list(map(str, paths))))


if __name__ == "__main__":
    sys.exit(main())
