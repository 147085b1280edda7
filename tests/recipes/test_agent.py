# SPDX-License-Identifier: Apache-2.0
"""The agent's task, its tokens, its warm start and its report, without training."""

import asyncio
import random

import numpy as np
import pytest
import torch

from recipes.agent import task
from recipes.agent.play import Episode, play, summarise
from recipes.agent.report import Turn, failed_calls, render, score, turn_statistics
from recipes.agent.tokenizer import ANSWER_CLOSE, ANSWER_OPEN, CALL_CLOSE, CALL_OPEN, MAX_LENGTH, build_tokenizer
from recipes.quickstart.evaluate import HeldOutProblem
from recipes.quickstart.model import build_model
from recipes.quickstart.sft import IGNORED_LABEL, examples, same_length_batches

TOKENIZER = build_tokenizer()
EOS = TOKENIZER.eos_token
RIGHT = task.draw_misconceptions(0.0, 0)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    build_model(TOKENIZER, 0, max_position_embeddings=MAX_LENGTH).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def test_problems_are_disjoint_and_their_values_are_numbers_the_calculator_knows():
    drawn = {split: task.generate_problems(split, 200, seed=1) for split in task.SPLITS}
    prompts = {split: {problem.prompt for problem in problems} for split, problems in drawn.items()}
    assert all(len(of_split) == 200 for of_split in prompts.values())
    assert not prompts["test"] & prompts["train"] and not prompts["sft"] & prompts["train"]
    for problem in drawn["train"]:
        assert 1 <= len(problem.operations) <= 5 and all(1 <= value < 10_000 for value in problem.values)
    problem = task.Problem(37, (("+", 8), ("*", 7), ("-", 9)))
    assert (problem.prompt, problem.values, problem.answer) == ("37+8*7-9?", [45, 315, 306], 306)


def test_a_demonstrator_without_mistakes_makes_a_call_for_each_operation():
    problem = task.Problem(37, (("+", 8), ("*", 7)))
    told = task.demonstrate(problem, RIGHT, gives_up=0.0, times_out=0.0, rng=random.Random(0))
    assert [message["content"] for message in told] == [
        f"{CALL_OPEN}37+8{CALL_CLOSE}", "45", f"{CALL_OPEN}45*7{CALL_CLOSE}", "315", "\\boxed{315}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "instead", "answer"),
    [("operator", ("-", 8), 29), ("operand", ("+", 2), 39), ("skip", ("+", 8), 37), ("unreadable", ("+", 8), 37)],
)
def test_every_kind_of_mistake(kind, instead, answer):
    table = {("+", 8): task.Misconception(1.0, kind, instead)}
    told = task.demonstrate(task.Problem(37, (("+", 8),)), table, 1.0, 0.0, random.Random(0))
    assert told[-1]["content"] == f"\\boxed{{{answer}}}"
    assert (kind == "unreadable") == any(message["content"].startswith("Error: a number") for message in told)


def test_after_a_failed_call_it_asks_once_more_or_gives_up():
    problem = task.Problem(37, (("+", 8),))
    for gives_up, calls in ((0.0, 2), (1.0, 1)):
        told = task.demonstrate(problem, RIGHT, gives_up, times_out=1.0, rng=random.Random(0))
        assert sum(message["role"] == "tool" for message in told) == calls
        assert told[-1]["content"] == "\\boxed{37}"


def test_the_tokens_of_a_demonstration_are_those_of_the_loop_and_tools_have_no_labels():
    problem = task.Problem(37, (("+", 8),))
    told = [{"role": "user", "content": problem.prompt}, *task.demonstrate(problem, RIGHT, 0.0, 0.0, random.Random(0))]
    (row,) = examples([told], TOKENIZER)
    text = f"<bos>37+8?{CALL_OPEN}37+8{CALL_CLOSE}{EOS}{ANSWER_OPEN}45{ANSWER_CLOSE}\\boxed{{45}}{EOS}"
    assert TOKENIZER.decode(row["input_ids"]) == text
    # As verl's loop builds it (tests/generate/test_tool_agent_loop.py has the same text from there).
    own = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != IGNORED_LABEL]
    assert TOKENIZER.decode(own) == f"{CALL_OPEN}37+8{CALL_CLOSE}{EOS}\\boxed{{45}}{EOS}"
    assert len(TOKENIZER(CALL_OPEN)["input_ids"]) == len(TOKENIZER(CALL_CLOSE)["input_ids"]) == 1
    # What a tool may say beside numbers is characters, or one mark.
    assert TOKENIZER.decode(TOKENIZER("Error: 'é' \ufffd")["input_ids"]) == "Error: '<unk>' <unk>"


