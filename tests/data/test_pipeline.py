# SPDX-License-Identifier: Apache-2.0
"""The pipeline from settings: stages in order, what goes and why, resuming, the same bytes however it is run."""

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from benchmark_rows import SAMPLES, data_folder

from data_preprocessing import pipeline_steps
from data_preprocessing.pipeline import main
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks.action_prompt import CODE_SUFFIX, SYSTEM_PROMPT
from prime_ext.utils.files import read_json

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
SETTINGS = ROOT / "data_preprocessing" / "settings"
OUTPUTS = {"train.parquet", "test.parquet", "removed.jsonl", "report.json", "report.md"}


def run(folder, settings, *words, workers=1):
    arguments = [SETTINGS / f"{settings}.yaml", "--output-dir", folder, "--workers", workers, *words]
    return main([str(word) for word in arguments])


def rows_of(folder, name="train"):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def removed(folder):
    return [json.loads(line) for line in (folder / "removed.jsonl").read_text().splitlines()]


@pytest.fixture
def math_files(tmp_path):
    """Two sources with twins, a training row that gives away a test row, and bad rows."""
    folder = tmp_path / "in"
    folder.mkdir()
    story = "A farmer sells {} baskets of apples on the market of the small town every morning for three coins each."
    train = [
        {"question": story.format(5), "answer": "so\n#### 15"},
        {"question": "How many legs have 4 horses and 3 ducks that stand together on a meadow?", "answer": "#### 22"},
        {"question": story.format(5).replace("small", "tiny"), "answer": "it is\n#### 15"},
        {"question": story.format(6), "answer": "#### 18"},
        {
            "question": "A train of twelve cars with forty seats each has how many seats if 9 are broken?",
            "answer": "no",
        },
        {"question": "Nine sheep eat 18 bales of hay in a week; how many bales eat 3 sheep?", "answer": "#### 6"},
    ]
    test = [{"question": "Nine sheep eat 27 bales of hay in a week; how many bales eat 3 sheep?", "answer": "#### 9"}]
    other = [
        {"problem": "How many legs have 4 horses and 3 ducks, that stand together on a meadow", "answer": "22"},
        {"problem": "What is $3^4$?", "answer": "81"},
    ]
    for name, rows in (("train", train), ("test", test), ("other", other)):
        lines = [json.dumps(row) for row in rows] + (["{broken"] if name == "train" else [])
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    files = [f"gsm8k:train={folder}/train.jsonl", f"gsm8k:test={folder}/test.jsonl", f"math={folder}/other.jsonl"]
    # No task of the evaluation is at hand: the own test rows are what can be given away.
    return ["data_dir=nowhere", "--input", *files]


def test_stages_apply_in_order_and_say_what_they_removed_and_of_what(tmp_path, math_files):
    out = tmp_path / "out"
    assert run(out, "gsm8k_math", *math_files) == 0
    found = {(line["file"].partition("/")[2], line["row"]): line for line in removed(out)}
    assert {key: line["rule"] for key, line in found.items()} == {
        ("train.jsonl", 7): "bad_row",
        ("train.jsonl", 5): "no_answer",
        ("train.jsonl", 3): "duplicate_near",
        ("other.jsonl", 1): "duplicate_exact",
        ("train.jsonl", 6): "contaminated",
    }
    twin = found["train.jsonl", 3]["details"]
    assert twin["of"] == ["openai/gsm8k", "train", 0] and 0.8 <= twin["similarity"] < 1
    assert "small town" in twin["of_text"] and "tiny town" in twin["text"]
    hit = found["train.jsonl", 6]["details"]
    assert (hit["task"], hit["task_row"], hit["level"]) == ("openai/gsm8k test", 0, "numbers")
    assert "27 bales" in hit["task_text"] and "18 bales" in hit["text"]
    # The story with another number is another problem, and stays.
    assert [row["reward_model"]["ground_truth"] for row in rows_of(out)] == ["15", "22", "18", "81"]
    assert rows_of(out, "test")[0]["extra_info"] == {"split": "test", "index": 0}
    assert {path.name for path in out.iterdir()} == OUTPUTS


