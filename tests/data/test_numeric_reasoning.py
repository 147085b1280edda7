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
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from data_preprocessing import contamination
from data_preprocessing.numeric_reasoning import TASKS, Counts, main, usable
from prime_ext.reward.compute_score import compute_score
from prime_ext.tasks.task_file import load_task

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
EQUATE_FILES = [f"equate/{name}.csv" for name in ("AWPNLI", "NewsNLI", "RTE_Quant", "RedditNLI", "StressTest")]
EQUATE = TASKS[:5]
NLI = ("entailment", "contradiction", "neutral")


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
    assert run(tmp_path, "--tasks", "awpnli", "--splits", "test") == 0
    assert capsys.readouterr().out == "awpnli: 6 rows (722 were published), 0 bad, test 6\n"
    first, second = rows_of(tmp_path, "test")[:2]
    assert first["prompt"] == [
        {
            "role": "user",
            "content": "Statement 1 tells a story with numbers, statement 2 gives a result.\n"
            "Calculate the result yourself.\n"
            "Choose entailment if statement 2 is right and contradiction if it is wrong.\n"
            "Write short steps, each on a line of its own, marked [1], [2], [3] and so on.\n"
            "End with the line: Thus, the answer is option N. #### N\n"
            "Here N is the number of the option you choose.\n"
            "### statement1: Mira picked 14.0 pears and her brother picked 9.0 pears .\n"
            "### statement2: Mira and her brother picked 23.0 pears\n"
            "### option1: entailment\n"
            "### option2: contradiction\n"
            "### Response: Let's think step by step.",
        }
    ]
    assert first["data_source"] == "awpnli" and first["ability"] == "numeric_reasoning"
    assert first["reward_model"] == {"style": "rule", "ground_truth": "1"}
    assert first["extra_info"]["options"] == ["entailment", "contradiction"]
    assert first["extra_info"]["label"] == "entailment" and first["extra_info"]["row"] == 1
    assert second["reward_model"]["ground_truth"] == "2" and second["extra_info"]["label"] == "contradiction"


def test_the_page_shows_every_prompt_as_the_model_sees_it(tmp_path):
    """One example for each task, made from the first row of its fixture."""
    assert run(tmp_path, "--splits", "test", "--duplicates", "keep") == 0
    page = (ROOT / "docs" / "numeric_reasoning.md").read_text()
    shown = {}
    for row in rows_of(tmp_path, "test"):
        shown.setdefault(row["data_source"], row["prompt"][0]["content"])
    assert set(shown) == set(TASKS)
    for content in shown.values():
        assert f"```\n{content}\n```" in page


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
    ("columns", "row", "gold"),
    [
        ("Quantitative-101", {"statement1": "a", "statement2": "b", "options": " x?", "answer": "Entailment"}, "1"),
        ("MNLI", {"sentence1": "a", "sentence2": "b", "gold_label": "neutral"}, "3"),
        ("EQUATE", {"premise": "a", "hypothesis": "b", "label": "contradiction"}, "2"),
    ],
)
def test_every_published_schema_of_inference_is_read(tmp_path, columns, row, gold):
    (tmp_path / "in.json").write_text(json.dumps([row]))
    source = f"redditnli={tmp_path / 'in.json'}"
    assert main(["--input", source, "--output-dir", str(tmp_path), "--splits", "test"]) == 0
    (converted,) = rows_of(tmp_path, "test")
    assert converted["reward_model"]["ground_truth"] == gold and converted["extra_info"]["texts"] == ["a", "b"]


def test_qqa_of_numeval_counts_from_zero(tmp_path):
    row = {"task": "QQA", "id": 4, "question": "Which?", "option1": 5, "option2": "7 kg", "label": 1}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    arguments = ["--input", f"qqa:test={tmp_path / 'in.jsonl'}", "--splits", "official"]
    assert main([*arguments, "--output-dir", str(tmp_path)]) == 0
    (converted,) = rows_of(tmp_path, "test")
    assert converted["reward_model"]["ground_truth"] == "2"
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


