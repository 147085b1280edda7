# SPDX-License-Identifier: Apache-2.0
"""Step scores from the judgements of a language model at a server with OpenAI's interface."""

import os
from collections.abc import Sequence
from functools import partial

from prime_ext.config.step_scorer_settings import SECTION, JudgeSettings
from prime_ext.generate.backend import BackendError, Request, Sampling
from prime_ext.generate.server_backend import api_url, payload, read_completion
from prime_ext.step_rm.description import Input
from prime_ext.step_rm.judgement import build_question, read_judgement
from prime_ext.step_rm.labels import StepRMError
from prime_ext.step_rm.scorers.protocol import Chain, Reading, ScoringFailure
from prime_ext.step_rm.scorers.server_scorer import RemoteScorer, add_scheme

_PATH = "/chat/completions"


class JudgeScorer(RemoteScorer):
    """Scorer that requests one judgement for each response.

    An answer without a judgement is a failure. It is not requested again, since a greedy judge
    would repeat it. Raises ``StepRMError``: not a URL, or the variable of the key is not set.
    """

    def __init__(self, address: str, settings: JudgeSettings):
        variable = settings.api_key_env
        key = os.environ.get(variable, "") if variable else ""
        if variable and not key:
            raise StepRMError(
                f"the environment variable {variable} with the judge's key is not set"
                f" ({SECTION}.api_key_env)"
            )
        base_url = add_scheme(address).rstrip("/").removesuffix(_PATH)
        try:
            base_url = api_url(base_url, "the address", f"{SECTION}.api_key_env")
        except BackendError as error:
            raise StepRMError(str(error)) from None
        super().__init__(base_url, _PATH, settings, key)
        self._model = settings.model or ""
        self._judgement = settings.judgement
        self._sampling = Sampling(
            temperature=settings.temperature, max_new_tokens=settings.max_new_tokens
        )

    def read(self, chains: Sequence[Chain]) -> list[Reading]:
        return [[self._build_input(chain)] if chain.steps else [] for chain in chains]

    def _build_input(self, chain: Chain) -> Input:
        text = build_question(chain.question, chain.steps, self._judgement)
        return Input((), tuple(range(len(chain.steps))), text)

    async def ask(self, batch: Sequence[Input]) -> list[list[float]] | ScoringFailure:
        (item,) = batch
        request = Request("", ({"role": "user", "content": item.text},), self._sampling)
        create = partial(self.client.chat.completions.create, **payload(request, self._model, {}))
        try:
            completion = await self.send(create)
            if isinstance(completion, ScoringFailure):
                return completion
            response = read_completion(completion, request)
        except StepRMError:
            raise
        except ValueError as error:
            # The client raises it for a body that is not JSON.
            return ScoringFailure(f"{self.url}: malformed answer: {self.show(str(error))}")
        if response.finish == "failed":
            return ScoringFailure(f"{self.url}: {self.show(response.detail)}")
        try:
            return [read_judgement(response.text, self._judgement, len(item.ends))]
        except ValueError as error:
            cut = " (cut off at max_new_tokens)" if response.finish == "length" else ""
            end = self.show(response.text[-80:])
            return ScoringFailure(f"{self.url}: {error}{cut}, in an answer that ends with: {end}")
