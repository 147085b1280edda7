# SPDX-License-Identifier: Apache-2.0
"""Verdicts on programs: what passes, what fails and why, and what is the grader's own fault."""

import ast
import asyncio
import gzip
import json
import random
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from benchmark_rows import data_folder

from prime_ext.verifiers import Outcome
from prime_ext.verifiers.code import CodeVerifier, Tolerance
from prime_ext.verifiers.sandbox import Ending, Execution, Limits, Sandbox

ROOT = Path(__file__).resolve().parents[3]

SUM = {"inputs": ["1 2\n", "3 4\n", "5 6\n", "10 20\n"], "outputs": ["3\n", "7\n", "11\n", "30\n"]}
ADD = "print(sum(map(int, input().split())))"


@pytest.fixture(scope="module")
def verifier():
    with Sandbox(bubblewrap="never") as sandbox:
        # Right and wrong must not become a timeout on a busy machine.
        yield CodeVerifier(sandbox, limits=Limits(seconds=60.0, memory_bytes=512 << 20))


@pytest.fixture
def hasty(verifier):
    """For programs that never end; what ends has many times the time that it needs."""
    return CodeVerifier(verifier.sandbox, limits=Limits(seconds=3.0, memory_bytes=512 << 20))


def _rows(name):
    path = data_folder(name) / name
    if name.endswith(".gz"):
        return [json.loads(line) for line in gzip.open(path, "rt")]
    text = path.read_text()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def _fenced(program):
    return f"Here it is:\n```python\n{program}\n```\n"


class TestStandardInput:
    def test_all_tests_pass(self, verifier):
        verdict = verifier.verify(_fenced(ADD), SUM)
        assert verdict.correct and verdict.score == 1.0 and verdict.detail == "4 of 4 tests passed"
        assert verdict.extracted == ADD + "\n"

    def test_the_first_failure_is_named(self, verifier):
        verdict = verifier.verify(_fenced("a, b = map(int, input().split())\nprint(a + b if a < 5 else 0)"), SUM)
        assert (verdict.outcome, verdict.score, verdict.detail) == (Outcome.WRONG, 0.0, "test 3 of 4: wrong output")

    def test_the_fraction_counts_every_test(self, verifier):
        program = "a, b = map(int, input().split())\nprint(a + b if a != 3 else 0)"
        assert verifier.verify_program(program, SUM, reward="fraction").score == 0.75
        assert verifier.verify_program(ADD, SUM, reward="fraction").score == 1.0

    def test_a_test_that_hangs_does_not_spoil_the_next(self, hasty):
        program = "a, b = map(int, input().split())\nwhile a == 5: pass\nprint(a + b)"
        verdict = hasty.verify_program(program, SUM, reward="fraction")
        assert (verdict.score, verdict.outcome) == (0.75, Outcome.TIMEOUT)
        assert verdict.detail == "test 3 of 4: time limit"

    @pytest.mark.parametrize(
        "program, outcome, detail",
        [
            ("while True: pass", Outcome.TIMEOUT, "time limit"),
            ("x = bytearray(1 << 30)", Outcome.OUT_OF_MEMORY, "memory limit"),
            ("1 / 0", Outcome.ERROR, "ZeroDivisionError: division by zero"),
            ("def f(:", Outcome.ERROR, "SyntaxError: invalid syntax"),
            ("import sys; sys.exit(3)", Outcome.ERROR, "exit code 3"),
            ("import os; os.abort()", Outcome.ERROR, "exit code -"),
            ("print('x' * 10**8)", Outcome.ERROR, "output limit"),
            ("raise Exception('x' * 10**6)", Outcome.ERROR, "xxx"),
        ],
    )
    def test_a_program_s_faults_are_its_own(self, verifier, hasty, program, outcome, detail):
        verdict = (hasty if outcome is Outcome.TIMEOUT else verifier).verify_program(program, SUM)
        assert (verdict.outcome, verdict.score, verdict.grader_failure) == (outcome, 0.0, False)
        assert detail in verdict.detail and len(verdict.detail) <= 300

    @pytest.mark.parametrize("junk", ["b'junk'", "b''", "__import__('marshal').dumps(3)", "b'\\xe3' * 99"])
    def test_tampering_with_the_compiled_program_harms_only_the_program(self, verifier, junk):
        program = f"{ADD}\nimport os\nos.ftruncate(4, 0); os.pwrite(4, {junk}, 0)"
        verdict = verifier.verify_program(program, SUM, reward="fraction")
        assert not verdict.grader_failure and verdict.score in (0.25, 1.0)

    def test_output_before_a_failure_does_not_count(self, verifier):
        assert verifier.verify_program(ADD + "\n1 / 0", SUM).score == 0.0

    def test_the_problem_has_a_time_of_its_own(self, verifier):
        short = CodeVerifier(verifier.sandbox, limits=Limits(seconds=60.0), seconds_per_problem=0.5)
        verdict = short.verify_program("while True: pass", SUM, reward="fraction")
        assert verdict.score == 0.0 and verdict.seconds < 60

    def test_the_tolerance_is_configured(self, verifier):
        cases = {"inputs": [""], "outputs": ["0.5"]}
        assert not verifier.verify_program("print(0.51)", cases).correct
        assert (
            CodeVerifier(verifier.sandbox, tolerance=Tolerance(0.1, 0.1)).verify_program("print(0.51)", cases).correct
        )


