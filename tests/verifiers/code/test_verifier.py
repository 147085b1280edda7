# SPDX-License-Identifier: Apache-2.0
"""Verdicts on programs: what passes, what fails and why, and what is the grader's own fault."""

import asyncio
from concurrent.futures import Future

import pytest

from prime_ext.verifiers import Outcome
from prime_ext.verifiers.code import CodeVerifier
from prime_ext.verifiers.sandbox.client import Ending, Execution, Limits, Sandbox

SUM = {"inputs": ["1 2\n", "3 4\n", "5 6\n", "10 20\n"], "outputs": ["3\n", "7\n", "11\n", "30\n"]}
ADD = "print(sum(map(int, input().split())))"


@pytest.fixture(scope="module")
def verifier():
    with Sandbox() as sandbox:
        # Right and wrong must not become a timeout on a busy machine.
        yield CodeVerifier(sandbox, limits=Limits(seconds=60.0, memory_bytes=512 << 20))


@pytest.fixture
def hasty(verifier):
    """Return a verifier for programs that never end; others need a small part of its time."""
    return CodeVerifier(verifier.sandbox, limits=Limits(seconds=3.0, memory_bytes=512 << 20))


def judge(verifier, program, cases, **options):
    response = f"Here it is:\n```python\n{program}\n```\n"
    return asyncio.run(verifier.averify(response, cases, **options))


class TestStandardInput:
    def test_all_tests_pass(self, verifier):
        verdict = judge(verifier, ADD, SUM)
        assert verdict.correct and verdict.score == 1.0 and verdict.detail == "4 of 4 tests passed"
        assert verdict.extracted == ADD + "\n"

    def test_the_first_failure_is_named_and_every_test_counts(self, verifier):
        program = "a, b = map(int, input().split())\nprint(a + b if a != 5 else 0)"
        for reward, score in (("all", 0.0), ("fraction", 0.75)):
            verdict = judge(verifier, program, SUM, reward=reward)
            judged = (verdict.outcome, verdict.score, verdict.detail)
            assert judged == (Outcome.WRONG, score, "test 3 of 4: wrong output")

    def test_a_test_that_hangs_does_not_spoil_the_next(self, hasty):
        program = "a, b = map(int, input().split())\nwhile a == 5: pass\nprint(a + b)"
        verdict = judge(hasty, program, SUM, reward="fraction")
        assert (verdict.score, verdict.outcome) == (0.75, Outcome.TIMEOUT)

    @pytest.mark.parametrize(
        "program, outcome, detail",
        [
            ("while True: pass", Outcome.TIMEOUT, "test 1 of 4: time limit"),
            ("x = bytearray(1 << 30)", Outcome.OUT_OF_MEMORY, "memory limit"),
            ("def f(:", Outcome.ERROR, "SyntaxError: invalid syntax"),
            ("import sys; sys.exit(3)", Outcome.ERROR, "exit code 3"),
            ("print('x' * 10**8)", Outcome.ERROR, "output limit"),
            ("raise Exception('x' * 10**6)", Outcome.ERROR, "xxx"),
            (ADD + "\n1 / 0", Outcome.ERROR, "ZeroDivisionError"),
        ],
    )
    def test_a_program_s_faults_are_its_own(self, verifier, hasty, program, outcome, detail):
        verdict = judge((hasty if outcome is Outcome.TIMEOUT else verifier), program, SUM)
        assert (verdict.outcome, verdict.score, verdict.grader_failure) == (outcome, 0.0, False)
        assert detail in verdict.detail and len(verdict.detail) <= 300

    def test_the_problem_has_a_time_of_its_own(self, verifier):
        short = CodeVerifier(verifier.sandbox, limits=Limits(seconds=60.0), seconds_per_problem=0.5)
        verdict = judge(short, "while True: pass", SUM, reward="fraction")
        assert verdict.score == 0.0 and verdict.seconds < 60


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("class Solution:\n    def f(self, a: List[int], b: int) -> int: return sum(a) + b",
         Outcome.CORRECT),
        (
            (
                "f = lambda a, b: [print('chatter'), float(sum(a) + b)][1]\nif __name__ =="
                " '__main__': f()"
            ),
            Outcome.CORRECT,
        ),
        ("def f(a, b): return 7", Outcome.WRONG),
        ("def f(a, b): return str(sum(a) + b)", Outcome.WRONG),
        ("def g(a, b): return 6", Outcome.ERROR),
        ("def f(a, b): return {6}", Outcome.ERROR),
        ("def f(a, b): exit()", Outcome.ERROR),
    ],
)  # fmt: skip
def test_calls_of_functions_and_methods(verifier, program, outcome):
    cases = {"fn_name": "f", "inputs": ["[1, 2]\n3", "[]\n0"], "outputs": ["6", "0"]}
    assert judge(verifier, program, cases).outcome is outcome


def test_tuples_count_as_lists_in_every_form_of_calls(verifier):
    for inputs, outputs in (([[1]], [[[1, 2]]]), (["1"], ["[1, 2]"])):
        cases = {"fn_name": "f", "inputs": inputs, "outputs": outputs}
        assert judge(verifier, "def f(x): return (x, 2)", cases).correct