def test_the_report_has_counts_a_funnel_examples_and_what_was_given_away(tmp_path, math_files):
    assert run(tmp_path, "gsm8k_math", *math_files) == 0
    report = read_json(tmp_path / "report.json")
    train = next(
        found for found in report["sources"] if (found["split"], found["data_source"]) == ("train", "openai/gsm8k")
    )
    assert (train["read"], train["written"]) == (6, 3)
    assert report["contamination"] == [
        {"task": "openai/gsm8k test", "level": "numbers", "training_rows": 1, "test_rows": 1}
    ]
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# GSM8K and MATH\n") and "█" in text
    assert "| openai/gsm8k test | numbers | 1 | 1 |" in text
    assert "not compared with math500: " in text and "Nine sheep eat 27 bales" in text and "nowhere" not in text


@pytest.mark.parametrize(("words", "workers"), [((), 2), (("chunk_rows=2",), 1)])
def test_the_result_depends_neither_on_processes_nor_on_parts(tmp_path, math_files, words, workers):
    assert run(tmp_path / "a", "gsm8k_math", *math_files) == 0
    assert run(tmp_path / "b", "gsm8k_math", *words, *math_files, workers=workers) == 0
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    if workers == 2:
        for name in OUTPUTS:
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_interrupted_run_goes_on_where_it_was_and_a_later_stage_can_change(tmp_path, math_files, monkeypatch):
    work, made = pipeline_steps.StepWork.__call__, []

    def interrupted(self, rows, part):
        if len(made) == 6:
            raise KeyboardInterrupt
        made.append(str(part))
        return work(self, rows, part)

    words = ["chunk_rows=2", *math_files]
    monkeypatch.setattr(pipeline_steps.StepWork, "__call__", interrupted)
    assert run(tmp_path / "a", "gsm8k_math", *words) == 130
    assert not (tmp_path / "a" / "train.parquet").exists()
    monkeypatch.setattr(pipeline_steps.StepWork, "__call__", lambda *call: made.append(str(call[2])) or work(*call))
    # Six parts of three steps each: 4 + 1 + 1 chunks of two rows.
    assert run(tmp_path / "a", "gsm8k_math", "stages.decontaminate.levels=[exact]", *words) == 0
    assert len(made) == len(set(made)) == 18
    assert run(tmp_path / "b", "gsm8k_math", "stages.decontaminate.levels=[exact]", *words) == 0
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b") and len(rows_of(tmp_path / "a")) == 5


CODE = ["data_dir=" + str(FIXTURES), "chunk_rows=4", "stages.decontaminate.tasks=[]"]
SANDBOX = ["stages.check_solutions.seconds=3", "stages.check_solutions.sandbox_workers=2"]


