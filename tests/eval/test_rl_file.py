# SPDX-License-Identifier: Apache-2.0
"""``eval.run`` on files of RL rows, such as the pipeline's ``test.parquet``."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_tasks import ScriptedBackend, get_lines, get_results, get_score, last_message, run

from data_preprocessing.pipeline import main as pipeline
from eval import grade

SETTINGS = "data_preprocessing/settings/math.yaml"


def row(problem, gold, source="math/mine", **extra):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": problem}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": 0, **extra},
    }


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_test_rows_of_the_pipeline_are_evaluated(tmp_path, capsys):
    questions = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    source = write(tmp_path / "in.jsonl", questions)
    words = [SETTINGS, "--input", f"own={source}", "--source", "mine", "--split", "0.7"]
    words += ["stages=null", "--output-dir", str(tmp_path / "mine")]
    assert pipeline(words) == 0
    test = pq.read_table(tmp_path / "mine" / "test.parquet").to_pylist()

    def answer(request):
        # Right for even sums.
        number = int(last_message(request.prompt).split()[2]) + 1
        return f"\\boxed{{{number - number % 2}}}"

    backend = ScriptedBackend(answer)
    words = ["--tasks", tmp_path / "mine" / "test.parquet", "--output", tmp_path / "out"]
    assert run(*words, backend=backend) == 0
    golds = [int(row["reward_model"]["ground_truth"]) for row in test]
    expected = sum(gold % 2 == 0 for gold in golds) / len(golds)
    assert get_score(tmp_path / "out", "mine_test", "avg@1") == pytest.approx(expected)
    # The model sees the messages of the rows.
    samples = get_lines(tmp_path / "out" / "mine_test" / "samples.jsonl")
    assert [sample["prompt"] for sample in samples] == [row["prompt"] for row in test]
    assert "mine/test.parquet, math/mine" in capsys.readouterr().out
    assert grade.main(["--run", str(tmp_path / "out")]) == 0


def test_each_data_source_is_a_task_of_its_own(tmp_path):
    rows = [row("1 + 1?", "2"), row("#3?", "7", "gsm8k"), row("2 + 2?", "4")]
    rows += [row("Yes?", "2", "rte", options=["yes", "no"]), row("A?", "1", "gpqa", n_options=4)]
    path = write(tmp_path / "own" / "rows.jsonl", rows)
    backend = ScriptedBackend(
        lambda request: "#### 2" if "?" in last_message(request.prompt) else ""
    )
    assert run("--tasks", path, "--output", tmp_path / "out", backend=backend) == 0
    tasks = get_results(tmp_path / "out")["tasks"]
    names = [f"own_rows.{name}" for name in ("math_mine", "gsm8k", "rte", "gpqa")]
    assert list(tasks) == names
    assert [tasks[name]["grader"] for name in names] == ["math", "math", "choice", "choice"]
    scores = [tasks[name]["summary"]["scores"]["avg@1"]["value"] for name in names]
    assert scores[1:] == [0.0, 1.0, 0.0]
    assert [
        line["problem"] for line in get_lines(tmp_path / "out" / names[0] / "samples.jsonl")
    ] == ["1", "3"]


ANSWERED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({"prompt": "a"}, [], "row 2: prompt must be"),
        ({"prompt": []}, [], "row 2: prompt must"),
        ({"prompt": ANSWERED}, [], "row 2: prompt must be a text of the user, perhaps after"),
        ({"reward_model": {}}, [], "row 2: reward_model needs the key 'ground_truth'"),
        ({"reward_model": {"ground_truth": ["4"]}}, [], "row 2: reward_model.ground_truth must be"),
        ({"data_source": "unknown"}, [], "row 2: no verifier for data_source='unknown'"),
        ({"data_source": None}, [], "row 2: data_source must be"),
        ({"data_source": "rte"}, [], "row 2: extra_info has neither options nor n_options"),
        ({}, ["--split", "test"], "--split does not go with"),
    ],
)
def test_wrong_rows_are_one_line(tmp_path, capsys, change, words, message):
    path = write(tmp_path / "rows.jsonl", [row("a", "1"), row("b", "2") | change])
    backend = ScriptedBackend()
    out = tmp_path / "out"
    assert run("--tasks", path, *words, "--output", out, backend=backend) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and backend.asked == []
    assert not (out / "results.json").exists()


def test_missing_and_empty_files_are_one_line(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("")
    for name, message in (("no.parquet", "does not exist"), ("empty.jsonl", "has no rows")):
        assert run("--tasks", tmp_path / name, "--output", tmp_path / "out") == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
