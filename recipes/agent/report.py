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

import jinja2
import numpy as np
from matplotlib.ticker import PercentFormatter
from omegaconf import OmegaConf
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from prime_ext.config.variant import variant_line
from prime_ext.tasks.calculator_tool import FIELD, OUTCOMES
from prime_ext.utils.files import read_json, write_json, write_json_lines, write_text
from recipes.agent.play import Episode, play
from recipes.agent.tokenizer import ANSWER_CLOSE, ANSWER_OPEN, CALL_CLOSE, CALL_OPEN
from recipes.figures import BLUE, GREEN, GREY, ORANGE, draw_smoothed, new_figure, save
from recipes.quickstart.evaluate import load_model, load_problems
from recipes.quickstart.process_scores import area_under_curve, response_log_probs, token_rewards
from recipes.quickstart.report import gain, gained
from recipes.quickstart.transcripts import colour
from recipes.run_statistics import PAIR_ACCURACY, read_seconds, read_settings, run_folder, run_metrics, series, versions

STATISTICS_PROBLEMS, SHOWN_TRAINED, SHOWN_WARM_START = 300, 30, 12
TRAIN_ACCURACY = "prime/accuracy/before_filter"


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


def plot(path: Path, metrics: dict[int, dict[str, float]], before: dict, after: dict) -> None:
    """Accuracy on top; calls per episode, failed calls and the PRM below."""
    figure, axes = new_figure(2, 1, (8, 7.4), sharex=True, height_ratios=[3, 2])
    top, bottom = axes[:, 0]
    last = max(metrics)
    draw_smoothed(
        top, *series(metrics, TRAIN_ACCURACY), BLUE, label="training episodes, before the filter (mean of 10 steps)"
    )
    for name, shade, marker in (("temperature_1", ORANGE, "o"), ("greedy", GREEN, "D")):
        accuracies = [result[name]["accuracy"] for result in (before, after)]
        errors = [2 * result[name]["standard_error"] for result in (before, after)]
        label = f"{after['n_problems']:,} held-out problems, {name.replace('_', ' ')} (± 2 s.e.)"
        top.errorbar(
            [0, last], accuracies, errors, label=label, color=shade, marker=marker, linestyle="none", clip_on=False
        )
    top.set(ylim=(0, 1.02), ylabel="accuracy", title="PRIME on calculator chains: accuracy of the agent")
    draw_smoothed(bottom, *failed_calls(metrics), ORANGE, label="calls without a result (mean of 10 steps)")
    if PAIR_ACCURACY in metrics[last]:
        draw_smoothed(
            bottom, *series(metrics, PAIR_ACCURACY), BLUE, label="PRM: pairs in the right order (mean of 10 steps)"
        )
    bottom.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    bottom.set(ylim=(0, 1.02), xlim=(0, last), xlabel="step", ylabel="share")
    for axis, place in ((top, "lower right"), (bottom, (0.3, 0.28))):
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.legend(loc=place, frameon=False, fontsize=9.5)
    save(figure, path, dpi=150)


def render(sections: Sequence[tuple[str, Sequence[ScoredEpisode]]], statistics: dict[str, dict], beta: float) -> str:
    """The page: no script, nothing loaded, all text escaped."""
    rewards = [
        abs(turn.reward) for _, group in sections for one in group for turn in one.turns if turn.reward is not None
    ]
    scale = max(float(np.quantile(rewards, 0.95)), 1e-6) if rewards else 1.0
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    page.filters["number"] = lambda value, form: "–" if value is None else format(value, form)
    known = {"sections": sections, "statistics": statistics, "beta": beta, "scale": scale, "colour": colour}
    return page.get_template("transcripts.html").render(known)


def report(run_dir: Path) -> dict[str, Any]:
    """Write the three files of the run, and the merged ``metrics.jsonl``; returns the summary."""
    metrics, settings = run_metrics(run_dir), read_settings(run_dir / "settings.txt")
    beta, seed = float(settings["BETA"]), int(settings["SEED"])
    write_json_lines(run_dir / "metrics.jsonl", ({"step": step, "data": row} for step, row in metrics.items()))
    before, after = (read_json(run_dir / f"evaluation_{when}.json") for when in ("before", "after"))
    plot(run_dir / "learning_curve.png", metrics, before, after)

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
        "variant": variant_line(OmegaConf.load(run_dir / "hydra" / ".hydra" / "config.yaml")),
        "n_problems": after["n_problems"],
        "steps": max(metrics),
        "seconds": read_seconds(run_dir / "seconds.tsv"),
        "settings": settings,
        "versions": versions(),
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

    def auc(policy: str, key: str) -> str:
        value = summary["process_rewards"][policy][key]
        return "–" if value is None else f"{value:.2f}"

    return "\n".join(
        [
            "",
            f"Accuracy on {summary['n_problems']:,} held-out problems (± standard error), after {summary['steps']}",
            f"steps of PRIME with a tool, variant {summary['variant']}:",
            gained("temperature 1", summary),
            gained("greedy", summary["greedy"]),
            f"Calls per episode, and calls without a result: {called('before')}  ->  {called('after')}",
            "The model starts low by design: it imitated demonstrators who misuse their calculator and give up. One",
            "call in ten fails whatever the agent does. Only the last number is judged.",
            "On the warm start's episodes the PRM ranks right above wrong ones with probability "
            f"{auc('warm-started policy', 'outcome_auc')}, and",
            f"calls that have a result above calls that cannot be read with {auc('warm-started policy', 'call_auc')}.",
            "Seconds: " + ", ".join(f"{phase} {value:.0f}" for phase, value in summary["seconds"].items()),
            f"Everything is in {run_dir}: summary.json, learning_curve.png, metrics.jsonl, policy/, prm/, sft/,",
            "checkpoints/, tensorboard/, and transcripts.html: episodes turn by turn; open it in a browser.",
        ]
    )


def main() -> None:
    run_dir = run_folder(__doc__)
    print(text(run_dir, report(run_dir)))


if __name__ == "__main__":
    main()
