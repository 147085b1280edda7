# SPDX-License-Identifier: Apache-2.0
"""RL data from settings: sources, stages in order, parquet files, a report and a validation.

    python -m data_preprocessing.pipeline SETTINGS.yaml [KEY=VALUE ...] --output-dir DIR
    python -m data_preprocessing.pipeline data_preprocessing/settings/gsm8k_math.yaml data_dir=DATA \\
        --output-dir data/math
    python -m data_preprocessing.pipeline data_preprocessing/settings/code.yaml --input apps=my_apps.jsonl \\
        --output-dir data/code

Writes ``train.parquet``, ``validation.parquet`` and ``test.parquet``, as far as they have rows, ``removed.jsonl``
(every row that is not in them, why, and for duplicates and contaminated rows of what), ``report.json`` and
``report.md``: all of them or none. Interrupted, the same command goes on where it was; the result depends neither on
that nor on --workers.
Afterwards the files are validated as by ``data_preprocessing.validate``.

Exits with 1 if the validation finds something, with 2 and one line when nothing can be written. See docs/data.md.
"""

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_preprocessing import validate
from data_preprocessing.command import finish
from data_preprocessing.input_files import InputFiles
from data_preprocessing.pipeline_settings import PipelineSettings, SourceSettings, load_settings
from data_preprocessing.pipeline_steps import StepResult, run_steps
from data_preprocessing.rl_outputs import write_outputs
from data_preprocessing.row_source import inputs_of
from data_preprocessing.stage_registry import STAGES
from data_preprocessing.stage_rows import SOURCES, read_items
from data_preprocessing.tally import BAD
from prime_ext.tasks.rl_rows import MATH_SCHEMA, OUTPUTS, refuse_leftovers
from prime_ext.utils.machine import available_cores
from prime_ext.utils.rows import SourceError

BAD_MEANING = "no row of this source: unreadable, or a column is missing or empty, or its id is repeated"


def run(
    settings: PipelineSettings, folder: Path, *, workers: int = 1, strict: bool = False
) -> tuple[dict[str, Any], list[Path]]:
    """Run the pipeline. Returns the report and the parquet files.

    Raises:
        SourceError: see its message.
    """
    inputs = [
        given
        for source in settings.sources
        for given in inputs_of(
            SOURCES[source.name],
            source.files,
            settings.data_dir,
            source.splits,
            settings.generated_rows,
            settings.seed,
        )
    ]
    # Before the work, not after it.
    refuse_leftovers(folder, {given.split for given in inputs})
    parts = folder / ".parts"
    result = run_steps(
        inputs,
        settings.stages,
        parts,
        chunk_rows=settings.chunk_rows,
        workers=workers,
        strict=strict,
        data_dir=settings.data_dir,
    )
    rules = {BAD: BAD_MEANING}
    for kind, options in settings.stages:
        rules |= kind.rules(options)
    report: dict[str, Any] = {
        "title": settings.title,
        "settings": _shown_settings(settings),
        "inputs": [f"{given.source.name} {given.split}: {given.name}" for given in inputs],
        "rules": rules,
        **result.tally.described(),
        "notes": dict(sorted(result.notes.items())),
        "compared": [line for lines in result.used.values() for line in lines],
        "contamination": _contamination(result),
    }
    left = {found["split"] for found in report["sources"] if found["written"]}
    if not left:
        raise SourceError(_nothing(report))
    splits = [split for split in OUTPUTS if split in left]
    paths = write_outputs(_tables(result, settings.system), splits, {"removed": result.removed}, report, folder)
    shutil.rmtree(parts)
    return report, paths


def _shown_settings(settings: PipelineSettings) -> dict[str, Any]:
    """What the report says of the settings: nothing about the machine."""
    stages = {kind.name: asdict(options) for kind, options in settings.stages}
    for options in stages.values():
        if options.get("data"):
            options["data"] = Path(options["data"]).name
    return {
        "system_prompt": bool(settings.system),
        "seed": settings.seed,
        "chunk_rows": settings.chunk_rows,
        "stages": stages,
    }


