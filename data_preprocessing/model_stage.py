# SPDX-License-Identifier: Apache-2.0
"""What the commands of all model stages have in common: options, the store of answers, and how they end."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_preprocessing.answer_store import AnswerStore
from data_preprocessing.command import finish
from data_preprocessing.dialogues import Dialogue, Interviewer, Unanswered
from data_preprocessing.rl_input import Row
from data_preprocessing.row_stage import Outcome, Plan, RowStage, Work, run_stage
from data_preprocessing.stage import Removal
from prime_ext.generate.backend import Backend, Sampling
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.utils.rows import SourceError

RowDialogue = Callable[[Row], Dialogue[Outcome]]
MODEL_RULES = {
    "refused": "the model cannot be asked: the prompt is too long for its context, or it takes no chat",
    "unanswered": "the model gave no answer; only with --on-failure remove",
}


def stage_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every stage over files of rows."""
    top = argparse.ArgumentParser(
        prog=f"python -m data_preprocessing.{program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--input", nargs="+", type=Path, required=True, metavar="FILE", help="rows: parquet or JSON Lines")
    top.add_argument("--output-dir", type=Path, required=True, help="gets a parquet file for each input, and reports")
    top.add_argument("--strict", action="store_true", help="stop at the first bad row")
    return top


def add_model_arguments(top: argparse.ArgumentParser, sampling: Sampling) -> None:
    """The options of every stage that asks a model; ``sampling`` has the defaults."""
    add_backend_arguments(top)
    how = top.add_argument_group("answers")
    how.add_argument("--answers", type=Path, help="file of finished answers (default: answers.sqlite in --output-dir)")
    how.add_argument(
        "--on-failure",
        choices=("stop", "remove"),
        default="stop",
        help="questions without an answer after all retries: stop, and the same command asks again (default); or "
        "remove these rows",
    )
    how.add_argument("--temperature", type=float, default=sampling.temperature, help="default: %(default)s")
    how.add_argument("--top-p", type=float, default=sampling.top_p, help="default: %(default)s")
    how.add_argument("--max-new-tokens", type=int, default=sampling.max_new_tokens, help="default: %(default)s")
    how.add_argument("--sampling-seed", type=int, default=0, help="base of the seeds of all answers (default: 0)")
    how.add_argument("--chunk-rows", type=int, default=500, help="rows asked about at a time (default: 500)")


def positive(options: argparse.Namespace, *names: str) -> None:
    """Numbers that must be at least 1.

    Raises:
        SourceError: one is not.
    """
    for name in names:
        if getattr(options, name) < 1:
            raise SourceError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")


def sampling_of(options: argparse.Namespace) -> Sampling:
    """How answers are made.

    Raises:
        SourceError: an option is out of its range.
    """
    if options.temperature < 0 or not 0 < options.top_p <= 1:
        raise SourceError(
            f"--temperature must be at least 0 and --top-p above 0 and at most 1, got {options.temperature} and "
            f"{options.top_p}"
        )
    positive(options, "max_new_tokens")
    return Sampling(temperature=options.temperature, top_p=options.top_p, max_new_tokens=options.max_new_tokens)


def interviewed(dialogue: RowDialogue, interviewer: Interviewer, on_failure: str) -> Work:
    """The work of a stage that carries on a dialogue about every row of a chunk.

    The function raises :class:`SourceError` where questions got no answer and ``on_failure`` is ``stop``.
    """

    def work(rows: Sequence[Row]) -> list[Outcome]:
        results = interviewer.results([dialogue(row) for row in rows])
        failed = [result for result in results if isinstance(result, Unanswered) and not result.refused]
        if failed and on_failure == "stop":
            raise SourceError(
                f"{len(failed)} of {len(rows)} rows got no answer ({failed[0].detail}); finished answers are kept, the "
                "same command asks for the rest; --on-failure remove goes on without these rows"
            )
        return [_outcome(result) for result in results]

    return work


def _outcome(result: Outcome | Unanswered) -> Outcome:
    if isinstance(result, Unanswered):
        return Removal("refused" if result.refused else "unanswered", result.detail)
    return result


def run_model_stage(
    options: argparse.Namespace,
    stage: RowStage,
    dialogue: Callable[[str], RowDialogue],
    *,
    settings: Mapping[str, Any],
    first: Path | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Open the model and the store and run a stage. Returns the report and the parquet files.

    Args:
        options: of :func:`stage_parser` and :func:`add_model_arguments`.
        stage: with its own rules only.
        dialogue: from the name of the model, what is said about a row.
        settings: for the report.
        first: see :class:`Plan`.

    Raises:
        SourceError: see its message.
        BackendError: the model cannot be opened.
    """
    sampling = sampling_of(options)
    described = {
        **settings,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_new_tokens,
        "seed": options.sampling_seed,
    }
    # Mistakes in the files before a model is loaded.
    plan = Plan(options.input, options.output_dir, options.chunk_rows, options.strict, described, first)
    plan.outputs()
    for path in plan.inputs:
        stage.read_schema(path)
    with AnswerStore(options.answers or options.output_dir / "answers.sqlite") as store:
        backend: Backend = backend_from_arguments(options)
        try:
            description = backend.description()
            plan.settings = {"model": description, **described}
            interviewer = Interviewer(backend, store, sampling, options.sampling_seed)
            work = interviewed(dialogue(str(description["model"])), interviewer, options.on_failure)
            report, paths = run_stage(replace(stage, rules={**stage.rules, **MODEL_RULES}), work, plan)
        finally:
            backend.close()
    print(f"{interviewer.asked} answers asked for, {interviewer.found} found in {store.path}", file=sys.stderr)
    return report, paths


def finished(program: str, run: Callable[[], tuple[dict[str, Any], list[Path]]]) -> int:
    """Run the command of a stage: its exit code, 1 if no row is left."""

    def judged(report: Mapping[str, Any], _: list[Path]) -> int:
        if any(report["outputs"].values()):
            return 0
        print(f"{program}: nothing is left; report.md says why", file=sys.stderr)
        return 1

    return finish(program, run, judged)
