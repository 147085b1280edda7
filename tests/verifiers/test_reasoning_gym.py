# SPDX-License-Identifier: Apache-2.0
"""Tasks of reasoning-gym as a source: data, verdicts, evaluation, bad input."""

import ast
import asyncio
import json

import pyarrow.parquet as pq
import pytest

pytest.importorskip("reasoning_gym")
from gym_strategies import CONSTANTS, find_strategies
from reasoning_gym.factory import DATASETS
from small_tasks import ScriptedBackend, get_score, last_message
from small_tasks import run as evaluate
from told import get_rows

from data_preprocessing.reasoning_gym import main
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks.gym_problems import generate
from prime_ext.tasks.rl_rows import MATH_SCHEMA
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers import gym_verifier as module
from prime_ext.verifiers import sources
from prime_ext.verifiers.gym_verifier import (
    REFUSED,
    GymVerifier,
    is_formula,
    may_equal,
    read_problem,
)
from prime_ext.verifiers.verdict import Outcome
from prime_ext.verifiers.worker_pool import Failure, WorkerPool

TASKS = sorted({*DATASETS} - {"composite", *REFUSED})
# They have many right answers and name none, or name one in their metadata.
NO_GOLD = {"boxnet", "graph_color", "rubiks_cube", "rush_hour"}


@pytest.fixture(scope="module")
def golds():
    golds = {task: next(generate(task, 1, seed=4))["gold"] for task in TASKS}
    # Its first answer with this seed is an Integral, which no response can state.
    return golds | {
        "intermediate_integration": next(generate("intermediate_integration", 1, seed=5))["gold"]
    }


@pytest.fixture(scope="module")
def verifier():
    return GymVerifier(seconds=60.0)


def judge(verifier, responses, golds):
    """Return verdicts on the same response, or one for each task."""

    async def judge_all():
        texts = responses if isinstance(responses, dict) else dict.fromkeys(golds, responses)
        return await asyncio.gather(*(verifier.averify(texts[task], golds[task]) for task in golds))

    return dict(zip(golds, asyncio.run(judge_all()), strict=True))


def boxed(answer):
    return f"Some \\boxed{{9}} words. More of them.\n\nSo it is \\boxed{{{answer}}}"


@pytest.mark.slow
def test_gold_answers_of_all_tasks_score_1(verifier, golds):
    answers = {task: read_problem(gold)["answer"] for task, gold in golds.items()}
    assert {task for task, answer in answers.items() if answer is None} == NO_GOLD
    answers["rubiks_cube"] = read_problem(golds["rubiks_cube"])["metadata"][
        "example_correct_answer"
    ]
    answers["graph_color"] = json.dumps(
        read_problem(golds["graph_color"])["metadata"]["possible_answer"]
    )
    verdicts = judge(verifier, {task: boxed(answer) for task, answer in answers.items()}, golds)
    wrong = {task: verdict for task, verdict in verdicts.items() if not verdict.correct}
    assert {*wrong} == {"boxnet", "rush_hour"}, wrong


@pytest.mark.slow
def test_wrong_and_hostile_answers_are_wrong_and_run_nothing(verifier, golds, tmp_path):
    code = f"[__import__('pathlib').Path('{tmp_path}/canary').touch()]"
    for answer in (
        "zzz",
        "[[7777]]",
        '{"a": 1}',
        "9**9**9**9",
        "N(pi, 99999999)",
        "(1).real",
        "Integral(x*cos(x), x)",
        code,
        code[1:-1],
    ):
        verdicts = judge(verifier, boxed(answer), golds)
        assert [task for task, verdict in verdicts.items() if verdict.correct] == [], answer
        assert [task for task, verdict in verdicts.items() if verdict.grader_failure] == [], answer
    assert not (tmp_path / "canary").exists()
    assert {verdict.outcome for verdict in judge(verifier, "no box", golds).values()} == {
        Outcome.NO_ANSWER
    }


@pytest.mark.slow
def test_no_constant_piece_or_wrong_sign_wins_a_task():
    assert len(CONSTANTS) >= 100
    pool = WorkerPool(time_limit=300.0, warm_up=f"{module.__name__}:warm_up")
    tasks = {*TASKS, *REFUSED}
    found = {task: pool.submit(find_strategies, task) for task in sorted(tasks)}
    won = {task: future.result() for task, future in found.items()}
    assert {task: names for task, names in won.items() if isinstance(names, Failure)} == {}
    won = {task: names for task, names in won.items() if names}
    assert {*won} == {*REFUSED}, won
    for task, names in won.items():
        assert any(name in REFUSED[task] for name in names), (task, names)


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("coin_flip", "0"),
        ("complex_arithmetic", "nan"),
        ("gsm_symbolic", "-{}"),
        ("gsm_symbolic", "minus {}"),
        ("gsm_symbolic", "{} or 7"),
    ],
)
def test_another_number_is_wrong_whatever_the_scorer_says(verifier, task, answer):
    problem = next(generate(task, 1, seed=4))["gold"]
    gold = read_problem(problem)["answer"]
    for text, outcome in ((answer.format(gold), Outcome.WRONG), (gold, Outcome.CORRECT)):
        verdict = judge(verifier, boxed(text), {task: problem})[task]
        assert verdict.outcome is outcome, (text, verdict)


