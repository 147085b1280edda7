# SPDX-License-Identifier: Apache-2.0
"""Agent loop that plays environments: ``default_agent_loop=environment_agent``.

It is verl's tool loop with another source of observations: each turn of the policy goes to the
environment that the row's ``extra_info`` names, whose reply is the next message of the user. A row
has ``environment`` and ``seed`` there (``data_preprocessing.environment`` writes such rows). The
outcome is the environment's ``success``. For limits, name a file with this content in
``rollout.agent.agent_loop_config_path``:

    - name: environment_agent
      _target_: prime_ext.verl_adapter.environment_loop.EnvironmentAgentLoop
      step_seconds: 5
      turn_tokens: 256
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall
from verl.utils.profiler import simple_timer

from prime_ext.environments.episode import STEP_LIMIT, EnvironmentFailed, Episode, Turn
from prime_ext.reward.compute_score import reward_info
from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed
from prime_ext.verl_adapter.tool_agent_loop import build_token_pattern, clean

LOOP_NAME = "environment_agent"
# Field of a trajectory's extra_fields with the numbers below.
FIELD = "environment"
# Turns played; texts that were not a valid action; episodes that ended, that ran out of tokens or
# turns, and that an environment failed in.
COUNTED = ("turns", "invalid", "finished", "cut", "failed")
# Fields with a number for each turn: the environment's reward, and what its progress rose by.
SCORES, PROGRESS = "turn_scores", "turn_progress"


@dataclass
class _Game:
    """State of a rollout: its episode, and what the environment has said."""

    episode: Episode
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))
    last: Turn | None = None
    progress: float = 0.0
    gains: list[float] = field(default_factory=list)
    text: str = ""
    failure: EnvironmentFailed | None = None
    started: float = field(default_factory=time.perf_counter)

    def judge(self) -> Verdict:
        """Return the verdict of the environment on the whole episode."""
        seconds = time.perf_counter() - self.started
        if self.failure is not None:
            return grader_failed(self.failure.outcome, self.text, seconds, str(self.failure))
        success = self.last.success if self.last is not None else 0.0
        if success == 1:
            return correct(self.text, seconds)
        detail = "" if self.counts["finished"] else "the episode did not end within the limits"
        return Verdict(Outcome.WRONG, success, self.text, seconds, detail)


class _NoCalls:
    """Parser that finds no tool call, so that each text ends verl's state machine."""

    stop_token_ids: list[int] = []

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    async def extract_tool_calls(
        self, token_ids: list[int], tools: Any = None
    ) -> tuple[str, list[FunctionCall]]:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True), []


@register(LOOP_NAME)
class EnvironmentAgentLoop(ToolAgentLoop):
    """Loop of policy and environment, with exact masks of tokens and log-probabilities.

    ``step_seconds`` limit a reply of the environment, ``turn_tokens`` a turn of the policy (None:
    by the response's length only). ``multi_turn.max_assistant_turns`` and
    ``data.max_response_length`` limit the episode.
    """

    def __init__(
        self,
        *args: Any,
        step_seconds: float = STEP_LIMIT,
        turn_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._step_seconds = step_seconds
        self._turn_tokens = turn_tokens
        self._pattern = build_token_pattern(self.tokenizer)
        self.tool_parser = _NoCalls(self.tokenizer)

    async def run(
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput:
        row = kwargs["extra_info"]
        *before, prompt = kwargs["raw_prompt"]
        try:
            async with Episode(row["environment"], self._step_seconds) as episode:
                game = _Game(episode)
                text = await episode.reset(int(row["seed"]))
                if text != prompt["content"]:
                    detail = (
                        f"{episode.name} began otherwise than its row of seed {row['seed']}; write"
                        " the rows again"
                    )
                    raise EnvironmentFailed(Outcome.ERROR, detail)
                prompt = {**prompt, "content": clean(text, self._pattern)}
                return await self._play(game, sampling_params, priority, kwargs, [*before, prompt])
        except EnvironmentFailed as failure:
            # Before the first turn. verl needs a response, which nobody learns from.
            game = _Game(Episode(row["environment"]), failure=failure)
            return await self._play(game, sampling_params, priority, kwargs, [*before, prompt])

    async def _play(
        self,
        game: _Game,
        sampling_params: dict[str, Any],
        priority: int,
        row: dict[str, Any],
        messages: list[dict[str, Any]],
    ) -> AgentLoopOutput:
        row = {**row, "raw_prompt": messages, "tools_kwargs": {"game": game}}
        output = await super().run(sampling_params, priority=priority, **row)
        verdict = game.judge()
        game.counts["failed"] = int(verdict.grader_failure)
        output.reward_score = verdict.score or 0.0
        output.extra_fields |= {
            FIELD: dict(game.counts),
            PROGRESS: game.gains,
            "reward_extra_info": reward_info(verdict),
        }
        return output

    async def _handle_generating_state(
        self,
        agent_data: AgentData,
        sampling_params: dict[str, Any],
        ignore_termination: bool = False,
    ) -> AgentState:
        """Let the policy write a turn, and the environment answer it."""
        room = self.response_length - len(agent_data.response_mask)
        params = {**sampling_params, "max_tokens": min(room, self._turn_tokens or room)}
        await super()._handle_generating_state(agent_data, params, ignore_termination)
        # Only where no limit was reached, verl added the text to the messages.
        may_go_on = agent_data.messages[-1]["role"] == "assistant"
        game: _Game = agent_data.tools_kwargs["game"]
        ended = agent_data.response_ids[-1:] == [self.tokenizer.eos_token_id]
        # The environment never sees half an action.
        if game.failure is None and (ended or len(agent_data.response_mask) < self.response_length):
            game.text = (
                agent_data.messages[-1]["content"]
                if may_go_on
                else self.tokenizer.decode(agent_data.response_ids, skip_special_tokens=True)
            )
            with simple_timer("tool_calls", agent_data.metrics):
                await self._act(game, agent_data)
            if may_go_on and game.failure is None and not game.counts["finished"]:
                return AgentState.PROCESSING_TOOLS
        game.counts["cut"] = int(game.failure is None and not game.counts["finished"])
        return AgentState.TERMINATED

    async def _act(self, game: _Game, agent_data: AgentData) -> None:
        """Pass the policy's text on, and note the reply."""
        try:
            turn = await game.episode.step(game.text)
        except EnvironmentFailed as failure:
            game.failure = failure
            return
        game.last = turn
        game.counts["turns"] += 1
        game.counts["invalid"] += turn.invalid
        game.counts["finished"] = int(turn.done)
        progress = game.progress if turn.progress is None else turn.progress
        agent_data.turn_scores.append(turn.reward)
        game.gains.append(progress - game.progress)
        game.progress = progress

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        """Add the environment's reply as a message of the user."""
        game: _Game = agent_data.tools_kwargs["game"]
        before = list(agent_data.messages)
        reply = clean(game.last.text, self._pattern) if game.last is not None else ""
        agent_data.messages.append({"role": "user", "content": reply})
        merged, mask, log_probs = await self.ct_merge_context_msg(
            before,
            agent_data.messages,
            agent_data.prompt_ids,
            agent_data.response_mask,
            agent_data.response_logprobs or None,
        )
        if len(mask) >= self.response_length:
            game.counts["cut"] = 1
            return AgentState.TERMINATED
        agent_data.prompt_ids = merged.token_ids
        agent_data.response_mask = mask
        agent_data.response_logprobs = log_probs or []
        agent_data.user_turns += 1
        return AgentState.GENERATING
