# SPDX-License-Identifier: Apache-2.0
"""The pipeline: settings, order of stages, removals, rows of Eurus-2-RL-Data, one-line errors."""

import asyncio
import importlib
import json
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from told import get_rows, removed

from data_preprocessing.check_solutions import CodeVerifier
from data_preprocessing.pipeline import STAGES, load_settings, main
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks.action_prompt import CODE_SUFFIX, MATH_SUFFIX, SYSTEM_PROMPT
from prime_ext.tasks.rl_rows import MATH_SCHEMA
from prime_ext.utils.files import read_json
from prime_ext.utils.rows import SourceError, read_hub_rows
from prime_ext.utils.run_store import RunLock

FIXTURES = Path(__file__).parent / "fixtures"
SETTINGS = Path(__file__).resolve().parents[2] / "data_preprocessing" / "settings"
GSM8K_MATH = SETTINGS / "gsm8k_math.yaml"
OUTPUTS = {
    "train.parquet",
    "test.parquet",
    "removed.jsonl",
    "choice.jsonl",
    "report.json",
    "report.md",
}


# ---- settings ----


def test_shipped_settings_name_every_stage_and_default_option():
    named = {}
    for path in SETTINGS.glob("*.yaml"):
        content = yaml.safe_load(path.read_text())["stages"]
        for name, options in load_settings(path).stages.items():
            assert options == STAGES[name]()
            named[name] = named.get(name) or list(content[name])
    assert named == {name: list(vars(kind())) for name, kind in STAGES.items()}


def test_words_go_over_the_file_and_null_leaves_out():
    words = [
        "stages.decontaminate=null",
        "stages.deduplicate.threshold=0.9",
        "sources.math=null",
        "data_dir=D",
    ]
    words += ["stages.math_rules.rules=[]", "sources.gsm8k.splits=test", "system_prompt=none"]
    settings = load_settings(GSM8K_MATH, [*words, "stages.deduplicate.levels=exact"])
    assert list(settings.sources) == ["gsm8k"] and settings.sources["gsm8k"].splits == ("test",)
    assert list(settings.stages) == ["math_rules", "deduplicate"]
    assert settings.stages["math_rules"].rules == () and settings.stages["deduplicate"].levels == (
        "exact",
    )
    assert settings.stages["deduplicate"].threshold == 0.9
    assert settings.data_dir == Path("D") and settings.system_prompt == "none"


def run(folder, settings, *words):
    return main(
        [str(word) for word in (SETTINGS / f"{settings}.yaml", *words, "--output-dir", folder)]
    )


# ---- rules of mathematics ----

ALL = ("gsm8k", "math", "numina")


def apply_math_rules(folder, *words, sources=ALL):
    chosen = [f"sources.{name}={'{}' if name in sources else 'null'}" for name in ALL]
    alone = [f"data_dir={FIXTURES}", "stages.deduplicate=null", "stages.decontaminate=null"]
    return run(folder, "gsm8k_math", *chosen, *alone, *words)


def get_rules(folder):
    return {(line["data_source"], line["row"]): line["rule"] for line in removed(folder)}


def test_math_rules_list_removed_rows_and_write_the_others(tmp_path):
    assert apply_math_rules(tmp_path) == 0
    assert pq.read_schema(tmp_path / "train.parquet").equals(MATH_SCHEMA)
    rows = get_rows(tmp_path)
    problem = "A shelf holds 12 jars. Each jar has 85 beads. How many beads are there?"
    assert rows[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": problem + MATH_SUFFIX},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1020"},
        "extra_info": {"split": "train", "index": 0},
    }
    assert get_rules(tmp_path) == {
        ("openai/gsm8k", 5): "no_answer",
        ("DigitalLearningGmbH/MATH-lighteval", 2): "figure",
        ("DigitalLearningGmbH/MATH-lighteval", 3): "choice",
        ("DigitalLearningGmbH/MATH-lighteval", 4): "no_digit",
        ("DigitalLearningGmbH/MATH-lighteval", 6): "blank",
        ("numina_olympiads", 1): "proof",
        ("numina_cn_k12", 5): "blank",
        ("numina_aops_forum", 6): "no_answer",
        ("numina_orca_math", 7): "broken_latex",
    }
    # Multiple choice is put aside.
    aside = json.loads((tmp_path / "choice.jsonl").read_text())
    assert (
        aside["extra_info"] == {"split": "train", "index": 2}
        and "(A)" in aside["prompt"][1]["content"]
    )
    numina = dict.fromkeys(("numina_cn_k12", "numina_amc_aime", "numina_synthetic_math"), 1)
    written = {"openai/gsm8k": 4, "DigitalLearningGmbH/MATH-lighteval": 2, **numina}
    assert Counter(row["data_source"] for row in rows) == written
    assert [row["reward_model"]["ground_truth"] for row in get_rows(tmp_path, "test")] == [
        "25",
        "21",
    ]


