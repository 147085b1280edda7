# SPDX-License-Identifier: Apache-2.0
"""Step scores from a server with vLLM's ``/classify``: verl's reward-model pool, or any URL.

With the model's folder at hand, token ids are sent, so the server reads what the model was trained on, to the token.
Without it (``inputs="text"``) texts are sent and the server tokenises: over-long inputs are then its affair, and it may
read ``[SEP]`` in a step as a special token.

verl's router answers 500 for whatever the server refuses, so behind it a refused request is a failure after all
attempts, not an error.
"""

import asyncio
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from cachetools import LRUCache

from prime_ext.step_rm.description import Description
from prime_ext.step_rm.labels import StepRMError, label_of
from prime_ext.step_rm.pairs import PairEncoder, PairInput
from prime_ext.step_rm.scorers.protocol import (
    Chain,
    Outcome,
    Probabilities,
    ScoringFailure,
    StepScores,
    calibrated,
)

Key = tuple[int, ...] | str
# Statuses that another attempt may change, beside 5xx.
_TRANSIENT = (408, 425, 429)


@dataclass(frozen=True)
class ServerOptions:
    """How a server is asked.

    Attributes:
        model: the name it serves the model under; empty for its only one.
        batch_size: steps per request.
        concurrency: requests at a time.
        timeout_seconds: for one attempt, connecting included.
        attempts: how often a request is made before it has failed.
        backoff_seconds: pause before the second attempt, doubled before each further one, at most 30.
        api_key_variable: environment variable with a key to send as a bearer token; empty for none.
        cache_size: inputs whose probabilities are remembered.
    """

    model: str = ""
    batch_size: int = 32
    concurrency: int = 16
    timeout_seconds: float = 60.0
    attempts: int = 3
    backoff_seconds: float = 0.5
    api_key_variable: str = ""
    cache_size: int = 100_000


def server_url(address: str) -> str:
    """The URL of ``/classify``, from ``host:port`` as verl names its router, or from a URL that may already say it."""
    url = address if "://" in address else f"http://{address}"
    return url if url.rstrip("/").endswith("/classify") else f"{url.rstrip('/')}/classify"


class _Failed(Exception):
    """All attempts of one request failed."""


