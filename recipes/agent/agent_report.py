# SPDX-License-Identifier: Apache-2.0
"""Write ``summary.json`` and ``learning_curve.png`` of an agent's run.

python -m recipes.agent.agent_report --run-dir outputs/agent_quickstart
"""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recipes.agent.calculator_task import ANSWER_CLOSE, ANSWER_OPEN, CALL_CLOSE, CALL_OPEN
from recipes.agent.play import Episode, measure_failed_calls, play
from recipes.command_line import read_options
from recipes.figures import ORANGE, draw_smoothed
from recipes.quickstart.evaluate import Piece, RewardedResponse, score_tokens
from recipes.quickstart.run_report import describe_results, read_run, report_run


def score_episode(
    prm: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    episode: Episode,
    beta: float,
) -> RewardedResponse:
    """Sum the process rewards over the policy's tokens of each turn."""
    reward_T = score_tokens(prm, reference, episode.prompt_ids, episode.response_ids, beta)
    turns: list[Piece] = []
    first = 0
    is_policy = episode.is_policy
    for position in range(1, len(is_policy) + 1):
        if position < len(is_policy) and is_policy[position] == is_policy[first]:
            continue
        text = tokenizer.decode(episode.response_ids[first:position], skip_special_tokens=True)
        for marker in (CALL_OPEN, CALL_CLOSE, ANSWER_OPEN, ANSWER_CLOSE):
            text = text.replace(marker, "")
        if is_policy[first]:
            reward = sum(reward_T[first:position])
            turns.append(Piece(text, reward))
        else:
            failed = text.startswith("Error")
            if turns and "took too long" not in text:
                turns[-1] = turns[-1]._replace(right=not failed)
            turns.append(Piece(text, None))
        first = position
    return RewardedResponse(episode.problem, episode.text, episode.right, turns)


def report(run_dir: Path) -> dict[str, Any]:
    """Write the two files of the run and return the summary."""
    run = read_run(run_dir)

    def score(folder, name, problems, prm, reference, tokenizer, beta) -> list[RewardedResponse]:
        episodes = play(
            folder, problems, seed=int(run.settings["SEED"]) + 1, temperature=1.0, name=name
        )
        return [score_episode(prm, reference, tokenizer, episode, beta) for episode in episodes]

    def draw_calls(top, bottom) -> None:
        draw_smoothed(
            bottom,
            *measure_failed_calls(run.metrics),
            ORANGE,
            label="calls without a result (mean of 10 steps)",
        )

    calls = {
        when: {key: result["temperature_1"][key] for key in ("calls_per_episode", "failed_calls")}
        for when, result in (("before", run.before), ("after", run.after))
    }
    title = "on calculator chains: accuracy of the agent"
    return report_run(run, title, score, 300, draw_calls, {"calls": calls})


def format_report(run_dir: Path, summary: dict[str, Any]) -> str:
    """Format a report on the run for readers, in a few lines."""
    before, after = (
        f"{calls['calls_per_episode']:.2f}, {100 * calls['failed_calls']:.1f} %"
        for calls in summary["calls"].values()
    )
    lines = [
        f"Calls per episode, and calls without a result: {before}  ->  {after}",
        (
            "The model starts low by design: it imitated demonstrators who misuse their calculator"
            " and give up. One"
        ),
        "call in ten fails whatever the agent does. Only the last number is judged.",
    ]
    return describe_results(run_dir, summary, lines)


if __name__ == "__main__":
    options = read_options(__doc__, "run-dir")
    print(format_report(options["run_dir"], report(options["run_dir"])))
