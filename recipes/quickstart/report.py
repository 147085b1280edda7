# SPDX-License-Identifier: Apache-2.0
"""What came out of a quickstart run: ``summary.json``, ``learning_curve.png`` and ``transcripts.html``.

    python -m recipes.quickstart.report --run-dir outputs/quickstart --beta 0.2 --seed 0

Reads from the run folder: ``metrics.jsonl`` (verl's file logger), the two evaluations, ``seconds.tsv``, ``sft/``,
``policy/``, ``prm/``, ``data/test.parquet`` and Hydra's record of the configuration.
"""

import argparse
import platform
from collections import defaultdict
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from prime_ext.config.variant import variant_line
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json, write_json, write_json_lines, write_text
from recipes.quickstart.learning_curve import BASELINE, METHODS, plot_learning_curve
from recipes.quickstart.process_scores import ScoredResponse, score_responses, step_statistics
from recipes.quickstart.respond import load_model, load_problems, respond
from recipes.quickstart.transcripts import render

PACKAGES = ("prime-ext", "verl", "torch", "transformers", "ray", "tensordict", "TransferQueue", "numpy")
STATISTICS_PROBLEMS = 500
# Runs of this and other methods that are kept, and the settings of the task that they share.
COMPARISON = Path(__file__).parents[1] / "compare_variants" / "comparison.json"
OF_THE_TASK = {"MEAN_ERROR": "0.25", "SFT_STEPS": "1000", "PROMPTS": "16", "ROLLOUTS": "4"}
SHOWN_TRAINED, SHOWN_WARM_START = 40, 12


def read_rows(path: Path) -> list[dict]:
    """Metrics of a run and its resumptions, one row ``{"step": ..., "data": {...}}`` per step.

    Raises:
        ValueError: there is not a single step.
    """
    rows = [{"step": step, "data": data} for step, data in read_metrics(path).items()]
    if not rows:
        raise ValueError(f"no metrics in {path}; was verl's 'file' logger on?")
    return rows


def read_seconds(path: Path) -> dict[str, float]:
    """Seconds per phase from lines ``phase<TAB>seconds``; a phase that was started again adds up."""
    seconds: dict[str, float] = defaultdict(float)
    for line in path.read_text(encoding="utf-8").splitlines():
        phase, value = line.split("\t")
        seconds[phase] += float(value)
    return dict(seconds)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the result depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def paired_standard_error(before: str, after: str) -> float:
    """Standard error of the difference of two accuracies on the same problems, given as strings of 0 and 1.

    Raises:
        ValueError: the two are not about the same number of problems.
    """
    if len(before) != len(after):
        raise ValueError(f"the evaluations have {len(before)} and {len(after)} problems; they must be the same")
    difference = np.array([int(a) - int(b) for a, b in zip(after, before, strict=True)])
    return float(difference.std(ddof=1) / np.sqrt(len(difference)))


def _comparison(name: str, before: dict, after: dict) -> dict:
    return {
        "accuracy_before": before[name]["accuracy"],
        "accuracy_after": after[name]["accuracy"],
        "gain": after[name]["accuracy"] - before[name]["accuracy"],
        "standard_error": {
            "before": before[name]["standard_error"],
            "after": after[name]["standard_error"],
            "difference": paired_standard_error(before[name]["outcomes"], after[name]["outcomes"]),
        },
        "steps_right_before": before[name]["steps_right"],
        "steps_right_after": after[name]["steps_right"],
    }


def summarize(
    before: dict,
    after: dict,
    metrics: list[dict],
    seconds: dict[str, float],
    *,
    variant: str,
    seed: int,
    settings: dict,
) -> dict:
    """The content of ``summary.json``. The accuracies at its top are at temperature 1."""
    return {
        **_comparison("temperature_1", before, after),
        "greedy": _comparison("greedy", before, after),
        "variant": variant,
        "n_problems": after["n_problems"],
        "steps": metrics[-1]["step"],
        "seconds": {**seconds, "total": sum(seconds.values())},
        "seed": seed,
        "settings": settings,
        "versions": versions(),
    }


def score_policies(run_dir: Path, *, beta: float, seed: int) -> dict[str, list[ScoredResponse]]:
    """One response at temperature 1 per held-out problem of the trained and the warm-started policy, with rewards."""
    reference, tokenizer = load_model(run_dir / "sft")
    prm, _ = load_model(run_dir / "prm")
    problems = load_problems(run_dir / "data" / "test.parquet", STATISTICS_PROBLEMS)
    scored = {}
    for name, folder in (("trained policy", "policy"), ("warm-started policy", "sft")):
        model, _ = load_model(run_dir / folder)
        responses = respond(model, tokenizer, problems, temperature=1.0, seed=seed, description=name)
        scored[name] = score_responses(prm, reference, tokenizer, problems, responses, beta=beta)
    return scored


def kept_runs(settings: Mapping[str, str]) -> dict | None:
    """The comparison of PRIME's variants with RLOO, if this run has its task, warm start and batch."""
    same = all(settings.get(name, value) == value for name, value in OF_THE_TASK.items())
    return read_json(COMPARISON) if same else None


