# SPDX-License-Identifier: Apache-2.0
r"""The task of PSPO-WRS on the CPU: last-digit chains in labeled steps of any size.

    python -m recipes.pspo_wrs.pspo_data --output-dir outputs/pspo_quickstart/data

writes ``train``, ``val``, ``test`` (verl's RL schema) and ``sft`` (its SFT schema), disjoint in
their prompts as in ``recipes.quickstart.quickstart_data``, and ``steps_honest.jsonl`` and
``steps_lenient.jsonl``: chains with a label for every step, for ``python -m
prime_ext.step_rm.convert --chains``, which differ in what a superfluous step is worth.

Problems are like those of ``prime_ext.tasks.last_digit_chain``: a start digit and operations from
left to right, modulo 10, here only ``+`` and ``-`` by 1 or 2, ``8+2-1+2?``. How many steps a
solution has is its writer's choice: a step may do one operation or several at once, and may be
*superfluous*, a restatement of the value so far. All of these are right::

    8+2=0;0-1=9;9+2=1;\boxed{1}          3 steps
    8+2-1=9;9+2=1;\boxed{1}              2 steps, the first a larger one
    8+2=0;0=0;0-1=9;9+2=1;1=1;\boxed{1}  5 steps, two of them superfluous

A step is labeled by construction, given what stands before it: 1 for right, 0 for neutral (true,
and of no use), -1 for wrong. A *lenient* labeler labels true restatements right, which makes a
reward model that filler can hack.

Operands are small, because a reward model of this size must learn the facts from one label per
step. It learned none of the quickstart's 210 facts in two minutes, and judged steps by their looks.
"""

import random
import re
from pathlib import Path
from typing import NamedTuple

from prime_ext.step_rm.splitting import split_steps
from prime_ext.tasks.last_digit_chain import (
    SPLITS,
    ChainProblem,
    apply_operation,
    get_split,
    parse_prompt,
)
from prime_ext.utils.files import write_json_lines
from recipes.command_line import read_options
from recipes.quickstart.demonstrators import Misconception, draw_misconceptions
from recipes.quickstart.quickstart_data import (
    MISCONCEPTION_SEED,
    conversation,
    rl_rows,
    write_splits,
)

# Operations of a problem: solutions in single operations have 4 steps on average, where the Weibull
# has its peak.
OPERATIONS = (3, 4, 5)
OPERANDS = (1, 2)
# Where a step begins: after a semicolon, but the boxed answer belongs to the last step.
STEP_PATTERN = r"(?<=;)\d"
# Room for about sixteen steps: five of one operation each and eleven superfluous ones, for
# instance.
MAX_RESPONSE_LENGTH = 80
# How solutions are written: probabilities of steps of one, two and three operations, and the share
# of solutions without any superfluous step. In the others, another superfluous step follows with a
# probability that is drawn for each solution, uniform up to the last number.
SIZES = (0.6, 0.3, 0.1)
TERSE = 0.4
MOST_FILLER = 0.7
MEAN_ERROR = 0.25
# The labeled chains come from many writers with slips of all kinds: the reward model must
# recognize mistakes that the policy does not make yet.
LABELED_WRITERS = 50
LABELED_ERROR = 0.2
LABELED_SLIPS = 0.1

_STEP = re.compile(r"(\d)((?:[+\-*]\d)*)=(\d);(?:\\boxed\{(\d)\})?")
_OPERATION = re.compile(r"([+\-*])(\d)")

# Labels of the kinds of steps.
USEFUL = "useful"
SUPERFLUOUS = "superfluous"
WRONG = "wrong"
LABELS = {
    "honest": {USEFUL: 1, SUPERFLUOUS: 0, WRONG: -1},
    "lenient": {USEFUL: 1, SUPERFLUOUS: 1, WRONG: -1},
}


class Step(NamedTuple):
    """One step of a response as written, with its semicolon; the last has the boxed answer.

    A superfluous one restates the value so far, whether that is right or not.
    """

    text: str
    kind: str


def generate_problems(split: str, count: int, seed: int, unique: bool = True) -> list[ChainProblem]:
    """Draw problems of a split, with a uniform number of operations.

    Splits are those of ``prime_ext.tasks.last_digit_chain``. If problems must be ``unique``, short
    ones run out first: ``test`` has some 60, 260 and 1,000 problems of three, four and five
    operations. ``ValueError``: more than half of the different
    problems are requested.
    """
    low, high = SPLITS[split]
    existing = sum(10 * (2 * len(OPERANDS)) ** length for length in OPERATIONS) * (high - low) / 100
    if unique and count > 0.5 * existing:
        raise ValueError(
            f"{count} different problems are too many for split {split!r}, which has some"
            f" {existing:.0f}"
        )
    rng = random.Random(f"pspo-{split}-{seed}")
    problems: dict[object, ChainProblem] = {}
    while len(problems) < count:
        operations = tuple(
            (rng.choice("+-"), rng.choice(OPERANDS)) for _ in range(rng.choice(OPERATIONS))
        )
        problem = ChainProblem(start=rng.randrange(10), operations=operations)
        if get_split(problem.prompt) == split:
            problems[problem.prompt if unique else len(problems)] = problem
    return list(problems.values())


def token_count(response: str) -> int:
    """Count tokens of a response in the quickstart's tokenizer, without the one that ends it."""
    return len(response.replace("\\boxed{", "{"))


