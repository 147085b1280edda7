# SPDX-License-Identifier: Apache-2.0
"""Math sources as RL rows: schema of Eurus-2-RL-Data, what is removed and listed, resuming, bad input."""

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmark_rows import SAMPLES, data_folder

from data_preprocessing.rl_data import main
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks import last_digit_chain
from prime_ext.tasks.action_prompt import MATH_SUFFIX, SYSTEM_PROMPT
from prime_ext.utils.files import read_json
from prime_ext.utils.rows import SourceError, hub_rows
from recipes.quickstart.data import rl_rows

FIXTURES = Path(__file__).parent / "fixtures"
ALL = ("gsm8k", "math", "numina")


def run(folder, *arguments, sources=ALL, data=FIXTURES):
    words = ["--sources", *sources, "--data-dir", data, "--output-dir", folder, "--workers", 1, *arguments]
    return main([str(word) for word in words])


def rows_of(folder, name="train"):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def removed(folder):
    lines = [json.loads(line) for line in (folder / "removed.jsonl").read_text().splitlines()]
    return {(line["data_source"], line["row"]): line["rule"] for line in lines}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rl")
    assert run(folder) == 0
    return folder


def test_a_row_has_the_schema_of_eurus_2_rl_data(converted):
    table = pq.read_table(converted / "train.parquet")
    assert {name: str(table.schema.field(name).type) for name in table.column_names} == {
        "data_source": "string",
        "prompt": "list<element: struct<role: string, content: string>>",
        "ability": "string",
        "reward_model": "struct<style: string, ground_truth: string>",
        "extra_info": "struct<split: string, index: int64>",
    }
    assert rows_of(converted)[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {
                "role": "user",
                "content": "A shelf holds 12 jars. Each jar has 85 beads. How many beads are there?" + MATH_SUFFIX,
            },
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "1020"},
        "extra_info": {"split": "train", "index": 0},
    }


