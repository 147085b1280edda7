# SPDX-License-Identifier: Apache-2.0
"""``python -m eval.prm`` from files to results, for every task and scorer."""

import json
import os

import pytest
from tiny_llama import save_llama

from eval.prm import main


@pytest.fixture(scope="module")
def described(models, tmp_path_factory):
    """A PRM that says how it was trained."""
    folder = save_llama(tmp_path_factory.mktemp("described") / "prm", 1)
    description = {
        "beta": 0.25,
        "reference": os.path.relpath(models["reference"], folder),
        "step_prefix": "",
        "step_separator": "\n",
    }
    (folder / "prime_ext_prm.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processbench")
    for split, n in (("gsm8k", 12), ("math", 8)):
        rows = [
            {"id": f"{split}-{k}", "problem": f"{k}+1?", "steps": [f"{k}", f"{k + s}", "so"], "label": k % 4 - 1}
            for s, k in enumerate(range(n))
        ]
        (folder / f"{split}.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture
def candidates(tmp_path):
    rows = [
        {
            "id": f"q{q}",
            "prompt": f"{q}+1?",
            "completions": [f"say {k}\n\nso \\boxed{{{q + k % 3}}}" for k in range(5)],
            "correctness": [int(k % 3 == 1) for k in range(5)],
        }
        for q in range(6)
    ]
    path = tmp_path / "candidates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def evaluated(out, task, model, *words):
    """The results, and the lines of ``items.jsonl``."""
    assert main([task, "--model", *map(str, [model, *words]), "--output", str(out)]) == 0
    return results_of(out), [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]


def test_processbench_with_the_protocols_threshold_and_the_oracles(models, described, bench, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["processbench", "--model", str(described), "--data", str(bench), "--output", str(out)]
    words += ["--splits", "gsm8k,math"]
    assert main(words) == 0
    results = results_of(out)
    protocol, oracle = results["protocol"], results["oracle"]
    assert {own["threshold"] for own in protocol["splits"].values()} == {protocol["threshold"]}
    assert oracle["splits"]["gsm8k"] == protocol["splits"]["gsm8k"]
    assert oracle["splits"]["math"]["f1"] >= protocol["splits"]["math"]["f1"]
    assert protocol["average_f1"] == pytest.approx(sum(own["f1"] for own in protocol["splits"].values()) / 2)
    assert protocol["splits"]["gsm8k"]["responses"] == 12 and protocol["splits"]["gsm8k"]["erroneous"] == 9
    settings = results["settings"]
    assert settings["coefficient"] == 0.25 and settings["reference"] == str(models["reference"])
    assert settings["step_prefix"] == "" and settings["step_separator"] == "\n"
    assert set(results["versions"]) == {"prime-ext", "verl", "torch", "transformers"}
    items = [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]
    assert len(items) == 20 and all(len(item["step_scores"]) == 3 for item in items)
    assert "Official protocol: one threshold, the best on gsm8k" in (out / "report.md").read_text()
    # A second run scores nothing: the same lines, the same numbers.
    before = (out / "scores.jsonl").read_bytes()
    assert main(words) == 0 and (out / "scores.jsonl").read_bytes() == before and results_of(out) == results
    assert main([*words, "--step-score", "step"]) == 0 and (out / "scores.jsonl").read_bytes() == before
    capsys.readouterr()
    assert main([*words, "--reference", "none"]) == 2
    assert "holds a run with reference" in capsys.readouterr().err


def test_processbench_with_a_classifier(models, bench, tmp_path):
    words = ["--scorer", "classifier", "--data", bench, "--splits", "gsm8k,math", "--limit", "6"]
    results, _ = evaluated(tmp_path, "processbench", models["classifier"], *words)
    assert results["protocol"]["splits"]["math"]["responses"] == 6
    assert "random sample of 6 responses" in (tmp_path / "report.md").read_text()


def test_responses_that_are_too_long_count_as_wrong(models, bench, tmp_path):
    words = ["--reference", "none", "--data", bench, "--splits", "gsm8k", "--max-length", "57"]
    results, items = evaluated(tmp_path, "processbench", models["prm"], *words)
    assert 0 < results["overlong"] < 12
    assert sum(item["prediction"] is None for item in items) == results["overlong"]
    assert "count as wrong" in (tmp_path / "report.md").read_text()


def test_best_of_n(described, candidates, tmp_path):
    results, lines = evaluated(tmp_path / "out", "best-of-n", described, "--input", candidates)
    table = results["best_of_n"]
    assert results["n"] == [1, 2, 4] and results["problems"] == 6
    for name, row in table.items():
        assert row["1"]["value"] == pytest.approx(0.4), f"{name}: one candidate is chance"
    # Two of five are right: 1 - C(3, 2) / C(5, 2), and four always hold a right one.
    assert table["pass@N"]["2"]["value"] == pytest.approx(0.7) and table["pass@N"]["4"]["value"] == 1.0
    names = {f"best, {how} of {kind}" for how in ("min", "sum", "last", "mean") for kind in ("step", "prefix")}
    assert names | {"maj@N", "best, min of step, no reference"} <= set(table)
    assert results["pairwise_accuracy"]["sum of step"]["pairs"] == 36
    # The sum of the steps is the last prefix.
    assert results["pairwise_accuracy"]["sum of step"] == results["pairwise_accuracy"]["last of prefix"]
    assert len(lines) == 30 and lines[1]["answer"] == '"correct"' and lines[0]["answer"] == "0"
    assert "| N=4 |" in (tmp_path / "out" / "report.md").read_text()


def test_best_of_n_with_a_classifier_knows_the_product(models, candidates, tmp_path):
    words = ["--scorer", "classifier", "--input", candidates]
    results, _ = evaluated(tmp_path / "out", "best-of-n", models["classifier"], *words)
    assert {"best, min", "best, product"} <= set(results["best_of_n"])


def test_candidates_are_graded_by_their_gold_answer(described, tmp_path):
    rows = [
        {"problem": "1+1?", "responses": [r"\boxed{2}", [r"so \boxed{3}", "done"], r"\boxed{2.0}"], "gold": "2"},
        {"problem": "1+2?", "responses": [r"\boxed{2}"], "gold": "3"},
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results, _ = evaluated(tmp_path / "out", "best-of-n", described, "--input", path)
    assert results["pairwise_accuracy"]["min of step"]["pairs"] == 2


BON = ["best-of-n", "--model", "{described}", "--input", "{input}"]
BENCH = ["processbench", "--model", "{described}", "--data", "{bench}", "--splits", "gsm8k"]
ONE = '{"prompt": "p", "completions": ["a"], "correctness": [1]}'


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        ([*BENCH, "--model", "{prm}"], "", "give --reference MODEL, or --reference none"),
        ([*BENCH, "--splits", "math"], "", "--threshold-split gsm8k is not among --splits math"),
        ([*BENCH, "--data", "nowhere"], "", "nowhere is not a folder"),
        ([*BENCH, "--dtype", "float7"], "", "dtype='float7' is no dtype of torch"),
        ([*BENCH, "--max-length", "5"], "", "no response has a step score to fit a threshold on; raise --max-length"),
        (BON, '{"prompt": "p"}', "row 1: no field 'completions' or 'responses'"),
        (BON, '{"prompt": "p", "completions": ["a", ""], "correctness": [1, 0]}', "row 1: response 2 must be a text"),
        (BON, ONE.replace("1", "0.5"), "row 1: correctness must be 0 or 1, got 0.5"),
        (BON, ONE.replace("1", "1, 0"), "one value for each of 1 responses"),
    ],
)
def test_bad_input_is_one_line(models, described, bench, tmp_path, capsys, words, text, message):
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    names = {**models, "described": described, "bench": bench, "input": source}
    assert main([word.format(**names) for word in words] + ["--output", str(tmp_path / "out")]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and message in said[0]
    assert not (tmp_path / "out" / "results.json").exists()
