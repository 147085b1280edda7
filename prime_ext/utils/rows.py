# SPDX-License-Identifier: Apache-2.0
"""Rows of the files in which benchmarks are published, with the place of every bad one.

CSV with a header; JSON Lines (``.jsonl``, ``.jsonl.gz``, and ``.json`` or ``.txt`` files that hold
it); a JSON list of objects; a JSON object of columns (``{"problem": {"0": ...}}`` or
``{"problem": [...]}``); parquet.
"""

import csv
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from prime_ext.utils.files import read_lines
from prime_ext.utils.hub import use_cache_without_hub
from prime_ext.utils.run_store import RunError

T = TypeVar("T")
FORMATS = ".csv, .jsonl, .jsonl.gz, .json, .txt (JSON) and .parquet"
# The module's limit on a cell would end the reading of a file.
csv.field_size_limit(2**31 - 1)


def make_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items (as ``itertools.batched`` of Python 3.12)."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


class SourceError(RunError):
    """A file, data set or task that cannot be used at all; the message is a line with its name."""


class BadRow(ValueError):
    """A row that cannot be used; the message has the reason."""


def read_source(
    path: Path, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, Mapping[str, Any] | BadRow]]:
    """Yield rows with their numbers from 1; a bad one comes as a :class:`BadRow`.

    In JSON Lines the number is that of the line. Of parquet files, only the ``columns`` that are
    there are read. Raises SourceError: no such file or format, not text, or broken beyond its rows.
    """
    if not path.is_file():
        raise SourceError(
            f"{path} does not exist" if not path.is_dir() else f"{path} is a folder, not a file"
        )
    try:
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            yield from ((number, _parse_line(line)) for number, line in read_lines(path))
        else:
            yield from enumerate(_rows(path, columns), start=1)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    except (OSError, EOFError, RecursionError, csv.Error, zlib.error, pa.ArrowException) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SourceError(f"{path} cannot be read: {reason}") from error


def read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file. SourceError: it cannot be read, or a row is bad."""
    for number, row in read_source(path):
        if isinstance(row, BadRow):
            raise SourceError(f"{path} row {number}: {row}")
        yield row


def _rows(path: Path, columns: Sequence[str] | None) -> Iterator[Mapping[str, Any] | BadRow]:
    if path.suffix == ".parquet":
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1024, columns=columns):
            yield from batch.to_pylist()
        return
    if path.suffix not in (".csv", ".json", ".txt"):
        raise SourceError(f"{path} has none of the formats {FORMATS}")
    # newline="": the csv module reads line breaks inside quotes itself.
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from _csv_rows(file, path) if path.suffix == ".csv" else _json_rows(file, path)


def _parse_line(line: str) -> Mapping[str, Any] | BadRow:
    """Parse a line of JSON Lines."""
    try:
        value = json.loads(line.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        return BadRow(f"not JSON: {error}")
    return _object(value)


def _csv_rows(file: TextIO, path: Path) -> Iterator[Mapping[str, Any] | BadRow]:
    reader = csv.DictReader(file, strict=True)
    if not reader.fieldnames:
        raise SourceError(f"{path} is empty; the first line must name the columns")
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The reader continues after it.
            yield BadRow(f"not CSV: {error}")
            continue
        if None in row:
            yield BadRow(
                f"{len(reader.fieldnames) + len(row[None])} cells under {len(reader.fieldnames)}"
                " columns"
            )
        elif None in row.values():
            missing = [name for name, cell in row.items() if cell is None]
            yield BadRow(f"no cell in column {missing[0]}")
        else:
            yield row


def _json_rows(file: TextIO, path: Path) -> Iterator[Mapping[str, Any] | BadRow]:
    """Yield the rows of a list, of columns, or of misnamed JSON Lines, after reading all."""
    text = file.read()
    try:
        value = json.loads(text)
    except ValueError as error:
        # Not splitlines: it also splits where JSON allows a separator inside a text.
        rows = [_parse_line(line) for line in text.split("\n") if line.strip()]
        if not rows or isinstance(rows[0], BadRow):
            raise SourceError(f"{path} is neither JSON nor JSON Lines: {error}") from error
        yield from rows
        return
    if isinstance(value, list):
        yield from map(_object, value)
    elif (
        isinstance(value, dict)
        and value
        and all(isinstance(column, (list, dict)) for column in value.values())
    ):
        yield from _columns(value, path)
    else:
        # One line of JSON Lines.
        yield _object(value)


def _columns(value: dict[str, Any], path: Path) -> Iterator[Mapping[str, Any]]:
    columns = {name: list(c.values()) if isinstance(c, dict) else c for name, c in value.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SourceError(f"{path} has columns of different lengths: {lengths}")
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


def _object(value: Any) -> Mapping[str, Any] | BadRow:
    return value if isinstance(value, Mapping) else BadRow(f"not an object but {str(value)[:40]!r}")


def fetch_hub_file(repository: str, name: str, revision: str | None) -> Path:
    """Return a local copy of a data set's file on the hub. SourceError: it cannot be fetched."""
    from huggingface_hub import hf_hub_download

    use_cache_without_hub(repository)
    try:
        return Path(hf_hub_download(repository, name, repo_type="dataset", revision=revision))
    except OSError as error:
        raise _build_fetch_error(f"{name} of {repository}", error) from error


def read_hub_rows(
    repository: str, config: str | None, split: str, files: str | None = None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows, numbered from 1, of a data set on the Hugging Face hub or in a local folder.

    ``files`` (JSON Lines or parquet; wildcards) replace those of its own configuration. Raises
    SourceError: it cannot be fetched.
    """
    use_cache_without_hub(repository)
    from datasets import load_dataset

    try:
        if files is None:
            rows = load_dataset(repository, config, split=split, streaming=True)
        else:
            kind = "parquet" if files.endswith(".parquet") else "json"
            url = f"hf://datasets/{repository}/{files}"
            rows = load_dataset(kind, data_files=url, split="train", streaming=True)
        yield from enumerate(rows, start=1)
    except (OSError, ValueError) as error:
        raise _build_fetch_error(f"{split} of {repository}", error) from error


def _build_fetch_error(what: str, error: Exception) -> SourceError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return SourceError(
        f"{what} cannot be fetched from the hub ({reason}); give local files instead"
    )
