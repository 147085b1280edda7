# SPDX-License-Identifier: Apache-2.0
"""Step scores from servers: vLLM's ``/classify`` for classifiers of steps, its ``/pooling`` for published PRMs, and
OpenAI's interface for a chat model that judges.

verl's router answers 500 for whatever the server refuses, so behind it a refused request is a failure after all
attempts, not an error.
"""

import asyncio
import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import aiohttp
import openai

from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.generate.backend import BackendError, one_line
from prime_ext.generate.server import ServerBackend, http_url, status_text
from prime_ext.step_rm.description import Description, Input, PairEncoder
from prime_ext.step_rm.labels import StepRMError, label_of
from prime_ext.step_rm.scorers.protocol import (
    Chain,
    Outcome,
    Probabilities,
    Reading,
    ScoringFailure,
    StepScorer,
    calibrated,
    check_probabilities,
    outcome_of,
    right_or_wrong,
)

if TYPE_CHECKING:
    from prime_ext.step_rm.scorers.token_classifier import TokenReader

# Statuses that another attempt may change, beside 5xx.
_TRANSIENT = (408, 425, 429)
# Seconds between two attempts at most.
_LONGEST_PAUSE = 30.0
_TASK = "token_classify"
_BOXED = re.compile(r"\\boxed\{\s*(\d{1,6})\s*\}")
# Statuses of a judge that no other response would change: the key, or the address.
_FATAL = (401, 403, 404, 405)


class RequestFailed(Exception):
    """All attempts of one request failed, or this response cannot be judged; its responses have no scores."""


class ServerScorer(StepScorer):
    """Asks a server, several requests at a time, each of so many inputs. Belongs to one event loop."""

    def __init__(self, cache_size: int, batch_size: int = 1):
        super().__init__(cache_size)
        self._batch_size = batch_size

    @abstractmethod
    async def ask(self, batch: Sequence[Input]) -> list[list[Probabilities]]:
        """Probabilities of the steps of each input. Raises ``RequestFailed`` and ``StepRMError``."""

    async def score(self, chains: Sequence[Chain]) -> list[Outcome]:
        """Scores of responses; a response of which any step is not answered for has failed.

        Raises:
            StepRMError: the server refuses, or gives something else than probabilities of the model's classes.
        """
        read, known, missing = self.begin(chains)
        batches = [missing[at : at + self._batch_size] for at in range(0, len(missing), self._batch_size)]
        answers = await asyncio.gather(*map(self.ask, batches), return_exceptions=True)
        error = None
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, RequestFailed):
                known |= dict.fromkeys(batch, ScoringFailure(str(answer)))
            elif isinstance(answer, BaseException):
                error = error or answer
            else:
                known |= zip(batch, answer, strict=True)
        self.remember(known)
        if error is not None:
            raise error
        return [outcome_of(inputs, known) for inputs in read]


