# SPDX-License-Identifier: Apache-2.0
"""Step scores from a server with vLLM's ``/classify``: verl's reward-model pool, or any URL.

verl's router answers 500 to whatever the server refuses, so there a refused request is a failure,
not an error.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import openai

from prime_ext.config.step_scorer_settings import ServerSettings
from prime_ext.generate.server_backend import status_text
from prime_ext.step_rm.description import Description, Input, PairEncoder
from prime_ext.step_rm.labels import StepRMError, find_label
from prime_ext.step_rm.scorers.protocol import Chain, Outcome, ScoringFailure, StepScorer, calibrate

_PATH = "/classify"
# Steps of a request.
BATCH_SIZE = 32
# Statuses that OpenAI's client takes for passing, in addition to 5xx.
_TRANSIENT = (408, 409, 429)


class ClassifyScorer(StepScorer):
    """Scorer that queries ``/classify`` with token ids, in one event loop.

    ``address`` is ``host:port`` as verl names its router, or a URL, which may already end with the
    endpoint.
    """

    def __init__(self, address: str, description: Description, settings: ServerSettings):
        from transformers import AutoTokenizer

        super().__init__()
        base_url = (
            (address if "://" in address else f"http://{address}").rstrip("/").removesuffix(_PATH)
        )
        self.url = base_url + _PATH
        self._description = description
        tokenizer = AutoTokenizer.from_pretrained(
            settings.model_path, trust_remote_code=settings.trust_remote_code
        )
        self._encoder = PairEncoder(tokenizer, description.pair_format)
        self._attempts = settings.attempts
        self._seconds = settings.timeout_seconds
        self._slots = asyncio.Semaphore(settings.concurrency)
        # Without a key the client would send that of $OPENAI_API_KEY to any server.
        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key="none", max_retries=self._attempts - 1, timeout=self._seconds
        )

    async def score(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Score responses; one fails with any step. Raises ``StepRMError``: no working server."""
        read = self._encoder.encode_chains([(chain.question, chain.steps) for chain in chains])
        known, missing = self.split_known(read)
        batches = [missing[at : at + BATCH_SIZE] for at in range(0, len(missing), BATCH_SIZE)]
        # All are awaited before an error is raised.
        answers = await asyncio.gather(*map(self._ask, batches), return_exceptions=True)
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if isinstance(answer, ScoringFailure):
                known |= dict.fromkeys(batch, answer)
            else:
                known |= zip(batch, answer, strict=True)
        return self.outcomes(read, known)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, batch: Sequence[Input]) -> list[list[float]] | ScoringFailure:
        """Return each input's score, or why all attempts failed. Raises ``StepRMError``."""
        body = {"input": [list(item.ids) for item in batch], "use_activation": True}
        try:
            async with self._slots:
                answer = json.loads(await self._client.post(_PATH, cast_to=str, body=body))
        except openai.APITimeoutError:
            return self._build_failure(f"no answer in {self._seconds:g} s")
        except openai.APIConnectionError as error:
            return self._build_failure(f"no connection: {error.__cause__ or error}")
        except openai.APIStatusError as error:
            if error.status_code >= 500 or error.status_code in _TRANSIENT:
                return self._build_failure(f"HTTP {error.status_code}")
            hint = f" (no {_PATH}, or no such model)" if error.status_code in (404, 405) else ""
            message = " ".join(status_text(error).split())[:200]
            raise StepRMError(f"{self.url} refuses the request{hint}: {message}") from None
        except ValueError as error:
            raise StepRMError(f"{self.url} does not answer with JSON: {error}") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise StepRMError(f"{self.url} is not a {_PATH} server: its answer has no list 'data'")
        if len(data) != len(batch):
            raise StepRMError(f"{self.url} gave {len(data)} results for {len(batch)} inputs")
        return [[self._score(item)] for item in sorted(data, key=lambda item: item.get("index", 0))]

    def _build_failure(self, reason: str) -> ScoringFailure:
        return ScoringFailure(f"{self.url}: {reason}, {self._attempts} attempts")

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