OBJECTS = """
import re
class P:
    def __init__(self, x): self.x = x
    def double(self): return 2 * self.x
    def __len__(self): return self.x
    def __getitem__(self, i): return i
def count(n): yield from range(n)
def search(s): return re.search('a', s)
"""
OF_OBJECTS = [
    "assert list(count(3)) == [0, 1, 2]",
    "assert P(4).double() == 8 and P(4).x == 4 and len(P(3)) == 3 and P(1)[7] == 7",
    "assert search('abc') and not search('b')",
]
EXPECTS_ERROR = (
    "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'"
)
# Helpers of the prompt are the tests' own, whatever the program makes of them.
WITH_HELPER = {
    "prompt": "def helper(x):\n    return x + 1\n\ndef f(x):\n",
    "entry_point": "f",
    "test": "def check(candidate):\n    assert helper(candidate(1)) == 3\n",
}


LEETCODE = """
class Solution:
    def drop(self, head: Optional[ListNode]) -> Optional[ListNode]:
        if head and head.next: head.next = head.next.next
        return head
    def add(self, root):
        root.right.val += 1
        return root
"""
SECOND = "assert head.next.val == 3 and head.next.next is None"
RIGHT = "assert root.right.val == 3 and root.left is None"


class TestAssertions:
    @pytest.mark.parametrize(
        ("program", "cases", "right"),
        [
            ("def f(x): x.sort()", {"test": "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"}, True),
            ("def f(x): raise ValueError('no')", {"test": EXPECTS_ERROR}, True),
            ("def f(x): raise KeyError('no')", {"test": EXPECTS_ERROR}, False),
            (OBJECTS, {"test_list": OF_OBJECTS}, True),
            ("def f(x): return object()\ndef g(x): return 2",
             {"test_list": ["assert g(f(1)) == 2"]}, True),
            # Tests may pass functions; a solution may not stand on a built-in that it leaves out.
            ("def apply(f, x): return f(x)",
             {"test_list": ["assert apply(lambda x: x + 1, 3) == 4"]}, True),
            ("", {"test_list": ["assert sum([1, 2]) == 3"], "entry_point": "sum"}, False),
            ("def f(x): return helper(x)", WITH_HELPER, True),
            ("def helper(x): return 3\ndef f(x): return 0", WITH_HELPER, False),
            (LEETCODE,
             {"test": ("head = Solution().drop(ListNode(1, ListNode(2, ListNode(3))))\n" + SECOND)},
             True),
            (LEETCODE, {"test": "root = Solution().add(TreeNode(1, None, TreeNode(2)))\n" + RIGHT},
             True),
            (LEETCODE, {"test": "root = Solution().drop(None)\n" + RIGHT}, False),
        ],
    )  # fmt: skip
    def test_what_tests_may_ask_of_a_program(self, verifier, program, cases, right):
        assert judge(verifier, program, cases).correct is right

    def test_all_assertions_are_one_test(self, hasty):
        cases = {"test_list": ["assert f(1) == 1", "assert f(2) == 2, 'two'"]}
        for program, outcome, detail in (
            ("def f(n): return 1", Outcome.WRONG, "test 1 of 1: wrong result: two"),
            (
                "def f(n):\n    while n == 2: pass\n    return n",
                Outcome.TIMEOUT,
                "test 1 of 1: time limit",
            ),
            ("def g(:", Outcome.ERROR, "test 1 of 1: SyntaxError"),
        ):
            verdict = judge(hasty, program, cases, reward="fraction")
            assert (verdict.score, verdict.outcome) == (0.0, outcome) and verdict.detail.startswith(
                detail
            )


class TestTheGrader:
    @pytest.mark.parametrize(
        ("cases", "detail"),
        [
            ("not json", "test cases: no JSON"),
            ({"test": "x = = 1"}, "the tests are not Python"),
            ({"test_list": ["assert f() == 1"], "test_imports": ["import no_such_module"]},
             "no_such_module"),
        ],
    )  # fmt: skip
    def test_malformed_tests_fail_the_grader_not_the_program(self, verifier, cases, detail):
        verdict = judge(verifier, ADD, cases)
        assert verdict.grader_failure and verdict.score is None and detail in verdict.detail

    def test_no_program_is_no_answer(self, verifier):
        verdict = asyncio.run(verifier.averify("```python\nprint(3)", SUM))
        assert (verdict.outcome, verdict.score) == (Outcome.NO_ANSWER, 0.0)

    def test_a_failing_sandbox_decides_nothing_and_a_closed_one_raises(self):
        class Broken:
            def start(self, *run):
                future = Future()
                future.set_result(Execution(Ending.SANDBOX_FAILURE, stderr="no room"))
                return future

        for cases in (SUM, {"test_list": ["assert f() == 1"]}):
            verdict = judge(CodeVerifier(Broken()), ADD, cases)
            assert verdict.grader_failure and verdict.score is None and "no room" in verdict.detail
        with Sandbox(workers=1) as sandbox:
            pass
        with pytest.raises(RuntimeError, match="closed"):
            judge(CodeVerifier(sandbox), ADD, SUM)