def test_what_is_removed_is_listed_with_its_rule_and_the_rest_is_written(converted):
    assert removed(converted) == {
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
    (aside,) = [json.loads(line) for line in (converted / "choice.jsonl").read_text().splitlines()]
    assert aside["extra_info"] == {"split": "train", "index": 2} and "(A)" in aside["prompt"][1]["content"]
    written = [(row["data_source"], row["extra_info"]["index"]) for row in rows_of(converted)]
    assert written == [
        *(("openai/gsm8k", index) for index in range(4)),
        ("DigitalLearningGmbH/MATH-lighteval", 0),
        ("DigitalLearningGmbH/MATH-lighteval", 4),
        ("numina_cn_k12", 1),
        ("numina_amc_aime", 2),
        ("numina_synthetic_math", 3),
    ]


def test_without_rules_only_rows_without_an_answer_go_and_of_test_rows_no_others(converted, tmp_path):
    assert [row["reward_model"]["ground_truth"] for row in rows_of(converted, "test")] == ["25", "21"]
    (tmp_path / "mine.txt").write_text("Be brief.\n")
    words = ("--rules", "--system-prompt", tmp_path / "mine.txt")
    assert run(tmp_path, *words, sources=["gsm8k", "math"]) == 0
    assert rows_of(tmp_path)[0]["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert removed(tmp_path) == {("openai/gsm8k", 5): "no_answer"}


def test_the_verifier_of_training_calls_the_gold_answer_right_and_another_wrong(converted):
    for row in rows_of(converted):
        gold = row["reward_model"]["ground_truth"]
        for answer, score in ((gold, 1.0), ("977", 0.0)):
            response = f"[OUTPUT]\n\nThe answer is \\boxed{{{answer}}}."
            extra = {**row["extra_info"], "raw_prompt": row["prompt"]}
            assert asyncio.run(compute_score(row["data_source"], response, gold, extra))["score"] == score


def test_the_report_says_what_each_rule_removed(converted):
    report = read_json(converted / "report.json")
    math = next(found for found in report["sources"] if "MATH" in found["data_source"])
    assert (math["read"], math["written"]) == (6, 2)
    assert math["removed"] == {"figure": 1, "choice": 1, "no_digit": 1, "blank": 1}
    text = (converted / "report.md").read_text()
    assert "| train | DigitalLearningGmbH/MATH-lighteval | 6 | 1 |" in text
    assert "(-1)" in text and "█" in text
    assert "In the figure, \\$AB = 4\\$" in text
    assert not {path.name for path in converted.iterdir()} - {
        "train.parquet", "test.parquet", "choice.jsonl", "removed.jsonl", "report.json", "report.md"
    }  # fmt: skip


def test_the_result_does_not_depend_on_parts(converted, tmp_path):
    assert run(tmp_path, "--chunk-rows", 2) == 0
    for name in ("choice.jsonl", "removed.jsonl", "report.json", "report.md"):
        assert (tmp_path / name).read_bytes() == (converted / name).read_bytes()
    assert rows_of(tmp_path) == rows_of(converted)


def test_the_generated_task_is_a_source_and_has_the_rows_of_the_quickstart(tmp_path):
    arguments = ["--generated-rows", "train=40", "test=10", "--seed", 3]
    assert run(tmp_path, *arguments, sources=["last_digit_chain"]) == 0
    for split, count in (("train", 40), ("test", 10)):
        problems = last_digit_chain.generate_problems(split, count, 3)
        assert rows_of(tmp_path, split) == rl_rows(split, problems)


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
    assert run(out, "--input", f"numina={tmp_path / 'in.jsonl'}", sources=["numina"]) == 0
    assert [row["extra_info"]["index"] for row in rows_of(out)] == [0]
    lines = [json.loads(line) for line in (out / "removed.jsonl").read_text().splitlines()]
    assert [(line["row"], line["rule"]) for line in lines] == [(n, "bad_row") for n in range(2, 8)] + [(8, "giant")]
    for line, reason in zip(
        lines,
        ("not JSON", "no column problem", "answer must be a text", "no column source", "id 1 was there before")
        + ("half a character", "30000 characters"),
        strict=True,
    ):
        assert reason in line["evidence"]


@pytest.mark.parametrize(
    ("arguments", "content", "reason"),
    [
        ([], "", "in.jsonl has no rows"),
        ([], "{broken\n", "nothing can be used: "),
        ([], '{"problem": "Prove it.", "answer": "1", "source": "a"}\n', "the stages removed all rows"),
        (["--strict"], BAD_ROWS[0] + "\n{broken\n", "in.jsonl row 2: not JSON"),
        (["--splits", "test"], BAD_ROWS[0], "numina has no test split here"),
        (["--system-prompt", "missing.txt"], BAD_ROWS[0], "--system-prompt must be actions, none or a text file"),
        (["--chunk-rows", "0"], BAD_ROWS[0], "must be at least 1"),
        (["--input", "gsm8k=x.jsonl"], BAD_ROWS[0], "--input names gsm8k, which is not among --sources numina"),
        (["--input", "numina:test=nowhere.jsonl"], BAD_ROWS[0], "nowhere.jsonl does not exist"),
        (["--input", "numina:train=x.jsonl"], BAD_ROWS[0], "are the same"),
    ],
)
def test_what_cannot_work_is_one_line_and_writes_nothing(tmp_path, capsys, arguments, content, reason):
    (tmp_path / "in.jsonl").write_text(content)
    source = f"numina={tmp_path / 'in.jsonl'}"
    assert run(tmp_path / "out", "--input", source, *arguments, sources=["numina"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("rl_data: ") and reason in error and "\n" not in error
    assert not (tmp_path / "out" / "train.parquet").exists()


@pytest.mark.parametrize("arguments", [["--generated-rows", "train=0"], ["--rules", "fun"], ["--sources", "poems"]])
def test_unknown_words_on_the_command_line_are_refused(tmp_path, arguments, capsys):
    with pytest.raises(SystemExit):
        run(tmp_path, *arguments)
    assert arguments[0] in capsys.readouterr().err


def test_files_of_an_earlier_run_do_not_stay_beside_new_ones(tmp_path, capsys):
    assert run(tmp_path, sources=["gsm8k"]) == 0
    assert run(tmp_path, sources=["math"]) == 2
    assert "test.parquet is of an earlier run" in capsys.readouterr().err


def test_hub_rows_come_numbered_and_a_missing_data_set_is_one_line(tmp_path):
    pq.write_table(pa.table({"problem": ["P", "Q"]}), tmp_path / "train.parquet")
    assert list(hub_rows(str(tmp_path), None, "train")) == [(1, {"problem": "P"}), (2, {"problem": "Q"})]
    with pytest.raises(SourceError, match="cannot be fetched from the hub .* give local files instead"):
        list(hub_rows(str(tmp_path / "nowhere"), None, "train"))


def test_gsm8k_and_math_become_a_validated_file_by_one_command(tmp_path, capsys):
    folder = data_folder("gsm8k/train.jsonl", "gsm8k/test.jsonl", "math/train.jsonl")
    assert run(tmp_path, data=folder, sources=["gsm8k", "math"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    counts = {found["data_source"]: found for found in read_json(tmp_path / "report.json")["sources"]}
    math = counts["DigitalLearningGmbH/MATH-lighteval"]
    kept = sum(row["data_source"] == "openai/gsm8k" for row in rows_of(tmp_path))
    if folder == SAMPLES:
        assert (math["read"], math["removed"], kept) == (30, {"figure": 1, "no_digit": 2}, 30)
    else:
        # The table of docs/reference/data.md.
        assert (math["read"], kept) == (7500, 7472)
        assert math["removed"] == {"figure": 88, "choice": 124, "blank": 2, "no_digit": 75}
