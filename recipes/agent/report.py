# SPDX-License-Identifier: Apache-2.0
"""What came out of an agent's run: ``summary.json``, ``learning_curve.png`` and ``transcripts.html``.

    python -m recipes.agent.report --run-dir outputs/agent_quickstart

Reads from the run folder what the quickstart's report reads from its.
"""

import os

# verl asks for its platform when it is imported.
os.environ.setdefault("VERL_PLATFORM", "cpu")

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.tasks.calculator_tool import FIELD, OUTCOMES
from prime_ext.utils.files import write_json, write_text
from prime_ext.utils.report_page import Span
from recipes.agent.play import Episode, play
from recipes.agent.tokenizer import ANSWER_CLOSE, ANSWER_OPEN, CALL_CLOSE, CALL_OPEN
from recipes.figures import BLUE, ORANGE, draw_smoothed
from recipes.quickstart.evaluate import load_model, load_problems
from recipes.quickstart.process_scores import area_under_curve, response_log_probs, token_rewards
from recipes.run_report import (
    SMOOTHED,
    begin_transcripts,
    describe_run,
    gain,
    plot_learning_curve,
    read_run,
    strongest,
    write_gain,
    write_number,
    write_seconds,
)
from recipes.run_statistics import PAIR_ACCURACY, read_settings, run_folder, series

STATISTICS_PROBLEMS, SHOWN_TRAINED, SHOWN_WARM_START = 300, 30, 12
EXPLANATION = (
    "The agent is given a number and operations to apply from left to right, and calls a calculator, which fails one "
    "time in ten whatever is asked. The last number it boxes is judged, nothing else. The process reward model (PRM) "
    "never saw which call is right: it was trained during the run to tell right answers from wrong ones. The reward of "
    "a turn is the sum of r = beta (log pi_prm - log pi_ref) over the agent's tokens in it, beta = {beta:g}. What the "
    "calculator says is read, never rewarded.",
    "AUC: how often a right one has the higher reward (0.5 is chance, 1 is perfect).",
)


class Turn(NamedTuple):
    """What the policy or a tool wrote in one go; ``reward`` is the sum over the policy's tokens, None for a tool."""

    text: str
    reward: float | None


class ScoredEpisode(NamedTuple):
    """An episode, turn by turn, with the sum of its process rewards."""

    episode: Episode
    turns: list[Turn]
    reward: float


def score(
    prm: PreTrainedModel, reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, episode: Episode, beta: float
) -> ScoredEpisode:
    """Sum r_t = beta (log pi_prm - log pi_reference) over the policy's tokens of each turn."""
    prm_T, reference_T = (response_log_probs(m, episode.prompt_ids, episode.response_ids) for m in (prm, reference))
    reward_T = token_rewards(prm_T, reference_T, beta)
    turns, first = [], 0
    own = episode.own
    for place in range(1, len(own) + 1):
        if place == len(own) or own[place] != own[first]:
            text = tokenizer.decode(episode.response_ids[first:place], skip_special_tokens=True)
            for part in (CALL_OPEN, CALL_CLOSE, ANSWER_OPEN, ANSWER_CLOSE):
                text = text.replace(part, "")
            turns.append(Turn(text, sum(reward_T[first:place]) if own[first] else None))
            first = place
    return ScoredEpisode(episode, turns, sum(turn.reward or 0.0 for turn in turns))


def turn_statistics(scored: Sequence[ScoredEpisode]) -> dict[str, Any]:
    """How well the rewards of episodes and of turns tell right from wrong; the PRM has seen outcomes only.

    ``call_auc``: of calls that failed by the policy's own fault (no expression) and others.
    """
    calls = [
        (turn.reward, not answer.text.startswith("Error"))
        for one in scored
        for turn, answer in zip(one.turns, one.turns[1:], strict=False)
        if turn.reward is not None and answer.reward is None and "took too long" not in answer.text
    ]
    return {
        "episodes": len(scored),
        "outcome_auc": area_under_curve([one.reward for one in scored], [one.episode.right for one in scored]),
        "calls": len(calls),
        "failed_calls": sum(not right for _, right in calls),
        "call_auc": area_under_curve([reward for reward, _ in calls], [right for _, right in calls]) if calls else None,
    }


