# SPDX-License-Identifier: Apache-2.0
"""Labels of the steps of responses: by continuing them, or by a judge.

    prime-ext data step-labels --input responses.jsonl --output-dir data/labels \\
        --samples 8 BACKEND
    prime-ext data step-labels --input responses.jsonl --output-dir data/labels \\
        --judge http://127.0.0.1:8000/v1 --model NAME

Rows have prompt (or problem, question: a text or a chat), response (or answer; or steps or
completions, a list of texts), and, for continuations, gold and data_source as in eval-grade.

By default each prefix of a response is continued --samples times, and a step's rate is the share of
the continuations whose final answer is graded correct. The labels are Math-Shepherd's (arXiv
2312.08935): hard ones are 1 where the rate is above --right-above (0: a single success), soft ones
are the rate. The last step is labeled by the response's answer, without continuations. The first
error is the step after the last one with a rate above it. --search bisection continues
only the prefixes that find it in a wrong response, as OmegaPRM does (arXiv 2406.06592).

With --judge a model reads the steps instead. A step's rate is then its mean score or, with
--judgement first-error, the share of the judgements that see no error up to it.

Each NAME.jsonl becomes NAME.parquet: what offline_prm reads (prompt, completions, labels),
step_rm.convert --stepwise converts, and eval-prm processbench compares (label: the first error,
from 0, or -1). Equal prefixes share their continuations.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prime_ext.config.checks import read
from prime_ext.config.step_rule import StepSettings
from prime_ext.config.step_scorer_settings import Judgement
from prime_ext.generate.backend import Sampling
from prime_ext.step_rm.judgement import JUDGEMENTS, build_question, read_judgement
from prime_ext.step_rm.splitting import SPLITTERS, split_steps
from prime_ext.tasks.cells import read_cell
from prime_ext.tasks.rl_rows import rl_row
from prime_ext.tasks.value_types import is_whole
from prime_ext.utils.arguments import COUNT, SHARE
from prime_ext.utils.fields import get_field, get_prompt, get_text, get_texts
from prime_ext.utils.rows import BadRow
from prime_ext.utils.run_store import RunError
from prime_ext.utils.text_tokens import STEP_SEPARATOR, join_steps, wrap_prompt

from .command import program
from .dialogues import Ask, Dialogue, Messages
from .model_stage import Outcome, Row, build_stage_parser, run_model_stage
from .problem_sources import parse_rows
from .sft_data import find_task
from .stages import Removal
from .step_rollouts import (
    Estimate,
    Labeling,
    bisect,
    build_prompt,
    build_schema,
    continue_all,
    estimate_rate,
    get_prefix,
    get_steps,
)

RULES = {
    "ungraded": "the verifier could grade no continuation of a step, or not the response",
    "unjudged": "no judgement had the right form within --tries",
}
SAMPLING = Sampling(temperature=0.7, max_new_tokens=1024)
# For the budget, before a tokenizer is there.
_CHARACTERS_PER_TOKEN = 4


# ---- responses ----


def read_response(
    raw_row: Mapping[str, Any],
    path: Path,
    number: int,
    *,
    rule: StepSettings,
    data_source: str,
    graded: bool,
    raw: bool,
) -> Row:
    """Return an RL row with ``id``, ``text``, and ``spans`` of its steps. Raises BadRow.

    ``data_source`` stands for the row's own; only ``graded`` rows need it, and a gold answer.
    """
    prompt = get_prompt(raw_row, "prompt", "problem", "question")
    if raw and not isinstance(prompt, str):
        raise BadRow("the prompt is a chat; --raw needs a text")
    messages = wrap_prompt(prompt)
    if messages[-1]["role"] == "assistant":
        raise BadRow("the prompt must not end with a message of the assistant")
    name = next((name for name in ("steps", "completions") if name in raw_row), None)
    if name is not None:
        text, ends = join_steps(get_texts(raw_row, name), "", STEP_SEPARATOR)
        starts = [0, *(end + len(STEP_SEPARATOR) for end in ends[:-1])]
        spans = list(zip(starts, [*starts[1:], len(text)], strict=True))
    else:
        text = get_text(raw_row, "response", "answer")
        try:
            spans = split_steps(text, rule.name, rule.pattern or rule.delimiters)
        except TimeoutError:
            raise BadRow("the pattern of the steps takes too long on the response") from None
    if not all(map(is_whole, (text, *(message["content"] for message in messages)))):
        raise BadRow("a text has half a character (a lone surrogate)")
    gold = read_cell(get_field(raw_row, "gold")[1], "gold") if graded else ""
    default = "" if graded else path.name.split(".")[0]
    source = data_source or str(raw_row.get("data_source") or default)
    extra = raw_row.get("extra_info")
    known = {**(extra if isinstance(extra, Mapping) else {}), "split": "train", "index": number}
    row = rl_row(source, messages, "", gold, known)
    if graded and not source:
        raise BadRow("no data_source; --data-source NAME gives one")
    if graded:
        find_task(row)
    identity = raw_row.get("id")
    name = f"{path.name.split('.')[0]}-{number}" if identity is None else str(identity)
    return {**row, "id": name, "text": text, "spans": spans, "raw": raw}


# ---- judgements ----


def build_judge_prompt(row: Row, judgement: Judgement) -> Messages:
    problem = "\n\n".join(message["content"] for message in row["prompt"])
    return [{"role": "user", "content": build_question(problem, get_steps(row), judgement)}]


def judge_steps(
    row: Row, model: str, labeling: Labeling, judgement: Judgement, tries: int
) -> Dialogue[Outcome]:
    """Ask a model for judgements until each has the right form; those without are missing."""
    n_steps = len(row["spans"])
    question = build_judge_prompt(row, judgement)
    judgements: dict[int, list[float]] = {}
    fault = ""
    for attempt in range(tries):
        missing = [sample for sample in range(labeling.samples) if sample not in judgements]
        if not missing:
            break
        answers = yield [Ask(question, sample, attempt) for sample in missing]
        for sample, answer in zip(missing, answers, strict=True):
            try:
                judgements[sample] = read_judgement(answer.text, judgement, n_steps)
            except ValueError as error:
                fault = f"{error}: {answer.text[-200:]}"
    if not judgements:
        return Removal("unjudged", fault)
    counts = {"missing": labeling.samples - len(judgements), "truncated": 0}
    n_judged = len(judgements)
    sums = [sum(scores) for scores in zip(*judgements.values(), strict=True)]
    if judgement == "scores":
        means = [Estimate(total / n_judged, n_judged) for total in sums]
        return labeling.label(row, means, of_prefixes=False, **counts)
    votes = [estimate_rate(round(total), n_judged) for total in sums]
    wrong = (step for step, vote in enumerate(votes) if vote.rate <= labeling.threshold)
    return labeling.label_prefixes(row, votes, next(wrong, -1), **counts)


# ---- the program ----


def describe_budget(rows: Sequence[Row], options: argparse.Namespace) -> str:
    """Return a line about the most calls and tokens of a run without finished answers.

    Raises ``RunError``: no response has two steps.
    """
    n_steps = [len(row["spans"]) for row in rows]
    if max(n_steps) == 1:
        raise RunError(
            f"each of the {len(rows):,} responses is a single step; choose another --splitter,"
            " --pattern or --delimiters"
        )
    # Hash and length of each text: together they may be large.
    texts: dict[int, int] = {}
    for row in rows:
        if options.judge:
            shown = [str(build_judge_prompt(row, options.judgement))]
        else:
            steps = range(len(row["spans"]) - 1)
            shown = [str(build_prompt(row, get_prefix(row, step))) for step in steps]
        texts |= {hash(text): len(text) for text in shown}
    calls = len(texts) * options.samples
    if options.search == "bisection":
        calls = min(calls, options.samples * sum((count - 1).bit_length() for count in n_steps))
    work = f"{len(texts):,} different {'responses to judge' if options.judge else 'prefixes'}"
    again = f", up to {options.tries} times if answers have a wrong form" if options.judge else ""
    read_tokens = calls * sum(texts.values()) // len(texts) // _CHARACTERS_PER_TOKEN
    return (
        f"{len(rows):,} responses, {sum(n_steps):,} steps, {work}: at most {calls:,} calls that"
        f" write {calls * options.max_new_tokens:,} tokens at most (--max-new-tokens) and read"
        f" about {read_tokens:,} ({_CHARACTERS_PER_TOKEN} characters a token){again}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of steps, labels and judges."""
    steps = parser.add_argument_group("steps").add_mutually_exclusive_group()
    steps.add_argument("--splitter", choices=sorted(SPLITTERS), help="default: auto")
    steps.add_argument("--pattern", help="regular expression: a match begins a step")
    steps.add_argument("--delimiters", nargs="+", help=r"texts that end a step, such as \n\n")
    labels = parser.add_argument_group("labels")
    about = "continuations of a prefix (default: 8), or judgements of a response (1)"
    labels.add_argument("--samples", type=COUNT, metavar="K", help=about)
    about = "which prefixes are continued (default: all)"
    labels.add_argument("--search", choices=("all", "bisection"), help=about)
    labels.add_argument("--labels", choices=("hard", "soft"), default="hard", help="default: hard")
    about = "the rate above which a step is right (default: 0, with a judge 0.5)"
    labels.add_argument("--right-above", type=SHARE, metavar="RATE", help=about)
    about = "verifier of rows without a data_source, such as math500; replaces theirs"
    labels.add_argument("--data-source", default="", metavar="NAME", help=about)
    about = "prompts are texts that the model continues, without a chat template"
    labels.add_argument("--raw", action="store_true", help=about)
    judge = parser.add_argument_group("judge")
    about = "OpenAI-compatible server whose --model judges steps (--backend server)"
    judge.add_argument("--judge", metavar="URL", help=about)
    about = "what a judge returns (default: first-error)"
    judge.add_argument("--judgement", choices=JUDGEMENTS, help=about)
    about = "answers per judgement until its form is right (default: 3)"
    judge.add_argument("--tries", type=COUNT, help=about)
    parser.add_argument("--check", action="store_true", help="print the budget and start nothing")


