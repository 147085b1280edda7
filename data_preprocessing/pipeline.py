# SPDX-License-Identifier: Apache-2.0
"""RL data from settings: sources, stages in order, parquet files, a report and a validation.

    prime-ext data pipeline SETTINGS [KEY=VALUE ...] --output-dir DIR
    prime-ext data pipeline gsm8k_math data_dir=DATA --output-dir data/math
    prime-ext data pipeline code --input apps=my_apps.jsonl --output-dir data/code
    prime-ext data pipeline math --input own=questions.csv --source mine \\
        --split 0.9 --output-dir data/mine

Writes ``train.parquet``, ``validation.parquet`` and ``test.parquet``, as far as they have rows,
``removed.jsonl`` (every other row with the reason, and its twin or test problem if it has one),
``choice.jsonl`` (rows removed as multiple choice, for ``data_preprocessing.rewrite_choice``),
``report.json`` and ``report.md``: all of them or none. Afterwards the files are validated as by
``data_preprocessing.validate``.

Exits with 1 if the validation finds something, with 2 and one line when nothing can be written. See
docs/reference/data.md.
"""

import json
import sys
from collections import Counter
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
from pydantic import GetPydanticSchema, PositiveInt, WrapValidator

from prime_ext.config.checks import STRICT, SettingsError, Switch, read
from prime_ext.step_rm.question_split import pick_split
from prime_ext.tasks.action_prompt import NAMED_PROMPTS, read_system_prompt
from prime_ext.tasks.rl_rows import MATH_SCHEMA, OUTPUTS, refuse_leftovers
from prime_ext.tasks.value_types import LISTED
from prime_ext.utils.arguments import SHARE_ABOVE_0, add_output_argument, build_parser
from prime_ext.utils.rows import BadRow, SourceError

from . import validate
from .check_solutions import CheckSolutions
from .code_rules import CodeRules, CodeTests
from .code_sources import CODE_SOURCES
from .command import add_files_argument, fill_folder, parse_files, print_sources, program
from .decontaminate import Decontaminate
from .deduplicate import Deduplicate
from .math_rules import MathRules
from .math_sources import MATH_SOURCES
from .pipeline_report import BAD, Tally
from .problem_sources import ProblemSource, SourceProblem, SplitRows, find_splits, number_rows
from .stages import Changed, Removal, Stage, StageRun, show_progress

SOURCES: dict[str, ProblemSource] = {
    source.name: source for source in (*MATH_SOURCES, *CODE_SOURCES)
}
STAGES: dict[str, type[Stage]] = {
    kind.name: kind
    for kind in (MathRules, CodeRules, CodeTests, Deduplicate, Decontaminate, CheckSolutions)
}
# Settings of the package, which are called by their names.
SETTINGS = Path(__file__).parent / "settings"
READING = "reading"
CHOICE = "choice"


@dataclass(frozen=True)
class SourceSettings:
    """The splits of a source to take (none: all)."""

    splits: Annotated[tuple[Literal["train", "validation", "test"], ...], LISTED] = ()


def _check_section(section: Any, check: Any) -> dict[str, Any]:
    """Check a section of the settings; return it in the order of the file, without null values."""
    named = vars(check(section))
    return {name: named[name] for name in section if named[name] is not None}


_Sources = make_dataclass("Sources", [(name, SourceSettings | None, None) for name in SOURCES])
_Stages = make_dataclass("Stages", [(name, kind | None, None) for name, kind in STAGES.items()])
_AS_SOURCES = GetPydanticSchema(lambda _, schema: schema(_Sources))
_AS_STAGES = GetPydanticSchema(lambda _, schema: schema(_Stages))
_IN_ORDER = WrapValidator(_check_section)


@dataclass(frozen=True)
class PipelineSettings:
    """The settings of a pipeline, which ``settings/gsm8k_math.yaml`` describes.

    If two sources have twins, that of the first source stays.
    """

    __pydantic_config__ = STRICT

    sources: Annotated[Mapping[str, SourceSettings], _AS_SOURCES, _IN_ORDER]
    stages: Annotated[Mapping[str, Stage], _AS_STAGES, _IN_ORDER] = field(default_factory=dict)
    title: str = "RL data"
    data_dir: Path | None = None
    system_prompt: str = "none"
    answer_format: Switch = True
    chunk_rows: PositiveInt = 5_000


