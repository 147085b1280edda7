# SPDX-License-Identifier: Apache-2.0
"""The agent's task, its tokens, its episodes and its process rewards, without training."""

import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from recipes.agent import calculator_task as task
from recipes.agent.agent_report import score_episode
from recipes.agent.calculator_task import ANSWER_CLOSE, ANSWER_OPEN, CALL_CLOSE, CALL_OPEN
from recipes.agent.play import Episode, measure_failed_calls, play, summarize
from recipes.quickstart.evaluate import HeldOutProblem
from recipes.quickstart.quickstart_sft import IGNORED_LABEL, examples
from recipes.quickstart.small_model import build_model

TOKENIZER = task.build_tokenizer()
EOS = TOKENIZER.eos_token
RIGHT = task.draw_misconceptions(0.0, 0)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    build_model(TOKENIZER, 0, max_position_embeddings=task.MAX_LENGTH).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def test_problems_are_disjoint_and_their_values_suit_the_calculator():
    drawn = {split: task.generate_problems(split, 200, seed=1) for split in task.SPLITS}
    prompts = {split: {problem.prompt for problem in problems} for split, problems in drawn.items()}
    assert all(len(of_split) == 200 for of_split in prompts.values())
    assert not prompts["test"] & prompts["train"] and not prompts["sft"] & prompts["train"]
    for problem in drawn["train"]:
        assert 1 <= len(problem.operations) <= 5 and all(
            1 <= value < 10_000 for value in problem.values
        )
    problem = task.CalculatorProblem(37, (("+", 8), ("*", 7), ("-", 9)))
    assert (problem.prompt, problem.values, problem.answer) == ("37+8*7-9?", [45, 315, 306], 306)


@pytest.mark.parametrize(
    ("kind", "instead", "answer"),
    [
        ("operator", ("-", 8), 29),
        ("operand", ("+", 2), 39),
        ("skip", ("+", 8), 37),
        ("unreadable", ("+", 8), 37),
    ],
)
def test_every_kind_of_mistake(kind, instead, answer):
    table = {("+", 8): task.CalculatorMisconception(1.0, kind, instead)}
    messages = task.demonstrate(
        task.CalculatorProblem(37, (("+", 8),)), table, 1.0, 0.0, rng=random.Random(0)
    )
    assert messages[-1]["content"] == f"\\boxed{{{answer}}}"
    assert (kind == "unreadable") == any(
        message["content"].startswith("Error: a number") for message in messages
    )


def test_failed_calls_are_repeated_once_or_given_up():
    problem = task.CalculatorProblem(37, (("+", 8),))
    for gives_up, calls in ((0.0, 2), (1.0, 1)):
        messages = task.demonstrate(problem, RIGHT, gives_up, times_out=1.0, rng=random.Random(0))
        assert sum(message["role"] == "tool" for message in messages) == calls
        assert messages[-1]["content"] == "\\boxed{37}"


def test_demonstrations_match_the_loop_and_label_no_tool_tokens():
    problem = task.CalculatorProblem(37, (("+", 8), ("*", 7)))
    replies = task.demonstrate(problem, RIGHT, gives_up=0.0, times_out=0.0, rng=random.Random(0))
    (row,) = examples([[{"role": "user", "content": problem.prompt}, *replies]], TOKENIZER)
    calls = [f"{CALL_OPEN}{text}{CALL_CLOSE}{EOS}" for text in ("37+8", "45*7")]
    answers = [f"{ANSWER_OPEN}{text}{ANSWER_CLOSE}" for text in ("45", "315")]
    end = f"\\boxed{{315}}{EOS}"
    text = f"<bos>37+8*7?{calls[0]}{answers[0]}{calls[1]}{answers[1]}{end}"
    assert TOKENIZER.decode(row["input_ids"]) == text
    # As verl's loop builds it (see tests/generate/test_tool_agent_loop.py).
    is_policy = [
        token
        for token, label in zip(row["input_ids"], row["labels"], strict=True)
        if label != IGNORED_LABEL
    ]
    assert TOKENIZER.decode(is_policy) == f"{calls[0]}{calls[1]}{end}"
    assert len(TOKENIZER(CALL_OPEN)["input_ids"]) == len(TOKENIZER(CALL_CLOSE)["input_ids"]) == 1
    # Characters that the vocabulary lacks become one mark.
    assert TOKENIZER.decode(TOKENIZER("Error: 'é' \ufffd")["input_ids"]) == "Error: '<unk>' <unk>"


