# SPDX-License-Identifier: Apache-2.0
"""What came out of a quickstart run: ``summary.json``, ``learning_curve.png`` and ``transcripts.html``.

    python -m recipes.quickstart.report --run-dir outputs/quickstart

Reads from the run folder: ``settings.txt``, ``metrics.jsonl`` (verl's file logger), the two evaluations,
``seconds.tsv``, ``sft/``, ``policy/``, ``prm/``, ``data/test.parquet`` and Hydra's record of the configuration.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from tqdm import tqdm

from prime_ext.tasks import last_digit_chain as task
from prime_ext.utils.files import read_json, write_json, write_text
from prime_ext.utils.report_page import Span
from recipes.figures import BLUE, draw_mean, draw_smoothed
from recipes.quickstart.evaluate import load_model, load_problems, respond
from recipes.quickstart.process_scores import ScoredResponse, ScoredStep, score_response, step_statistics
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
from recipes.run_statistics import PAIR_ACCURACY, read_settings, run_folder, series, write_mean

STATISTICS_PROBLEMS = 500
SHOWN_TRAINED, SHOWN_WARM_START = 40, 12
# Stored runs of the study `comparison`, on the quickstart's task with these settings and seeds.
COMPARISON = Path(__file__).parents[1] / "studies" / "results" / "comparison.json"
OF_THE_TASK = {"MEAN_ERROR": "0.25", "SFT_STEPS": "1000", "PROMPTS": "16", "ROLLOUTS": "4"}
SEEDS = ("0", "1", "2")
LABELS = {"rloo": "RLOO, outcome only", "paper": "PRIME as published", "distilled": "PRIME-D"}
COLORS = {"distilled": "#6a3d9a", "rloo": "#b2182b", "paper": "#8a6d3b"}
COMPARED = "Does it help, and what does it cost? Stored runs on this task (study `comparison`, temperature 1):"
EXPLANATION = (
    "Each problem is a start digit and 4 to 7 operations, applied from left to right, keeping only the last digit. The "
    "response shows every step and boxes the result. The policy was rewarded for the final answer only, plus what the "
    "process reward model (PRM) makes of it. The PRM never saw which step is right: it was trained, during the run, to "
    "tell right answers from wrong ones, and the reward of a token is r = beta (log pi_prm - log pi_ref) with beta = "
    "{beta:g}, where the reference is the warm-started model. If it works, a wrong step, which is underlined, has an "
    "orange result digit.",
    "AUC: how often a right step's result digit has a higher r than a wrong step's (0.5 is chance, 1 is perfect). A "
    "step is right if it applies the next operation to the value stated before it, be that right or wrong, and the "
    "arithmetic is true. The sum of r orders responses; it is no logit. Numbers are over all responses of the row, not "
    "only those printed below.",
)
# Runs by method; each has a "curve", lists by name, and "end", numbers by name.
StoredRuns = dict[str, list[dict[str, Any]]]


def read_stored_runs() -> StoredRuns:
    """Return the stored runs."""
    methods = read_json(COMPARISON)["methods"]
    return {name: [methods[name]["runs"][seed] for seed in SEEDS] for name in LABELS}


def with_steps(name: str, before: dict, after: dict) -> dict:
    """Return the gain of a way of decoding, and the share of right steps."""
    steps = {"steps_right_before": before[name]["steps_right"], "steps_right_after": after[name]["steps_right"]}
    return gain(name, before, after) | steps


def score_policies(run_dir: Path, *, beta: float, seed: int) -> dict[str, list[ScoredResponse]]:
    """Score one response at temperature 1 per held-out problem of the trained and the warm-started policy."""
    reference, tokenizer = load_model(run_dir / "sft")
    prm, _ = load_model(run_dir / "prm")
    problems = load_problems(run_dir / "data" / "test.parquet", STATISTICS_PROBLEMS)
    scored = {}
    for name, folder in (("trained policy", "policy"), ("warm-started policy", "sft")):
        model, _ = load_model(run_dir / folder)
        responses = respond(model, tokenizer, problems, temperature=1.0, seed=seed, description=name)
        both = zip(problems, responses, strict=True)
        scored[name] = [score_response(prm, reference, tokenizer, *pair, beta) for pair in tqdm(both, desc="scores")]
    return scored


def draw_others(top: Axes, bottom: Axes, metrics: Mapping[int, Mapping[str, float]], stored: StoredRuns) -> None:
    """Draw stored runs of other methods on top, and the pair accuracy of the PRM below."""
    for method, color in COLORS.items() if stored else ():
        # The points that all runs have are the evaluations; the others are interpolated.
        curves = [run["curve"] for run in stored[method]]
        steps = sorted(set.intersection(*(set(curve["steps"]) for curve in curves)))
        values_RS = np.array([np.interp(steps, curve["steps"], curve["accuracy"]) for curve in curves])
        label = f"{LABELS[method]}: {len(curves)} stored runs, held out"
        draw_mean(top, steps, values_RS, color, label, linestyle="--", linewidth=1.6)
    draw_smoothed(bottom, *series(metrics, PAIR_ACCURACY), BLUE, label=f"same problem, not yet trained on {SMOOTHED}")
    bottom.set(ylabel="pair accuracy", title="Process reward model: does it score right answers above wrong ones?")


def explain_step(step: ScoredStep) -> str:
    """Say in words what is wrong with a step; empty if nothing is."""
    if step.check.locally_right:
        return ""
    if step.result_token is None:
        return "not a step of the form a∘b=c"
    reasons = []
    if not step.check.follows_prompt:
        reasons.append("does not apply the next operation to the value before it")
    if not step.check.arithmetic_right:
        left, operator, operand = int(step.check.text[0]), step.check.text[1], int(step.check.text[2])
        right = task.apply_operation(left, operator, operand)
        reasons.append(f"{left}{operator}{operand} is {right}, not {step.check.text[4]}")
    return "wrong step: " + "; ".join(reasons)


def color_tokens(response: ScoredResponse, scale: float) -> list[Span]:
    """Return the tokens of a response with their rewards and log-probabilities; wrong steps are underlined."""
    wrong = {
        place: explain_step(step)
        for step in response.steps
        for place in range(step.first_token, step.last_token + 1)
        if not step.check.locally_right
    }
    spans = []
    for place, token in enumerate(response.tokens):
        lines = [
            f"process reward r = {token.reward:+.4f}",
            f"log pi_prm = {token.log_prob_prm:.4f}, log pi_ref = {token.log_prob_reference:.4f}",
        ]
        note = "\n".join([*lines, *([wrong[place]] if place in wrong else [])])
        spans.append(Span(token.text, token.reward / scale, note, place in wrong))
    return spans


def render(
    sections: Sequence[tuple[str, str, Sequence[ScoredResponse]]], statistics: Mapping[str, dict], beta: float
) -> str:
    """Render the page of responses.

    Args:
        sections: title, one sentence, and responses of each group.
        statistics: per policy, what ``process_scores.step_statistics`` returns on its responses.
        beta: the PRM's beta, shown in the explanation.
    """
    tokens = (token.reward for _, _, group in sections for response in group for token in response.tokens)
    scale = strongest(tokens, 0.98)
    page = begin_transcripts("Process rewards, token by token", [text.format(beta=beta) for text in EXPLANATION], scale)
    rows = [
        [
            name,
            f"{s['responses']:,}",
            f"{s['right_steps']:,} / {s['wrong_steps']:,}",
            write_number(s["auc"], ".3f"),
            " / ".join(write_number(s[f"mean_reward_{kind}_step"], "+.3f") for kind in ("right", "wrong")),
            f"{write_number(s['lowest_is_the_wrong_step'], '.0%')} (chance {write_number(s['chance'], '.0%')})",
            write_number(s["outcome_auc"], ".3f"),
        ]
        for name, s in statistics.items()
    ]
    head = ["responses of the", "number", "steps right / wrong", "AUC of r on the result digit"]
    page.table([*head, "mean r right / wrong", "lowest r is the one wrong step", "AUC of the sum for the answer"], rows)
    for title, sentence, responses in sections:
        page.heading(title)
        page.text(sentence)
        for response in responses:
            wrong = sum(not step.check.locally_right for step in response.steps)
            page.text(
                f"{response.problem.prompt}  answer {'right' if response.right else 'wrong'} (right answer "
                f"{response.problem.ground_truth}), {wrong} of {len(response.steps)} steps wrong, sum of r "
                f"{response.reward_sum:+.2f}"
            )
            page.transcript(color_tokens(response, scale))
    return page.html()


def report(run_dir: Path) -> dict:
    """Write the three files of the run; returns the summary, whose accuracies at the top are at temperature 1."""
    metrics, before, after = read_run(run_dir)
    settings = read_settings(run_dir / "settings.txt")
    beta, seed = float(settings["BETA"]), int(settings["SEED"])
    same_task = all(settings.get(name, value) == value for name, value in OF_THE_TASK.items())
    stored = read_stored_runs() if same_task else {}
    title = "PRIME on last-digit chains: accuracy of the policy"
    plot_learning_curve(
        run_dir / "learning_curve.png", title, metrics, before, after,
        lambda top, bottom: draw_others(top, bottom, metrics, stored),
    )  # fmt: skip

    scored = score_policies(run_dir, beta=beta, seed=seed)
    statistics = {name: step_statistics(responses) for name, responses in scored.items()}
    shown = f"One response at temperature 1 to each of the first {SHOWN_TRAINED} held-out problems; none left out."
    other = f"The same for the first {SHOWN_WARM_START} problems, scored by the same PRM. It makes more mistakes."
    sections = [
        ("Trained policy", shown, scored["trained policy"][:SHOWN_TRAINED]),
        ("Warm-started policy, before PRIME", other, scored["warm-started policy"][:SHOWN_WARM_START]),
    ]
    write_text(run_dir / "transcripts.html", render(sections, statistics, beta))

    summary = {
        **with_steps("temperature_1", before, after),
        "greedy": with_steps("greedy", before, after),
        **describe_run(run_dir, max(metrics), after),
        "seed": seed,
        "process_rewards": statistics,
        "stored_runs": [compare_method(name, stored) for name in stored],
    }
    # Written last: whoever finds it finds the rest.
    write_json(run_dir / "summary.json", summary)
    return summary


def compare_method(name: str, stored: StoredRuns) -> str:
    """Say what a stored method reaches on this task, and what a step of it costs."""
    ends, baseline = ([run["end"] for run in stored[method]] for method in (name, "rloo"))
    accuracy = write_mean([end["accuracy"] for end in ends], 100, 1)
    cost = sum(end["seconds_per_step"] for end in ends) / sum(end["seconds_per_step"] for end in baseline)
    return f"{LABELS[name]:<20} {accuracy} % ({len(ends)} seeds), {cost:.2f} times RLOO's seconds a step"


def text(run_dir: Path, summary: dict) -> str:
    """Write what a reader should know about the run, in a few lines."""
    files = {
        "summary.json": "these numbers, with settings and versions",
        "learning_curve.png": "accuracy and PRM over the steps",
        "transcripts.html": "responses with a reward per token; open it in a browser",
        "metrics.jsonl": "every metric of every step",
        "policy/, prm/": "the trained models, Hugging Face format",
        "sft/": "the warm start, which is also the reference",
        "checkpoints/": "verl checkpoints, to go on from",
        "tensorboard/": "logs for tensorboard --logdir",
    }
    auc = {
        policy: "no such step" if of["auc"] is None else f"{of['auc']:.2f}"
        for policy, of in summary["process_rewards"].items()
    }
    lines = [
        "",
        f"Accuracy on {summary['n_problems']:,} held-out problems (± standard error), after {summary['steps']} steps",
        f"of PRIME, variant {summary['variant']}:",
        write_gain("temperature 1", summary),
        write_gain("greedy", summary["greedy"]),
        "The model starts low by design: it imitated demonstrators with systematic misconceptions, and PRIME unlearns",
        "them from the final answers alone. So the gain shows that the loop learns, not what PRIME does on real tasks.",
        "The process reward of a step's result ranks right above wrong steps with probability (0.5 is chance):",
        f"  {auc['trained policy']} on the trained policy's responses, {auc['warm-started policy']} on the warm "
        "start's. No step label was ever shown to the PRM.",
        *([COMPARED] if summary["stored_runs"] else []),
        *(f"  {line}" for line in summary["stored_runs"]),
        write_seconds(summary),
        f"Everything is in {run_dir}:",
        *(f"  {name:<20}{meaning}" for name, meaning in files.items()),
    ]
    return "\n".join(lines)


def main() -> None:
    run_dir = run_folder(__doc__)
    print(text(run_dir, report(run_dir)))


if __name__ == "__main__":
    main()