def test_numbers_are_read_in_their_forms():
    same = [("1,000", "1000"), ("$405$", "405"), (r"\$405", "405"), ("405 dollars", "405")]
    same += [
        ("x = 405", "405"),
        (r"\frac{1}{2}", "$1/2$"),
        ("3-2i", "3.0 - 2.0i"),
        ("1.0e2", "100"),
    ]
    same += [("−5", "-5"), ("(2+i)", "2.0 + 1.0i"), ("zzz", "no number"), ("1 2", "1 2 3")]
    other = [("0", "0.17"), ("-405", "405"), ("-(405)", "405"), ("-$405", "405"), ("inf", "5")]
    other += [
        ("nan", "3.0 - 2.0i"),
        ("405 or 406", "405"),
        ("zzz", "405"),
        ("1", "0"),
        ("0", "1e-9"),
    ]
    assert [pair for pair in same if not may_equal(*pair)] == []
    assert [pair for pair in other if may_equal(*pair)] == []


def test_sympy_gets_small_formulas_only():
    formulas = """x 2*x**2*exp(3*x)+log(x)/3 -4*(y+1)**12/7 x**(3/2)*sqrt(x) exp(-x**2)+C 2**200
        (99-1)*(7+5)/3 atan(x)*Abs(x) 0.5*pi x**1000""".split()
    # Towers and other large powers, other objects, deep nesting, long texts and numbers.
    refused = """9**9**9**9 9**(9**9) (9**9)**9999 ((x**99)**99)**99 (1+1)**(9**9) 2**x**10
        x**-99999 exp(exp(99)) 10**(10**10) 9**99999999 1e999 factorial(9) 9! N(pi,99999999) x(9)
        x.real (1).real __x xy x[0] [x] x,y x^2 x==2 'x' 1j lambda:x True x# (x""".split()
    refused += ["1 2", "", "x" + "+1" * 300, "9" * 601, "(" * 250 + "x" + ")" * 250]
    assert [text for text in formulas if not is_formula(text)] == []
    assert [text for text in refused if is_formula(text)] == []


def test_problems_of_refused_tasks_are_not_judged(verifier):
    gold = "{'task': 'puzzle24', 'parameters': {}, 'answer': '', 'metadata': {}}"
    verdict = judge(verifier, boxed("1*2*3*4"), {"puzzle24": gold})["puzzle24"]
    assert verdict.grader_failure and "puzzle24 of reasoning-gym is refused" in verdict.detail


def test_late_scorers_fail_and_unreadable_answers_are_wrong(verifier, golds):
    for grader, task, answer, outcome, score, said in (
        (
            verifier,
            "prime_factorization",
            "zzz",
            Outcome.WRONG,
            0.0,
            "prime_factorization cannot read it: ValueError",
        ),
        (
            GymVerifier(seconds=0.1),
            "group_anagrams",
            "[]",
            Outcome.TIMEOUT,
            None,
            "more than 0.1 s",
        ),
    ):
        verdict = judge(grader, boxed(answer), {task: golds[task]})[task]
        assert (verdict.outcome, verdict.score) == (outcome, score) and verdict.detail.startswith(
            said
        )
    for gold in ("42", "{4", "{'task': 'gcd'}"):
        verdict = judge(verifier, boxed("42"), {"gcd": gold})["gcd"]
        assert (
            verdict.grader_failure
            and f"is not a problem of reasoning-gym: {gold!r}" in verdict.detail
        )


@pytest.mark.parametrize(("threshold", "correct"), [("", False), (":threshold=0.1", True)])
def test_the_threshold_makes_labels_of_scores(verifier, threshold, correct):
    (problem,) = generate(f"string_insertion{threshold}", 1, seed=0)
    # The scorer takes a list of the characters for a tenth.
    answer = [*read_problem(problem["gold"])["answer"]]
    verdict = judge(verifier, boxed(answer), {"string_insertion": problem["gold"]})[
        "string_insertion"
    ]
    assert (verdict.correct, verdict.detail) == (correct, "string_insertion scores 0.1")


