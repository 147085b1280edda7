# SPDX-License-Identifier: Apache-2.0
"""The files of RL data: parquet by split, what was removed, and the report; all of them or none."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_preprocessing.funnel_report import markdown
from prime_ext.tasks.rl_rows import MATH_SCHEMA, refuse_leftovers
from prime_ext.utils.files import atomic_path, write_json, write_text


def write_outputs(
    tables: Iterable[tuple[str, pa.Table]],
    splits: Sequence[str],
    lines: Mapping[str, Iterable[Path]],
    report: Mapping[str, Any],
    folder: Path,
) -> list[Path]:
    """Put parts together.

    Args:
        tables: split and rows of each part, in order.
        splits: those that the tables have.
        lines: JSON Lines in order, by the name of the file that they make: ``removed``, for what was removed.
        report: see :func:`~data_preprocessing.funnel_report.markdown`.
        folder: where the files go.

    Returns:
        The parquet files.

    Raises:
        SourceError: see :func:`refuse_leftovers`.
    """
    refuse_leftovers(folder, splits)
    with ExitStack() as stack:
        merged = {name: stack.enter_context(atomic_path(folder / f"{name}.jsonl")) for name in lines}
        paths = {split: stack.enter_context(atomic_path(folder / f"{split}.parquet")) for split in splits}
        write_json(stack.enter_context(atomic_path(folder / "report.json")), report)
        write_text(stack.enter_context(atomic_path(folder / "report.md")), markdown(report))
        writers = {split: stack.enter_context(pq.ParquetWriter(path, MATH_SCHEMA)) for split, path in paths.items()}
        for split, table in tables:
            writers[split].write_table(table)
        for name, parts in lines.items():
            with merged[name].open("wb") as whole:
                for path in parts:
                    with path.open("rb") as part:
                        shutil.copyfileobj(part, whole)
    return [folder / f"{split}.parquet" for split in splits]