def complete(options: argparse.Namespace) -> None:
    """Fill in what a way of labeling leaves open. Raises ``RunError``: options do not fit."""
    ways = {"judgement": "first-error", "tries": 3} if options.judge else {"search": "all"}
    for name in {"judgement", "tries", "search"} - set(ways):
        if getattr(options, name) is not None:
            with_judge = "with" if options.judge else "without"
            raise RunError(f"--{name} has no effect {with_judge} --judge; leave it out")
    numbers = (
        {"samples": 1, "right_above": 0.5} if options.judge else {"samples": 8, "right_above": 0}
    )
    for name, value in {**ways, **numbers}.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.search == "bisection" and options.labels == "soft":
        raise RunError("--labels soft needs a rate of every step: leave out --search bisection")
    if options.judge:
        if options.backend not in (None, "server") or options.base_url or options.raw:
            raise RunError("--judge URL is a server: leave out --backend, --base-url and --raw")
        options.backend = "server"
        options.base_url = options.judge


@program("step_labels")
def main(words: Sequence[str] | None = None) -> int:
    parser = build_stage_parser("step_labels", __doc__, SAMPLING)
    add_arguments(parser)
    options = parser.parse_args(words)
    complete(options)
    rules = {
        "pattern": options.pattern,
        "delimiters": options.delimiters and tuple(options.delimiters),
    }
    named = {"splitter": options.splitter or "auto"}
    rule = read(StepSettings, {key: value for key, value in rules.items() if value} or named, "--")
    graded = not options.judge
    reading = {"rule": rule, "data_source": options.data_source, "graded": graded}
    parse = partial(read_response, **reading, raw=options.raw)
    read_rows = {path: list(parse_rows(path, parse)) for path in options.input}
    rows: list[Row] = []
    faults: list[str] = []
    for path, numbered in read_rows.items():
        for number, row in numbered:
            if isinstance(row, BadRow):
                faults.append(f"{path} row {number}: {row}")
            else:
                rows.append(row)
    if not rows:
        raise RunError(f"no response can be used: {(faults or ['the files have no rows'])[0]}")
    print(describe_budget(rows, options), file=sys.stderr)
    if options.check:
        return 0
    labeling = Labeling(options.samples, options.right_above, options.labels == "soft")
    names = ("samples", "right_above", "labels", "search", "judgement", "tries")
    settings = {name: getattr(options, name) for name in names}
    dialogue: Any = partial(continue_all, labeling=labeling)
    if options.judge:
        judging = {"judgement": options.judgement, "tries": options.tries}
        dialogue = partial(judge_steps, labeling=labeling, **judging)
    elif options.search == "bisection":
        dialogue = partial(bisect, labeling=labeling)
    code = run_model_stage(
        options,
        dialogue,
        title="step labels",
        rules=RULES,
        settings={**settings, "steps": rule.name},
        schema=lambda path: build_schema(options.raw),
        read=read_rows.__getitem__,
    )
    totals = labeling.totals
    what = "judgements" if options.judge else "continuations"
    print(
        f"{totals['missing']} {what} are missing (not graded, or not in the right form),"
        f" {totals['truncated']} were cut off at --max-new-tokens",
        file=sys.stderr,
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
