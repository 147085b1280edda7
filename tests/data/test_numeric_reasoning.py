# SPDX-License-Identifier: Apache-2.0
"""RL rows of the six data sets of numeric reasoning: schema, labels, splits and bad input."""

import asyncio
import json
from pathlib import Path

import pytest
from benchmark_rows import SAMPLES, data_folder
from told import get_rows

from data_preprocessing.numeric_reasoning import TASKS, main
from data_preprocessing.text_similarity import SimilarityIndex
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks.task_file import load_task
from prime_ext.utils.files import read_json

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
EQUATE_FILES = [
    f"equate/{name}.csv" for name in ("AWPNLI", "NewsNLI", "RTE_Quant", "RedditNLI", "StressTest")
]
EQUATE = TASKS[:5]


def run(folder, *arguments, data=FIXTURES):
    return main(["--data-dir", str(data), "--output-dir", str(folder), *map(str, arguments)])


def test_rows_show_the_problem_and_hold_the_correct_option(tmp_path, capsys):
    """The page shows the prompt of the first row of AwpNLI."""
    assert run(tmp_path, "--splits", "test") == 0
    assert "awpnli: 6 rows (722 were published), 0 bad, test 6\n" in capsys.readouterr().out
    page = (ROOT / "docs" / "reference" / "numeric_reasoning.md").read_text()
    first = {row["data_source"]: row for row in reversed(get_rows(tmp_path, "test"))}
    assert set(first) == set(TASKS)
    row = first["awpnli"]
    (message,) = row["prompt"]
    assert f"```\n{message['content']}\n```" in page and message["role"] == "user"
    assert row["ability"] == "numeric_reasoning" and row["reward_model"] == {
        "style": "rule",
        "ground_truth": "1",
    }
    assert row["extra_info"]["options"] == ["entailment", "contradiction"]
    assert row["extra_info"]["label"] == "entailment" and row["extra_info"]["row"] == 1


def test_verl_reads_the_files(tmp_path):
    from omegaconf import OmegaConf
    from tiny_llama import byte_tokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    assert run(tmp_path, "--test", 0.4) == 0
    files = [str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]
    config = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts": False})
    dataset = RLHFDataset(files, byte_tokenizer(), config)
    rows = get_rows(tmp_path) + get_rows(tmp_path, "test")
    assert len(dataset) == len(rows)
    for item, row in zip((dataset[i] for i in range(len(dataset))), rows, strict=True):
        assert item["raw_prompt"] == row["prompt"] and item["index"] == row["extra_info"]["index"]
        # What the reward loop is given is enough for the verifier.
        gold = item["reward_model"]["ground_truth"]
        verdict = asyncio.run(
            compute_score(item["data_source"], f"#### {gold}", gold, item["extra_info"])
        )
        assert verdict["score"] == 1.0


@pytest.mark.parametrize(
    ("task", "row", "gold"),
    [
        ("redditnli",
         {"statement1": "a", "statement2": "b", "options": " x?", "answer": "Entailment"}, "1"),
        ("redditnli", {"sentence1": "a", "sentence2": "b", "gold_label": "neutral"}, "3"),
        ("redditnli", {"premise": "a", "hypothesis": "b", "label": "contradiction"}, "2"),
        # NumEval counts from zero.
        (
            "qqa",
            {
                "task": "QQA",
                "id": 4,
                "question": "Which?",
                "option1": 5,
                "option2": "7 kg",
                "label": 1,
            },
            "2",
        ),
    ],
)  # fmt: skip
def test_every_published_schema_is_read(task, row, gold):
    task = load_task(task)
    problem = task.problem(row)
    assert problem.gold == gold
    if task.name == "qqa":
        assert (
            "### option1: 5\n### option2: 7 kg" in task.messages(problem, "default")[-1]["content"]
        )


def test_duplicates_are_merged_contradictions_dropped_and_both_counted(tmp_path):
    lines = [
        "premise,hypothesis,label",
        "a b,c,entailment",
        "a  b,c,entailment",
        "d,e,neutral",
        "d,e,entailment",
    ]
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n")
    arguments = ["--input", f"newsnli={tmp_path / 'in.csv'}", "--splits", "test"]
    assert main([*arguments, "--output-dir", str(tmp_path)]) == 0
    stats = read_json(tmp_path / "report.json")["tasks"]["newsnli"]
    assert (stats["read"], stats["duplicates_merged"], stats["contradictory_dropped"]) == (4, 1, 2)
    assert stats["written"] == {"test": {"entailment": 1}}


def test_problems_of_both_official_splits_stay_in_test_only(tmp_path):
    row = {"question": "Which is heavier?", "Option1": "a", "Option2": "b", "answer": "Option 1"}
    (tmp_path / "a.json").write_text(json.dumps([row, {**row, "question": "Which is lighter?"}]))
    (tmp_path / "b.json").write_text(json.dumps([row]))
    inputs = [f"qqa:train={tmp_path / 'a.json'}", f"qqa:test={tmp_path / 'b.json'}"]
    assert main(["--input", *inputs, "--splits", "official", "--output-dir", str(tmp_path)]) == 0
    for split, texts in (("train", ["Which is lighter?"]), ("test", ["Which is heavier?"])):
        assert [row["extra_info"]["texts"] for row in get_rows(tmp_path, split)] == [texts]


def test_bad_rows_are_named_counted_and_left_out(tmp_path, capsys):
    bad = (
        'premise,hypothesis,label\na,b,entailment\na,c,maybe\n,d,neutral\na\n"e'
        ' {{statement2}}",f,Neutral \n'
    )
    (tmp_path / "in.csv").write_text(bad)
    words = [
        "--input",
        f"rte_quant={tmp_path / 'in.csv'}",
        "--splits",
        "test",
        "--output-dir",
        str(tmp_path),
    ]
    assert main(words) == 0
    errors = [line.partition(" row ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [error[:10] for error in errors] == ["2: label '", "3: premise", "4: no cell"]
    report = read_json(tmp_path / "report.json")
    bad = report["tasks"]["rte_quant"]["bad"]
    assert sum(bad.values()) == 3 and bad["label 'maybe' is none of entailment, neutral"] == 1
    rows = get_rows(tmp_path, "test")
    # Braces of a problem are not placeholders.
    assert (
        len(rows) == 2 and "### statement1: e {{statement2}}\n" in rows[1]["prompt"][0]["content"]
    )


def test_the_equate_split_is_clean_balanced_and_drops_only_duplicates(tmp_path):
    folder = data_folder(*EQUATE_FILES)
    assert run(tmp_path, "--tasks", *EQUATE, data=folder) == 0
    report = read_json(tmp_path / "report.json")
    assert report["groups_on_several_sides"] == 0 and report["largest_group"] < 100
    for counts in report["tasks"].values():
        train, test = (sum(counts["written"][split].values()) for split in ("train", "test"))
        assert train + test + counts["duplicates_merged"] == counts["read"]
        # Whole groups go to a side, which is coarse for few rows.
        assert (
            (0.05 if folder == SAMPLES else 0.1)
            < test / (train + test)
            < (0.35 if folder == SAMPLES else 0.3)
        )
    index = SimilarityIndex()
    for row in get_rows(tmp_path, "test"):
        index.add(*row["extra_info"]["texts"])
    assert not any(index.hits(*row["extra_info"]["texts"]) for row in get_rows(tmp_path))