@pytest.mark.slow
def test_episodes_depend_on_the_seed_alone(model_path):
    problems = [HeldOutProblem(f"{number}+2?", str(number + 2)) for number in range(10, 16)]
    first, again, other = (
        play(model_path, problems, seed=seed, temperature=1.0) for seed in (0, 0, 1)
    )
    alone = play(model_path, problems[:1], seed=0, temperature=1.0)
    assert (
        first == again
        and alone == first[:1]
        and [e.response_ids for e in first] != [e.response_ids for e in other]
    )
    assert all(len(e.response_ids) == len(e.is_policy) <= 200 for e in first)


def episode(text, right=True, calls=1, failed=0, is_policy=None):
    ids = TOKENIZER(text)["input_ids"]
    prompt_ids = TOKENIZER("1+1?")["input_ids"]
    return Episode(
        HeldOutProblem("1+1?", "2"),
        prompt_ids,
        ids,
        is_policy or [True] * len(ids),
        text,
        right,
        calls,
        failed,
    )


def test_the_summary_and_the_metrics_count_calls():
    summary = summarize([episode("1", calls=3, failed=1), episode("2", right=False, calls=1)])
    assert (summary["accuracy"], summary["calls_per_episode"], summary["failed_calls"]) == (
        0.5,
        2.0,
        0.25,
    )
    assert summary["outcomes"] == "10" and summarize([episode("1", calls=0)])["failed_calls"] == 0.0
    names = ("result", "malformed", "error", "timeout")
    metrics = {step: {f"agent/calculator/{name}": float(step) for name in names} for step in (1, 2)}
    steps, share = measure_failed_calls(metrics)
    assert steps.tolist() == [1, 2] and np.allclose(share, 0.75)


def test_only_own_tokens_are_paid_and_unreadable_calls_are_wrong(model_path):
    prm, reference = (
        AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        for _ in range(2)
    )
    torch.nn.init.normal_(prm.model.norm.weight)
    call = f"{CALL_OPEN}{{}}{CALL_CLOSE}{EOS}"
    answer = f"{ANSWER_OPEN}{{}}{ANSWER_CLOSE}"
    parts = [
        call.replace("{}", "1+"),
        answer.replace("{}", "Error: <b>"),
        call.replace("{}", "1+1"),
    ]
    parts += [
        answer.replace("{}", "Error: the calculation took too long"),
        call.replace("{}", "1+1"),
    ]
    parts += [answer.replace("{}", "2"), f"\\boxed{{2}}{EOS}"]
    is_policy = [
        place % 2 == 0 for place, text in enumerate(parts) for _ in TOKENIZER(text)["input_ids"]
    ]
    scored = score_episode(
        prm, reference, TOKENIZER, episode("".join(parts), is_policy=is_policy), beta=0.5
    )
    shown = [
        "1+",
        "Error: <b>",
        "1+1",
        "Error: the calculation took too long",
        "1+1",
        "2",
        "\\boxed{2}",
    ]
    assert all(text in piece.text for text, piece in zip(shown, scored.pieces, strict=True))
    assert [piece.reward is None for piece in scored.pieces] == [False, True] * 3 + [False]
    assert [piece.right for piece in scored.pieces] == [False, None, None, None, True, None, None]
    assert (
        scored.reward_sum == pytest.approx(sum(piece.reward or 0.0 for piece in scored.pieces)) != 0
    )
