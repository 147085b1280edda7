# SPDX-License-Identifier: Apache-2.0
"""The results of an evaluation as Markdown."""

from typing import Any


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def percent(value: float | None, interval: dict[str, float] | None = None) -> str:
    """A share in percent, with its 95 % interval."""
    if value is None:
        return "-"
    text = f"{100 * value:.1f}"
    return text if interval is None else f"{text} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def _header(results: dict[str, Any], title: str) -> list[str]:
    settings = results["settings"]
    lines = [f"# {title}", "", f"Model: `{settings['model']}`  "]
    if settings["scorer"] == "implicit":
        lines += [f"Reference: `{settings['reference'] or 'none'}`, coefficient {settings['coefficient']:g}  "]
    lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in results["versions"].items()), ""]
    return lines


def processbench_report(results: dict[str, Any]) -> str:
    """ProcessBench: protocol, oracle, and a classifier's own decision."""
    settings, lines = results["settings"], _header(results, "ProcessBench")
    if settings["limit"]:
        lines += [f"**Only a random sample of {settings['limit']} responses of each split was scored.**", ""]
    names = {
        "protocol": f"Official protocol: one threshold, the best on {results['threshold_split']}, for all splits",
        "oracle": "Oracle thresholds: each split's own best (chosen on its labels; not comparable with the protocol)",
        "own_decision": "The classifier's own decision: probability below 1/2",
    }
    for mode, title in names.items():
        if mode not in results:
            continue
        part = results[mode]
        rows = [
            [
                split,
                str(own["responses"]),
                percent(own["error_accuracy"]),
                percent(own["correct_accuracy"]),
                percent(own["f1"], own["f1_interval"]),
                f"{own['threshold']:.6g}",
            ]
            for split, own in part["splits"].items()
        ]
        rows.append(["average", "", "", "", percent(part["average_f1"], part["average_f1_interval"]), ""])
        lines += [f"## {title}", ""]
        head = ["split", "responses", "error accuracy", "correct accuracy", "F1 [95 %]", "threshold"]
        lines += [*_table(head, rows), ""]
    lines += [
        "Percent. F1 is the harmonic mean of the two accuracies, the average the plain mean of the splits' F1. "
        f"Intervals resample responses {settings['resamples']} times with the threshold held fixed; what choosing the "
        "threshold adds is not in them.",
        "",
        f"Step score: {settings['step_score']}. Step judged wrong: score below the threshold, strictly.",
    ]
    if results["overlong"]:
        lines += ["", f"{results['overlong']} responses were longer than --max-length; they count as wrong."]
    return "\n".join(lines) + "\n"


def best_of_n_report(results: dict[str, Any]) -> str:
    """Best-of-N with and without votes, beside pass@N and maj@N, and pairwise accuracy."""
    settings, lines = results["settings"], _header(results, "Best of N")
    if settings["limit"]:
        lines += [f"**Only a random sample of {settings['limit']} problems was scored.**", ""]
    sizes = [str(n) for n in results["n"]]
    rows = [[name, *(percent(own[n]["value"], own[n]) for n in sizes)] for name, own in results["best_of_n"].items()]
    lines += [*_table(["", *(f"N={n}" for n in sizes)], rows), ""]
    lines += [
        f"Percent of {results['problems']} problems [95 % interval over problems, {settings['resamples']} resamples], "
        "each averaged over subsets of the pool of candidates. Best-of-N and pass@N are exact; votes (maj, and vote: "
        f"weighted by the score) are exact up to {settings['subsets']} subsets per problem and otherwise a mean over "
        "that many random ones (largest Monte-Carlo standard error "
        f"{100 * results['largest_monte_carlo_error']:.2f} points).",
        "",
        *pairs_lines(results["pairwise_accuracy"]),
    ]
    if results["overlong"]:
        lines += ["", f"{results['overlong']} responses were longer than --max-length; they are chosen last."]
    return "\n".join(lines) + "\n"


def pairs_lines(pairs: dict[str, Any]) -> list[str]:
    """The section about pairwise accuracy."""
    rows = [
        [name, percent(own["value"], own) if own else "-", str(own["pairs"]) if own else "0"]
        for name, own in pairs.items()
    ]
    return ["## Pairwise accuracy", "", *_table(["score", "ordered correctly [95 %]", "pairs"], rows), ""]


def pairs_report(results: dict[str, Any]) -> str:
    """Pairwise accuracy alone."""
    return "\n".join([*_header(results, "Pairwise accuracy"), *pairs_lines(results["pairwise_accuracy"])]) + "\n"
