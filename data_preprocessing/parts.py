# SPDX-License-Identifier: Apache-2.0
"""Runs a function over parts of a stream, in processes, so that an interrupted run goes on where it was.

Every part is a file or several and, written last, its summary. Parts whose summary is there are not made again. The
parts and their order do not depend on the number of processes.
"""

import json
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from prime_ext.utils.files import read_json, write_json
from prime_ext.utils.rows import SourceError

Part = TypeVar("Part")
Summary = dict[str, Any]


class Parts:
    """A folder of finished parts. What is there of another ``identity``, which is JSON, is thrown away."""

    def __init__(self, folder: Path, identity: Any) -> None:
        self.folder = folder
        described = json.loads(json.dumps(identity))
        marker = folder / "identity.json"
        if folder.exists() and (not marker.is_file() or read_json(marker) != described):
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(marker, described)

    def path(self, number: int, suffix: str = "") -> Path:
        return self.folder / f"{number:06d}{suffix}"

    def summary(self, number: int) -> Summary | None:
        """Of a finished part; None for one that is not."""
        path = self.path(number, ".json")
        return read_json(path) if path.is_file() else None


def run_parts(
    stream: Iterator[Part], work: Callable[[Part, Path], Summary], parts: Parts, workers: int
) -> Iterator[tuple[int, Summary]]:
    """Make the parts; yields their numbers from 0 and summaries, in order.

    Args:
        stream: what the parts are made from, in the same order in every run; at most ``2 * workers`` are in memory.
        work: makes a part and returns its summary as JSON. It gets what the stream gave and the path of the part
            without suffix; what it writes appears whole or not at all. It can be pickled if ``workers`` is above 1.
        parts: where they go.
        workers: processes; 1 works in this one.

    Raises:
        SourceError: a process was killed; what is finished stays.
    """
    if workers == 1:
        for number, part in enumerate(stream):
            yield number, parts.summary(number) or _made(work, part, parts.path(number))
        return
    waiting: deque[tuple[int, Summary | Future[Summary]]] = deque()
    # Not forked: a library's threads in this process would be lost half-way. Ctrl-C is for the parent, which lets the
    # parts under way be finished.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=signal.signal, initargs=ignore) as pool:
        try:
            for number, part in enumerate(stream):
                waiting.append((number, parts.summary(number) or pool.submit(_made, work, part, parts.path(number))))
                if len(waiting) > 2 * workers:
                    yield _settled(*waiting.popleft())
            while waiting:
                yield _settled(*waiting.popleft())
        except BrokenProcessPool as error:
            raise SourceError("a worker process was killed; the same command goes on where this one was") from error
        finally:
            pool.shutdown(cancel_futures=True)


def _settled(number: int, found: Summary | Future[Summary]) -> tuple[int, Summary]:
    return number, found.result() if isinstance(found, Future) else found


def _made(work: Callable[[Part, Path], Summary], part: Part, path: Path) -> Summary:
    summary = work(part, path)
    write_json(path.with_name(f"{path.name}.json"), summary)
    return summary
