# SPDX-License-Identifier: Apache-2.0
"""The command line of ``eval.run``."""

import argparse
from collections.abc import Callable
from pathlib import Path

from eval.run_plan import ALL, GROUPS, Changes


def _number(kind: Callable[[str], float], low: float, high: float, what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be {what}")
        return value

    return read


_COUNT = _number(int, 1, 10**9, "a whole number from 1")
_WHOLE = _number(int, 0, 10**9, "a whole number from 0")


def _counts(text: str) -> list[float]:
    return [_COUNT(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} must be names with commas between them")
    return list(dict.fromkeys(names))


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """All options but those of the backends."""
    group = parser.add_argument_group("what is measured")
    groups = ", ".join([*GROUPS, ALL])
    group.add_argument("--tasks", type=_names, metavar="A,B", help=f"names, files that end in .yaml, or {groups}")
    group.add_argument("--list", action="store_true", help="list all tasks and end")
    group.add_argument("--data", type=Path, help="folder with local files; default: the Hugging Face hub")
    group.add_argument("--split", help="of the data; default: the one that is evaluated")
    group.add_argument("--limit", type=_COUNT, help="only the first problems of each task")
    group.add_argument("--skip-missing", action="store_true", help="leave out tasks without data, and say so")
    group.add_argument("--output", type=Path, help="folder; an interrupted run goes on there")
    group.add_argument("--seed", type=_WHOLE, default=0, help="of sampling (default: 0)")
    group.add_argument("--k", type=_counts, metavar="K,K", help="of pass@k and maj@k; default: those of the task")

    group = parser.add_argument_group("what the model is shown")
    group.add_argument("--prompt", default="default", help="name of a prompt in the task files (default: default)")
    group.add_argument(
        "--system-prompt",
        default="default",
        metavar="WHICH",
        help="default: the task's own; none; actions: that of the RL data; or a text file",
    )
    group.add_argument("--few-shot", type=Path, metavar="FILE", help="worked examples; see eval/prompting.py")
    group.add_argument("--raw", action="store_true", help="plain text for base models, no chat template")
    group.add_argument(
        "--show-prompt",
        type=_COUNT,
        nargs="?",
        const=1,
        metavar="N",
        help="print what the model sees for the first N problems of each task (default: 1), and end",
    )

    group = parser.add_argument_group("how responses are made")
    group.add_argument("--decoding", help="name in the task files, or greedy; default: the first of each task")
    group.add_argument("--n", type=_COUNT, help="responses per problem")
    group.add_argument("--temperature", type=_number(float, 0, 100, "from 0 to 100"), help="0 is greedy")
    group.add_argument("--top-p", type=_number(float, 1e-6, 1, "above 0 and at most 1"))
    group.add_argument("--top-k", type=_WHOLE, help="0 for all tokens")
    group.add_argument("--num-beams", type=_COUNT)
    group.add_argument("--min-new-tokens", type=_WHOLE)
    group.add_argument("--max-new-tokens", type=_COUNT)
    group.add_argument(
        "--prompts-at-a-time", type=_WHOLE, help="of decodings that name a batch size; 0 leaves it to the backend"
    )
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="a response ends there; repeatable")


def changes_of(options: argparse.Namespace) -> Changes:
    """What the options change of the decodings."""
    return Changes(
        n=options.n,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        num_beams=options.num_beams,
        min_new_tokens=options.min_new_tokens,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.prompts_at_a_time,
    )