class TestCalls:
    CASES = {"fn_name": "f", "inputs": ["[1, 2]\n3", "[]\n0"], "outputs": ["6", "0"]}

    @pytest.mark.parametrize(
        "program",
        [
            "def f(a, b): return sum(a) + b",
            "class Solution:\n    def f(self, a: List[int], b: int) -> int: return sum(a) + b",
            "f = lambda a, b: float(sum(a) + b)",
            "def f(a, b):\n    print('chatter')\n    return sum(a) + b\nif __name__ == '__main__': f()",
        ],
    )
    def test_functions_and_methods(self, verifier, program):
        assert verifier.verify_program(program, self.CASES).correct

    @pytest.mark.parametrize(
        "form",
        [
            {"inputs": [[1]], "outputs": [[[1, 2]]]},
            {"inputs": [[1]], "outputs": [[1, 2]]},
            {"inputs": ["1"], "outputs": ["[1, 2]"]},
        ],
    )
    def test_tuples_count_as_lists_in_every_form(self, verifier, form):
        assert verifier.verify_program("def f(x): return (x, 2)", {"fn_name": "f", **form}).correct

    @pytest.mark.parametrize(
        "program, outcome",
        [
            ("def f(a, b): return 7", Outcome.WRONG),
            ("def g(a, b): return 6", Outcome.ERROR),
            ("def f(a, b): return {6}", Outcome.ERROR),
            ("def f(a, b): exit()", Outcome.ERROR),
            ("def f(a, b): return str(sum(a) + b)", Outcome.WRONG),
            ("def f(a): return 6", Outcome.ERROR),
        ],
    )
    def test_what_does_not_pass(self, verifier, program, outcome):
        verdict = verifier.verify_program(program, self.CASES)
        assert (verdict.outcome, verdict.score) == (outcome, 0.0)


