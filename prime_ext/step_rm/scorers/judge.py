# SPDX-License-Identifier: Apache-2.0
"""A generative judge as a scorer of steps: a chat model is asked for the first wrong step (ProcessBench, 2412.06559).

Its reply is text of a model: the last boxed whole number in it counts, and nothing of it is run or evaluated. What a
response says to the judge may sway it; nothing here can prevent that.
"""

import asyncio
import re
from collections.abc import Sequence

import openai

from prime_ext.config.step_scorer_settings import ScorerSettings
from prime_ext.generate.backend import BackendError, one_line
from prime_ext.generate.server import ServerBackend, http_url, status_text
from prime_ext.step_rm.description import Input
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import Chain, Probabilities, Reading, right_or_wrong
from prime_ext.step_rm.scorers.server import RequestFailed, ServerScorer

_BOXED = re.compile(r"\\boxed\{\s*(\d{1,6})\s*\}")
# Statuses that no other response would change: the key, or the address.
_FATAL = (401, 403, 404, 405)


class JudgeScorer(ServerScorer):
    """Scores with a chat model behind OpenAI's interface.

    Of every reply all steps before the one that it names are right, that one and those behind it wrong; the score of a
    step is the share of the replies in which it is right.

    Args:
        address: ``host:port`` or a URL.
        settings: how the server is asked.

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
        return [
            [Input(prompt_of(chain, self._judge.instruction), ends=tuple(range(len(chain.steps))))] * bool(chain.steps)
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
