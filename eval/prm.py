# SPDX-License-Identifier: Apache-2.0
r"""Evaluate a process reward model (PRM).

    python -m eval.prm processbench --model PRM --data FOLDER --output results/processbench
    python -m eval.prm best-of-n --model PRM --input candidates.jsonl --output results/bon
    python -m eval.prm pairs --model PRM --input candidates.jsonl --output results/pairs

PRMs are implicit (a causal language model and its reference; `--reference none` scores without one) or token
classifiers (`--scorer classifier`, as TRL's PRM trainer makes them). For models of prime_ext.offline_prm the reference,
the coefficient and the format of the steps come from prime_ext_prm.json beside the weights.

processbench reads gsm8k.json, math.json, olympiadbench.json and omnimath.json (or .jsonl, .parquet) from a folder, or
from the hub with `--data Qwen/ProcessBench`. best-of-n and pairs read JSON Lines (or parquet) with prompt (or problem),
completions (or responses; texts, or lists of steps), and correctness (0 or 1 for each) or gold; answers, what a
candidate votes for, are found in the texts if they are not given.

The output folder gets results.json (all settings and versions), items.jsonl, report.md and scores.jsonl. The same
command goes on where it was interrupted; no response is scored twice. `--plot INDEX` also draws the step scores of the
response with that number (from 0; candidates are counted through).
"""

import argparse
import importlib.util
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.prm_best_of_n import AGGREGATIONS
from eval.prm_inputs import PROCESSBENCH, SPLITS, Response, read_problems, read_processbench
from eval.prm_scorers import (
    LAYOUTS,
    SCORE_KINDS,
    ClassifierScorer,
    ImplicitScorer,
    LogProbModel,
    Scorer,
    prm_description,
    step_scores,
)
from eval.prm_store import OVERLONG, ScoreStore, model_identity
from eval.prm_tasks import best_of_n_results, pairs_results, processbench_results
from prime_ext.offline_prm.data import BadData
from prime_ext.offline_prm.export import versions
from prime_ext.offline_prm.text import STEP_PREFIX, STEP_SEPARATOR, TextEncoder, TextError
from prime_ext.utils.files import write_json_lines, write_text
from prime_ext.verifiers.math import STYLES

# What released implicit PRMs (ImplicitPRM, EurusPRM) are scored with, whatever they were trained with.
DEFAULT_COEFFICIENT = 0.001


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = top.add_subparsers(dest="task", required=True)
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--model", required=True, help="the PRM: a folder or a name on the hub")
    add("--output", required=True, type=Path, help="folder of the results")
    add("--scorer", default="implicit", choices=("implicit", "classifier"))
    add("--reference", help="reference of an implicit PRM, or none; default: what it was trained with")
    add(
        "--coefficient",
        type=float,
        help=f"scale of log-ratios; default: beta of the training, or {DEFAULT_COEFFICIENT}",
    )
    add("--step-score", default="prefix", choices=SCORE_KINDS, help="of implicit PRMs, for processbench and the plot")
    add("--step-prefix", help=f"before each step that is joined; default: of the training, or {STEP_PREFIX!r}")
    add("--step-separator", help=f"between steps; default: of the training, or {STEP_SEPARATOR!r}")
    add("--layout", default="plain", choices=LAYOUTS, help="prompt of a classifier: as it is (TRL), or a chat")
    add("--separator", default="\n", help=r"text after each step of a classifier (default: a line break, as TRL)")
    add("--positive-label", type=int, default=1, help="class of a classifier that means right")
    add("--max-length", type=int, help="tokens; default: what the model's positions allow")
    add("--batch-tokens", type=int, default=8192, help="padded tokens in a batch")
    add("--chunk", type=int, default=256, help="tokens whose logits are held at once")
    add("--device", help="default: cuda if there is one")
    add("--dtype", help="default: float32 on the CPU, bfloat16 elsewhere")
    add("--trust-remote-code", action="store_true")
    add("--resamples", type=int, default=1000, help="of problems, for intervals")
    add("--seed", type=int, default=0)
    add("--plot", type=int, metavar="INDEX", help="draw the step scores of this response")

    bench = tasks.add_parser("processbench", parents=[common], help="F1 of finding the first wrong step")
    bench.add_argument("--data", default=PROCESSBENCH, help="folder, or the data set on the hub")
    bench.add_argument("--splits", default=",".join(SPLITS), help="comma-separated")
    bench.add_argument("--threshold-split", default="gsm8k", help="where the threshold is chosen")
    bench.add_argument("--limit", type=int, help="only so many random responses of each split, to try it out")

    for name, text in (("best-of-n", "choosing among candidates"), ("pairs", "ordering pairs of candidates")):
        candidates = tasks.add_parser(name, parents=[common], help=text)
        candidates.add_argument("--input", required=True, type=Path, help="problems with candidates")
        candidates.add_argument(
            "--steps-end", default=r"\n\s*\n", help="regular expression of what separates steps of a text"
        )
        candidates.add_argument("--extraction", default="boxed", choices=sorted(STYLES), help="how answers are found")
        candidates.add_argument("--limit", type=int, help="only so many random problems")
        if name == "best-of-n":
            candidates.add_argument("--n", help="comma-separated; default: powers of two up to the smallest pool")
            candidates.add_argument("--subsets", type=int, default=1000, help="per problem, N and vote")
            candidates.add_argument("--aggregations", default="min,sum,last,mean", help=", ".join(AGGREGATIONS))
    return top


