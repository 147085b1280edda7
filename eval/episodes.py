# SPDX-License-Identifier: Apache-2.0
"""Episodes of environments: all that are in play generate a turn together, then act."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from re import Pattern
from typing import Any

from tqdm import tqdm

from prime_ext.environments.episode import EnvironmentFailed, Episode
from prime_ext.environments.first_texts import CONCURRENCY
from prime_ext.generate.backend import Backend, BackendError, Request, Response
from prime_ext.utils.report_page import join_lines
from prime_ext.utils.run_store import Row
from prime_ext.utils.text_tokens import USUAL_TOKENS, build_token_pattern, clean
from prime_ext.verifiers import Verdict, judging
from prime_ext.verifiers.sources import TaskVerifier
from prime_ext.verifiers.verdict import Outcome, grader_failed

from .environment_task import GRADER, TurnLimits
from .evaluation_plan import TaskPlan
from .formats import format_prompt
from .results import Key

# Episodes in play at most; each has a process.
MOST_IN_PLAY = 256


@dataclass(frozen=True)
class EpisodeResponse(Response):
    """An episode, as the response to its first request.

    ``text`` is the dialogue after the first observation. ``tokens`` are those of all its turns,
    ``prompt_tokens`` those of the last prompt. ``finish`` is ``stop`` (the environment ended it),
    ``length`` (a limit did), ``failed`` (the backend has), or how the environment failed, as in
    :class:`prime_ext.verifiers.verdict.Outcome`; ``detail`` says more.
    """

    turns: tuple[Mapping[str, Any], ...] = ()


def get_token_pattern(backend: Backend) -> Pattern[str] | None:
    """Return the pattern of what must not be in observations: tokens of the backend's model."""
    return USUAL_TOKENS if backend.tokenizer is None else build_token_pattern(backend.tokenizer)


def clean_first_texts(planned: Sequence[TaskPlan], backend: Backend) -> list[TaskPlan]:
    """Return the plans; first observations of environments have no tokens of the model."""
    tokens = get_token_pattern(backend)

    def clean_last(prompt: Any) -> Any:
        return (*prompt[:-1], prompt[-1] | {"content": clean(prompt[-1]["content"], tokens)})

    return [
        replace(plan, shown={name: clean_last(prompt) for name, prompt in plan.shown.items()})
        if plan.limits
        else plan
        for plan in planned
    ]


class _Game:
    """An episode in play; ``end`` is how it finished, and details."""

    def __init__(self, planned: TaskPlan, key: Key, tokens: Pattern[str] | None) -> None:
        self.first = planned.request(*key)
        self.end: tuple[str, str] | None = None
        self._planned = planned
        self._key = key
        self._limits = planned.limits or TurnLimits()
        self._special = tokens
        self._exit = AsyncExitStack()
        self._messages: list[Mapping[str, str]] = [*self.first.prompt]  # type: ignore[list-item]
        self._turns: list[Row] = []
        self._tokens = 0
        self._prompt_tokens = 0

    async def start(self) -> None:
        problem = self._planned.problems[self._key[0]]
        try:
            self._episode = await self._exit.enter_async_context(Episode(problem.gold))
            await self._episode.reset(int(problem.fields["seed"]))
        except EnvironmentFailed as error:
            self._fail(error)

    async def close(self) -> None:
        await self._exit.aclose()

    def request(self, backend: Backend) -> Request | None:
        """Return the request for the next turn; None where the episode ends without it."""
        if self.end is not None:
            return None
        turn = len(self._turns)
        sampling = self.first.sampling
        most = self._limits.max_episode_tokens
        left = sampling.max_new_tokens if most is None else most - self._tokens
        if turn == self._limits.max_turns:
            self.end = ("length", f"ended by the limit of {turn} turns")
            return None
        if left < max(1, sampling.min_new_tokens):
            self.end = ("length", f"ended by the limit of {most} tokens")
            return None
        request = replace(
            self.first,
            prompt=tuple(self._messages),
            seed=self._planned.derive_seed(*self._key, turn),
            sampling=replace(sampling, max_new_tokens=min(sampling.max_new_tokens, left)),
        )
        try:
            backend.check([request])
        except BackendError as error:
            # Often the dialogue has filled the context.
            self.end = ("length", str(error))
            return None
        return request

    async def act(self, response: Response) -> None:
        """Take the policy's next turn."""
        self._prompt_tokens = response.prompt_tokens
        if response.finish == "failed":
            self.end = ("failed", response.detail)
            return
        self._tokens += response.tokens
        self._messages.append({"role": "assistant", "content": response.text})
        try:
            turn = asdict(await self._episode.step(response.text))
        except EnvironmentFailed as error:
            self._fail(error)
            return
        observation = clean(turn.pop("text"), self._special)
        taken = {"action": response.text, "tokens": response.tokens, "finish": response.finish}
        self._turns.append({**taken, "observation": observation, **turn})
        self._messages.append({"role": "user", "content": observation})
        if turn["done"]:
            self.end = ("stop", "")

    def build_response(self) -> EpisodeResponse:
        assert self.end is not None
        finish, detail = self.end
        return EpisodeResponse(
            key=self.first.key,
            text=format_prompt(self._messages[len(self.first.prompt) :]),
            tokens=self._tokens,
            prompt_tokens=self._prompt_tokens,
            finish=finish,
            detail=detail,
            turns=tuple(self._turns),
        )

    def _fail(self, error: EnvironmentFailed) -> None:
        self.end = (str(error.outcome), join_lines(str(error)))


