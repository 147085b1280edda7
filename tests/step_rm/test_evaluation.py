# SPDX-License-Identifier: Apache-2.0
"""``eval.prm`` on a step reward model: its scores are those that training gets."""

import json

import pytest
from tiny_step_rm import described, save_bert

from eval.prm import main
from prime_ext.step_rm.description import PairFormat
from prime_ext.step_rm.scorers.local import LocalScorer, StepClassifier
from prime_ext.step_rm.scorers.protocol import Chain

STEPS = [["good we add 2 .", "so 4 .", "bad"], ["we add 2 ."], ["good", "so we add 9 ."]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # It sees the question and all previous steps.
    pair_format = PairFormat(previous=0, question=True, max_length=64)
    return described(save_bert(tmp_path_factory.mktemp("step_rm") / "model"), 2.0, pair_format)


def evaluate(folder, words):
    assert main([*map(str, words), "--output", str(folder)]) == 0
    lines = (folder / "items.jsonl").read_text().splitlines()
    return json.loads((folder / "results.json").read_text()), [json.loads(line) for line in lines]


def test_step_scores_are_those_of_the_scorer(model, tmp_path):
    questions = ["what is 2 ?", [{"role": "user", "content": "the sum ?"}], "what ?"]
    rows = [
        {"id": f"{k}", "problem": questions[k], "steps": steps, "label": -1 if k else 1}
        for k, steps in enumerate(STEPS)
    ]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["processbench", "--model", model, "--data", tmp_path, "--splits", "gsm8k"]
    results, items = evaluate(tmp_path / "out", words)
    texts = ["what is 2 ?", "the sum ?", "what ?"]
    scorer = LocalScorer(StepClassifier(model))
    chains = [Chain(tuple(steps), text) for steps, text in zip(STEPS, texts, strict=True)]
    expected = scorer.score_now(chains)
    for item, outcome in zip(items, expected, strict=True):
        assert item["step_scores"] == pytest.approx(list(outcome.scores), abs=1e-6)
    assert results["settings"]["scorer"] == "step_rm" and results["overlong"] == 0
    assert "Reference" not in (tmp_path / "out" / "report.md").read_text()


def test_the_best_candidate_has_the_highest_lowest_step(model, tmp_path):
    path = tmp_path / "candidates.jsonl"
    path.write_text(
        json.dumps({"prompt": "what ?", "completions": STEPS, "correctness": [0, 1, 0]})
    )
    results, items = evaluate(tmp_path / "out", ["best-of-n", "--model", model, "--input", path])
    lowest = [item["scores"]["min"] for item in items]
    assert [item["chosen"] for item in items] == [value == max(lowest) for value in lowest]
    assert "best, product" in results["best_of_n"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scorer", "implicit"], "is a step reward model of prime_ext, so --scorer implicit"),
        (["--max-length", "9"], "--max-length has no effect on a step reward model"),
        (["--scorer", "step_rm", "--model", "other/model"], "is not a step reward model"),
    ],
)
def test_other_readings_are_one_line(model, tmp_path, capsys, words, message):
    all_words = ["best-of-n", "--model", model, "--input", "x.jsonl", "--output", tmp_path, *words]
    assert main(list(map(str, all_words))) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