class TestAssertions:
    def test_a_change_in_place_is_seen_by_the_tests(self, verifier):
        cases = {"test": "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]\nassert f({'a': 1}) is None"}
        assert verifier.verify_program("def f(x):\n    if isinstance(x, list): x.sort()", cases).correct

    def test_exceptions_cross(self, verifier):
        cases = {"test": "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'"}
        assert verifier.verify_program("def f(x): raise ValueError('no')", cases).correct
        assert not verifier.verify_program("def f(x): raise KeyError('no')", cases).correct

    def test_generators_objects_and_truth(self, verifier):
        program = (
            "import re\nclass P:\n    def __init__(self, x): self.x = x\n    def double(self): return 2 * self.x\n"
            "    def __len__(self): return self.x\n    def __getitem__(self, i): return i\n"
            "def count(n):\n    yield from range(n)\ndef search(s): return re.search('a', s)"
        )
        cases = {
            "test_list": [
                "assert list(count(3)) == [0, 1, 2]",
                "assert P(4).double() == 8 and P(4).x == 4 and len(P(3)) == 3 and P(1)[7] == 7",
                "assert search('abc')",
                "assert not search('b')",
            ]
        }
        assert verifier.verify_program(program, cases).correct

    def test_each_test_counts_for_the_fraction(self, verifier, hasty):
        cases = {"test_list": ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3", "assert f(4) == 4"]}
        hangs = "def f(n):\n    while n == 2: pass\n    return n"
        verdict = hasty.verify_program(hangs, cases, reward="fraction")
        assert (verdict.score, verdict.outcome) == (0.75, Outcome.TIMEOUT)
        ends = "import os\ndef f(n):\n    if n == 2: os._exit(0)\n    return n if n != 3 else 0"
        assert verifier.verify_program(ends, cases, reward="fraction").score == 0.5
        assert verifier.verify_program("def g(:", cases, reward="fraction").score == 0.0

    def test_tests_that_pass_functions_run_in_one_process_and_say_so(self, verifier, hasty):
        cases = {"test_list": ["assert apply(lambda x: x + 1, 3) == 4", "assert apply(abs, -3) == 3"]}
        verdict = verifier.verify_program("def apply(f, x): return f(x)", cases)
        assert verdict.correct and "in one process" in verdict.detail
        for cheat in (
            "import os; os._exit(0)",
            "import sys; sys.exit(0)",
            "def apply(f, x): return 0",
            "while True: pass",
        ):
            assert hasty.verify_program(cheat, cases).score == 0.0

    def test_a_solution_cannot_bring_about_the_single_process(self, verifier):
        cases = {"test_list": ["assert g(f(1)) == 2"]}
        verdict = verifier.verify_program("def f(x): return object()\ndef g(x): return 2", cases)
        assert verdict.correct and "process" not in verdict.detail

    def test_helpers_of_the_prompt_are_the_tests_own(self, verifier):
        cases = {
            "prompt": "def helper(x):\n    return x + 1\n\ndef f(x):\n",
            "entry_point": "f",
            "test": "def check(candidate):\n    assert helper(candidate(1)) == 3\n",
        }
        assert verifier.verify_program("def f(x): return helper(x)", cases).correct
        assert not verifier.verify_program("def helper(x): return 3\ndef f(x): return 0", cases).correct


class TestTheGrader:
    @pytest.mark.parametrize(
        "cases",
        [
            {},
            {"inputs": [], "outputs": []},
            {"inputs": ["1"], "outputs": []},
            "not json",
            {"test": "x = = 1"},
            {"test_list": []},
        ],
    )
    def test_malformed_tests_fail_the_grader_not_the_program(self, verifier, cases):
        verdict = verifier.verify(_fenced(ADD), cases)
        assert verdict.grader_failure and verdict.score is None and verdict.detail.startswith("tests: ")

    def test_tests_whose_set_up_fails(self, verifier):
        cases = {"test_list": ["assert f() == 1"], "test_imports": ["import no_such_module"]}
        verdict = verifier.verify_program("def f(): return 1", cases)
        assert verdict.grader_failure and "no_such_module" in verdict.detail

    @pytest.mark.parametrize("response", ["", "print(3)", "```python\nprint(3)"])
    def test_no_program_is_no_answer(self, verifier, response):
        verdict = verifier.verify(response, SUM)
        assert (verdict.outcome, verdict.score) == (Outcome.NO_ANSWER, 0.0)

    def test_an_unknown_reward_is_refused(self, verifier):
        for response in ("", _fenced(ADD)):
            with pytest.raises(ValueError, match="reward='some'"):
                verifier.verify(response, SUM, reward="some")

    def test_a_failing_sandbox_decides_nothing(self):
        class Broken:
            def submit(self, request):
                future = Future()
                future.set_result(Execution(Ending.SANDBOX_FAILURE, stderr="no room"))
                return future

        for cases in (SUM, {"test_list": ["assert f() == 1"]}):
            verdict = CodeVerifier(Broken()).verify_program(ADD, cases)
            assert verdict.grader_failure and verdict.score is None and "no room" in verdict.detail

    def test_a_closed_sandbox_raises_nothing_into_the_dark(self):
        class Raising:
            def submit(self, request):
                raise RuntimeError("closed")

        with pytest.raises(RuntimeError, match="closed"):
            CodeVerifier(Raising()).verify_program(ADD, SUM)


class TestMany:
    def test_batches_keep_their_order(self, verifier):
        pairs = [(_fenced(ADD if n % 3 else "print(0)"), SUM) for n in range(30)]
        assert [v.correct for v in verifier.verify_batch(pairs)] == [n % 3 != 0 for n in range(30)]

    def test_asyncio(self, verifier):
        async def many():
            return await asyncio.gather(*(verifier.averify(_fenced(ADD), SUM) for _ in range(100)))

        assert all(verdict.correct for verdict in asyncio.run(many()))

    def test_threads(self, verifier):
        verdicts = []
        threads = [
            threading.Thread(target=lambda: verdicts.append(verifier.verify(_fenced(ADD), SUM))) for _ in range(32)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(verdicts) == 32 and all(verdict.correct for verdict in verdicts)


# Of the samples the first three, of the whole set the others.
LEETCODE = {
    "add-an-amount-to-every-node": (
        "class Solution:\n    def addToAll(self, head: Optional[ListNode], amount: int) -> Optional[ListNode]:\n"
        "        node = head\n        while node:\n            node.val += amount\n            node = node.next\n"
        "        return head"
    ),
    "drop-every-second-node": (
        "class Solution:\n    def dropSecond(self, head):\n        node = head\n        while node and node.next:\n"
        "            node.next = node.next.next\n            node = node.next\n        return head"
    ),
    "letters-in-order-of-frequency": (
        "class Solution:\n    def byFrequency(self, word: str) -> str:\n"
        "        return ''.join(sorted(set(word), key=lambda letter: (-word.count(letter), letter)))"
    ),
    "minimum-number-of-pushes-to-type-word-i": (
        "class Solution:\n    def minimumPushes(self, word: str) -> int:\n"
        "        return sum(i // 8 + 1 for i in range(len(word)))"
    ),
    "double-a-number-represented-as-a-linked-list": (
        "class Solution:\n    def doubleIt(self, head: Optional[ListNode]) -> Optional[ListNode]:\n"
        "        stack, node, carry = [], None, 0\n        while head:\n            stack.append(head.val)\n"
        "            head = head.next\n        while stack or carry:\n"
        "            carry, digit = divmod(2 * (stack.pop() if stack else 0) + carry, 10)\n"
        "            node = ListNode(digit, node)\n        return node"
    ),
    "insert-greatest-common-divisors-in-linked-list": (
        "class Solution:\n    def insertGreatestCommonDivisors(self, head):\n"
        "        node = head\n        while node.next:\n"
        "            node.next = ListNode(math.gcd(node.val, node.next.val), node.next)\n"
        "            node = node.next.next\n        return head"
    ),
}


def mutated(program: str, seed: int) -> str | None:
    """Return the program with one constant or operator changed, None if it has none."""
    tree = ast.parse(program)
    generator = random.Random(seed)
    pairs = [
        (ast.Add, ast.Sub), (ast.Mult, ast.Add), (ast.Mod, ast.Mult), (ast.FloorDiv, ast.Mult), (ast.Lt, ast.GtE),
        (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Sub, ast.Add),
        (ast.GtE, ast.Lt), (ast.LtE, ast.Gt), (ast.NotEq, ast.Eq), (ast.Or, ast.And),
    ]  # fmt: skip
    swaps = dict(pairs)
    sites = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, bool, float):
            sites.append((node, "value", node.value + 1 if type(node.value) is not bool else not node.value))
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in swaps:
            sites.append((node, "op", swaps[type(node.op)]()))
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in swaps:
            sites.append((node, "ops", [swaps[type(node.ops[0])](), *node.ops[1:]]))
    if not sites:
        return None
    node, name, value = generator.choice(sites)
    setattr(node, name, value)
    return ast.unparse(tree)


class TestDataSets:
    def test_humaneval_in_two_processes(self, verifier):
        rows = _rows("humaneval/HumanEval.jsonl.gz")
        right = verifier.verify_batch([(_fenced(row["prompt"] + row["canonical_solution"]), row) for row in rows])
        assert [v.detail for v in right if not v.correct] == []
        assert not any("one process" in verdict.detail for verdict in right)
        stubs = verifier.verify_batch([(_fenced(row["prompt"] + "\n    pass"), row) for row in rows])
        assert not any(v.correct or v.grader_failure for v in stubs)

    def test_mbpp_in_two_processes(self, verifier):
        rows = _rows("mbpp/new_mbpp.json")
        right = verifier.verify_batch([(_fenced(row["code"]), row) for row in rows], reward="fraction")
        assert [v.detail for v in right if not v.correct] == []
        assert not any("one process" in verdict.detail for verdict in right)

    def test_leetcode_runs_stubs_and_solutions(self, verifier):
        rows = _rows("leetcode/leetcode-test.json")
        stubs = [row["prompt"].rpartition('"""')[2].rstrip() + "\n        return None\n" for row in rows]
        verdicts = verifier.verify_batch([(_fenced(s), {"test": r["test"]}) for s, r in zip(stubs, rows, strict=True)])
        assert {(v.outcome, v.grader_failure) for v in verdicts} == {(Outcome.WRONG, False)}
        solved = [row for row in rows if row["url"].rpartition("/")[2] in LEETCODE]
        assert len(solved) == 3
        for row in solved:
            verdict = verifier.verify_program(LEETCODE[row["url"].rpartition("/")[2]], {"test": row["test"]})
            assert verdict.correct and "process" not in verdict.detail

    def test_a_changed_solution_mostly_fails(self, hasty):
        rows = _rows("humaneval/HumanEval.jsonl.gz")
        pairs = []
        for index, row in enumerate(rows):
            program = mutated(row["prompt"] + row["canonical_solution"], index)
            if program is not None:
                pairs.append((_fenced(program), row))
        verdicts = hasty.verify_batch(pairs)
        assert not any(verdict.grader_failure for verdict in verdicts)
        failed = sum(not verdict.correct for verdict in verdicts)
        print(f"{failed} of {len(verdicts)} changed solutions fail")
        # Some changes mean nothing (a larger upper bound, a default that is never used).
        assert len(verdicts) > 0.85 * len(rows) and failed > 0.8 * len(verdicts)