class ClassifyScorer:
    """Scores with a server.

    Args:
        address: ``host:port`` or a URL.
        description: of the model that is served.
        tokenizer: its tokenizer, to send token ids; None to send texts.
        options: how it is asked.

    Raises:
        StepRMError: the variable of the key is not set.
    """

    def __init__(self, address: str, description: Description, tokenizer: Any, options: ServerOptions):
        self.url, self.description, self.options = server_url(address), description, options
        self.encoder = PairEncoder(tokenizer, description.pair_format) if tokenizer is not None else None
        self._headers = {}
        if options.api_key_variable:
            if not os.environ.get(options.api_key_variable):
                raise StepRMError(
                    f"the environment variable {options.api_key_variable} with the server's key is not set"
                )
            self._headers["Authorization"] = f"Bearer {os.environ[options.api_key_variable]}"
        self._cache: LRUCache[Key, Probabilities] = LRUCache(options.cache_size)
        # Connections and the semaphore belong to an event loop.
        self._loops: weakref.WeakKeyDictionary[Any, tuple[aiohttp.ClientSession, asyncio.Semaphore]] = (
            weakref.WeakKeyDictionary()
        )

    def _inputs(self, chain: Chain) -> tuple[list[Key], list[PairInput]]:
        if self.encoder is not None:
            encoded = self.encoder.encode_steps(chain.question, chain.steps)
            return [item.ids for item in encoded], encoded
        text = self.description.pair_format.text
        keys: list[Key] = [text(chain.question, chain.steps[:at], step) for at, step in enumerate(chain.steps)]
        return keys, []

    async def score(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Scores of responses; a response of which any step is not answered for has failed.

        Raises:
            StepRMError: the server refuses, or gives something else than probabilities of these three classes.
        """
        inputs = [self._inputs(chain) for chain in chains]
        wanted: dict[Key, None] = dict.fromkeys(key for keys, _ in inputs for key in keys)
        known = {key: self._cache[key] for key in wanted if key in self._cache}
        missing = [key for key in wanted if key not in known]
        size = self.options.batch_size
        batches = [missing[at : at + size] for at in range(0, len(missing), size)]
        failed: dict[Key, str] = {}
        answers = await asyncio.gather(*map(self._ask, batches), return_exceptions=True)
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, _Failed):
                failed.update(dict.fromkeys(batch, str(answer)))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                known.update(zip(batch, answer, strict=True))
        if self._cache.maxsize:
            for key in wanted:
                if key in known:
                    self._cache[key] = known[key]
        return [_outcome(keys, encoded, known, failed) for keys, encoded in inputs]

    # ---- one request ---------------------------------------------------------------------------------------------

    async def _ask(self, batch: Sequence[Key]) -> list[Probabilities]:
        payload: dict[str, Any] = {
            "input": [key if isinstance(key, str) else list(key) for key in batch],
            "use_activation": True,
        }
        if self.options.model:
            payload["model"] = self.options.model
        session, semaphore = self._connections()
        reason = ""
        for attempt in range(self.options.attempts):
            if attempt:
                await asyncio.sleep(min(30.0, self.options.backoff_seconds * 2 ** (attempt - 1)))
            try:
                async with semaphore, session.post(self.url, json=payload) as response:
                    if response.status >= 500 or response.status in _TRANSIENT:
                        reason = f"HTTP {response.status}"
                    elif response.status >= 400:
                        body = " ".join((await response.text()).split())[:200]
                        raise StepRMError(f"{self.url} refuses the request with HTTP {response.status}: {body}")
                    else:
                        return self._read(await response.json(content_type=None), len(batch))
            except (asyncio.TimeoutError, TimeoutError):
                reason = f"no answer in {self.options.timeout_seconds:g} s"
            except aiohttp.ClientError as error:
                reason = f"{type(error).__name__}: {error}"
            except ValueError as error:
                if isinstance(error, StepRMError):
                    raise
                raise StepRMError(f"{self.url} does not answer with JSON: {error}") from error
        raise _Failed(f"{self.url}: {reason}, {self.options.attempts} attempts")

    def _read(self, answer: Any, n_inputs: int) -> list[Probabilities]:
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise StepRMError(f"{self.url} is no /classify server: its answer has no list 'data'")
        if len(data) != n_inputs:
            raise StepRMError(f"{self.url} gave {len(data)} results for {n_inputs} steps")
        ordered = sorted(data, key=lambda item: item.get("index", 0))
        return [self._probabilities(item) for item in ordered]

    def _probabilities(self, item: dict[str, Any]) -> Probabilities:
        values = item.get("probs")
        if not isinstance(values, list):
            raise StepRMError(f"{self.url}: a result has no list 'probs'")
        order = self.description.order
        probabilities = calibrated(values, order, self.description.temperature, self.url)
        name = item.get("label")
        # Only the name of the likeliest class is told; it must be ours.
        place = values.index(max(values))
        if name is None or str(name).upper() == f"LABEL_{place}":
            raise StepRMError(f"{self.url} has no label map; set id2label in the config.json of the served model")
        if label_of(str(name)) != order[place]:
            raise StepRMError(f"{self.url} calls class {place} {name!r}, here it is {order[place]}: another model?")
        return probabilities

    # ---- connections ---------------------------------------------------------------------------------------------

    def _connections(self) -> tuple[aiohttp.ClientSession, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if loop not in self._loops or self._loops[loop][0].closed:
            timeout = aiohttp.ClientTimeout(total=self.options.timeout_seconds)
            session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
            self._loops[loop] = (session, asyncio.Semaphore(self.options.concurrency))
        return self._loops[loop]

    async def close(self) -> None:
        found = self._loops.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found[0].close()


def _outcome(
    keys: Sequence[Key], encoded: Sequence[PairInput], known: dict[Key, Probabilities], failed: dict[Key, str]
) -> Outcome:
    reasons = [failed[key] for key in keys if key in failed]
    if reasons:
        return ScoringFailure(reasons[0])
    cut = sum(item.context_cut for item in encoded), sum(item.step_cut for item in encoded)
    return StepScores(tuple(known[key] for key in keys), *cut)
