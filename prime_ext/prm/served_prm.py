# SPDX-License-Identifier: Apache-2.0
"""A PRM that is never trained, behind a server with vLLM's log-probabilities of the prompt (``prm.server``).

It runs on devices of its own, wherever they are: a teacher, or an implicit PRM that was exported. Token ids are sent,
so nothing is tokenised twice.
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack
from typing import Any

import openai
import torch
from anyio.from_thread import BlockingPortal, start_blocking_portal
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.single_controller.ray import RayClassWithInitArgs

from prime_ext.config.checks import SettingsError
from prime_ext.config.settings import PRMSettings, ServerSettings
from prime_ext.generate.backend import BackendError, one_line
from prime_ext.generate.server import ServerBackend, status_text
from prime_ext.prm.implicit_prm import ImplicitPRM
from prime_ext.utils import transfer_queue as transfer

logger = logging.getLogger(__name__)

# Tokens of a response that are compared with the model on the trainer's CPU.
_COMPARED_TOKENS = 128
_THREAD = "prm-server"

# Tokens of prompt and response. No prompt is empty.
TokenRow = tuple[tuple[int, ...], tuple[int, ...]]


class ServerFailed(RuntimeError):
    """The server of the PRM does not give what is needed; one line."""


class PromptScores:
    """Log-probabilities of token sequences under a served model, at temperature 1. Equal sequences are sent once.

    Args:
        settings: the section ``prm.server``, with an address.

    Raises:
        ServerFailed: the address is no URL, or the variable of the key is not set.
    """

    def __init__(self, settings: ServerSettings):
        self._settings = settings
        try:
            self._backend = ServerBackend(str(settings.address), settings.model or "", settings.api_key_variable or "")
        except BackendError as error:
            raise ServerFailed(f"prm.server: {error}") from None
        self._asked: dict[TokenRow, Future[torch.Tensor]] = {}
        self._asking = ExitStack()
        self._portal: BlockingPortal | None = None

    @property
    def longest_row(self) -> int | None:
        """Tokens of a sequence that the server takes, beside the one that it has to generate; None: it does not say."""
        context = self._backend.context
        return None if context is None else context - 1

    def begin(self, sequences: Sequence[TokenRow]) -> None:
        """Ask for what :meth:`score` will be asked for, and do not wait.

        Raises:
            ServerFailed: there is no such server.
        """
        try:
            model = self._backend.model
        except BackendError as error:
            raise ServerFailed(f"prm.server: {error}") from None
        if self._portal is None:
            # A daemon's thread: a run that fails meanwhile does not wait for the server.
            self._portal = self._asking.enter_context(start_blocking_portal(name=_THREAD))
            self._client = self._backend.client(self._settings.attempts, self._settings.timeout_seconds)
            self._slots = asyncio.Semaphore(self._settings.concurrency)
            self._asking.callback(self._portal.call, self._client.close)
        for sequence in sequences:
            if sequence not in self._asked:
                self._asked[sequence] = self._portal.start_task_soon(self._ask, model, *sequence)

    def score(self, sequences: Sequence[TokenRow]) -> list[torch.Tensor]:
        """Log-probabilities of the tokens of each response. What was begun and is not among them is given up.

        Raises:
            ServerFailed: no answer after all attempts, or one without log-probabilities of the prompt.
        """
        try:
            self.begin(sequences)
            wanted = [self._asked[sequence] for sequence in sequences]
            done, _ = wait(wanted, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in wanted]
        finally:
            for future in self._asked.values():
                future.cancel()
            self._asked.clear()
            self._portal = None
            self._asking.close()

    async def _ask(self, model: str, prompt: tuple[int, ...], response: tuple[int, ...]) -> torch.Tensor:
        async with self._slots:
            ids, url = [*prompt, *response], self._backend.url
            entries = await self._prompt_log_probs(model, ids, url)
        # The first token has none.
        values = [_of_token(entry, token, url) for entry, token in zip(entries[1:], ids[1:], strict=True)]
        return torch.tensor(values[len(prompt) - 1 :])

    async def _prompt_log_probs(self, model: str, ids: list[int], url: str) -> list[Any]:
        """What the server says of each token."""
        try:
            answer = await self._client.completions.create(
                model=model, prompt=ids, max_tokens=1, temperature=1.0, extra_body={"prompt_logprobs": 0}
            )
        except openai.APIStatusError as error:
            said = f"prm.server: {url} answers with {status_text(error)}"
            raise ServerFailed(self._backend.said(said)) from None
        except openai.APIConnectionError as error:
            said = f"{url} cannot be reached ({self._settings.attempts} attempts): {error.__cause__ or error}"
            raise ServerFailed(self._backend.said(f"prm.server: {said}")) from None
        except ValueError as error:
            raise ServerFailed(f"prm.server: {url} does not answer with JSON: {one_line(str(error))}") from None
        choices = getattr(answer, "choices", None)
        entries = getattr(choices[0], "prompt_logprobs", None) if choices else None
        if not isinstance(entries, list) or len(entries) != len(ids):
            raise ServerFailed(
                f"prm.server: {url} gives no log-probabilities of the prompt (prompt_logprobs), as vLLM's server does"
            )
        return entries


def _of_token(entry: Any, token: int, url: str) -> float:
    try:
        return float(entry[str(token)]["logprob"])
    except (KeyError, TypeError, ValueError):
        raise ServerFailed(
            f"prm.server: {url} gives no log-probability of token {token}; does it serve a model with these tokens?"
        ) from None


def _sequences(batch: KVBatchMeta) -> list[TokenRow]:
    rows = transfer.fetch_rows(batch, ["prompts", "responses"])
    pairs = zip(rows["prompts"], rows["responses"], strict=True)
    return [(tuple(prompt.tolist()), tuple(response.tolist())) for prompt, response in pairs]


def check_server(settings: ServerSettings, longest: int) -> None:
    """Ask the server for the log-probabilities of two tokens.

    Args:
        settings: the section ``prm.server``, with an address.
        longest: tokens of the longest prompt and response.

    Raises:
        SettingsError: it does not give them, or its model's context is too short.
    """
    try:
        scores = PromptScores(settings)
        scores.score([((1,), (1,))])
    except ServerFailed as error:
        raise SettingsError(one_line(str(error))) from None
    if scores.longest_row is not None and longest > scores.longest_row:
        raise SettingsError(
            f"prm.server: its model takes {scores.longest_row} tokens (max_model_len, less the one that it generates), "
            f"data.max_prompt_length + data.max_response_length are {longest}"
        )


class ServedPRM(ImplicitPRM):
    """What the trainer asks of a PRM that is behind a server: scores, and nothing else.

    Args:
        config: the whole configuration.
        settings: the validated section ``prm``, with ``update_mode`` none.
    """

    def __init__(self, config: DictConfig, settings: PRMSettings):
        super().__init__(config, settings)
        self._scores = PromptScores(settings.server)
        self._compared = settings.server.check_rows == 0

    @property
    def longest_row(self) -> int | None:
        return self._scores.longest_row

    def worker_classes(self) -> dict[str, RayClassWithInitArgs]:
        return {}

    def attach(self, actor_group: Any) -> None:
        """There is nothing to build."""

    def save(self, folder: str, global_step: int) -> None:
        """There is nothing to save."""

    def load(self, folder: str, delete_after_load: bool = False) -> None:
        """There is nothing to load."""

    def take_pass_counts(self) -> dict[str, int]:
        """No passes here."""
        return {}

    def data_parallel_size(self) -> int:
        return 1

    def begin(self, keys: list[str], partition_id: str) -> None:
        """Ask for the scores of rollouts that have ended, while others are generated. Raises ``ServerFailed``."""
        self._scores.begin(_sequences(KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{} for _ in keys])))

    def score(self, batch: KVBatchMeta, rollouts: KVBatchMeta | None = None) -> KVBatchMeta:
        """Write the log-probabilities of the served model. The first rows are compared with the model's own, once.

        Raises:
            ServerFailed: it does not answer, or not as ``prm.model.path`` does.
        """
        sequences = _sequences(batch)
        log_probs = self._scores.score(sequences)
        if not self._compared:
            self._compare(sequences, log_probs)
            self._compared = True
        return self._put_scores(batch, log_probs)

    def _compare(self, sequences: Sequence[TokenRow], log_probs: Sequence[torch.Tensor]) -> None:
        """Score the beginnings of the longest responses with ``prm.model.path`` in this process.

        What stands behind a token changes nothing of its log-probability.
        """
        from transformers import AutoModelForCausalLM

        section, server = self.config.prm.model, self.settings.server
        model = AutoModelForCausalLM.from_pretrained(
            section.path, dtype="auto", trust_remote_code=bool(section.trust_remote_code)
        )
        places = sorted(range(len(sequences)), key=lambda at: len(sequences[at][1]))[-server.check_rows :]
        differences = []
        with torch.no_grad():
            for at in places:
                prompt, response = sequences[at][0], sequences[at][1][:_COMPARED_TOKENS]
                logits_NV = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].float()
                own_T = logits_NV.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
                differences.append((own_T - log_probs[at][: len(response)]).abs())
        mean = float(torch.cat(differences).mean())
        logger.info("log-probabilities of prm.server and prm.model.path differ by %.4f a token", mean)
        if not mean <= server.max_difference:
            raise ServerFailed(
                f"prm.server and prm.model.path={section.path} give log-probabilities that differ by {mean:.3f} a "
                f"token, more than prm.server.max_difference={server.max_difference}: another model, or other weights; "
                f"check_rows=0 goes on"
            )