def test_code_problems_of_four_sources_become_rows_of_eurus_2_rl_data(tmp_path):
    assert run(tmp_path, "code", *CODE, "stages.check_solutions=null") == 0
    rules = {(line["data_source"], line["row"]): line["rule"] for line in removed(tmp_path)}
    assert rules == {
        ("apps", 3): "image",
        ("apps", 4): "unreadable_tests",
        ("apps", 5): "unreadable_tests",
        ("apps", 6): "interactive",
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
    first = rows_of(tmp_path)[0]
    assert first["ability"] == "code" and first["data_source"] == "apps"
    assert first["prompt"][0] == {"role": "system", "content": SYSTEM_PROMPT}
    assert first["prompt"][1]["content"].endswith("Example output\n5" + CODE_SUFFIX)
    assert first["extra_info"] == {"split": "train", "index": 0}
    halves = next(row for row in rows_of(tmp_path) if row["data_source"] == "codecontests")
    assert json.loads(halves["reward_model"]["ground_truth"])["inputs"] == ["8\n", "10\n", "2\n"]
    assert read_json(tmp_path / "report.json")["notes"] == {"code_tests: cut tests": 1, "code_tests: repeated tests": 1}


def test_tests_that_no_reference_program_passes_are_removed_and_what_passes_is_counted(tmp_path):
    pytest.importorskip("pyseccomp")
    assert run(tmp_path, "code", *CODE, *SANDBOX) == 0
    failed = [line for line in removed(tmp_path) if line["rule"] == "solutions_fail"]
    assert [(line["data_source"], line["row"]) for line in failed] == [("apps", 7)]
    assert "2 of 2 programs tried: wrong" in failed[0]["evidence"]
    notes = read_json(tmp_path / "report.json")["notes"]
    assert {name: n for name, n in notes.items() if name.startswith("check")} == {
        "check_solutions: kept without a Python program": 1,
        "check_solutions: passed by program 1": 4,
        "check_solutions: passed by program 2": 1,
        "check_solutions: passed by program 3": 1,
    }
    # The verifier of training agrees.
    row = next(row for row in rows_of(tmp_path) if "fn_name" in row["reward_model"]["ground_truth"])
    response = "```python\ndef double(x):\n    return x + x\n```"
    gold = row["reward_model"]["ground_truth"]
    assert asyncio.run(compute_score("apps", response, gold, row["extra_info"]))["score"] == 1.0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--input", "poems=x.jsonl"], "--input names poems, which is none of gsm8k"),
        (["data_dir=nowhere"], "nowhere/gsm8k/train.jsonl does not exist"),
        (["data_dir=" + str(FIXTURES), "stages.decontaminate.tasks=[math500]"], "decontaminate.tasks: math500: "),
        (["data_dir=" + str(FIXTURES), "--workers", "0"], "--workers must be at least 1"),
        (["sources.math=null", "sources.gsm8k=null"], "sources needs some of"),
    ],
)
def test_what_cannot_work_is_one_line_and_writes_nothing(tmp_path, capsys, words, reason):
    assert run(tmp_path / "out", "gsm8k_math", *words) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("pipeline: ") and reason in error and "\n" not in error
    assert not (tmp_path / "out" / "train.parquet").exists()


def test_strict_stops_at_the_first_bad_row(tmp_path, math_files, capsys):
    assert run(tmp_path / "out", "gsm8k_math", *math_files, "--strict") == 2
    assert "train.jsonl row 7: not JSON" in capsys.readouterr().err


def test_the_generated_task_is_a_source_and_shown_bare(tmp_path):
    settings = tmp_path / "chain.yaml"
    settings.write_text("sources: {last_digit_chain: {}}\ngenerated_rows: {train: 40, test: 5}\n")
    assert main([str(settings), "--output-dir", str(tmp_path / "out"), "--workers", "1"]) == 0
    assert len(rows_of(tmp_path / "out")) == 40
    assert [message["role"] for message in rows_of(tmp_path / "out")[0]["prompt"]] == ["user"]


def test_gsm8k_and_math_become_a_validated_file_by_one_command(tmp_path, capsys):
    folder = data_folder("gsm8k/train.jsonl", "gsm8k/test.jsonl", "math/train.jsonl", "math500/math_test_cleaned.json")
    task = tmp_path / "some_of_math500.yaml"
    task.write_text("name: some_of_math500\nextends: math500\ntitle: Some\nsource: {rows: null}\n")
    words = [f"data_dir={folder}", f"stages.decontaminate.tasks=[{task}]"]
    assert run(tmp_path, "gsm8k_math", *words, workers=2) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    counts = {found["data_source"]: found["removed"] for found in read_json(tmp_path / "report.json")["sources"]}
    assert counts["DigitalLearningGmbH/MATH-lighteval"]["figure"] == (1 if folder == SAMPLES else 88)