def load_scorer(arguments: argparse.Namespace, description: dict[str, Any]) -> Scorer:
    """The PRM on its device.

    Raises:
        BadData: see its message.
    """
    import torch
    from transformers import AutoConfig, AutoTokenizer

    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = getattr(torch, arguments.dtype or ("float32" if device.type == "cpu" else "bfloat16"), None)
    if not isinstance(dtype, torch.dtype):
        raise BadData(f"--dtype {arguments.dtype} is no dtype of torch")
    remote = arguments.trust_remote_code
    config = AutoConfig.from_pretrained(arguments.model, trust_remote_code=remote)
    longest = arguments.max_length or getattr(config, "max_position_embeddings", None) or 8192
    if arguments.scorer == "classifier":
        return ClassifierScorer(
            arguments.model,
            device,
            dtype,
            arguments.layout,
            arguments.separator,
            arguments.positive_label,
            longest,
            remote,
        )
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=remote)
    encoder = TextEncoder(tokenizer, append_eos=description.get("append_eos", True))
    model = LogProbModel(arguments.model, device, dtype, arguments.chunk, remote)
    reference = None
    if arguments.reference is not None:
        reference = LogProbModel(arguments.reference, device, dtype, arguments.chunk, remote)
    for name, one in (("model", model), ("reference", reference)):
        if one is not None and not one.chunked:
            print(f"{name}: its logits are not plain products with the output embedding; they are computed in full")
    return ImplicitScorer(model, reference, encoder, longest)