def report(run_dir: Path, *, beta: float, seed: int, settings: dict) -> dict:
    """Write the three files of the run, and the merged ``metrics.jsonl``; returns the summary."""
    metrics = read_rows(run_dir / "metrics.jsonl")
    # One file without the repetitions of a resumed run; the parts of earlier starts stay where they are.
    write_json_lines(run_dir / "metrics.jsonl", metrics)
    before, after = (read_json(run_dir / f"evaluation_{when}.json") for when in ("before", "after"))
    comparison = kept_runs(settings)
    plot_learning_curve(run_dir / "learning_curve.png", metrics, before, after, comparison)

    scored = score_policies(run_dir, beta=beta, seed=seed)
    statistics = {name: step_statistics(responses) for name, responses in scored.items()}
    sections = [
        (
            "Trained policy",
            f"One response at temperature 1 to each of the first {SHOWN_TRAINED} held-out problems; none left out.",
            scored["trained policy"][:SHOWN_TRAINED],
        ),
        (
            "Warm-started policy, before PRIME",
            f"The same for the first {SHOWN_WARM_START} problems, scored by the same PRM. It makes more mistakes.",
            scored["warm-started policy"][:SHOWN_WARM_START],
        ),
    ]
    write_text(run_dir / "transcripts.html", render(sections, statistics, beta=beta))

    seconds = read_seconds(run_dir / "seconds.tsv")
    variant = variant_line(OmegaConf.load(run_dir / "hydra" / ".hydra" / "config.yaml"))
    summary = summarize(before, after, metrics, seconds, variant=variant, seed=seed, settings=settings)
    summary["process_rewards"] = statistics
    summary["kept_runs"] = comparison["aggregate"] if comparison else None
    # Written last: whoever finds it finds the rest.
    write_json(run_dir / "summary.json", summary)
    return summary


def comparison_lines(aggregate: Mapping[str, Mapping]) -> list[str]:
    """What other methods reach on this task and what a step of them costs, from the kept runs."""
    lines = ["Does it help, and what does it cost? Kept runs on this task (recipes/compare_variants, temperature 1):"]
    for method, label in METHODS.items():
        final, seconds = aggregate[method]["final_accuracy_temperature_1"], aggregate[method]["seconds_per_step"]
        cost = seconds["mean"] / aggregate[BASELINE]["seconds_per_step"]["mean"]
        lines.append(
            f"  {label:<20}{100 * final['mean']:5.1f} ± {100 * (final['standard_error'] or 0):.1f} % "
            f"({final['n']} seeds), {cost:.2f} times RLOO's seconds a step"
        )
    return lines


def text(run_dir: Path, summary: dict) -> str:
    """What a reader should know about the run, in a few lines."""
    error, greedy = summary["standard_error"], summary["greedy"]
    trained = summary["process_rewards"]["trained policy"]
    warm = summary["process_rewards"]["warm-started policy"]

    def percent(value: float | None) -> str:
        return "no such step" if value is None else f"{value:.2f}"

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
    lines = [
        "",
        f"Accuracy on {summary['n_problems']:,} held-out problems (± standard error), after {summary['steps']} steps",
        f"of PRIME, variant {summary['variant']}:",
        f"  temperature 1   {100 * summary['accuracy_before']:5.1f} ± {100 * error['before']:.1f} %  ->  "
        f"{100 * summary['accuracy_after']:5.1f} ± {100 * error['after']:.1f} %   "
        f"gain {100 * summary['gain']:+.1f} ± {100 * error['difference']:.1f} points",
        f"  greedy          {100 * greedy['accuracy_before']:5.1f} ± {100 * greedy['standard_error']['before']:.1f} %"
        f"  ->  {100 * greedy['accuracy_after']:5.1f} ± {100 * greedy['standard_error']['after']:.1f} %   "
        f"gain {100 * greedy['gain']:+.1f} ± {100 * greedy['standard_error']['difference']:.1f} points",
        "The model starts low by design: it imitated demonstrators with systematic misconceptions, and PRIME unlearns",
        "them from the final answers alone. So the gain shows that the loop learns, not what PRIME does on real tasks.",
        "The process reward of a step's result ranks right above wrong steps with probability (0.5 is chance):",
        f"  {percent(trained['auc'])} on the trained policy's responses, {percent(warm['auc'])} on the warm start's. "
        "No step label was ever shown to the PRM.",
        *(comparison_lines(summary["kept_runs"]) if summary["kept_runs"] else ()),
        "Seconds: " + ", ".join(f"{phase} {value:.0f}" for phase, value in summary["seconds"].items()),
        f"Everything is in {run_dir}:",
        *(f"  {name:<20}{meaning}" for name, meaning in files.items()),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--beta", type=float, required=True, help="prm.beta of the run")
    parser.add_argument("--seed", type=int, required=True, help="seed of the run; also of the transcripts")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="recorded in the summary")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.setting)
    summary = report(arguments.run_dir, beta=arguments.beta, seed=arguments.seed, settings=settings)
    print(text(arguments.run_dir, summary))


if __name__ == "__main__":
    main()
