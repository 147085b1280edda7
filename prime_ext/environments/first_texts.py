# SPDX-License-Identifier: Apache-2.0
"""First observations of many episodes, and whether an environment repeats them."""

import asyncio
import random
from collections.abc import Iterable, Iterator

from prime_ext.environments.episode import MEMORY_LIMIT, EnvironmentFailed, Episode
from prime_ext.environments.names import read_name
from prime_ext.utils.report_page import join_lines
from prime_ext.utils.rows import SourceError, make_batches

CONCURRENCY = 16
# Each limit has a fork server of its own.
_LIMITS = (MEMORY_LIMIT, MEMORY_LIMIT - 1)
# No environment may fail on a text that is not an action.
_TRIAL = "?"


def draw_seeds(text: str) -> Iterator[int]:
    """Yield different seeds of 31 bits, the same ones for the same text."""
    generator = random.Random(text)
    drawn: set[int] = set()
    while True:
        seed = generator.getrandbits(31)
        if seed not in drawn:
            drawn.add(seed)
            yield seed


def read_first_texts(name: str, seeds: Iterable[int]) -> Iterator[str]:
    """Yield the first observation of each seed, in order, several episodes at once.

    Raises SourceError: the environment is unknown, fails at reset or at the first text, has an
    empty first observation, or another one in another process.
    """
    read_name(name)
    for batch in make_batches(seeds, CONCURRENCY):
        yield from asyncio.run(_observe_all(name, batch))


async def _observe_all(name: str, seeds: Iterable[int]) -> list[str]:
    try:
        return await asyncio.gather(*(_observe(name, seed) for seed in seeds))
    except EnvironmentFailed as error:
        raise SourceError(join_lines(str(error))) from error


async def _observe(name: str, seed: int) -> str:
    texts = []
    for limit in _LIMITS:
        async with Episode(name, memory_limit=limit) as episode:
            texts.append(await episode.reset(seed))
            await episode.step(_TRIAL)
    if not texts[0].strip():
        raise SourceError(f"{name}: the first observation of the seed {seed} is empty")
    if texts[0] != texts[1]:
        raise SourceError(
            f"{name} does not repeat: the seed {seed} gives {texts[0][:80]!r}, then"
            f" {texts[1][:80]!r}; its reset must draw everything by the seed"
        )
    return texts[0]
