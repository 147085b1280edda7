# SPDX-License-Identifier: Apache-2.0
"""Files that are written completely or not at all, and read line by line."""

import gzip
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SAMPLED_BYTES = 2**20
_BLOCK_BYTES = 2**24
_CHECKSUM_THREADS = 4


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``, renamed to ``path`` after a block without errors.

    What was written may be a file or a folder; an older file or folder of that name is replaced.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: libraries pick the file format from it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        if path.is_dir():
            # A folder cannot be replaced in one call: move the old one away, then remove it.
            old = path.with_name(f".{path.stem}.{os.getpid()}.old")
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        elif temporary.exists():
            temporary.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically. NaN and infinity are refused (not JSON)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_json_lines(path: str | Path, rows: Iterable[Any]) -> None:
    """Write one JSON object per line, atomically."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def digest_files(paths: Iterable[str | Path]) -> str:
    """Hash the sizes, first and last bytes of files: cheap, and the same for copies.

    The end of a parquet file describes all of its rows; changes within a larger text file are not
    noticed. A path that is not a file here is hashed as text.
    """
    digest = hashlib.sha256()
    for path in map(Path, paths):
        if not path.is_file():
            digest.update(str(path).encode())
            continue
        size = path.stat().st_size
        digest.update(f"{size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(file.read())
    return digest.hexdigest()[:16]


def compute_checksums(sizes: Mapping[Path, int]) -> dict[Path, int]:
    """Return the CRC-32 of the first bytes of files, as many as ``sizes`` has.

    Zip archives, which ``torch.save`` writes, are left out: they hold checksums of their own. One
    thread reads about 1.7 GB/s.
    """
    plain = [path for path in sizes if not zipfile.is_zipfile(path)]
    with ThreadPoolExecutor(_CHECKSUM_THREADS) as pool:
        values = pool.map(_compute_crc, plain, [sizes[path] for path in plain])
        return dict(zip(plain, values, strict=True))


def find_changed(sizes: Mapping[Path, int], checksums: Mapping[Path, int]) -> Path | None:
    """Return a file that no longer has the checksums of :func:`compute_checksums`, or None."""

    def is_changed(path: Path) -> bool:
        if path in checksums:
            return _compute_crc(path, sizes[path]) != checksums[path]
        try:
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is not None
        except (zipfile.BadZipFile, NotImplementedError, zlib.error):
            return True

    with ThreadPoolExecutor(_CHECKSUM_THREADS) as pool:
        changed = pool.map(is_changed, sizes)
        return next((path for path, differs in zip(sizes, changed, strict=True) if differs), None)


def _compute_crc(path: Path, size: int) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(min(size, _BLOCK_BYTES)):
            value = zlib.crc32(block, value)
            size -= len(block)
    return value


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number, from 1, and text of the lines that are not blank; ``.gz`` is unpacked."""
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8") as lines
    ):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line
