# SPDX-License-Identifier: Apache-2.0
r"""Evaluate a process reward model (PRM).

    prime-ext eval-prm processbench --model PRM --data FOLDER --output results/processbench
    prime-ext eval-prm prmbench --model PRM --data FILE --output results/prmbench
    prime-ext eval-prm best-of-n --model PRM --input candidates.jsonl --output results/bon

PRMs are implicit (a causal language model and its reference; `--reference none` scores without),
token classifiers (`--scorer classifier`, as TRL's PRM trainer makes them) or step reward models of
`prime_ext.step_rm.train`, which are recognized by their prime_ext_step_rm.json. For implicit models
that prime_ext has exported, online and offline ones, reference, coefficient and format of the steps
come from prime_ext_prm.json next to the weights. `--scorer labels --model FOLDER` compares the
labels that data_preprocessing.step_labels wrote of ProcessBench's files, such as those of a judge.

processbench reads gsm8k.json, math.json, olympiadbench.json and omnimath.json (or .jsonl, .parquet)
from a folder, or from the hub with `--data Qwen/ProcessBench`; prmbench its .jsonl or parquet file,
or the hub. best-of-n reads JSON Lines (or parquet) with prompt (or problem), completions (or
responses; texts, or lists of steps), and correctness (0 or 1 for each) or gold; answers, what a
candidate votes for, are found in the texts if they are not given. Without correctness and gold it
chooses only.

The output folder gets results.json (all settings and versions), items.jsonl, report.md and
scores.jsonl. The same command goes on where it was interrupted; no response is scored twice.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prime_ext.config.checks import unescape
from prime_ext.generate.local_model import catch_loading_errors
from prime_ext.generate.prm_description import read_description, versions
from prime_ext.step_rm.description import FILE as STEP_RM_FILE
from prime_ext.step_rm.scorers.local import StepClassifier, device_and_dtype
from prime_ext.step_rm.scorers.response_reader import ResponseReader
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier
from prime_ext.utils.arguments import (
    COUNT,
    COUNT_FROM_2,
    POSITIVE,
    add_output_argument,
    add_seed_argument,
    build_parser,
)
from prime_ext.utils.files import write_json_lines, write_text
from prime_ext.utils.hub import use_cache_without_hub
from prime_ext.utils.run_store import Row, RunError, command, run_folder
from prime_ext.utils.text_tokens import STEP_PREFIX, STEP_SEPARATOR, TextEncoder
from prime_ext.verifiers.math import STYLES

from .prm_data import (
    LABELS,
    PRMBENCH,
    PROCESSBENCH,
    SPLITS,
    read_first_errors,
    read_prmbench,
    read_problems,
    read_processbench,
)
from .prm_results import (
    format_prm_report,
    measure_candidates,
    measure_prmbench,
    measure_processbench,
)
from .prm_scorers import (
    LAYOUTS,
    OVERLONG,
    SCORE_KINDS,
    ClassifierScorer,
    ImplicitScorer,
    LogProbModel,
    StepRMScorer,
    read_model_identity,
    score_all,
    score_by_labels,
)

SCORERS = ("implicit", "classifier", "step_rm", LABELS)
# Released implicit PRMs (ImplicitPRM, EurusPRM) are scored with it, whatever their training's.
DEFAULT_COEFFICIENT = 0.001


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    top = build_parser("eval-prm", __doc__)
    tasks = top.add_subparsers(dest="task", required=True)
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--model", required=True, help="the PRM: a folder or a name on the hub")
    add_output_argument(common, "of the results")
    add(
        "--scorer",
        choices=SCORERS,
        help="default: step_rm for a step reward model of prime_ext, else implicit",
    )
    add(
        "--reference",
        help="reference of an implicit PRM, or none; default: what it was trained with",
    )
    coefficient = f"scale of log-ratios; default: beta of the training, or {DEFAULT_COEFFICIENT}"
    add("--coefficient", type=POSITIVE, help=coefficient)
    add(
        "--step-score",
        default="prefix",
        choices=SCORE_KINDS,
        help="of implicit PRMs, for the two benchmarks",
    )
    add(
        "--step-prefix",
        type=unescape,
        help=f"before each step that is joined; default: of the training, or {STEP_PREFIX!r}",
    )
    between = f"between steps; default: of the training, or {STEP_SEPARATOR!r}"
    add("--step-separator", type=unescape, help=between)
    add(
        "--layout",
        default="plain",
        choices=LAYOUTS,
        help="prompt of a classifier as it is or as a chat",
    )
    add(
        "--separator",
        type=unescape,
        default="\n",
        help=r"text after each step of a classifier (default: a line break, as TRL)",
    )
    add("--positive-label", type=int, default=1, help="class of a classifier that means right")
    add(
        "--answer-tokens",
        nargs=2,
        metavar=("RIGHT", "WRONG"),
        help="of a causal model as the classifier: + and -",
    )
    add("--max-length", type=COUNT_FROM_2, help="tokens; default: what the model's positions allow")
    add("--batch-tokens", type=COUNT, default=8192, help="padded tokens in a batch")
    add("--device", help="default: cuda if there is one")
    add("--dtype", help="default: float32 on the CPU, bfloat16 elsewhere")
    add("--trust-remote-code", action="store_true")
    add("--resamples", type=COUNT_FROM_2, default=1000, help="of problems, for intervals")
    add_seed_argument(common, "random samples and resamples")

    add = tasks.add_parser(
        "processbench", parents=[common], help="F1 of finding the first wrong step"
    ).add_argument
    add("--data", default=PROCESSBENCH, help="folder, or the data set on the hub")
    add("--splits", default=",".join(SPLITS), help="comma-separated")
    add("--threshold-split", default="gsm8k", help="where the threshold is chosen")
    add("--limit", type=COUNT, help="only this many random responses of each split, to try it out")

    add = tasks.add_parser(
        "prmbench", parents=[common], help="PRMScore of judging each step"
    ).add_argument
    add("--data", default=PRMBENCH, help="file, folder of files, or the data set on the hub")
    add(
        "--threshold",
        type=float,
        help="steps with a higher score are right; default: 0.5, for implicit PRMs 0",
    )
    add("--limit", type=COUNT, help="only this many random responses, to try it out")

    add = tasks.add_parser(
        "best-of-n", parents=[common], help="choosing among candidates"
    ).add_argument
    add("--input", required=True, type=Path, help="problems with candidates")
    add(
        "--steps-end",
        default=r"\n\s*\n",
        help="regular expression of what separates steps of a text",
    )
    add("--extraction", default="boxed", choices=sorted(STYLES), help="how answers are found")
    add("--limit", type=COUNT, help="only this many random problems")
    return top


def load_scorer(
    arguments: argparse.Namespace, description: Row
) -> ImplicitScorer | ClassifierScorer | StepRMScorer:
    """Load the PRM on its device. Raises ``RunError``."""
    from transformers import AutoConfig, AutoTokenizer

    remote = arguments.trust_remote_code
    if arguments.scorer == "step_rm":
        options = {"device": arguments.device, "dtype": arguments.dtype}
        with catch_loading_errors(arguments.model):
            model = StepClassifier(arguments.model, trust_remote_code=remote, **options)
        return StepRMScorer(model, arguments.batch_tokens)
    if arguments.scorer == "classifier":
        reading = (arguments.layout, arguments.separator, arguments.answer_tokens)
        options = (remote, arguments.positive_label, arguments.max_length)
        with catch_loading_errors(arguments.model):
            reader = ResponseReader(arguments.model, *reading, *options)
            return ClassifierScorer(TokenClassifier(reader, arguments.device, arguments.dtype))
    device, dtype = device_and_dtype(arguments.device, arguments.dtype)
    use_cache_without_hub(arguments.model)
    with catch_loading_errors(arguments.model):
        config = AutoConfig.from_pretrained(arguments.model, trust_remote_code=remote)
        tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=remote)
    longest = arguments.max_length or getattr(config, "max_position_embeddings", None) or 8192
    encoder = TextEncoder(tokenizer, append_eos=description.get("append_eos", True))
    models = {}
    for name in ("model", "reference"):
        if (path := getattr(arguments, name)) is not None:
            with catch_loading_errors(path):
                models[name] = LogProbModel(path, device, dtype, trust_remote_code=remote)
            if not models[name].chunked:
                print(
                    f"{name}: its logits are not plain products with the output embedding; they are"
                    " computed in full"
                )
    return ImplicitScorer(models["model"], models.get("reference"), encoder, longest)


def complete(arguments: argparse.Namespace) -> Row:
    """Fill in missing arguments from the PRM's description; return that. Raises ``RunError``."""
    try:
        re.compile(getattr(arguments, "steps_end", ""))
    except re.error as error:
        raise RunError(
            f"--steps-end {arguments.steps_end!r} is not a regular expression: {error}"
        ) from error
    is_step_rm = (Path(arguments.model) / STEP_RM_FILE).is_file()
    if arguments.scorer is None:
        arguments.scorer = "step_rm" if is_step_rm else "implicit"
    if is_step_rm != (arguments.scorer == "step_rm"):
        what = "is" if is_step_rm else "is not"
        raise RunError(
            f"{arguments.model} {what} a step reward model of prime_ext, so --scorer"
            f" {arguments.scorer} cannot read it"
        )
    if arguments.scorer == LABELS and arguments.task != "processbench":
        raise RunError(f"--scorer {LABELS} is for processbench, not {arguments.task}")
    if is_step_rm and arguments.max_length is not None:
        raise RunError("--max-length has no effect on a step reward model, which has its own")
    if getattr(arguments, "threshold", 0.0) is None:
        arguments.threshold = 0.0 if arguments.scorer == "implicit" else 0.5
    description = read_description(arguments.model)
    for name, default in (("step_prefix", STEP_PREFIX), ("step_separator", STEP_SEPARATOR)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, description.get(name, default))
    if arguments.scorer != "implicit":
        arguments.reference = arguments.coefficient = None
        return description
    if arguments.reference is None:
        if "reference" not in description:
            advice = "give --reference MODEL, or --reference none"
            raise RunError(f"{arguments.model} does not say what its reference is; {advice}")
        arguments.reference = description["reference"]
    if arguments.reference == "none":
        arguments.reference = None
    if arguments.coefficient is None:
        arguments.coefficient = description.get("beta", DEFAULT_COEFFICIENT)
        if "beta" not in description:
            print(
                f"{arguments.model} says nothing of its beta: --coefficient is"
                f" {DEFAULT_COEFFICIENT}"
            )
    return description