class EndpointScorer(ServerScorer):
    """An endpoint of vLLM's pooling server: a list of inputs there, a list of results back, one for each.

    Asks again where that may help, and checks the form of the answer.

    Args:
        address: ``host:port`` as verl names its router, or a URL, which may already say the endpoint.
        path: of the endpoint, ``/classify``.

    Raises:
        StepRMError: the variable of the key is not set.
    """

    def __init__(self, address: str, path: str, settings: ScorerSettings, batch_size: int = 1):
        super().__init__(settings.cache_size, batch_size)
        self._path, self._settings = path, settings
        self.url = http_url(address).rstrip("/").removesuffix(path) + path
        self._headers = {}
        if settings.api_key_variable:
            key = os.environ.get(settings.api_key_variable)
            if not key:
                raise StepRMError(
                    f"the environment variable {settings.api_key_variable} with the server's key is not set"
                )
            self._headers["Authorization"] = f"Bearer {key}"
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def results(self, inputs: Sequence[Input], **more: Any) -> list[dict[str, Any]]:
        """The result of each input, with probabilities in place of logits; ``more`` goes into the request.

        Raises:
            RequestFailed: no answer after all attempts.
            StepRMError: the server refuses, or answers in another form.
        """
        settings = self._settings
        given = [item.ids if isinstance(item.ids, str) else list(item.ids) for item in inputs]
        payload: dict[str, Any] = {"input": given, "use_activation": True, **more}
        if settings.served_model:
            payload["model"] = settings.served_model
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=settings.timeout_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        reason = ""
        for attempt in range(settings.attempts):
            if attempt:
                await asyncio.sleep(min(_LONGEST_PAUSE, settings.backoff_seconds * 2 ** (attempt - 1)))
            try:
                async with self._slots, self._session.post(self.url, json=payload) as response:
                    if response.status >= 500 or response.status in _TRANSIENT:
                        reason = f"HTTP {response.status}"
                    elif response.status >= 400:
                        raise StepRMError(self._refusal(response.status, await response.text()))
                    else:
                        return self._listed(await response.json(content_type=None), len(inputs))
            except (asyncio.TimeoutError, TimeoutError):
                reason = f"no answer in {settings.timeout_seconds:g} s"
            except aiohttp.ClientError as error:
                reason = f"{type(error).__name__}: {error}"
            except ValueError as error:
                if isinstance(error, StepRMError):
                    raise
                raise StepRMError(f"{self.url} does not answer with JSON: {error}") from error
        raise RequestFailed(f"{self.url}: {reason}, {settings.attempts} attempts")

    def _refusal(self, status: int, body: str) -> str:
        hint = f" (no {self._path}, or no such model)" if status in (404, 405) else ""
        return f"{self.url} refuses the request with HTTP {status}{hint}: {' '.join(body.split())[:200]}"

    def _listed(self, answer: Any, n_inputs: int) -> list[dict[str, Any]]:
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise StepRMError(f"{self.url} is no {self._path} server: its answer has no list 'data'")
        if len(data) != n_inputs:
            raise StepRMError(f"{self.url} gave {len(data)} results for {n_inputs} inputs")
        return sorted(data, key=lambda item: item.get("index", 0))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class ClassifyScorer(EndpointScorer):
    """A classifier of steps behind ``/classify``: verl's reward-model pool, or any URL.

    With the model's folder at hand, token ids are sent, so the server reads what the model was trained on, to the
    token. Without it (``inputs="text"``) texts are sent and the server tokenises: over-long inputs are then its affair,
    and it may read ``[SEP]`` in a step as a special token.
    """

    def __init__(self, address: str, description: Description, settings: ScorerSettings):
        super().__init__(address, "/classify", settings, settings.batch_size)
        self._description, self._encoder = description, None
        if settings.needs_model:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(settings.model_path, trust_remote_code=settings.trust_remote_code)
            self._encoder = PairEncoder(tokenizer, description.pair_format)

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        if self._encoder is not None:
            return [*self._encoder.encode_chains([(chain.question, chain.steps) for chain in chains])]
        text = self._description.pair_format.text
        return [
            [Input(text(chain.question, chain.steps[:at], step)) for at, step in enumerate(chain.steps)]
            for chain in chains
        ]

    async def ask(self, batch: Sequence[Input]) -> list[list[Probabilities]]:
        return [[self._probabilities(item)] for item in await self.results(batch)]

    def _probabilities(self, item: dict[str, Any]) -> Probabilities:
        values, url = item.get("probs"), self.url
        if not isinstance(values, list):
            raise StepRMError(f"{url}: a result has no list 'probs'")
        order = self._description.labels
        probabilities = calibrated(values, order, self._description.temperature, url)
        name = item.get("label")
        # Only the name of the likeliest class is told; it must be ours.
        place = values.index(max(values))
        if name is None or str(name).upper() == f"LABEL_{place}":
            raise StepRMError(f"{url} has no label map; set id2label in the config.json of the served model")
        if label_of(str(name)) != order[place]:
            raise StepRMError(f"{url} calls class {place} {name!r}, here it is {order[place]}: another model?")
        return probabilities