def test_verl_reads_the_files(converted, tmp_path):
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    core = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )
    files = [str(converted / "train.parquet"), str(converted / "test.parquet")]
    config = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts_workers": None})
    dataset = RLHFDataset(files, tokenizer, config)
    rows = rows_of(converted, "train", "test")
    assert len(dataset) == len(rows)
    for item, row in zip((dataset[i] for i in range(len(dataset))), rows, strict=True):
        assert item["raw_prompt"] == row["prompt"] and item["data_source"] == row["data_source"]
        assert item["index"] == row["extra_info"]["index"]
        # What the reward loop is given is enough for the verifier.
        gold = item["reward_model"]["ground_truth"]
        judged = asyncio.run(
            compute_score(
                item["data_source"], f"#### {gold}", gold, {**item["extra_info"], "raw_prompt": item["prompt"]}
            )
        )
        assert judged["score"] == 1.0


def test_no_row_of_a_hashed_split_has_a_twin_on_the_other_side(converted, tmp_path):
    report = json.loads((converted / "report.json").read_text())
    assert report["groups_on_several_sides"] == 0
    train, test = str(converted / "train.parquet"), str(converted / "test.parquet")
    assert contamination.main([train, "--test", test, "--output", str(tmp_path / "r")]) == 0
    found = json.loads((tmp_path / "r.json").read_text())["test"][0]
    assert found["rows"] > 5 and found["hit"] == 0


def test_the_same_input_gives_the_same_bytes_and_another_seed_another_split(converted, tmp_path):
    assert run(tmp_path / "again", "--test", 0.4) == 0
    assert run(tmp_path / "other", "--test", 0.4, "--seed", 1) == 0
    for name in ("train.parquet", "test.parquet", "report.json"):
        assert (tmp_path / "again" / name).read_bytes() == (converted / name).read_bytes()
    assert (tmp_path / "other" / "test.parquet").read_bytes() != (converted / "test.parquet").read_bytes()


def test_a_group_is_on_the_same_side_whatever_tasks_are_converted_with_it(converted, tmp_path):
    assert run(tmp_path, "--tasks", "stresstest", "awpnli", "--test", 0.4) == 0
    sides = {row["extra_info"]["group"]: name for name in ("train", "test") for row in rows_of(converted, name)}
    for name in ("train", "test"):
        if (tmp_path / f"{name}.parquet").exists():
            assert all(sides[row["extra_info"]["group"]] == name for row in rows_of(tmp_path, name))


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


BAD = 'premise,hypothesis,label\na,b,entailment\na,c,maybe\n,d,neutral\na\n"e {{statement2}}",f,Neutral \n'


def test_bad_rows_are_named_counted_and_left_out(tmp_path, capsys):
    (tmp_path / "in.csv").write_text(BAD)
    assert main(["--input", f"rte_quant={tmp_path / 'in.csv'}", "--output-dir", str(tmp_path), "--splits", "test"]) == 0
    errors = capsys.readouterr().err.splitlines()
    assert [line.split("in.csv ")[1] for line in errors] == [
        "row 2: label 'maybe' is none of entailment, neutral",
        "row 3: premise is empty",
        "row 4: no cell in column hypothesis",
    ]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["tasks"]["rte_quant"]["bad"] == 3 and len(report["bad_rows"]) == 3
    assert report["bad_rows"][0] == {
        "task": "rte_quant",
        "file": "in.csv",
        "row": 2,
        "reason": errors[0].split(": ", 1)[1],
    }
    rows = rows_of(tmp_path, "test")
    # Braces of a problem are not placeholders.
    assert len(rows) == 2 and "### statement1: e {{statement2}}\n" in rows[1]["prompt"][0]["content"]


def test_strict_stops_at_the_first_bad_row(tmp_path, capsys):
    (tmp_path / "in.csv").write_text(BAD)
    arguments = ["--input", f"rte_quant={tmp_path / 'in.csv'}", "--output-dir", str(tmp_path / "out"), "--strict"]
    assert main(arguments) == 2
    assert "in.csv row 2: label 'maybe'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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


def test_a_file_of_an_earlier_run_that_would_not_fit_is_not_left_beside_the_new_ones(tmp_path, capsys):
    assert run(tmp_path, "--tasks", "qqa", "--splits", "official") == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(tmp_path, "--tasks", "qqa", "--splits", "test") == 2
    assert "train.parquet is of an earlier run and would not fit the new files" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


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
