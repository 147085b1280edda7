# SPDX-License-Identifier: Apache-2.0
"""Step scores from vLLM's ``/classify`` and ``/pooling``: verl's reward-model pool, or any URL.

verl's router answers 500 to whatever the server refuses, so there a refused request is a failure,
not an error.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import openai

from prime_ext.config.step_scorer_settings import RemoteSettings, ServerSettings
from prime_ext.generate.server_backend import status_text
from prime_ext.step_rm.description import Description, Input, PairEncoder
from prime_ext.step_rm.labels import StepRMError, find_label
from prime_ext.step_rm.scorers.protocol import (
    Chain,
    Known,
    Outcome,
    Reading,
    ScoringFailure,
    StepScorer,
    calibrate,
    join_outcome,
)
from prime_ext.step_rm.scorers.response_reader import ResponseReader
from prime_ext.utils.report_page import join_lines

T = TypeVar("T")
# Statuses that OpenAI's client takes for passing, in addition to 5xx.
_TRANSIENT = (408, 409, 429)
# Statuses of a server without the endpoint.
_ABSENT = (404, 405, 501)


class RemoteScorer(StepScorer):
    """Scorer that queries a server, in one event loop.

    ``address`` is ``host:port`` as verl names its router, or a URL, which may already end with the
    endpoint ``path``. An input that is being scored is not sent again.
    """

    batch_size = 1  # inputs of a request

    def __init__(self, address: str, path: str, settings: RemoteSettings, key: str = ""):
        super().__init__()
        base_url = add_scheme(address).rstrip("/").removesuffix(path)
        self.url = base_url + path
        self.path = path
        self._key = key
        self._attempts = settings.attempts
        self._seconds = settings.timeout_seconds
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._in_flight: dict[Input, asyncio.Task[Known]] = {}
        # Without a key the client would send that of $OPENAI_API_KEY to any server.
        self.client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=key or "none",
            max_retries=self._attempts - 1,
            timeout=self._seconds,
        )

    @abstractmethod
    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        """Return the inputs of each response."""

    @abstractmethod
    async def ask(self, batch: Sequence[Input]) -> list[list[float]] | ScoringFailure:
        """Return each input's scores, or why there are none. Raises ``StepRMError``."""

    async def score(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Score responses; one fails with any input. Raises ``StepRMError``: no working server."""
        read = self.read(chains)
        known, missing = self.split_known(read)
        new = [item for item in missing if item not in self._in_flight]
        for at in range(0, len(new), self.batch_size):
            batch = new[at : at + self.batch_size]
            self._in_flight |= dict.fromkeys(batch, asyncio.create_task(self._answer(batch)))
        tasks = {self._in_flight[item]: None for item in missing}
        if tasks:
            # All are awaited before an error is raised. A canceled caller leaves them to others.
            await asyncio.wait(tasks)
        for task in tasks:
            known |= task.result()
        return [join_outcome(inputs, known) for inputs in read]

    async def close(self) -> None:
        await self.client.close()

    async def _answer(self, batch: Sequence[Input]) -> Known:
        """Return the scores of inputs, which are remembered. Raises ``StepRMError``."""
        try:
            answer = await self.ask(batch)
        finally:
            for item in batch:
                del self._in_flight[item]
        if isinstance(answer, ScoringFailure):
            return dict.fromkeys(batch, answer)
        known: Known = dict(zip(batch, answer, strict=True))
        self.remember(known)
        return known

    async def send(self, request: Callable[[], Awaitable[T]]) -> T | ScoringFailure:
        """Await an answer in a free slot, or return why all attempts failed.

        Raises ``StepRMError``: the server refuses the request.
        """
        try:
            async with self._slots:
                return await request()
        except openai.APITimeoutError:
            return self._build_failure(f"no answer in {self._seconds:g} s")
        except openai.APIConnectionError as error:
            return self._build_failure(f"no connection: {error.__cause__ or error}")
        except openai.APIStatusError as error:
            code = error.status_code
            if (code >= 500 or code in _TRANSIENT) and code not in _ABSENT:
                return self._build_failure(f"HTTP {code}")
            hint = f" (no {self.path}, or no such model)" if code in _ABSENT else ""
            message = self.show(status_text(error))
            raise StepRMError(f"{self.url} refuses the request{hint}: {message}") from None

    async def post(self, batch: Sequence[Input], **more: Any) -> list[Any] | ScoringFailure:
        """Return vLLM's result for each input, or why all attempts failed.

        Raises ``StepRMError``: the server refuses, or answers in another form.
        """
        body = {"input": [list(item.ids) for item in batch], "use_activation": True, **more}
        text = await self.send(partial(self.client.post, self.path, cast_to=str, body=body))
        if isinstance(text, ScoringFailure):
            return text
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise StepRMError(f"{self.url} does not answer with JSON: {error}") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise StepRMError(
                f"{self.url} is not a {self.path} server: its answer has no list 'data'"
            )
        if len(data) != len(batch):
            raise StepRMError(f"{self.url} gave {len(data)} results for {len(batch)} inputs")
        return sorted(data, key=lambda item: item.get("index", 0))

    def show(self, text: str) -> str:
        """Return a short line without the key, which servers repeat in their answer."""
        return join_lines(text.replace(self._key, "***") if self._key else text, 200)

    def _build_failure(self, reason: str) -> ScoringFailure:
        return ScoringFailure(f"{self.url}: {reason}, {self._attempts} attempts")


def add_scheme(address: str) -> str:
    return address if "://" in address else f"http://{address}"


class ClassifyScorer(RemoteScorer):
    """Scorer with a step reward model at ``/classify``, which gets the token ids of steps."""

    batch_size = 32

    def __init__(self, address: str, description: Description, settings: ServerSettings):
        from transformers import AutoTokenizer

        super().__init__(address, "/classify", settings)
        self._description = description
        tokenizer = AutoTokenizer.from_pretrained(
            settings.model_path, trust_remote_code=settings.trust_remote_code
        )
        self._encoder = PairEncoder(tokenizer, description.pair_format)

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        return [*self._encoder.encode_chains([(chain.question, chain.steps) for chain in chains])]

    async def ask(self, batch: Sequence[Input]) -> list[list[float]] | ScoringFailure:
        results = await self.post(batch)
        if isinstance(results, ScoringFailure):
            return results
        return [[self._score(item)] for item in results]

    def _score(self, item: dict[str, Any]) -> float:
        values = item.get("probs")
        url = self.url
        if not isinstance(values, list):
            raise StepRMError(f"{url}: a result has no list 'probs'")
        order = self._description.labels
        score = calibrate(values, order, self._description.temperature, url)
        name = item.get("label")
        # The server returns only the name of the likeliest class, which must match.
        index = values.index(max(values))
        if name is None or str(name).upper() == f"LABEL_{index}":
            raise StepRMError(
                f"{url} has no label map; set id2label in the config.json of the served model"
            )
        if find_label(str(name)) != order[index]:
            raise StepRMError(
                f"{url} calls class {index} {name!r}, here it is {order[index]}: another model?"
            )
        return score


class PoolingScorer(RemoteScorer):
    """Scorer with a published PRM at ``/pooling``: a request for each response.

    vLLM returns the probabilities of the classes at each token, or at the separators only (its
    pooling of Qwen2.5-Math-PRM).
    """

    def __init__(self, address: str, reader: ResponseReader, settings: ServerSettings):
        super().__init__(address, "/pooling", settings)
        self._reader = reader
        self._order = [int(at == reader.positive) for at in range(len(reader.columns))]

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        return self._reader.read(chains)

    async def ask(self, batch: Sequence[Input]) -> list[list[float]] | ScoringFailure:
        results = await self.post(batch, task="token_classify")
        if isinstance(results, ScoringFailure):
            return results
        pairs = zip(batch, results, strict=True)
        return [self._scores(item, result.get("data")) for item, result in pairs]

    def _scores(self, item: Input, rows: Any) -> list[float]:
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise StepRMError(
                f"{self.url} gave no list of probabilities for each token; serve a token classifier"
            )
        if len(rows) == len(item):
            rows = [rows[end] for end in item.ends]
        elif len(rows) != len(item.ends):
            raise StepRMError(
                f"{self.url} gave probabilities at {len(rows)} of {len(item)} tokens, which have"
                f" {len(item.ends)} separators: another model or separator?"
            )
        return [calibrate(row, self._order, 1.0, self.url) for row in rows]
