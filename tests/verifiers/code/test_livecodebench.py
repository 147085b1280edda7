# SPDX-License-Identifier: Apache-2.0
"""LiveCodeBench's rows: public and private tests, and pickles that are read without being run."""

import base64
import json
import pickle
import zlib

import pytest

from prime_ext.verifiers.code import MalformedTests, parse_test_cases
from prime_ext.verifiers.code.cases import PairProblem, unpickle_text

STDIN = {"input": "1 2\n", "output": "3\n", "testtype": "stdin"}
CALL = {"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def row(public, private, name=""):
    return {
        "public_test_cases": json.dumps(public),
        "private_test_cases": private if isinstance(private, str) else packed(json.dumps(private)),
        "metadata": json.dumps({"func_name": name} if name else {}),
    }


def test_public_tests_come_before_private_ones_packed_or_not():
    private = [{**STDIN, "input": "5 6\n"}]
    for cases in (
        row([STDIN], private),
        json.dumps(row([STDIN], private)),
        row([STDIN], json.dumps(private)),
    ):
        problem = parse_test_cases(cases)
        assert problem == PairProblem((("1 2\n", "3\n"), ("5 6\n", "3\n")))


def test_a_function_is_called_with_a_value_per_line():
    problem = parse_test_cases(row([CALL], [CALL], "total"))
    assert problem == PairProblem(((([1, 2], 3), (6,)),) * 2, "total")


class Opens:
    """A class whose pickle leaves a file if it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickled_texts_are_read_and_other_pickles_run_nothing(tmp_path):
    for text in ("", "a", "ä\n" * 300, "x" * 70_000):
        assert unpickle_text(pickle.dumps(text)) == text
    hostile = pickle.dumps(Opens(str(tmp_path / "ran")))
    with pytest.raises(
        MalformedTests, match="private_test_cases is not the pickle of a text: it holds .*open"
    ):
        parse_test_cases(row([STDIN], base64.b64encode(zlib.compress(hostile)).decode()))
    assert not list(tmp_path.iterdir())
    for data in (
        pickle.dumps(["[]"]),
        pickle.dumps(b"[]"),
        b"",
        b"\x80",
        b"no pickle",
        pickle.dumps("a")[:-1],
    ):
        with pytest.raises(MalformedTests, match="is not the pickle of a text"):
            unpickle_text(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"public_test_cases": '[{"input": "1"}]'},
         "public_test_cases: test 1 has no input and output that are texts"),
        ({"private_test_cases": None}, "private_test_cases must be a text, got NoneType"),
        ({"private_test_cases": "%%" + packed("[]")},
         "private_test_cases is neither JSON nor packed"),
        ({"metadata": '{"func_name": "f"}'}, "a test is 'stdin', but metadata has calls of f"),
    ],
)  # fmt: skip
def test_rows_that_are_not_of_livecodebench_are_refused(change, message):
    with pytest.raises(MalformedTests, match=message):
        parse_test_cases({**row([STDIN], [STDIN]), **change})


def test_tests_that_unpack_to_too_much_are_refused(monkeypatch):
    monkeypatch.setattr("prime_ext.verifiers.code.cases.MAX_BYTES", 1000)
    with pytest.raises(MalformedTests, match="private_test_cases has more than 1000 bytes"):
        parse_test_cases(row([STDIN], [{**STDIN, "input": "1 " * 1000}]))