def _tables(result: StepResult, system: str) -> Iterator[tuple[str, pa.Table]]:
    """The rows of every part, which has one source and one split."""
    for path in result.rows:
        items = list(read_items(path))
        if items:
            rows = [SOURCES[item.source].rl_row(item.problem, system) for item in items]
            yield items[0].problem.split, pa.Table.from_pylist(rows, MATH_SCHEMA)


def _contamination(result: StepResult) -> list[dict[str, Any]]:
    """What was hit: by task and level, how many training rows went and how many test rows they gave away."""
    training: Counter[tuple[str, str]] = Counter()
    test: dict[tuple[str, str], set[str]] = {}
    for path in result.removed:
        with path.open(encoding="utf-8") as lines:
            for found in map(json.loads, lines):
                details = found.get("details", {})
                if "task" in details:
                    key = (details["task"], details["level"])
                    training[key] += 1
                    test.setdefault(key, set()).add(str(details["task_row"]))
    return [
        {"task": key[0], "level": key[1], "training_rows": training[key], "test_rows": len(test[key])}
        for key in sorted(training)
    ]


def _nothing(report: Mapping[str, Any]) -> str:
    """Why no row is left."""
    if any(set(found["removed"]) - {BAD} for found in report["sources"]):
        return "nothing is left: the stages removed all rows"
    row = report["samples"][0]["rows"][0]
    return f"nothing can be used: {row['file']} row {row['row']}: {row['evidence']}"


def parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {kind.name}: {kind.title}" for kind in STAGES.values())
    sources = "\n".join(f"  {source.name}: {source.title}" for source in SOURCES.values())
    top = argparse.ArgumentParser(
        prog="python -m data_preprocessing.pipeline",
        description=f"{__doc__}\nstages:\n{about}\n\nsources:\n{sources}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.set_defaults(input={})
    top.add_argument("settings", type=Path, metavar="SETTINGS.yaml")
    top.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. stages.deduplicate.threshold=0.9")
    top.add_argument(
        "--input",
        nargs="+",
        action=InputFiles,
        metavar="SOURCE[:SPLIT]=FILE",
        help="local files; repeatable; the settings' other sources are left out",
    )
    top.add_argument("--output-dir", type=Path, required=True)
    cores = available_cores()
    top.add_argument("--workers", type=int, default=cores, help=f"processes (default: one per core, {cores})")
    top.add_argument("--strict", action="store_true", help="stop at the first bad row")
    return top


def with_files(settings: PipelineSettings, files: Mapping[str, Mapping[str, Path]]) -> PipelineSettings:
    """The settings with local files for some sources, and only these.

    Raises:
        SourceError: there is no such source.
    """
    for name in files:
        if name not in SOURCES:
            raise SourceError(f"--input names {name}, which is none of {', '.join(SOURCES)}")
    if not files:
        return settings
    return replace(settings, sources=tuple(SourceSettings(name, given) for name, given in files.items()))


def main(words: Sequence[str] | None = None) -> int:
    options = parser().parse_intermixed_args(words)
    checks: list[str] = []

    def made() -> tuple[dict[str, Any], list[Path]]:
        if options.workers < 1:
            raise SourceError("--workers must be at least 1")
        settings = with_files(load_settings(options.settings, options.overrides), options.input)
        checks.extend(["--tokenizer", settings.tokenizer] if settings.tokenizer else [])
        checks.extend(["--max-prompt-length", str(settings.max_prompt_length)] if settings.max_prompt_length else [])
        return run(settings, options.output_dir, workers=options.workers, strict=options.strict)

    return finish("pipeline", made, lambda _, paths: validate.main([*map(str, paths), *checks]))


if __name__ == "__main__":
    sys.exit(main())