def _sample(rows: list[Any], limit: int | None, seed: int) -> list[Any]:
    """Draw ``limit`` random rows, in their order; without a limit return all."""
    if limit is None or limit >= len(rows):
        return rows
    # Files are often sorted by what is measured.
    return [rows[number] for number in sorted(random.Random(seed).sample(range(len(rows)), limit))]


def _read(arguments: argparse.Namespace) -> list[Any]:
    """Read the items of a benchmark, or the problems with candidates."""
    joined = (arguments.step_prefix, arguments.step_separator)
    if arguments.task == "prmbench":
        return _sample(read_prmbench(arguments.data, *joined), arguments.limit, arguments.seed)
    if arguments.task == "best-of-n":
        source = (arguments.input, arguments.steps_end, *joined, arguments.extraction)
        return _sample(read_problems(*source), arguments.limit, arguments.seed)
    splits = arguments.splits.split(",")
    if arguments.threshold_split not in splits:
        raise RunError(
            f"--threshold-split {arguments.threshold_split} is not among --splits"
            f" {arguments.splits}"
        )
    rows = [read_processbench(arguments.data, split, *joined) for split in splits]
    return [item for items in rows for item in _sample(items, arguments.limit, arguments.seed)]


def run(arguments: argparse.Namespace) -> None:
    """Evaluate and write everything. Raises ``RunError``."""
    description = complete(arguments)
    bench = arguments.task != "best-of-n"
    classifier = arguments.scorer == "classifier"
    items = _read(arguments)
    if bench:
        responses = [item.response for item in items]
    else:
        responses = [response for problem in items for response in problem.responses]
    if not bench and all(len(response.steps) == 1 for response in responses):
        print(f"--steps-end {arguments.steps_end!r} matches nowhere: each response is one step")
    labeled = arguments.scorer == LABELS
    if labeled:
        raw = score_by_labels(read_first_errors(arguments.model, items), responses)
    else:
        scorer = load_scorer(arguments, description)
        tokens = [scorer.tokens(response) for response in responses]
    settings = {
        "model": read_model_identity(arguments.model),
        "scorer": arguments.scorer,
        "reference": read_model_identity(arguments.reference),
        "separator": arguments.separator if classifier else None,
        "positive_label": arguments.positive_label if classifier else None,
        "dtype": arguments.dtype,
    }
    folder = arguments.output
    with run_folder(folder, settings, "scores.settings.json"):
        if not labeled:
            raw = score_all(scorer, tokens, folder / "scores.jsonl", arguments.batch_tokens)
        if bench:
            is_processbench = arguments.task == "processbench"
            measure = measure_processbench if is_processbench else measure_prmbench
            results, lines = measure(arguments, items, raw)
        else:
            results, lines = measure_candidates(arguments, items, raw, description)
        options = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(arguments).items()
        }
        results |= {
            "settings": options,
            "versions": versions(),
            "overlong": sum(OVERLONG in result for result in raw),
        }
        write_text(folder / "results.json", json.dumps(results, indent=2) + "\n")
        write_json_lines(folder / "items.jsonl", lines)
        write_text(folder / "report.md", format_prm_report(results))
    print(format_prm_report(results, short=True))
    print(f"written to {folder}: results.json, items.jsonl, report.md, scores.jsonl")


@command("error")
def main(words: Sequence[str] | None = None) -> int:
    run(parser().parse_args(words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