def test_without_rules_unanswered_rows_go_and_old_files_are_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("Be brief.\n")
    words = ("stages.math_rules.rules=[]", f"system_prompt={tmp_path / 'mine.txt'}")
    assert apply_math_rules(tmp_path, *words, sources=["gsm8k", "math"]) == 0
    assert get_rows(tmp_path)[0]["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert get_rules(tmp_path) == {("openai/gsm8k", 5): "no_answer"}
    assert apply_math_rules(tmp_path, sources=["math"]) == 2
    assert "test.parquet is of an earlier run" in capsys.readouterr().err


BAD_ROWS = [
    '{"problem": "What is 1+1?", "answer": "2", "source": "a", "id": 1}',
    "{broken",
    '{"answer": "2", "source": "a"}',
    '{"problem": 7, "answer": ["2"], "source": "a"}',
    '{"problem": "What is 1+2?", "answer": "3"}',
    '{"problem": "What is 1+3?", "answer": "4", "source": "a", "id": 1}',
    '{"problem": "What is \\ud800?", "answer": "4", "source": "a"}',
    '{"problem": "' + "x" * 30_000 + '", "answer": "5", "source": "a"}',
]


def test_bad_rows_are_counted_and_listed_and_not_fatal(tmp_path):
    (tmp_path / "in.jsonl").write_text("\n".join(BAD_ROWS) + "\n")
    out = tmp_path / "out"
    assert (
        apply_math_rules(out, "--input", f"numina={tmp_path / 'in.jsonl'}", sources=["numina"]) == 0
    )
    assert [row["extra_info"]["index"] for row in get_rows(out)] == [0]
    lines = removed(out)
    assert [(line["row"], line["rule"]) for line in lines] == [
        (n, "bad_row") for n in range(2, 8)
    ] + [(8, "giant")]
    reasons = (
        "not JSON|no column problem|answer must be a text|no column source|id 1 was there"
        " before|half a character"
    )
    for line, reason in zip(lines, [*reasons.split("|"), "30000 characters"], strict=True):
        assert reason in line["evidence"]


def test_files_without_a_source_are_named_and_split_by_problem(tmp_path):
    lines = [json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) for n in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    words = ["--input", f"numina={tmp_path / 'in.jsonl'}", "--source", "mine", "--split", "0.8"]
    assert apply_math_rules(tmp_path / "out", *words, "chunk_rows=7", sources=["numina"]) == 0
    train, test = (get_rows(tmp_path / "out", split) for split in ("train", "test"))
    assert {row["data_source"] for row in train + test} == {"math/mine"}
    assert {row["extra_info"]["split"] for row in test} == {"test"} and 2 <= len(test) <= 14
    assert sorted(row["extra_info"]["index"] for row in train + test) == list(range(40))


@pytest.mark.parametrize(("word", "suffix"), [("true", MATH_SUFFIX), ("false", "")])
def test_own_rows_have_their_own_name_and_may_lack_the_instruction(tmp_path, word, suffix):
    rows = [
        {"id": n, "question": f"What is {n} + {n}?", "answer": str(2 * n), "source": "sums"}
        for n in range(3)
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    words = [f"answer_format={word}", "system_prompt=none", "stages=null"]
    assert run(tmp_path / "out", "math", *words, "--input", f"own={path}") == 0
    train = get_rows(tmp_path / "out")
    assert {row["data_source"] for row in train} == {"math/sums"}
    assert [row["prompt"][0]["content"] for row in train] == [
        row["question"] + suffix for row in rows
    ]
    assert read_json(tmp_path / "out" / "report.json")["settings"]["answer_format"] is bool(suffix)


def test_tasks_that_were_not_compared_are_named(tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    path.write_text('{"question": "What is 1 + 1?", "answer": "2"}')
    words = ["--input", f"own={path}", "--source", "mine", f"data_dir={FIXTURES}"]
    words += ["stages.deduplicate=null"]
    assert run(tmp_path / "out", "math", *words) == 0
    printed = capsys.readouterr().out
    line = next(
        line for line in printed.splitlines() if line.startswith("decontaminate: NOT compared")
    )
    assert "math500" in line and "aime2025" in line and "last_digit_chain" not in line
    assert "report.md says why for each" in line
    # Without tasks nothing is left out.
    words += ["stages.decontaminate.tasks=[]"]
    assert run(tmp_path / "other", "math", *words) == 0
    assert "NOT compared" not in capsys.readouterr().out


def test_hub_rows_are_numbered_and_missing_data_sets_are_reported(tmp_path):
    pq.write_table(pa.table({"problem": ["P", "Q"]}), tmp_path / "train.parquet")
    assert list(read_hub_rows(str(tmp_path), None, "train")) == [
        (1, {"problem": "P"}),
        (2, {"problem": "Q"}),
    ]
    with pytest.raises(
        SourceError, match="cannot be fetched from the hub .* give local files instead"
    ):
        list(read_hub_rows(str(tmp_path / "nowhere"), None, "train"))


# ---- all stages ----


@pytest.fixture
def math_files(tmp_path):
    """Write two sources with twins, a training row that gives away a test row, and bad rows."""
    folder = tmp_path / "in"
    folder.mkdir()
    story = (
        "A farmer sells {} baskets of apples on the market of the small town every morning for"
        " three coins each."
    )
    train = [
        {"question": story.format(5), "answer": "so\n#### 15"},
        {
            "question": "How many legs have 4 horses and 3 ducks that stand together on a meadow?",
            "answer": "#### 22",
        },
        {"question": story.format(5).replace("small", "tiny"), "answer": "it is\n#### 15"},
        {"question": story.format(6), "answer": "#### 18"},
        {
            "question": (
                "A train of twelve cars with forty seats has how many seats if 9 are broken?"
            ),
            "answer": "no",
        },
        {
            "question": "Nine sheep eat 18 bales of hay in a week; how many bales eat 3 sheep?",
            "answer": "#### 6",
        },
    ]
    test = [
        {
            "question": "Nine sheep eat 27 bales of hay in a week; how many bales eat 3 sheep?",
            "answer": "#### 9",
        }
    ]
    other = [
        {
            "problem": "How many legs have 4 horses and 3 ducks, that stand together on a meadow",
            "answer": "22",
        },
        {"problem": "What is $3^4$?", "answer": "81"},
    ]
    for name, rows in (("train", train), ("test", test), ("other", other)):
        lines = [json.dumps(row) for row in rows] + (["{broken"] if name == "train" else [])
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    files = [
        f"gsm8k:train={folder}/train.jsonl",
        f"gsm8k:test={folder}/test.jsonl",
        f"math={folder}/other.jsonl",
    ]
    # Without a task of the evaluation, only the data's own test rows can be given away.
    return ["data_dir=nowhere", "--input", *files]


def test_stages_apply_in_order_and_report_what_they_removed(tmp_path, math_files, capsys):
    out = tmp_path / "out"
    assert run(tmp_path / "small", "gsm8k_math", "chunk_rows=2", *math_files) == 0
    assert run(out, "gsm8k_math", *math_files) == 0
    removals = {(line["file"].partition("/")[2], line["row"]): line for line in removed(out)}
    assert {key: line["rule"] for key, line in removals.items()} == {
        ("train.jsonl", 7): "bad_row",
        ("train.jsonl", 5): "no_answer",
        ("train.jsonl", 3): "duplicate_near",
        ("other.jsonl", 1): "duplicate_exact",
        ("train.jsonl", 6): "contaminated",
    }
    twin = removals["train.jsonl", 3]["details"]
    assert twin["of"] == ["openai/gsm8k", "train", 0] and 0.8 <= twin["similarity"] < 1
    assert "small town" in twin["of_text"] and "tiny town" in twin["text"]
    hit = removals["train.jsonl", 6]["details"]
    assert (hit["task"], hit["task_row"], hit["level"]) == ("openai/gsm8k test", 0, "numbers")
    assert "27 bales" in hit["task_text"] and "18 bales" in hit["text"]
    # The story with another number is another problem, and stays.
    assert [row["reward_model"]["ground_truth"] for row in get_rows(out)] == [
        "15",
        "22",
        "18",
        "81",
    ]
    assert get_rows(out, "test")[0]["extra_info"] == {"split": "test", "index": 0}
    assert get_rows(tmp_path / "small") == get_rows(out)
    assert {path.name for path in out.iterdir()} == OUTPUTS | {".prime_ext.lock"}
    report = read_json(out / "report.json")
    counts = {(source["split"], source["data_source"]): source for source in report["sources"]}
    assert [counts["train", "openai/gsm8k"][name] for name in ("read", "written")] == [6, 3]
    given_away = {
        "task": "openai/gsm8k test",
        "level": "numbers",
        "training_rows": 1,
        "test_rows": 1,
    }
    assert report["contamination"] == [given_away]
    assert "nothing is wrong" in capsys.readouterr().out
    text = (out / "report.md").read_text()
    assert (
        text.startswith("# GSM8K and MATH\n") and "| openai/gsm8k test | numbers | 1 | 1 |" in text
    )
    assert (
        "not compared with math500: " in text
        and "Nine sheep eat 27 bales" in text
        and "nowhere" not in text
    )


CODE = ["data_dir=" + str(FIXTURES), "chunk_rows=4", "stages.decontaminate.tasks=[]"]


def test_two_programs_never_fill_one_folder(tmp_path, math_files, capsys):
    with RunLock(tmp_path):
        (tmp_path / ".unfinished").mkdir()
        assert run(tmp_path, "gsm8k_math", *math_files) == 2
    assert f"{tmp_path} is in use by process {os.getpid()} on " in capsys.readouterr().err
    # The other program's files are left alone.
    assert (tmp_path / ".unfinished").is_dir()


def test_code_rows_are_those_that_a_reference_program_passes(tmp_path, monkeypatch):
    pytest.importorskip("pyseccomp")
    limits = ["stages.check_solutions.seconds=3", "stages.check_solutions.sandbox_workers=2"]
    assert run(tmp_path, "code", *CODE, *limits) == 0
    assert {(line["data_source"], line["row"]): line["rule"] for line in removed(tmp_path)} == {
        ("apps", 3): "image",
        ("apps", 4): "unreadable_tests",
        ("apps", 5): "unreadable_tests",
        ("apps", 6): "interactive",
        ("apps", 7): "solutions_fail",
        ("apps", 8): "duplicate_exact",
        ("apps", 9): "contradictory_tests",
        ("apps", 12): "several_answers",
        ("codecontests", 2): "files",
        ("codecontests", 3): "no_tests",
        ("taco", 1): "image",
        ("taco", 2): "duplicate_exact",
        ("codeforces", 4): "interactive",
        ("codeforces", 5): "bad_row",
    }
    first = get_rows(tmp_path)[0]
    assert (first["ability"], first["data_source"]) == ("code", "apps")
    assert first["prompt"][0] == {"role": "system", "content": SYSTEM_PROMPT}
    assert first["prompt"][1]["content"].endswith("Example output\n5" + CODE_SUFFIX)
    assert first["extra_info"] == {"split": "train", "index": 0}
    halves = next(row for row in get_rows(tmp_path) if row["data_source"] == "codecontests")
    assert json.loads(halves["reward_model"]["ground_truth"])["inputs"] == ["8\n", "10\n", "2\n"]
    (failed,) = [line for line in removed(tmp_path) if line["rule"] == "solutions_fail"]
    assert "2 of 2 programs tried: wrong" in failed["evidence"]
    checked = {
        "kept without a Python program": 1,
        **{f"passed by program {n}": 4 if n == 1 else 1 for n in (1, 2, 3)},
    }
    assert read_json(tmp_path / "report.json")["notes"] == {
        "code_tests: cut tests": 1,
        "code_tests: repeated tests": 1,
        **{f"check_solutions: {note}": n for note, n in checked.items()},
    }
    # Verdicts are kept: a second run runs no program and writes the same bytes.
    before = (tmp_path / "train.parquet").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(CodeVerifier, "averify_program", None)
        assert run(tmp_path, "code", *CODE, *limits) == 0
    assert (tmp_path / "train.parquet").read_bytes() == before
    # The verifier of training agrees.
    row = next(
        row for row in get_rows(tmp_path) if "fn_name" in row["reward_model"]["ground_truth"]
    )
    response = "```python\ndef double(x):\n    return x + x\n```"
    gold = row["reward_model"]["ground_truth"]
    assert asyncio.run(compute_score("apps", response, gold, row["extra_info"]))["score"] == 1.0


# ---- mistakes ----

MATH = f"pipeline {GSM8K_MATH}"
NUMINA = f"{MATH} stages.decontaminate=null --input numina=in.jsonl"
GSM8K = f"{MATH} stages.decontaminate=null --input gsm8k=in.jsonl"
HERE = f"data_dir={FIXTURES}"
NEWS = "numeric_reasoning --input newsnli=in.csv"
ROWS = "premise,hypothesis,label\n"


@pytest.mark.parametrize(
    ("words", "content", "reason"),
    [
        (f"{MATH} stages.math_rules.rules=[fun]", "", "stages.math_rules.rules.0 must be 'giant'"),
        (f"{MATH} stages.decontaminate.tasks=[gsm9k]", "",
         "stages.decontaminate.tasks.0 must be all or one of"),
        (f"{MATH} nonsense", "", "'nonsense' must be KEY=VALUE"),
        ("pipeline in.jsonl", "a: [", "in.jsonl is not YAML"),
        (f"{MATH} --input poems=x.jsonl", "", "--input names poems, which must be one of gsm8k"),
        (f"{MATH} data_dir=nowhere", "", "nowhere/gsm8k/train.jsonl does not exist"),
        (f"{MATH} {HERE} stages.decontaminate.tasks=[math500]", "",
         "decontaminate.tasks: math500: "),
        (NUMINA, "{broken\n", "nothing can be used: "),
        (NUMINA, '{"problem": "Prove it.", "answer": "1", "source": "a"}\n',
         "left of 1 rows: proof 1 (asks for", ),
        (GSM8K, '{"question": "P", "answer": "7"}\n',
         "left of 1 rows: no_answer 1 (no gold answer: no line with ####", ),
        (NUMINA, '{"problem": "P", "answer": "7"}\n',
         "no column source; it has problem, answer; --source NAME"),
        (f"{GSM8K} --source mine", "", "--source mine: gsm8k is not named by a column source"),
        (f"{MATH} --input numina:dev=in.jsonl", "", "must be NAME=FILE or NAME:SPLIT=FILE with"),
        (f"{MATH} --input numina=a numina=b", "", "numina already has a file for all"),
        (f"{MATH} sources.own={{}} stages.decontaminate=null", "",
         "own needs a file: give --input"),
        (f"{NEWS} --splits official", ROWS + "a,b,neutral\n", "newsnli has no official split"),
        (f"{NEWS} --tasks qqa", "", "--input names newsnli, which is not among --tasks qqa"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_writes_nothing(
    tmp_path, monkeypatch, capsys, words, content, reason
):
    monkeypatch.chdir(tmp_path)
    for name in ("in.jsonl", "in.csv"):
        (tmp_path / name).write_text(content)
    program, *words = words.split()
    assert (
        importlib.import_module(f"data_preprocessing.{program}").main(
            [*words, "--output-dir", "out"]
        )
        == 2
    )
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"{program}: ") and reason in error
    assert not list(Path("out").glob("[!.]*"))
