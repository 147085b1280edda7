# SPDX-License-Identifier: Apache-2.0
"""Task files and their rows: what a file may contain, and one line for every mistake."""

import json

import pytest
import yaml

from prime_ext.tasks.task_file import FOLDER, load_task
from prime_ext.tasks.task_rows import load_problems
from prime_ext.utils.rows import BadRow, SourceError

MATH = {
    "name": "mine",
    "title": "Mine",
    "description": "Sums.",
    "license": "MIT",
    "data_source": "math500",
    "ability": "math",
    "source": {"local": {"test": "math500/test.json"}, "rows": {"test": 500}},
    "fields": {"problem": ["problem", "question"]},
    "texts": ["problem"],
    "gold": [{"column": "expected_answer"}, {"column": "answer"}],
    "prompts": {
        "default": {
            "user": "{{problem}}\n\nPut the answer in \\boxed{}.",
            "system": "You calculate.",
        }
    },
    "metrics": ["accuracy"],
    "decoding": {"greedy": {"max_new_tokens": 4096}},
}
CODE = {
    **MATH,
    "data_source": "humaneval",
    "ability": "code",
    "fields": {"prompt": ["prompt"]},
    "texts": ["prompt"],
    "gold": [{"columns": ["test", "entry_point"]}],
    "prompts": {"default": {"user": "Write it:\n{{prompt}}"}},
}


def write(folder, content):
    path = folder / "mine.yaml"
    path.write_text(
        content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    )
    return path


def test_mathematics_and_programs_fit_the_same_file(tmp_path):
    task = load_task(write(tmp_path, {**MATH, "extraction": "gsm8k"}))
    problem = task.problem(
        {"question": "What is $\\frac{{1}}{2}$ of {{problem}}?", "answer": 142.0}
    )
    assert task.grader == "math" and problem.gold == "142.0"
    assert task.grader_options() == {"extraction": "gsm8k"}
    assert task.messages(problem) == [
        {"role": "system", "content": "You calculate."},
        {
            "role": "user",
            "content": "What is $\\frac{{1}}{2}$ of {{problem}}?\n\nPut the answer in \\boxed{}.",
        },
    ]
    task = load_task(write(tmp_path, {**CODE, "limits": {"seconds": 0.5}}))
    problem = task.problem({"prompt": "def f():", "test": "assert f()", "entry_point": "f"})
    assert task.grader == "code" and problem.gold == '{"entry_point": "f", "test": "assert f()"}'
    assert task.grader_options() == {"seconds": 0.5}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"premise": "a"}, "no column hypothesis or statement2 or sentence2; it has premise"),
        ({"premise": "a", "hypothesis": "b", "label": 1},
         "label '1' is none of entailment, neutral"),
        ({"premise": "a", "hypothesis": "b", "label": True}, "label must be a text"),
        ({"premise": "a", "hypothesis": "b\udc00", "label": "neutral"},
         "hypothesis has half a character"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_says_why(row, message):
    with pytest.raises(BadRow, match=message):
        load_task("newsnli").problem(row)


def refused(file, message):
    with pytest.raises(SourceError) as caught:
        load_task(file)
    assert str(caught.value).startswith("mine.yaml") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def _changed(path, value, name):
    """Return a task with one key changed; None removes it."""
    content = {**yaml.safe_load((FOLDER / f"{name}.yaml").read_text()), "name": "mine"}
    *parents, last = path.split("/")
    place = content
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        # Keys that are missing, unknown or of the wrong type.
        ("awpnli", "title", None, "the file needs the key 'title'"),
        ("awpnli", "prompt", {"user": "x"}, "unknown key prompt; did you mean prompts"),
        ("awpnli", "options", ["yes", "yes"],
         "options must be a text or a list of different texts"),
        ("awpnli", "source/local", {"dev": "x.csv"},
         "source.local has the key 'dev'; a key must match pattern '^(all", ),
        ("awpnli", "source/local", {"all": "/data/x.csv"},
         "source.local.all.0 must be a path below the data folder"),
        ("aime2024", "source/where", {"url": "("},
         "source.where.url must be a valid regular expression"),
        ("minerva_math", "gold/0/extract", "box",
         "gold.0.extract must be 'boxed', 'gsm8k', 'answer_is' or 'lenient'"),
        ("math500", "groups/level/pattern", "x",
         "groups.level.pattern must have one group in round brackets"),
        # Keys that contradict each other.
        ("awpnli", "name", "other", "name must be that of the file, 'mine', got 'other'"),
        ("awpnli", "data_source", "nowhere", "data_source: no verifier for data_source='nowhere'"),
        ("awpnli", "options", None, "options are missing: awpnli is judged as choice"),
        ("awpnli", "source/hub", None,
         "source.hub, source.files and source.revision belong together"),
        ("awpnli", "source", {"rows": {"all": 3}},
         "source needs hub and files, local, or generated"),
        ("awpnli", "source", {"generated": "gsm8k"},
         "source.generated must be one of last_digit_chain"),
        ("awpnli", "texts", ["premise"],
         "texts has 'premise', not a field; fields are statement1, statement2"),
        ("awpnli", "gold/0/values", None, "gold.0.values must say which option, 1 to 2"),
        ("math500", "gold", [{"columns": ["a", "b"]}], "gold.0 of math needs a single column"),
        ("humaneval", "gold/0/values", {"a": 1},
         "gold.0.values must be left out: the gold of code is its tests"),
        ("awpnli", "prompts/default/user", "{{premise}}",
         "prompts.default shows {{premise}}, not a field"),
        ("awpnli", "prompts/default/user", "Decide.",
         "prompts.default.user shows no field; write e.g. {{statement1}}"),
        ("awpnli", "decoding/greedy/temperature", 0.3,
         "decoding.greedy.temperature has no effect without do_sample"),
        ("awpnli", "metrics", ["f1"],
         "metrics has 'f1', which is none of accuracy, micro_f1, macro_f1"),
        ("math500", "metrics", ["pass@32"],
         "metrics has 'pass@32', but no decoding has n of 32 or more"),
        ("humaneval", "metrics", ["maj@4"], "metrics has 'maj@4', but programs do not vote"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line_with_its_key(tmp_path, name, path, value, message):
    refused(write(tmp_path, _changed(path, value, name)), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"extends": "aimee"},
         "extends must be the name of a task, got 'aimee'; did you mean aime"),
        ({"extends": "aime", "gold": None}, "the file needs the key 'gold'"),
        ("name: [", "not YAML"),
        ("name: a\nname: b\n", "found duplicate key name"),
        ("1: a", "1 must be strings"),
    ],
)  # fmt: skip
def test_bad_extensions_and_malformed_files_are_one_line(tmp_path, content, message):
    refused(
        write(tmp_path, {"name": "mine", **content} if isinstance(content, dict) else content),
        message,
    )


