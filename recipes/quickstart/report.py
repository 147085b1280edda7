# SPDX-License-Identifier: Apache-2.0
"""What came out of a quickstart run: ``summary.json``, ``learning_curve.png`` and ``transcripts.html``.

    python -m recipes.quickstart.report --run-dir outputs/quickstart

Reads from the run folder: ``settings.txt``, ``metrics.jsonl`` (verl's file logger), the two evaluations,
``seconds.tsv``, ``sft/``, ``policy/``, ``prm/``, ``data/test.parquet`` and Hydra's record of the configuration.
"""

from pathlib import Path

from omegaconf import OmegaConf
from tqdm import tqdm

from prime_ext.config.variant import variant_line
from prime_ext.utils.files import read_json, write_json, write_json_lines, write_text
from recipes.quickstart.evaluate import load_model, load_problems, respond
from recipes.quickstart.learning_curve import LABELS, StoredRuns, plot_learning_curve, read_stored_runs
from recipes.quickstart.process_scores import ScoredResponse, score_response, step_statistics
from recipes.quickstart.transcripts import render
from recipes.run_statistics import (
    paired_standard_error,
    read_seconds,
    read_settings,
    run_folder,
    run_metrics,
    versions,
    write_mean,
)

STATISTICS_PROBLEMS = 500
# Settings of the task that the stored runs of the study `comparison` share.
OF_THE_TASK = {"MEAN_ERROR": "0.25", "SFT_STEPS": "1000", "PROMPTS": "16", "ROLLOUTS": "4"}
COMPARED = "Does it help, and what does it cost? Stored runs on this task (study `comparison`, temperature 1):"
SHOWN_TRAINED, SHOWN_WARM_START = 40, 12


def gain(name: str, before: dict, after: dict) -> dict:
    """Accuracy before and after, with standard errors, of one way of decoding."""
    first, second = before[name], after[name]
    return {
        "accuracy_before": first["accuracy"],
        "accuracy_after": second["accuracy"],
        "gain": second["accuracy"] - first["accuracy"],
        "standard_error": {
            "before": first["standard_error"],
            "after": second["standard_error"],
            "difference": paired_standard_error(first["outcomes"], second["outcomes"]),
        },
    }


def with_steps(name: str, before: dict, after: dict) -> dict:
    """:func:`gain`, and the share of right steps."""
    steps = {"steps_right_before": before[name]["steps_right"], "steps_right_after": after[name]["steps_right"]}
    return gain(name, before, after) | steps


def score_policies(run_dir: Path, *, beta: float, seed: int) -> dict[str, list[ScoredResponse]]:
    """One response at temperature 1 per held-out problem of the trained and the warm-started policy, with rewards."""
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


def report(run_dir: Path) -> dict:
    """Write the three files of the run, and the merged ``metrics.jsonl``; returns the summary.

    The accuracies at the top of the summary are at temperature 1.
    """
    metrics, settings = run_metrics(run_dir), read_settings(run_dir / "settings.txt")
    beta, seed = float(settings["BETA"]), int(settings["SEED"])
    # One file without the repetitions of a resumed run; the parts of earlier starts stay where they are.
    write_json_lines(run_dir / "metrics.jsonl", ({"step": step, "data": row} for step, row in metrics.items()))
    before, after = (read_json(run_dir / f"evaluation_{when}.json") for when in ("before", "after"))
    same_task = all(settings.get(name, value) == value for name, value in OF_THE_TASK.items())
    stored = read_stored_runs() if same_task else {}
    plot_learning_curve(run_dir / "learning_curve.png", metrics, before, after, stored)

    scored = score_policies(run_dir, beta=beta, seed=seed)
    statistics = {name: step_statistics(responses) for name, responses in scored.items()}
    shown = f"One response at temperature 1 to each of the first {SHOWN_TRAINED} held-out problems; none left out."
    other = f"The same for the first {SHOWN_WARM_START} problems, scored by the same PRM. It makes more mistakes."
    sections = [
        ("Trained policy", shown, scored["trained policy"][:SHOWN_TRAINED]),
        ("Warm-started policy, before PRIME", other, scored["warm-started policy"][:SHOWN_WARM_START]),
    ]
    write_text(run_dir / "transcripts.html", render(sections, statistics, beta=beta))

    summary = {
        **with_steps("temperature_1", before, after),
        "greedy": with_steps("greedy", before, after),
        "variant": variant_line(OmegaConf.load(run_dir / "hydra" / ".hydra" / "config.yaml")),
        "n_problems": after["n_problems"],
        "steps": max(metrics),
        "seconds": read_seconds(run_dir / "seconds.tsv"),
        "seed": seed,
        "settings": settings,
        "versions": versions(),
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


def gained(name: str, of: dict) -> str:
    """A line of what :func:`gain` found."""
    error = of["standard_error"]
    return (
        f"  {name:<14}  {100 * of['accuracy_before']:5.1f} ± {100 * error['before']:.1f} %  ->  "
        f"{100 * of['accuracy_after']:5.1f} ± {100 * error['after']:.1f} %   "
        f"gain {100 * of['gain']:+.1f} ± {100 * error['difference']:.1f} points"
    )


def text(run_dir: Path, summary: dict) -> str:
    """What a reader should know about the run, in a few lines."""
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

    def auc(policy: str) -> str:
        value = summary["process_rewards"][policy]["auc"]
        return "no such step" if value is None else f"{value:.2f}"

    lines = [
        "",
        f"Accuracy on {summary['n_problems']:,} held-out problems (± standard error), after {summary['steps']} steps",
        f"of PRIME, variant {summary['variant']}:",
        gained("temperature 1", summary),
        gained("greedy", summary["greedy"]),
        "The model starts low by design: it imitated demonstrators with systematic misconceptions, and PRIME unlearns",
        "them from the final answers alone. So the gain shows that the loop learns, not what PRIME does on real tasks.",
        "The process reward of a step's result ranks right above wrong steps with probability (0.5 is chance):",
        f"  {auc('trained policy')} on the trained policy's responses, {auc('warm-started policy')} on the warm "
        "start's. No step label was ever shown to the PRM.",
        *([COMPARED] if summary["stored_runs"] else []),
        *(f"  {line}" for line in summary["stored_runs"]),
        "Seconds: " + ", ".join(f"{phase} {value:.0f}" for phase, value in summary["seconds"].items()),
        f"Everything is in {run_dir}:",
        *(f"  {name:<20}{meaning}" for name, meaning in files.items()),
    ]
    return "\n".join(lines)


def main() -> None:
    run_dir = run_folder(__doc__)
    print(text(run_dir, report(run_dir)))


if __name__ == "__main__":
    main()