class PoolingScorer(EndpointScorer):
    """A published PRM behind ``/pooling``: one request a response, the probabilities of the classes at each token back.

    The score of a step is read where :class:`~prime_ext.step_rm.scorers.token_classifier.TokenReader` says. Written for
    vLLM 0.24, whose server has one task, that of ``--pooler-config.task`` (vllm#37861); 0.31 takes and gives the same.
    Where vLLM knows the token behind a step (STEP pooling, its default for Qwen2.5-Math-PRM), it gives the values of
    these tokens only.
    """

    def __init__(self, address: str, reader: "TokenReader", settings: ScorerSettings):
        super().__init__(address, "/pooling", settings)
        self._reader = reader

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        return [self._reader.inputs(chain) for chain in chains]

    async def ask(self, batch: Sequence[Input]) -> list[list[Probabilities]]:
        (item,), url = batch, self.url
        (result,) = await self.results(batch, task=_TASK)
        rows = result.get("data")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise StepRMError(f"{url} gives no values of single tokens; serve with --pooler-config.task {_TASK}")
        if len(rows) == len(item):
            rows = [rows[end] for end in item.ends]
        elif len(rows) != len(item.ends):
            raise StepRMError(
                f"{url} gave values of {len(rows)} tokens, of {len(item)} with {len(item.ends)} steps; serve with "
                f"--pooler-config.pooling_type ALL"
            )
        for row in rows:
            check_probabilities(row, len(self._reader.columns), url)
        return [right_or_wrong([row[self._reader.positive] / sum(row) for row in rows])]


class JudgeScorer(ServerScorer):
    """A chat model behind OpenAI's interface is asked for the first wrong step (ProcessBench, arXiv 2412.06559).

    Its reply is text of a model: the last boxed whole number in it counts, and nothing of it is run or evaluated. What
    a response says to the judge may sway it; nothing here can prevent that. Of every reply all steps before the one
    that it names are right, that one and those behind it wrong; the score of a step is the share of the replies in
    which it is right.

    Raises:
        StepRMError: there is no such server, or it does not serve the model.
    """

    def __init__(self, address: str, settings: ScorerSettings):
        super().__init__(settings.cache_size)
        self._attempts, self._judge = settings.attempts, settings.judge
        try:
            backend = ServerBackend(http_url(address), settings.served_model or "", settings.api_key_variable or "")
            self._model, self._said = backend.model, backend.said
        except BackendError as error:
            raise StepRMError(one_line(f"the judge: {error}")) from None
        self._client = backend.client(settings.attempts, settings.judge.timeout_seconds)
        self._slots = asyncio.Semaphore(settings.concurrency)

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        """The message for each response that has steps, which end anywhere in it: only their number counts."""
        said = self._judge.instruction
        return [
            [Input(prompt_of(chain, said), ends=tuple(range(len(chain.steps))))] if chain.steps else []
            for chain in chains
        ]

    async def ask(self, batch: Sequence[Input]) -> list[list[Probabilities]]:
        (item,), judge = batch, self._judge
        try:
            async with self._slots:
                answer = await self._client.chat.completions.create(
                    model=self._model,
                    messages=[{"role": "user", "content": str(item.ids)}],
                    n=judge.samples,
                    temperature=judge.temperature,
                    max_tokens=judge.max_tokens,
                )
        except openai.APIStatusError as error:
            said = self._said(f"the judge answers with {status_text(error)}")
            raise (StepRMError if error.status_code in _FATAL else RequestFailed)(said) from None
        except openai.APIConnectionError as error:
            said = f"the judge gave no answer ({self._attempts} attempts): {error.__cause__ or error}"
            raise RequestFailed(self._said(said)) from None
        except ValueError as error:
            raise RequestFailed(one_line(f"the judge does not answer with JSON: {error}")) from None
        messages = [getattr(choice, "message", None) for choice in getattr(answer, "choices", None) or []]
        replies = [getattr(message, "content", None) or "" for message in messages]
        n_steps = len(item.ends)
        votes = [vote for vote in (first_wrong(reply, n_steps) for reply in replies) if vote is not None]
        if not votes:
            raise RequestFailed(f"the judge named no step of {n_steps} in {len(replies)} replies")
        right = [sum(vote == 0 or step < vote for vote in votes) / len(votes) for step in range(1, n_steps + 1)]
        return [right_or_wrong(right)]

    async def close(self) -> None:
        await self._client.close()


def prompt_of(chain: Chain, instruction: str) -> str:
    """What the judge is asked: the question, the numbered steps, and what to do with them."""
    steps = "\n".join(f"[{number}] {step.strip()}" for number, step in enumerate(chain.steps, start=1))
    return f"Question:\n{chain.question}\n\nSolution, in steps:\n{steps}\n\n{instruction}"


def first_wrong(reply: str, n_steps: int) -> int | None:
    """The number of the first wrong step that a reply names, 0 if it says that none is wrong; None if it names none."""
    found = _BOXED.findall(reply)
    number = int(found[-1]) if found else None
    return number if number is not None and number <= n_steps else None
