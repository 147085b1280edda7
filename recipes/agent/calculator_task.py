# SPDX-License-Identifier: Apache-2.0
r"""The agent's task: calculations beyond the tiny model, with a calculator that may fail.

A prompt is a number of two digits and 1 to 5 operations, applied from left to right: ``37+8*7-9?``.
The agent calls the calculator for one operation a turn and boxes the last value, so that a clean
episode has 2 to 6 turns:

    37+8*7-9?   [37+8] 45   [45*7] 315   [315-9] 306   \boxed{306}

(calls are in brackets here; they are written for verl's parser ``hermes``). The warm start imitates
*noisy demonstrators* on purpose. For each of the 24 operations they have a probability of a
mistake, from a Beta distribution, and one kind of it: another operator, another number, passing
over the operation, or a call that cannot be read. After a call that failed they may give up and box
the value they have. The learner is told none of this: only the last value is judged.

The tokenizer has a token per printable ASCII character, and one for each fixed string: ``\boxed{``,
and both ends of a call and of an answer.
"""

import json
import operator as operators
import random
from collections.abc import Mapping
from typing import NamedTuple

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from prime_ext.tasks.last_digit_chain import error_probability, get_split
from prime_ext.verl_adapter.tools.calculator_tool import SCHEMA, TIMED_OUT, Refused, calculate
from recipes.quickstart import small_model as quickstart_model

DATA_SOURCE = "prime_ext/calculator_chain"
LENGTHS = (1, 2, 3, 4, 5)
# The calculator refuses longer numbers, which wrong calls may reach.
MOST_DIGITS = 4
# Percent of all prompts, by hash.
SPLITS = {"test": (0, 10), "sft": (10, 60), "train": (60, 100)}
KINDS = ("operator", "operand", "skip", "unreadable")
_APPLY = {"+": operators.add, "-": operators.sub, "*": operators.mul}
OPERANDS = range(2, 10)
OPERATIONS = [(operator, operand) for operator in _APPLY for operand in OPERANDS]
# How often demonstrators box the value so far after a call that failed, and how often the
# calculator fails.
GIVES_UP = 0.5
TIMES_OUT = 0.1

_CALL = json.dumps({"name": SCHEMA["function"]["name"], "arguments": {"expression": "|"}})
CALL_OPEN, CALL_CLOSE = f"<tool_call>{_CALL}</tool_call>".split("|")
ANSWER_OPEN = "<tool_response>"
ANSWER_CLOSE = "</tool_response>"
MARKS = (CALL_OPEN, CALL_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] in ('user', 'system') %}{{ bos_token + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    f"{{% else %}}{{{{ '{ANSWER_OPEN}' + message['content'] + '{ANSWER_CLOSE}' }}}}{{% endif %}}"
    "{% endfor %}"
)
MAX_LENGTH = 320


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer of the agent, with its chat template; it has 105 tokens."""
    special = (quickstart_model.PAD, quickstart_model.BOS, quickstart_model.EOS, "<unk>")
    vocabulary = [*special, "\n", *map(chr, range(32, 127)), "\\boxed{"]
    tokenizer = quickstart_model.build_tokenizer(
        vocabulary, CHAT_TEMPLATE, MAX_LENGTH, unknown="<unk>"
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKS])
    return tokenizer


class CalculatorProblem(NamedTuple):
    """A number and the operations applied to it from left to right."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        operations = (f"{operator}{operand}" for operator, operand in self.operations)
        return f"{self.start}{''.join(operations)}?"

    @property
    def values(self) -> list[int]:
        """Return the value after each operation."""
        values = [self.start]
        for operator, operand in self.operations:
            values.append(_APPLY[operator](values[-1], operand))
        return values[1:]

    @property
    def answer(self) -> int:
        return self.values[-1]


def generate_problems(split: str, count: int, seed: int) -> list[CalculatorProblem]:
    """Draw different problems of a split, with all values between 1 and 9999.

    The number of operations is uniform before problems that leave the range are dropped, so chains
    of five operations are fewer.
    """
    rng = random.Random(f"{split}-{seed}")
    problems: dict[str, CalculatorProblem] = {}
    while len(problems) < count:
        start = rng.randint(10, 99)
        length = rng.choice(LENGTHS)
        problem = CalculatorProblem(start, tuple(rng.choices(OPERATIONS, k=length)))
        if (
            all(1 <= value < 10**MOST_DIGITS for value in problem.values)
            and get_split(problem.prompt, SPLITS) == split
        ):
            problems[problem.prompt] = problem
    return list(problems.values())


class CalculatorMisconception(NamedTuple):
    """The error of a demonstrator in an operation: how often it occurs, and in which way."""

    probability: float
    kind: str
    instead: tuple[str, int]


def draw_misconceptions(
    mean_error: float, seed: int
) -> dict[tuple[str, int], CalculatorMisconception]:
    """Draw a misconception per operation, with probabilities as in the quickstart's task.

    Raises ValueError: the mean is outside [0, 1).
    """
    rng = random.Random(seed)
    table = {}
    for number, operation in enumerate(OPERATIONS):
        probability = error_probability(mean_error, rng)
        operator, operand = operation
        others = {
            "operator": (rng.choice([other for other in _APPLY if other != operator]), operand),
            "operand": (operator, rng.choice([other for other in OPERANDS if other != operand])),
        }
        kind = KINDS[number % len(KINDS)]
        table[operation] = CalculatorMisconception(probability, kind, others.get(kind, operation))
    return table


def demonstrate(
    problem: CalculatorProblem,
    table: Mapping[tuple[str, int], CalculatorMisconception],
    gives_up: float = GIVES_UP,
    times_out: float = TIMES_OUT,
    *,
    rng: random.Random,
) -> list[dict[str, str]]:
    """Write an episode of a noisy demonstrator, as messages without the user's.

    After a call that failed, the demonstrator boxes the value so far with probability ``gives_up``,
    and after two failures always. The calculator fails with probability ``times_out``.
    """
    messages: list[dict[str, str]] = []

    def call(expression: str) -> int | None:
        messages.append({"role": "assistant", "content": f"{CALL_OPEN}{expression}{CALL_CLOSE}"})
        try:
            if rng.random() < times_out:
                raise Refused("timeout", TIMED_OUT)
            result = calculate(expression, most_digits=MOST_DIGITS)
        except Refused as refused:
            messages.append({"role": "tool", "content": f"Error: {refused}"})
            return None
        messages.append({"role": "tool", "content": str(result)})
        return result

    value = problem.start
    for operation in problem.operations:
        fact = table[operation]
        mistaken = rng.random() < fact.probability
        if mistaken and fact.kind == "skip":
            continue
        operator, operand = fact.instead if mistaken else operation
        written = (
            f"{value}{operator}"
            if mistaken and fact.kind == "unreadable"
            else f"{value}{operator}{operand}"
        )
        result = call(written)
        if result is None and rng.random() >= gives_up:
            result = call(f"{value}{operator}{operand}")
        if result is None:
            break
        value = result
    return [*messages, {"role": "assistant", "content": f"\\boxed{{{value}}}"}]