def test_a_file_may_hold_only_its_differences_from_another(tmp_path):
    # aime2022 itself extends a task. Keys of the source are merged, all others replaced whole.
    extended = {
        "name": "mine",
        "extends": "aime2022",
        "title": "Mine",
        "id": None,
        "source": {"rows": {"all": 3}},
    }
    task = load_task(write(tmp_path, extended))
    base = load_task("aime")
    assert (task.name, task.title, task.id) == ("mine", "Mine", None)
    assert task.source.hub == base.source.hub and task.source.rows == {"all": 3}
    assert (task.prompts, task.gold, task.decoding) == (base.prompts, base.gold, base.decoding)


COMPOSED = {"first_of": ["Begin with {{starter}} here.", "Read {{meta.kind}}."]}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"starter": "  def f():\n    "}, "Begin with   def f():\n     here."),
        ({"starter": "", "meta": {"kind": "lines"}}, "Read lines."),
        ({"starter": None, "meta": {"kind": "{{starter}}"}}, "Read {{starter}}."),
        ({"meta": {"kind": 3}}, "Read 3."),
    ],
)
def test_a_field_may_be_a_text_around_cells(tmp_path, row, text):
    task = load_task(write(tmp_path, {**CODE, "fields": {"prompt": ["prompt"], "form": COMPOSED}}))
    assert (
        task.problem({"prompt": "p", "test": "t", "entry_point": "f", **row}).fields["form"] == text
    )


SOURCE = {
    "local": {"test": "rows.jsonl"},
    "rows": {"test": 2},
    "where": {"year": "^2024"},
    "origin": "example.org/a",
}
MINE = {**MATH, "source": SOURCE, "id": "name"}
ROWS = [
    {"question": "1+1", "answer": 2, "name": "a", "year": 2024},
    {"question": "1+2", "answer": 3, "name": "b", "year": 2023},
    {"question": "1+3", "answer": 4, "name": "c", "year": "2024 I"},
]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:2], "rows.jsonl has 1 rows of the task; 2 were published"),
        ([*ROWS, ROWS[0]], "row 4: the id 'a' is not the first of that name"),
        ([{"question": "1+1"}], "row 1: no column year"),
        (ROWS, None),
    ],
)
def test_rows_of_other_tasks_are_skipped_and_bad_data_refused(tmp_path, rows, message):
    mine = load_task(write(tmp_path, MINE))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if message is None:
        problems = load_problems(mine, tmp_path)
        assert [(name, problem.gold) for name, problem in problems.items()] == [
            ("a", "2"),
            ("c", "4"),
        ]
        return
    with pytest.raises(SourceError) as caught:
        load_problems(mine, tmp_path)
    assert (
        message in str(caught.value)
        and str(caught.value).startswith("mine: ")
        and "\n" not in str(caught.value)
    )
