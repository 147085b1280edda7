# SPDX-License-Identifier: Apache-2.0
"""AwpNLI, NewsNLI, RedditNLI, RTE-Quant, StressTest and QQA as RL rows: schema, labels, splits, bad input."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from benchmark_rows import SAMPLES, data_folder

from data_preprocessing import contamination
from data_preprocessing.numeric_reasoning import TASKS, Counts, main, usable
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks.task_file import load_task

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
EQUATE_FILES = [f"equate/{name}.csv" for name in ("AWPNLI", "NewsNLI", "RTE_Quant", "RedditNLI", "StressTest")]
EQUATE = TASKS[:5]


def run(folder, *arguments, data=FIXTURES):
    return main(["--data-dir", str(data), "--output-dir", str(folder), *map(str, arguments)])


def rows_of(folder, *names):
    return [row for name in names for row in pq.read_table(folder / f"{name}.parquet").to_pylist()]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numeric")
    assert run(folder, "--test", 0.4) == 0
    return folder


def score(row, response):
    return asyncio.run(
        compute_score(row["data_source"], response, row["reward_model"]["ground_truth"], row["extra_info"])
    )


def test_a_row_shows_the_problem_and_holds_the_number_of_the_right_option(tmp_path, capsys):
    """The prompt is that of the page, which has an example for each task, made from the first row of its fixture."""
    assert run(tmp_path, "--splits", "test", "--duplicates", "keep") == 0
    assert "awpnli: 6 rows (722 were published), 0 bad, test 6\n" in capsys.readouterr().out
    page = (ROOT / "docs" / "reference" / "numeric_reasoning.md").read_text()
    first = {row["data_source"]: row for row in reversed(rows_of(tmp_path, "test"))}
    assert set(first) == set(TASKS)
    for row in first.values():
        (message,) = row["prompt"]
        assert f"```\n{message['content']}\n```" in page and message["role"] == "user"
    row = first["awpnli"]
    assert row["ability"] == "numeric_reasoning" and row["reward_model"] == {"style": "rule", "ground_truth": "1"}
    assert row["extra_info"]["options"] == ["entailment", "contradiction"]
    assert row["extra_info"]["label"] == "entailment" and row["extra_info"]["row"] == 1


def test_verl_reads_the_files(converted, tmp_path):
    from omegaconf import OmegaConf
    from tiny_llama import byte_tokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    files = [str(converted / "train.parquet"), str(converted / "test.parquet")]
    config = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts": False})
    dataset = RLHFDataset(files, byte_tokenizer(), config)
    rows = rows_of(converted, "train", "test")
    assert len(dataset) == len(rows)
    for item, row in zip((dataset[i] for i in range(len(dataset))), rows, strict=True):
        assert item["raw_prompt"] == row["prompt"] and item["index"] == row["extra_info"]["index"]
        # What the reward loop is given is enough for the verifier.
        assert score(item, f"#### {row['reward_model']['ground_truth']}")["score"] == 1.0


def test_qqa_has_its_own_options_in_every_row(tmp_path):
    assert run(tmp_path, "--tasks", "qqa", "--splits", "official") == 0
    train, test = rows_of(tmp_path, "train"), rows_of(tmp_path, "validation", "test")
    assert [row["reward_model"]["ground_truth"] for row in train] == ["1", "2", "1"]
    assert [row["reward_model"]["ground_truth"] for row in test] == ["2", "1", "2"]
    assert "### option1: Petr's\n### option2: Jana's\n" in train[0]["prompt"][0]["content"]
    assert train[0]["extra_info"]["options"] is None and train[0]["extra_info"]["n_options"] == 2
    # The two rucksacks are the same story.
    assert json.loads((tmp_path / "report.json").read_text())["groups_on_several_sides"] == 1


@pytest.mark.parametrize(
    ("task", "row", "gold"),
    [
        ("redditnli", {"statement1": "a", "statement2": "b", "options": " x?", "answer": "Entailment"}, "1"),
        ("redditnli", {"sentence1": "a", "sentence2": "b", "gold_label": "neutral"}, "3"),
        ("redditnli", {"premise": "a", "hypothesis": "b", "label": "contradiction"}, "2"),
        # NumEval counts from zero.
        ("qqa", {"task": "QQA", "id": 4, "question": "Which?", "option1": 5, "option2": "7 kg", "label": 1}, "2"),
    ],
)
def test_every_published_schema_is_read(tmp_path, task, row, gold):
    (tmp_path / "in.json").write_text(json.dumps([row]))
    words = ["--input", f"{task}={tmp_path / 'in.json'}", "--output-dir", str(tmp_path), "--splits", "test"]
    assert main(words) == 0
    (converted,) = rows_of(tmp_path, "test")
    assert converted["reward_model"]["ground_truth"] == gold
    if task == "qqa":
        assert "### option1: 5\n### option2: 7 kg" in converted["prompt"][0]["content"]


def test_the_gold_answer_of_every_row_is_graded_correct_and_every_other_wrong(converted):
    for row in rows_of(converted, "train", "test"):
        gold = int(row["reward_model"]["ground_truth"])
        options = row["extra_info"]["options"] or ["first", "second"]
        for number in range(1, len(options) + 1):
            verdict = score(row, f"[1] So it is.\nThus, the answer is option {number}. #### {number}")
            assert verdict["score"] == float(number == gold) and not verdict["grader_failure"]
        assert score(row, "Let me think.")["verdict"] == "no_answer"
        if row["extra_info"]["options"]:
            assert score(row, f"The answer is {row['extra_info']['label']}.")["score"] == 1.0


def test_the_same_input_gives_the_same_bytes_and_another_seed_another_split(converted, tmp_path):
    assert run(tmp_path / "again", "--test", 0.4) == 0
    assert run(tmp_path / "other", "--test", 0.4, "--seed", 1) == 0
    for name in ("train.parquet", "test.parquet", "report.json"):
        assert (tmp_path / "again" / name).read_bytes() == (converted / name).read_bytes()
    assert (tmp_path / "other" / "test.parquet").read_bytes() != (converted / "test.parquet").read_bytes()


def test_duplicates_are_merged_contradictions_dropped_and_both_counted(tmp_path):
    lines = ["premise,hypothesis,label", "a b,c,entailment", "a  b,c,entailment", "d,e,neutral", "d,e,entailment"]
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n")
    arguments = ["--input", f"newsnli={tmp_path / 'in.csv'}", "--splits", "test"]
    assert main([*arguments, "--output-dir", str(tmp_path / "merged")]) == 0
    assert main([*arguments, "--output-dir", str(tmp_path / "kept"), "--duplicates", "keep"]) == 0
    found = json.loads((tmp_path / "merged" / "report.json").read_text())["tasks"]["newsnli"]
    assert (found["read"], found["duplicates_merged"], found["contradictory_dropped"]) == (4, 1, 2)
    assert found["written"] == {"test": {"rows": 1, "labels": {"entailment": 1}, "majority": 1.0}}
    assert len(rows_of(tmp_path / "kept", "test")) == 4


def test_of_a_problem_in_two_official_splits_the_test_copy_stays(tmp_path):
    row = {"question": "Which is heavier?", "Option1": "a", "Option2": "b", "answer": "Option 1"}
    other = {**row, "question": "Which is lighter?"}
    (tmp_path / "a.json").write_text(json.dumps([row, other]))
    (tmp_path / "b.json").write_text(json.dumps([row]))
    inputs = [f"qqa:train={tmp_path / 'a.json'}", f"qqa:test={tmp_path / 'b.json'}"]
    assert main(["--input", *inputs, "--splits", "official", "--output-dir", str(tmp_path)]) == 0
    assert [row["extra_info"]["texts"] for row in rows_of(tmp_path, "train")] == [["Which is lighter?"]]
    assert [row["extra_info"]["texts"] for row in rows_of(tmp_path, "test")] == [["Which is heavier?"]]


def test_bad_rows_are_named_counted_left_out_and_fatal_if_asked_for(tmp_path, capsys):
    bad = 'premise,hypothesis,label\na,b,entailment\na,c,maybe\n,d,neutral\na\n"e {{statement2}}",f,Neutral \n'
    (tmp_path / "in.csv").write_text(bad)
    words = ["--input", f"rte_quant={tmp_path / 'in.csv'}", "--splits", "test", "--output-dir"]
    assert main([*words, str(tmp_path)]) == 0
    errors = [line.split("in.csv ")[1] for line in capsys.readouterr().err.splitlines()]
    assert errors == [
        "row 2: label 'maybe' is none of entailment, neutral",
        "row 3: premise is empty",
        "row 4: no cell in column hypothesis",
    ]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tasks"]["rte_quant"]["bad"] == 3 and len(report["bad_rows"]) == 3
    place = {"task": "rte_quant", "file": "in.csv", "row": 2}
    assert report["bad_rows"][0] == {**place, "reason": errors[0].split(": ", 1)[1]}
    rows = rows_of(tmp_path, "test")
    # Braces of a problem are not placeholders.
    assert len(rows) == 2 and "### statement1: e {{statement2}}\n" in rows[1]["prompt"][0]["content"]
    assert main([*words, str(tmp_path / "out"), "--strict"]) == 2
    assert "in.csv row 2: label 'maybe'" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        ([], "premise,label\na,neutral\n", "no column hypothesis or statement2 or sentence2; it has premise, label"),
        ([], "premise,hypothesis,label\n", "nothing to use for newsnli: it has no rows"),
        ([], "premise,hypothesis,label\na,b,-\n", "label '-' is none of entailment, neutral"),
        (["--splits", "official"], "premise,hypothesis,label\na,b,neutral\n", "newsnli has no official split"),
        (["--test", "1"], "", "--validation 0.0 and --test 1.0 must add up to less than 1"),
        (["--prompt", "short"], "", "newsnli has no prompt 'short'; it has default, fields_only"),
        (["--tasks", "newsnil"], "", "no task 'newsnil'; did you mean newsnli"),
        (["--tasks", "qqa"], "", "--input names newsnli, which is not among --tasks qqa"),
    ],
)
def test_what_cannot_be_converted_is_one_line_and_writes_nothing(tmp_path, capsys, arguments, content, message):
    (tmp_path / "in.csv").write_text(content)
    source = f"newsnli={tmp_path / 'in.csv'}"
    assert main(["--input", source, "--output-dir", str(tmp_path / "out"), *arguments]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("numeric_reasoning: ") and message in last
    assert not (tmp_path / "out").exists()


def test_without_the_hub_the_message_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    assert main(["--tasks", "awpnli", "--output-dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "QNLI/AWPNLI.json of NLPFin/Quantitative101 cannot be fetched" in error and error.count("\n") == 1
    assert "give local files instead" in error


EQUATE_SAMPLES = {
    "awpnli": {"entailment": 12, "contradiction": 12},
    "newsnli": {"entailment": 10, "neutral": 14},
    "redditnli": {"entailment": 14, "neutral": 7, "contradiction": 3},
    "rte_quant": {"entailment": 6, "neutral": 18},
    "stresstest": {"entailment": 8, "neutral": 7, "contradiction": 9},
}
COUNTS = {
    "awpnli": {"entailment": 361, "contradiction": 361},
    "newsnli": {"entailment": 491, "neutral": 477},
    "redditnli": {"entailment": 146, "neutral": 85, "contradiction": 19},
    "rte_quant": {"entailment": 70, "neutral": 96},
    "stresstest": {"entailment": 2532, "neutral": 2532, "contradiction": 2532},
}


def test_equate_has_its_published_rows_and_labels_and_every_gold_answer_is_graded_correct(tmp_path):
    folder = data_folder(*EQUATE_FILES)
    assert run(tmp_path, "--tasks", *EQUATE, "--splits", "test", "--duplicates", "keep", data=folder) == 0
    found: dict[str, Counter[str]] = {name: Counter() for name in EQUATE}
    for row in rows_of(tmp_path, "test"):
        label = row["extra_info"]["label"]
        found[row["data_source"]][label] += 1
        judged: set[float] = set()
        for number, name in enumerate(row["extra_info"]["options"], start=1):
            judged.add(score(row, f"#### {number}")["score"] - (name == label))
        assert judged == {0.0}
    assert found == (EQUATE_SAMPLES if folder == SAMPLES else COUNTS)


def test_the_split_of_equate_is_clean_balanced_and_drops_nothing_but_repetitions(tmp_path):
    folder = data_folder(*EQUATE_FILES)
    assert run(tmp_path, "--tasks", *EQUATE, data=folder) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    merged = {name: found["duplicates_merged"] for name, found in report["tasks"].items()}
    repeated = {"awpnli": 0, "newsnli": 5, "redditnli": 3, "rte_quant": 1, "stresstest": 643}
    assert merged == (dict.fromkeys(EQUATE, 0) if folder == SAMPLES else repeated)
    assert report["groups_on_several_sides"] == 0 and report["largest_group"] < 100
    for found in report["tasks"].values():
        train, test = found["written"]["train"]["rows"], found["written"]["test"]["rows"]
        assert train + test + found["duplicates_merged"] == found["read"]
        # Whole groups go to a side, which is coarse for few rows.
        assert (0.05 if folder == SAMPLES else 0.1) < test / (train + test) < (0.35 if folder == SAMPLES else 0.3)
    files = [str(tmp_path / f"{name}.parquet") for name in ("train", "test")]
    assert contamination.main([files[0], "--test", files[1], "--output", str(tmp_path / "r")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["test"][0]["hit"] == 0


def test_rows_that_the_task_leaves_to_another_are_not_read():
    task = load_task("awpnli")
    ((name,),) = task.source.local.values()
    some = replace(task, source=replace(task.source, where={"premise": "^Mira"}))
    counts = Counts()
    places = list(usable(some, {"all": FIXTURES / name}, counts, strict=True))
    assert places and all(place.problem.fields["statement1"].startswith("Mira") for place in places)
    assert counts.read["awpnli"] == len(places) < len(list(usable(task, {"all": FIXTURES / name}, Counts(), True)))
