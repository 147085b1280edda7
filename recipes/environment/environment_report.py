# SPDX-License-Identifier: Apache-2.0
"""Write ``summary.json`` and ``learning_curve.png`` of a run in an environment.

python -m recipes.environment.environment_report --run-dir outputs/environment_quickstart
"""

from itertools import groupby
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recipes.command_line import read_options
from recipes.environment.play import Played, load_rows, play
from recipes.figures import ORANGE, draw_smoothed
from recipes.quickstart.evaluate import HeldOutProblem, Piece, RewardedResponse, score_tokens
from recipes.quickstart.run_report import describe_results, read_run, report_run
from recipes.run_statistics import get_curve

# Episodes whose process rewards are compared.
SCORED = 128


def score_episode(
    prm: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    played: Played,
    beta: float,
) -> RewardedResponse:
    """Sum the process rewards of each turn, which is right if it came nearer to the target."""
    reward_T = score_tokens(prm, reference, played.prompt_ids, played.response_ids, beta)
    gains = iter(played.gains)
    pieces = []
    for is_policy, tokens in groupby(range(len(reward_T)), key=played.is_policy.__getitem__):
        positions = list(tokens)
        text = tokenizer.decode(
            [played.response_ids[position] for position in positions], skip_special_tokens=True
        )
        if not is_policy:
            pieces.append(Piece(text, None))
        elif (gain := next(gains, None)) is not None:
            reward = sum(reward_T[position] for position in positions)
            pieces.append(Piece(text, reward, gain > 0))
    problem = HeldOutProblem(played.prompt, "")
    return RewardedResponse(problem, played.text, played.right, pieces)


def report(run_dir: Path) -> dict[str, Any]:
    """Write the two files of the run and return the summary."""
    run = read_run(run_dir)
    rows = load_rows(run_dir / "data" / "test.parquet", SCORED)

    def score(folder, name, problems, prm, reference, tokenizer, beta) -> list[RewardedResponse]:
        seed = int(run.settings["SEED"]) + 1
        episodes = play(folder, rows, seed=seed, temperature=1.0, name=name)
        return [score_episode(prm, reference, tokenizer, played, beta) for played in episodes]

    def draw_turns(top, bottom) -> None:
        steps_S, invalid_S = get_curve(run.metrics, "agent/environment/invalid")
        label = "invalid moves an episode (mean of 10 steps)"
        draw_smoothed(bottom, steps_S, invalid_S, ORANGE, label=label)

    names = ("turns_per_episode", "invalid_texts", "useful_turns")
    turns = {
        when: {name: result["temperature_1"][name] for name in names}
        for when, result in (("before", run.before), ("after", run.after))
    }
    title = "on paths of numbers: success of the agent"
    return report_run(run, title, score, SCORED, draw_turns, {"turns": turns})


def format_report(run_dir: Path, summary: dict[str, Any]) -> str:
    """Format a report on the run for readers, in a few lines."""
    before, after = (
        f"{100 * turns['useful_turns']:.1f}, {100 * turns['invalid_texts']:.1f} %"
        for turns in summary["turns"].values()
    )
    lines = [
        f"Moves that come nearer to the target, and invalid ones: {before}  ->  {after}",
        "The model starts low by design: its demonstrators prefer wrong moves at some distances.",
    ]
    return describe_results(run_dir, summary, lines)


if __name__ == "__main__":
    options = read_options(__doc__, "run-dir")
    print(format_report(options["run_dir"], report(options["run_dir"])))
