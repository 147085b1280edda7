# SPDX-License-Identifier: Apache-2.0
"""What the commands that ask a language model have in common: their options, and a dialogue about every row."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_preprocessing.answer_store import AnswerStore
from data_preprocessing.command import Made, positive
from data_preprocessing.dialogues import Dialogue, Interviewer, Unanswered
from data_preprocessing.rl_input import Row
from data_preprocessing.row_stage import Outcome, Plan, RowStage, run_stage
from data_preprocessing.stage import Removal
from prime_ext.generate.backend import Backend, Sampling
from prime_ext.generate.open import add_backend_arguments, backend_from_arguments
from prime_ext.utils.rows import SourceError

RowDialogue = Callable[[Row], Dialogue[Outcome]]
MODEL_RULES = {
    "refused": "the model cannot be asked: the prompt is too long for its context, or it takes no chat",
    "unanswered": "the model gave no answer; only with --on-failure remove",
}


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


def sampling_of(options: argparse.Namespace) -> Sampling:
    """How answers are made.

    Raises:
        SourceError: an option is out of its range.
    """
    if options.temperature < 0 or not 0 < options.top_p <= 1:
        got = f"{options.temperature} and {options.top_p}"
        raise SourceError(f"--temperature must be at least 0 and --top-p above 0 and at most 1, got {got}")
    positive(options, "max_new_tokens", "chunk_rows")
    return Sampling(temperature=options.temperature, top_p=options.top_p, max_new_tokens=options.max_new_tokens)


def run_model_stage(
    options: argparse.Namespace,
    stage: RowStage,
    dialogue: Callable[[str], RowDialogue],
    *,
    settings: Mapping[str, Any],
    first: Path | None = None,
) -> Made:
    """Open the model and the store and run a stage. Returns the report and the parquet files.

    ``stage`` has its own rules only, ``dialogue`` makes of the model's name what is said about a row, ``settings`` are
    for the report; ``first``: see :class:`~data_preprocessing.row_stage.Plan`.
    """
    sampling = sampling_of(options)
    described = {name: getattr(sampling, name) for name in ("temperature", "top_p", "max_new_tokens")}
    described = {**settings, **described, "seed": options.sampling_seed}
    # Mistakes in the files before a model is loaded.
    plan = Plan(options.input, options.output_dir, options.chunk_rows, options.strict, first=first)
    plan.outputs()
    for path in plan.inputs:
        stage.read_schema(path)
    with AnswerStore(options.answers or options.output_dir / "answers.sqlite") as store:
        backend: Backend = backend_from_arguments(options)
        try:
            description = backend.description()
            asked = dialogue(str(description["model"]))
            interviewer = Interviewer(backend, store, sampling, options.sampling_seed)

            def work(rows: Sequence[Row]) -> list[Outcome]:
                return _outcomes(interviewer.results([asked(row) for row in rows]), options.on_failure)

            plan = replace(plan, settings={"model": description, **described})
            made = run_stage(replace(stage, rules={**stage.rules, **MODEL_RULES}), work, plan)
        finally:
            backend.close()
    print(f"{interviewer.asked} answers asked for, {interviewer.found} found in {store.path}", file=sys.stderr)
    return made


def _outcomes(results: Sequence[Outcome | Unanswered], on_failure: str) -> list[Outcome]:
    """What becomes of the rows.

    Raises:
        SourceError: questions got no answer and ``on_failure`` is ``stop``.
    """
    failed = [result for result in results if isinstance(result, Unanswered) and not result.refused]
    if failed and on_failure == "stop":
        raise SourceError(
            f"{len(failed)} of {len(results)} rows got no answer ({failed[0].detail}); finished answers are kept, the "
            "same command asks for the rest; --on-failure remove goes on without these rows"
        )
    return [
        Removal("refused" if found.refused else "unanswered", found.detail) if isinstance(found, Unanswered) else found
        for found in results
    ]