def play(
    planned: TaskPlan, backend: Backend, keys: Sequence[Key], done: int
) -> Iterator[EpisodeResponse]:
    """Play the episodes of these keys, with a bar after the ``done`` ones; yield them as they end.

    Raises RuntimeError: the backend leaves a turn without a response.
    """
    tokens = get_token_pattern(backend)
    waiting = iter(keys)
    games: dict[str, _Game] = {}
    shown: dict[str, Any] = {"unit": " episodes", "smoothing": 0, "dynamic_ncols": True}
    with (
        closing(asyncio.new_event_loop()) as loop,
        tqdm(total=done + len(keys), initial=done, desc=planned.name, **shown) as bar,
    ):

        def do_all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
            loop.run_until_complete(_do_all(coroutines))

        try:
            while True:
                new = [
                    _Game(planned, key, tokens)
                    for key in islice(waiting, MOST_IN_PLAY - len(games))
                ]
                games |= {game.first.key: game for game in new}
                do_all([game.start() for game in new])
                if not games:
                    return
                requests = [
                    request for game in games.values() if (request := game.request(backend))
                ]
                bar.set_postfix_str(f"{len(requests)} in play")
                answers = list(backend.generate(requests)) if requests else []
                if len(answers) < len(requests):
                    lacking = len(requests) - len(answers)
                    raise RuntimeError(f"the backend left {lacking} turns without a response")
                do_all([games[answer.key].act(answer) for answer in answers])
                ended = [games.pop(key) for key, game in [*games.items()] if game.end]
                do_all([game.close() for game in ended])
                for game in ended:
                    bar.update()
                    yield game.build_response()
        finally:
            do_all([game.close() for game in games.values()])


async def _do_all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all, a few at a time, so that environments have time to answer."""
    turnstile = asyncio.Semaphore(CONCURRENCY)

    async def do(coroutine: Coroutine[Any, Any, None]) -> None:
        async with turnstile:
            await coroutine

    await asyncio.gather(*map(do, coroutines))


class EpisodeVerifier:
    """Verifier of episodes, which passes on what their environments said."""

    async def averify(self, response: str, gold: str, *, episode: Row) -> Verdict:
        turns = episode["turns"]
        if episode["finish"] not in ("stop", "length"):
            return grader_failed(Outcome(episode["finish"]), None, 0.0, episode["detail"])
        success = turns[-1]["success"] if turns else 0.0
        moves = [turn["action"] for turn in turns if not turn["invalid"]]
        outcome = Outcome.WRONG if moves else Outcome.NO_ANSWER
        reward = sum(turn["reward"] for turn in turns)
        detail = f"{len(turns)} turns, reward {reward:g}"
        return Verdict(
            Outcome.CORRECT if success == 1 else outcome,
            success,
            moves[-1] if moves else None,
            detail=f"{detail}, {episode['detail']}" if episode["detail"] else detail,
        )


def make_verifier(grader: str) -> TaskVerifier:
    """Return the verifier of a grader, as :func:`prime_ext.verifiers.judging.make_verifier`."""
    return EpisodeVerifier() if grader == GRADER else judging.make_verifier(grader)