def load_settings(path: Path, overrides: Sequence[str] = ()) -> PipelineSettings:
    """Read a file with overrides such as ``stages.deduplicate.threshold=0.9`` and check it.

    A name without a suffix is that of settings of the package. Raises SourceError: the file is
    missing, not YAML or wrong, or an override is wrong.
    """
    if not path.suffix and not path.exists():
        path = SETTINGS / f"{path}.yaml"
    if not path.is_file():
        raise SourceError(f"no settings at {path}")
    for word in overrides:
        if "=" not in word:
            raise SourceError(f"{word!r} must be KEY=VALUE")
    try:
        merged = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
        content: Any = OmegaConf.to_container(merged, resolve=True)
    except (
        yaml.YAMLError,
        OmegaConfBaseException,
        UnicodeDecodeError,
        OSError,
        ValueError,
    ) as error:
        raise SourceError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if value is not None}
    try:
        settings = read(PipelineSettings, content, "")
    except SettingsError as error:
        raise SourceError(f"{path.name}: {error}") from error
    if not settings.sources:
        raise SourceError(f"{path.name}: sources needs some of {', '.join(SOURCES)}")
    return settings


def run(
    settings: PipelineSettings,
    folder: Path,
    files: Mapping[str, Mapping[str, Path]],
    column: str | None = None,
    share: float = 1.0,
) -> list[Path]:
    """Run the pipeline and write all files or none. Returns the parquet files.

    With ``files``, local ones by source and split, the other sources are left out. With ``column``
    all rows have the data source ``math/<column>``, not one of their column ``source``. ``share``
    of the training rows stay, by a hash of the problem; the others are for testing.
    """
    system = read_system_prompt(settings.system_prompt, NAMED_PROMPTS)
    for name in files:
        if name not in SOURCES:
            raise SourceError(f"--input names {name}, which must be one of {', '.join(SOURCES)}")
    chosen = {name: SourceSettings() for name in files} or settings.sources
    sources = {name: SOURCES[name] for name in chosen}
    if column is not None:
        if not all("{source}" in source.data_source for source in sources.values()):
            raise SourceError(
                f"--source {column}: {', '.join(sources)} is not named by a column source"
            )
        sources = {
            name: replace(source, data_source=f"math/{column}") for name, source in sources.items()
        }
    inputs = [
        rows
        for name, selection in chosen.items()
        for rows in find_splits(
            sources[name], files.get(name, {}), settings.data_dir, selection.splits
        )
    ]
    # Check this before the work, not after it.
    refuse_leftovers(folder, {rows.split for rows in inputs} | ({"test"} if share < 1 else set()))
    with fill_folder(folder) as hidden, ExitStack() as stack:
        tally = Tally([READING, *settings.stages])
        state = StageRun(
            folder, system, settings.answer_format, settings.data_dir, settings.chunk_rows
        )
        problems = read_problems(inputs, tally, share)
        for stage in settings.stages.values():
            problems = apply_stage(stage, problems, tally, state)
        if MathRules.name in settings.stages:
            state.choice = stack.enter_context(
                (hidden / "choice.jsonl").open("w", encoding="utf-8")
            )
        writers: dict[str, pq.ParquetWriter] = {}
        # The rows that are left of each chunk of a file become one row group.
        for _, group in groupby(
            show_progress(problems, "rows"),
            lambda row: (row.file, row.index // settings.chunk_rows),
        ):
            rows: dict[str, list[dict[str, Any]]] = {}
            for problem in group:
                rows.setdefault(problem.split, []).append(
                    problem.rl_row(system, settings.answer_format)
                )
            for split in rows:
                if split not in writers:
                    writers[split] = stack.enter_context(
                        pq.ParquetWriter(hidden / f"{split}.parquet", MATH_SCHEMA)
                    )
                writers[split].write_table(pa.Table.from_pylist(rows[split], MATH_SCHEMA))
        report = _build_report(settings, inputs, state, tally)
        if not writers:
            removed = sum((Counter(source["removed"]) for source in report["sources"]), Counter())
            if set(removed) - {BAD}:
                counts = "; ".join(
                    f"{rule} {n} ({report['rules'][rule]})" for rule, n in removed.items()
                )
                raise SourceError(f"nothing is left of {removed.total()} rows: {counts}")
            row = report["samples"][0]["rows"][0]
            raise SourceError(
                f"nothing can be used: {row['file']} row {row['row']}: {row['evidence']}"
            )
        splits = [split for split in OUTPUTS if split in writers]
        refuse_leftovers(folder, splits)
        tally.write(hidden, report)
    print_sources(report)
    if state.skipped:
        print(
            f"decontaminate: NOT compared with {', '.join(state.skipped)}, whose problems are not"
            f" here; {folder / 'report.md'} says why for each"
        )
    return [folder / f"{split}.parquet" for split in splits]


def read_problems(
    inputs: Sequence[SplitRows], tally: Tally, share: float
) -> Iterator[SourceProblem]:
    """Yield all problems, with training problems beyond ``share`` as test; count bad rows."""
    for rows, index, number, row in number_rows(inputs):
        try:
            problem = rows.source.problem(row, rows.split, index, file=rows.name, row=number)
        except BadRow as error:
            tally.read[rows.split, rows.source.name] += 1
            shown = {} if isinstance(row, BadRow) else {"problem": str(dict(row)), "answer": ""}
            removal = Removal(BAD, str(error))
            tally.remove(READING, removal, rows.split, rows.source.name, rows.name, number, shown)
        else:
            if problem.split == "train":
                problem = replace(
                    problem,
                    split=pick_split(" ".join(problem.problem.split()), 0.0, 1 - share, seed=0),
                )
            tally.read[problem.split, problem.data_source] += 1
            yield problem


def apply_stage(
    stage: Stage, problems: Iterator[SourceProblem], tally: Tally, state: StageRun
) -> Iterator[SourceProblem]:
    """Yield what a stage leaves; count the rest."""
    for problem, result in stage.run(problems, state):
        if isinstance(result, Removal):
            shown = {"problem": problem.problem, "answer": problem.gist()}
            location = problem.split, problem.data_source, problem.file, problem.row
            tally.remove(stage.name, result, *location, shown)
            if result.rule == CHOICE and state.choice:
                row = problem.rl_row(state.system, state.answer_format)
                state.choice.write(json.dumps(row) + "\n")
        elif isinstance(result, Changed):
            tally.notes.update({f"{stage.name}: {note}": n for note, n in result.notes.items()})
            yield result.problem
        else:
            yield problem


def _build_report(
    settings: PipelineSettings, inputs: Sequence[SplitRows], state: StageRun, tally: Tally
) -> dict[str, Any]:
    rules = {
        BAD: (
            "no row of this source: unreadable, or a column is missing or empty, or its id is"
            " repeated"
        )
    }
    stages = {name: asdict(stage) for name, stage in settings.stages.items()}  # type: ignore[call-overload]
    for name, stage in settings.stages.items():
        rules |= stage.meanings()
        # Leave out the folders of this machine.
        if stages[name].get("data"):
            stages[name]["data"] = Path(stages[name]["data"]).name
    given_away = [
        {"task": task, "level": level, "training_rows": len(rows), "test_rows": len(set(rows))}
        for (task, level), rows in sorted(tally.given_away.items())
    ]
    return {
        "title": settings.title,
        "settings": {
            "system_prompt": bool(state.system),
            "answer_format": state.answer_format,
            "stages": stages,
        },
        "inputs": [f"{rows.source.name} {rows.split}: {rows.name}" for rows in inputs],
        **tally.describe(rules),
        "notes": dict(sorted(tally.notes.items())),
        "compared": state.compared,
        "contamination": given_away,
    }


@program("pipeline")
def main(words: Sequence[str] | None = None) -> int:
    stages = "\n".join(f"  {kind.name}: {kind.title}" for kind in STAGES.values())
    sources = "\n".join(f"  {source.name}: {source.title}" for source in SOURCES.values())
    top = build_parser("data pipeline", f"{__doc__}\nstages:\n{stages}\n\nsources:\n{sources}")
    names = ", ".join(sorted(path.stem for path in SETTINGS.glob("*.yaml")))
    about = f"a file, or {names}: those of the package"
    top.add_argument("settings", type=Path, metavar="SETTINGS", help=about)
    top.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="e.g. stages.deduplicate.threshold=0.9"
    )
    about = "local files; repeatable; the other sources of the settings are left out"
    add_files_argument(top, "SOURCE", about)
    top.add_argument("--source", metavar="NAME", help="data source of all rows: math/NAME")
    about = (
        "share of the training rows that stay, such as 0.9; the others are for testing (default: 1)"
    )
    top.add_argument("--split", type=SHARE_ABOVE_0, default=1.0, metavar="SHARE", help=about)
    add_output_argument(top, "of the rows and the reports")
    options = top.parse_intermixed_args(words)
    settings = load_settings(options.settings, options.overrides)
    paths = run(settings, options.output, parse_files(options.input), options.source, options.split)
    return validate.main(list(map(str, paths)))


if __name__ == "__main__":
    sys.exit(main())