def test_batches_of_nearly_the_same_length():
    lengths = [9, 10, 16, 17, 24] * 4
    batches = same_length_batches(lengths, 4, 5, seed=0, within=8)
    assert all(len({-(-lengths[index] // 8) for index in batch}) == 1 for batch in batches)


def test_episodes_depend_on_the_seed_alone(model_path):
    problems = [HeldOutProblem(f"{number}+2?", str(number + 2)) for number in range(10, 16)]
    first, again, other = (asyncio.run(play(model_path, problems, seed=s, temperature=1.0)) for s in (0, 0, 1))
    alone = asyncio.run(play(model_path, problems[:1], seed=0, temperature=1.0))
    assert first == again and alone == first[:1] and [e.response_ids for e in first] != [e.response_ids for e in other]
    assert all(len(e.response_ids) == len(e.own) <= 200 for e in first)


def episode(text, right=True, calls=1, failed=0, own=None):
    ids, prompt_ids = TOKENIZER(text)["input_ids"], TOKENIZER("1+1?")["input_ids"]
    return Episode(HeldOutProblem("1+1?", "2"), prompt_ids, ids, own or [True] * len(ids), text, right, calls, failed)


def test_the_summary_counts_calls():
    found = summarise([episode("1", calls=3, failed=1), episode("2", right=False, calls=1)])
    assert (found["accuracy"], found["calls_per_episode"], found["failed_calls"]) == (0.5, 2.0, 0.25)
    assert found["outcomes"] == "10" and summarise([episode("1", calls=0)])["failed_calls"] == 0.0


def scored(model_path):
    from transformers import AutoModelForCausalLM

    prm, reference = (AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32) for _ in range(2))
    torch.nn.init.normal_(prm.model.norm.weight)
    parts = [(f"{CALL_OPEN}1+{CALL_CLOSE}{EOS}", True), (f"{ANSWER_OPEN}Error: <b>{ANSWER_CLOSE}", False)]
    parts.append((f"\\boxed{{2}}{EOS}", True))
    own = [mine for text, mine in parts for _ in TOKENIZER(text)["input_ids"]]
    return score(prm.eval(), reference.eval(), TOKENIZER, episode("".join(text for text, _ in parts), own=own), 0.5)


def test_turns_are_paid_for_their_own_tokens_and_the_page_shows_text_as_text(model_path):
    one = scored(model_path)
    assert [turn.text for turn in one.turns] == ["1+", "Error: <b>", "\\boxed{2}"]
    assert [turn.reward is None for turn in one.turns] == [False, True, False]
    assert one.reward == pytest.approx(one.turns[0].reward + one.turns[2].reward) and one.reward != 0
    page = render([("Title", [one])], {"policy": turn_statistics([one])}, 0.5)
    assert "Error: &lt;b&gt;" in page and "<script" not in page and f"{one.turns[0].reward:+.2f}" in page


def test_calls_that_cannot_be_read_are_compared_with_others(model_path):
    one = scored(model_path)
    good = one._replace(turns=[Turn("1+1", 1.0), Turn("2", None), Turn("\\boxed{2}", 0.0)])
    bad = one._replace(turns=[Turn("1+", -1.0), Turn("Error: a number is missing", None)])
    late = one._replace(turns=[Turn("1+1", -9.0), Turn("Error: the calculation took too long", None)])
    found = turn_statistics([good, bad, late])
    assert (found["calls"], found["failed_calls"], found["call_auc"]) == (2, 1, 1.0)


def test_the_share_of_failed_calls_of_a_step():
    names = ("result", "malformed", "error", "timeout")
    metrics = {step: {f"agent/calculator/{name}": float(step) for name in names} for step in (1, 2)}
    steps, share = failed_calls(metrics)
    assert steps.tolist() == [1, 2] and np.allclose(share, 0.75)