def test_the_command_writes_rows_that_the_reward_function_judges(tmp_path, capsys):
    words = [
        "gcd=2",
        "chain_sum",
        "--set",
        "chain_sum.max_terms=2",
        "extraction=lenient",
        "--prompt",
        "question",
    ]
    words += ["--size", "60", "--test-size", "12", "--seed", "3", "--output-dir"]
    assert main([*words, str(tmp_path / "a")]) == 0 == main([*words, str(tmp_path / "b")])
    assert "| reasoning_gym/gcd | 48 | 0 | 0 |" in capsys.readouterr().out
    for split in ("train", "test"):
        assert (tmp_path / "a" / f"{split}.parquet").read_bytes() == (
            tmp_path / "b" / f"{split}.parquet"
        ).read_bytes()
    assert pq.read_schema(tmp_path / "a" / "train.parquet") == MATH_SCHEMA
    train, test = (get_rows(tmp_path / "a", split) for split in ("train", "test"))
    shown = [{row["prompt"][0]["content"] for row in rows} for rows in (train, test)]
    assert [*map(len, shown)] == [60, 12] and not shown[0] & shown[1]
    assert [row["data_source"] for row in train].count("reasoning_gym/chain_sum") == 20

    async def score(row, answer):
        gold = row["reward_model"]["ground_truth"]
        assert ast.literal_eval(gold)["parameters"].get("max_terms", 2) == 2
        return await compute_score(
            row["data_source"], f"It is {answer or read_problem(gold)['answer']}.", gold
        )

    async def score_some():
        return [await score(row, answer) for row in train[:9] for answer in (None, "0.5")]

    assert [one["acc"] for one in asyncio.run(score_some())] == [1.0, 0.0] * 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("chain_smu", "reasoning-gym has no task 'chain_smu'; did you mean chain_sum?"),
        ("puzzle24",
         "puzzle24 of reasoning-gym is refused: its scorer pays the constant '1*2*3*4'"),
        ("gcd propositional_logic",
         "is refused: its scorer pays the constant 'P ∨ Q', and premises"),
        ("game_of_life_halting", "is refused: its scorer takes every answer for right, such as"),
        ("composite",
         "composite makes no problems: AssertionError Must specify at least one dataset"),
        ("gcd --set max_valeu=3", "unknown key gcd.max_valeu; did you mean max_value?"),
        ("gcd --set max_value=many", "gcd.max_value must be a valid integer, unable to parse"),
        ("gcd --set max_value={", "while parsing a flow node"),
        ("gcd --set lcm.max_value=3", "--set lcm.max_value=3: lcm is not one of the tasks gcd"),
        ("gcd --set threshold=2", "gcd.threshold must be less than or equal to 1, got 2"),
        ("gcd --set extraction=box",
         "must be 'boxed', 'gsm8k' or 'lenient', got 'box'; did you mean boxed?"),
        ("gcd=0", "gcd=0 must be TASK or TASK=WEIGHT, with a positive weight, and each task once"),
        ("gcd --prompt plain", "reasoning_gym:gcd has no prompt 'plain'; it has default, question"),
        ("gcd --set max_value=2", "different problems in 11280 attempts; ask for fewer"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path, capsys, words, said):
    assert main([*words.split(), "--output-dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_task_that_needs_a_network_is_one_line(monkeypatch):
    def fail(*_):
        raise OSError("no route to host\nreally")

    monkeypatch.setattr(DATASETS["gcd"][0], "__getitem__", fail)
    with pytest.raises(
        SourceError, match="^gcd makes no problems: OSError no route to host really$"
    ):
        next(generate("gcd", 1, 0))


def test_a_missing_package_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    missing = "reasoning-gym is not installed: pip install -e '.[reasoning-gym]'"
    assert main(["gcd", "--output-dir", str(tmp_path)]) == 2
    assert evaluate("--tasks", "reasoning_gym:gcd", "--output", tmp_path) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"reasoning_gym: {missing}",
        f"eval.run: {missing}",
    ]
    with pytest.raises(SourceError, match="is not installed"):
        sources.make_task_verifier("reasoning_gym")


def test_evaluation_generates_and_judges(tmp_path):
    task = "reasoning_gym:chain_sum:max_terms=2:max_digits=2"
    words = ["--tasks", task, "--limit", "8", "--output", tmp_path / "out"]

    def answer(request):
        terms = last_message(request.prompt).partition(" =")[0].rpartition(": ")[2]
        total = sum(int(term) for term in terms.replace("- ", "+ -").split("+"))
        return f"\\boxed{{{total if request.seed % 2 else 'none'}}}"

    backend = ScriptedBackend(answer)
    assert evaluate(*words, backend=backend) == 0
    assert (
        get_score(tmp_path / "out", task, "avg@1") == sum(seed % 2 for _, seed in backend.asked) / 8
    )