def failed_calls(metrics: Mapping[int, Mapping[str, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the share of calls of the calculator that had no result."""
    counts = {name: series(metrics, f"agent/{FIELD}/{name}") for name in OUTCOMES}
    every_S = np.sum([values for _, values in counts.values()], axis=0)
    return counts["result"][0], 1 - counts["result"][1] / np.maximum(every_S, 1e-9)


def draw_calls(top: Axes, bottom: Axes, metrics: Mapping[int, Mapping[str, float]]) -> None:
    """Draw failed calls and the PRM below."""
    draw_smoothed(bottom, *failed_calls(metrics), ORANGE, label=f"calls without a result {SMOOTHED}")
    if PAIR_ACCURACY in metrics[max(metrics)]:
        label = f"PRM: pairs in the right order {SMOOTHED}"
        draw_smoothed(bottom, *series(metrics, PAIR_ACCURACY), BLUE, label=label)
    bottom.set(ylabel="share")


def render(sections: Sequence[tuple[str, Sequence[ScoredEpisode]]], statistics: Mapping[str, dict], beta: float) -> str:
    """Render the page of episodes, turn by turn."""
    paid = (turn.reward for _, group in sections for one in group for turn in one.turns if turn.reward is not None)
    scale = strongest(paid, 0.95)
    page = begin_transcripts("Process rewards, turn by turn", [text.format(beta=beta) for text in EXPLANATION], scale)
    rows = [
        [
            name,
            f"{s['episodes']:,}",
            write_number(s["outcome_auc"], ".3f"),
            f"{s['calls']:,}",
            f"{s['failed_calls']:,}",
            write_number(s["call_auc"], ".3f"),
        ]
        for name, s in statistics.items()
    ]
    head = ["episodes of the", "number", "AUC of the sum for the answer", "calls", "of them not readable"]
    page.table([*head, "AUC for readable calls"], rows)
    for title, group in sections:
        page.heading(title)
        page.text(f"One episode at temperature 1 for each of the first {len(group)} held-out problems; none left out.")
        for one in group:
            episode = one.episode
            page.text(
                f"{episode.problem.prompt}  answer {'right' if episode.right else 'wrong'} (right answer "
                f"{episode.problem.ground_truth}), {episode.calls} calls, {episode.failed} failed, sum of r "
                f"{one.reward:+.2f}"
            )
            page.transcript([color_turn(turn, scale) for turn in one.turns])
    return page.html()


def color_turn(turn: Turn, scale: float) -> Span:
    """Return a line of an episode; failed calls of the calculator are underlined."""
    if turn.reward is None:
        return Span(f"calculator  {turn.text}\n", wrong=turn.text.startswith("Error"))
    return Span(f"agent       {turn.text}   {turn.reward:+.2f}\n", turn.reward / scale)


def report(run_dir: Path) -> dict[str, Any]:
    """Write the three files of the run; returns the summary."""
    metrics, before, after = read_run(run_dir)
    settings = read_settings(run_dir / "settings.txt")
    beta, seed = float(settings["BETA"]), int(settings["SEED"])
    title = "PRIME on calculator chains: accuracy of the agent"
    plot_learning_curve(
        run_dir / "learning_curve.png", title, metrics, before, after,
        lambda top, bottom: draw_calls(top, bottom, metrics),
    )  # fmt: skip

    reference, tokenizer = load_model(run_dir / "sft")
    prm, _ = load_model(run_dir / "prm")
    problems = load_problems(run_dir / "data" / "test.parquet", STATISTICS_PROBLEMS)
    scored = {}
    for name, folder in (("trained policy", "policy"), ("warm-started policy", "sft")):
        episodes = asyncio.run(play(run_dir / folder, problems, seed=seed + 1, temperature=1.0, name=name))
        scored[name] = [score(prm, reference, tokenizer, episode, beta) for episode in episodes]
    statistics = {name: turn_statistics(of) for name, of in scored.items()}
    sections = [
        ("Trained policy", scored["trained policy"][:SHOWN_TRAINED]),
        ("Warm-started policy, before PRIME, scored by the same PRM", scored["warm-started policy"][:SHOWN_WARM_START]),
    ]
    write_text(run_dir / "transcripts.html", render(sections, statistics, beta))
    summary = {
        **gain("temperature_1", before, after),
        "greedy": gain("greedy", before, after),
        "calls": {
            when: {key: result["temperature_1"][key] for key in ("calls_per_episode", "failed_calls")}
            for when, result in (("before", before), ("after", after))
        },
        **describe_run(run_dir, max(metrics), after),
        "process_rewards": statistics,
    }
    # Written last: whoever finds it finds the rest.
    write_json(run_dir / "summary.json", summary)
    return summary


def text(run_dir: Path, summary: dict[str, Any]) -> str:
    """What a reader should know about the run, in a few lines."""

    def called(when: str) -> str:
        calls = summary["calls"][when]
        return f"{calls['calls_per_episode']:.2f}, {100 * calls['failed_calls']:.1f} %"

    auc = {key: write_number(value, ".2f") for key, value in summary["process_rewards"]["warm-started policy"].items()}

    return "\n".join(
        [
            "",
            f"Accuracy on {summary['n_problems']:,} held-out problems (± standard error), after {summary['steps']}",
            f"steps of PRIME with a tool, variant {summary['variant']}:",
            write_gain("temperature 1", summary),
            write_gain("greedy", summary["greedy"]),
            f"Calls per episode, and calls without a result: {called('before')}  ->  {called('after')}",
            "The model starts low by design: it imitated demonstrators who misuse their calculator and give up. One",
            "call in ten fails whatever the agent does. Only the last number is judged.",
            "On the warm start's episodes the PRM ranks right above wrong ones with probability "
            f"{auc['outcome_auc']}, and",
            f"calls that have a result above calls that cannot be read with {auc['call_auc']}.",
            write_seconds(summary),
            f"Everything is in {run_dir}: summary.json, learning_curve.png, metrics.jsonl, policy/, prm/, sft/,",
            "checkpoints/, tensorboard/, and transcripts.html: episodes turn by turn; open it in a browser.",
        ]
    )


def main() -> None:
    run_dir = run_folder(__doc__)
    print(text(run_dir, report(run_dir)))


if __name__ == "__main__":
    main()