def complete(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill in what was not given, from the training's description. Returns the description.

    Raises:
        BadData: an implicit PRM without any word about its reference, or options that cannot work.
    """
    for name in ("batch_tokens", "chunk", "resamples", "limit", "subsets", "max_length"):
        value = getattr(arguments, name, None)
        if value is not None and value < (2 if name in ("resamples", "subsets", "max_length") else 1):
            raise BadData(f"--{name.replace('_', '-')} {value} is too small")
    description = prm_description(arguments.model)
    if arguments.step_prefix is None:
        arguments.step_prefix = description.get("step_prefix", STEP_PREFIX)
    if arguments.step_separator is None:
        arguments.step_separator = description.get("step_separator", STEP_SEPARATOR)
    if arguments.scorer == "classifier":
        arguments.reference = arguments.coefficient = None
        return description
    if arguments.reference is None:
        if "reference" not in description:
            raise BadData(
                f"{arguments.model} does not say what its reference is; give --reference MODEL, or --reference none"
            )
        arguments.reference = description["reference"]
    if arguments.reference == "none":
        arguments.reference = None
    if arguments.coefficient is None:
        arguments.coefficient = description.get("beta", DEFAULT_COEFFICIENT)
    return description


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """All options, for results.json."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}


def scored(arguments: argparse.Namespace, responses: Sequence[Response]) -> list[dict[str, Any]]:
    """The scorer's results for all responses."""
    description = prm_description(arguments.model)
    scorer = load_scorer(arguments, description)
    store = ScoreStore(
        arguments.output,
        {
            "model": model_identity(arguments.model),
            "scorer": arguments.scorer,
            "reference": model_identity(arguments.reference),
            "separator": arguments.separator if arguments.scorer == "classifier" else None,
            "positive_label": arguments.positive_label if arguments.scorer == "classifier" else None,
            "dtype": arguments.dtype,
        },
    )
    rows = [scorer.tokens(response) for response in responses]
    return store.score(scorer, rows, arguments.batch_tokens)


def _sample(rows: list[Any], limit: int | None, seed: int) -> list[Any]:
    """Random rows in their order; all of them without a limit. Files are often sorted by what is to be measured."""
    if limit is None or limit >= len(rows):
        return rows
    return [rows[number] for number in sorted(random.Random(seed).sample(range(len(rows)), limit))]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Evaluate and write everything. Returns the results.

    Raises:
        BadData, TextError: see the message.
    """
    complete(arguments)
    if arguments.task == "processbench":
        splits = arguments.splits.split(",")
        if arguments.threshold_split not in splits:
            raise BadData(f"--threshold-split {arguments.threshold_split} is not among --splits {arguments.splits}")
        items = []
        for split in splits:
            rows = read_processbench(arguments.data, [split], arguments.step_prefix, arguments.step_separator)
            items += _sample(rows, arguments.limit, arguments.seed)
        responses = [item.response for item in items]
        labels: list[int | None] = [item.label for item in items]
    else:
        everything = read_problems(
            arguments.input,
            arguments.steps_end,
            arguments.step_prefix,
            arguments.step_separator,
            arguments.extraction,
            arguments.task == "best-of-n",
        )
        problems = _sample(everything, arguments.limit, arguments.seed)
        responses = [response for problem in problems for response in problem.responses]
        labels = [None] * len(responses)
    if arguments.plot is not None and not 0 <= arguments.plot < len(responses):
        raise BadData(f"--plot {arguments.plot} is none of {len(responses)} responses (from 0)")
    if arguments.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise BadData("--plot needs matplotlib: pip install matplotlib")
    raw = scored(arguments, responses)
    if arguments.task == "processbench":
        results, lines, report = processbench_results(arguments, items, raw)
    elif arguments.task == "best-of-n":
        results, lines, report = best_of_n_results(arguments, problems, raw)
    else:
        results, lines, report = pairs_results(arguments, problems, raw)
    results["settings"] = settings_of(arguments)
    results["versions"] = versions()
    results["overlong"] = sum(OVERLONG in result for result in raw)
    folder = arguments.output
    write_text(folder / "results.json", json.dumps(results, indent=2) + "\n")
    write_json_lines(folder / "items.jsonl", lines)
    text = report(results)
    write_text(folder / "report.md", text)
    if arguments.plot is not None:
        _plot(arguments, responses[arguments.plot], raw[arguments.plot], labels[arguments.plot], results)
    print(text)
    print(f"written to {folder}: results.json, items.jsonl, report.md, scores.jsonl")
    return results


def _plot(
    arguments: argparse.Namespace,
    response: Response,
    raw: dict[str, Any],
    label: int | None,
    results: dict[str, Any],
) -> None:
    from eval.prm_plot import plot_steps

    if OVERLONG in raw:
        raise BadData(f"--plot {arguments.plot}: that response is longer than --max-length and has no scores")
    threshold = results["protocol"]["threshold"] if arguments.task == "processbench" else None
    path = arguments.output / f"step_scores_{arguments.plot}.png"
    kind = "probability" if arguments.scorer == "classifier" else f"{arguments.step_score} score"
    scores = step_scores(raw, arguments.step_score, arguments.coefficient or 1.0, arguments.reference is not None)
    title = f"response {arguments.plot}" + ("" if label is None else f", first wrong step: {label}")
    plot_steps(path, scores, response.steps, title, kind, label, threshold)
    print(f"picture: {path}")


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    try:
        run(arguments)
    except (BadData, TextError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