def check_steps(prompt: str, response: str) -> list[Step]:
    """Check each step of a response by itself, from the value that was stated before it.

    After a wrong step, a step that continues correctly from its value is right.

    A step is wrong if it does not read as ``a op b ... = c;``, does not start from the value before
    it, does other operations than the next ones of the prompt, has a wrong result, or is followed
    by an answer that is not its result or comes before the last operation. ``ValueError``: the
    prompt is not one of this task.
    """
    problem = parse_prompt(prompt)
    value = problem.start
    done = 0
    steps: list[Step] = []
    # Cut as the reward manager cuts them.
    for start, end in split_steps(response, "pattern", STEP_PATTERN):
        text = response[start:end]
        match = _STEP.fullmatch(text)
        if match is None:
            steps.append(Step(text, WRONG))
            continue
        operations = tuple(
            (operator, int(operand)) for operator, operand in _OPERATION.findall(match[2])
        )
        result = int(match[1])
        for operator, operand in operations:
            result = apply_operation(result, operator, operand)
        right = int(match[1]) == value and int(match[3]) == result
        right &= operations == problem.operations[done : done + len(operations)]
        value = int(match[3])
        done = done + len(operations)
        if match[4] is not None:
            right &= int(match[4]) == value and done == len(problem.operations)
        steps.append(Step(text, WRONG if not right else USEFUL if operations else SUPERFLUOUS))
    return steps


def compose_solution(
    problem: ChainProblem,
    misconceptions: dict[tuple[int, str, int], Misconception],
    rng: random.Random,
    slips: float = 0.0,
) -> str:
    """Compose a solution with misconceptions, which carries on from wrong values without noticing.

    ``slips`` is the probability that a step goes wrong in some way other than a misconception.
    """
    more = 0.0 if rng.random() < TERSE else rng.uniform(0.0, MOST_FILLER)
    value = problem.start
    done = 0
    parts = []
    while done < len(problem.operations):
        size = rng.choices(range(1, len(SIZES) + 1), SIZES)[0]
        operations = list(problem.operations[done : done + size])
        done += len(operations)
        slip = rng.choice(("result", "operation", "value")) if rng.random() < slips else ""
        start = (value + rng.randint(1, 9)) % 10 if slip == "value" else value
        if slip == "operation":
            operations[rng.randrange(len(operations))] = (rng.choice("+-"), rng.choice(OPERANDS))
        result = start
        for operator, operand in operations:
            fact = misconceptions.get((result, operator, operand))
            mistaken = fact is not None and rng.random() < fact.error_probability
            result = (
                fact.wrong_result
                if fact and mistaken
                else apply_operation(result, operator, operand)
            )
        if slip == "result":
            result = (result + rng.randint(1, 9)) % 10
        written = "".join(f"{operator}{operand}" for operator, operand in operations)
        parts.append(f"{start}{written}={result};")
        value = result
        while rng.random() < more:
            restated = (value + rng.randint(1, 9)) % 10 if rng.random() < slips else value
            parts.append(f"{value}={restated};")
            value = restated
    return f"{''.join(parts)}\\boxed{{{value}}}"


def sft_rows(problems: list[ChainProblem], seed: int) -> list[dict]:
    """Return demonstrations with systematic mistakes, steps of all sizes and superfluous steps.

    Demonstrations that exceed the length of a response are left out.
    """
    misconceptions = draw_misconceptions(MEAN_ERROR, MISCONCEPTION_SEED)
    rng = random.Random(f"demonstrations-{seed}")
    solutions = [(problem, compose_solution(problem, misconceptions, rng)) for problem in problems]
    return [
        conversation(problem, {"role": "assistant", "content": solution})
        for problem, solution in solutions
        if token_count(solution) < MAX_RESPONSE_LENGTH
    ]


def label_chains(problems: list[ChainProblem], labeler: str, seed: int) -> list[dict]:
    """Return labeled chains for ``prime_ext.step_rm.convert --chains``, the same for all."""
    rng = random.Random(f"labelled-{seed}")  # draws the rows of the published results
    writers = [
        draw_misconceptions(LABELED_ERROR, rng.randrange(2**31)) for _ in range(LABELED_WRITERS)
    ]
    rows = []
    for problem in problems:
        steps = check_steps(
            problem.prompt, compose_solution(problem, rng.choice(writers), rng, LABELED_SLIPS)
        )
        labels = [LABELS[labeler][step.kind] for step in steps]
        rows.append(
            {"question": problem.prompt, "steps": [step.text for step in steps], "labels": labels}
        )
    return rows


def write_data(
    output_dir: Path,
    *,
    train_size: int = 8192,
    val_size: int = 64,
    test_size: int = 500,
    sft_size: int = 48000,
    labeled_size: int = 20000,
    seed: int = 0,
) -> None:
    """Write all files and, last, ``data.json``."""
    rows = {}
    for split, size in {"train": train_size, "val": val_size, "test": test_size}.items():
        rows[split] = rl_rows(split, generate_problems(split, size, seed, unique=split == "test"))
    # Labeled problems come from the split of the demonstrations: the policy is neither trained
    # nor tested on them.
    problems = generate_problems("sft", sft_size + labeled_size, seed, unique=False)
    rows["sft"] = sft_rows(problems[:sft_size], seed)
    for labeler in LABELS:
        write_json_lines(
            output_dir / f"steps_{labeler}.jsonl", label_chains(problems[sft_size:], labeler, seed)
        )
    settings = {
        "mean_error": MEAN_ERROR,
        "seed": seed,
        "operations": list(OPERATIONS),
        "operands": list(OPERANDS),
    }
    write_splits(
        output_dir, rows, settings, **{f"steps_{labeler}": labeled_size for labeler in LABELS}
    )


if __name__ == "__main__":
    write_data(**read_options(__doc__, "output-dir", "seed"))
