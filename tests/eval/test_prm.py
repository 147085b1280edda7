# SPDX-License-Identifier: Apache-2.0
"""PRM evaluation: metrics against trying all, step scores against plain loops, and the command."""

import json
import math
import os
from itertools import combinations
from statistics import fmean

import pytest
import torch
from benchmark_rows import SAMPLES
from hypothesis import given
from hypothesis import strategies as st
from small_tasks import get_lines, get_results
from tiny_llama import byte_tokenizer, save_llama
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    Gemma2Config,
    Gemma2ForCausalLM,
)

from eval.intervals import compute_percentiles, resample_mean
from eval.prm import main, parser
from eval.prm_data import LabeledResponse, read_prmbench, read_processbench, split_response
from eval.prm_metrics import (
    AGGREGATIONS,
    compute_best_of,
    compute_prm_score,
    count_ordered_pairs,
    count_steps,
    find_best_prm_score,
    find_error,
    fit_threshold,
    pairwise_accuracy,
    resample_f1,
    score_processbench,
)
from eval.prm_scorers import ClassifierScorer, ImplicitScorer, LogProbModel, score_steps
from eval.run import parser as run_parser
from prime_ext.algorithms.prm_accuracy import count_pairs
from prime_ext.step_rm.scorers.response_reader import ResponseReader
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier
from prime_ext.utils.rows import SourceError
from prime_ext.utils.text_tokens import TextEncoder, TokenizedSteps, join_steps

# ---- metrics ----


def test_a_step_is_wrong_strictly_below_the_threshold():
    errors = [find_error([0.9, 0.5, 0.2, 0.8], threshold) for threshold in (0.2, 0.5, 0.51)]
    assert errors == [-1, 2, 1]
    assert find_error([], 0.5) == -1 and find_error(None, 0.5) is None


def test_f1_is_the_harmonic_mean_of_both_class_accuracies():
    labels = [0, 1, 2, 3, -1, -1]
    score = score_processbench([0, 1, 2, 0, -1, 3], labels)
    assert score == {"error_accuracy": 0.75, "correct_accuracy": 0.5, "f1": pytest.approx(0.6)}
    # An error in the wrong place counts as none found; a response that was not judged is wrong.
    assert score_processbench([1, 0, -1, None, -1, None], labels)["f1"] == 0.0
    assert score_processbench([-1, -1], [-1, -1])["f1"] == 0.0, (
        "a class without a response counts as 0"
    )


ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=5)),
        st.integers(-1, 4),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_the_fitted_threshold_is_the_best_there_is(rows):
    rows = [(scores, min(label, len(scores) - 1) if scores else label) for scores, label in rows]
    scores = [row[0] for row in rows]
    labels = [row[1] for row in rows]
    values = sorted({value for row in scores for value in row or []})
    if not values:
        with pytest.raises(ValueError, match="no response has a step score"):
            fit_threshold(scores, labels)
        return
    threshold, f1 = fit_threshold(scores, labels)
    tried = [
        score_processbench([find_error(s, t) for s in scores], labels)["f1"]
        for t in [*values, values[-1] + 1]
    ]
    assert f1 == pytest.approx(max(tried))
    assert score_processbench([find_error(s, threshold) for s in scores], labels)[
        "f1"
    ] == pytest.approx(f1)


def test_the_threshold_lies_in_the_middle_so_that_it_transfers():
    assert fit_threshold([[0.8, 0.1], [0.9, 0.7]], [1, -1]) == (pytest.approx((0.1 + 0.7) / 2), 1.0)
    low = [1.0]
    high = [math.nextafter(1.0, 2)]
    threshold, f1 = fit_threshold([low, high], [0, -1])
    assert f1 == 1.0 and find_error(low, threshold) == 0 and find_error(high, threshold) == -1


def test_intervals():
    labels = [0] * 50 + [-1] * 50
    predictions = [0] * 40 + [-1] * 60
    interval = compute_percentiles(resample_f1(predictions, labels, 500, 0))
    assert interval["low"] < score_processbench(predictions, labels)["f1"] < interval["high"]
    assert interval["standard_error"] == pytest.approx(0.035, abs=0.01)
    mean = resample_mean([0.0, 1.0] * 50, 2000, 0)
    assert mean["value"] == 0.5 and mean["standard_error"] == pytest.approx(0.05, rel=0.1)


@given(st.lists(st.tuples(st.integers(-3, 3).map(float), st.booleans()), min_size=1, max_size=12))
def test_prm_score_averages_both_f1_and_its_threshold_is_best(steps):
    scores, right = zip(*steps, strict=True)
    tried = []
    for threshold in (-4.0, *scores):
        judged = [score > threshold for score in scores]
        kinds = (True, False) if not all(right) else (True,)
        hits = [
            sum(guess == kind == truth for guess, truth in zip(judged, right, strict=True))
            for kind in kinds
        ]
        sizes = [judged.count(kind) + right.count(kind) for kind in kinds]
        tried.append(
            fmean(2 * hit / size if size else 0.0 for hit, size in zip(hits, sizes, strict=True))
        )
        assert compute_prm_score(count_steps(scores, right, threshold))[
            "prm_score"
        ] == pytest.approx(tried[-1])
    threshold, best = find_best_prm_score([scores[:1], scores[1:]], [right[:1], right[1:]])
    assert best == pytest.approx(max(tried))
    assert compute_prm_score(count_steps(scores, right, threshold))["prm_score"] == pytest.approx(
        best
    )


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=5),
        min_size=1,
        max_size=5,
    )
)
def test_pairwise_accuracy_is_that_of_training(problems):
    counts = [
        count_ordered_pairs([float(s) for s, _ in pairs], [c for _, c in pairs])
        for pairs in problems
    ]
    flat = [(float(s), float(c), group) for group, pairs in enumerate(problems) for s, c in pairs]
    score, label, group = (torch.tensor(column) for column in zip(*flat, strict=True))
    expected = count_pairs(score, label, group).accuracy
    estimate = pairwise_accuracy(counts, 10, 0)
    assert (estimate is None) == (expected is None)
    if estimate is not None:
        assert estimate["value"] == pytest.approx(expected) and estimate["low"] <= estimate["high"]
        assert estimate["pairs"] == sum(number for _, number in counts) > 0


@given(
    st.lists(st.tuples(st.integers(-2, 2).map(float), st.booleans()), min_size=1, max_size=7),
    st.data(),
)
def test_the_best_of_n_equals_the_average_over_all_subsets(pool, data):
    draws = data.draw(st.integers(1, len(pool)))

    def chosen(subset):
        highest = max(score for score, _ in subset)
        return fmean(correct for score, correct in subset if score == highest)

    scores, correct = zip(*pool, strict=True)
    assert compute_best_of(scores, correct, draws) == pytest.approx(
        fmean(map(chosen, combinations(pool, draws)))
    )


@pytest.mark.parametrize(("split", "rows", "right"), [("gsm8k", 20, 10), ("omnimath", 10, 1)])
def test_rows_of_processbench_have_their_labels_and_steps(split, rows, right):
    items = read_processbench(str(SAMPLES / "processbench"), split, "", "\n\n")
    assert len(items) == rows and sum(item.label == -1 for item in items) == right
    for item in items:
        starts = [0, *(end + 2 for end in item.response.char_ends[:-1])]
        pieces = [
            item.response.text[a:b] for a, b in zip(starts, item.response.char_ends, strict=True)
        ]
        assert tuple(pieces) == item.response.steps


PROCESS = {"id": "a", "problem": "1+1?", "steps": ["one", "two"], "label": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "one"}, "steps must be a list that is not empty, got 'one'"),
        ({"steps": []}, "steps must be a list that is not empty, got []"),
        ({"steps": ["one", 2]}, "steps 2 must be a text, got 2"),
        ({"label": "1"}, "label must be a whole number from -1 to 1, got '1'"),
        ({"label": True}, "label must be a whole number from -1 to 1, got True"),
        ({"label": 0.5}, "label must be a whole number from -1 to 1, got 0.5"),
        ({"label": float("nan")}, "label must be a whole number from -1 to 1, got nan"),
        ({"label": None}, "label must be a whole number from -1 to 1, got None"),
        ({"label": 2}, "label must be a whole number from -1 to 1, got 2"),
        ({"problem": 5}, "problem must be a text"),
        (None, "no field 'steps' or 'completions'; it has ['id', 'label', 'problem']"),
    ],
)
def test_a_bad_row_of_processbench_is_named_with_its_field(tmp_path, change, message):
    bad = {key: PROCESS[key] for key in PROCESS if key != "steps"} if change is None else change
    rows = [PROCESS, bad if change is None else PROCESS | bad]
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SourceError) as error:
        read_processbench(str(tmp_path), "gsm8k", "", "\n")
    assert str(error.value).startswith(f"{path} row 2: {message}")


def test_an_empty_split_of_processbench_is_refused(tmp_path):
    (tmp_path / "math.json").write_text("[]")
    with pytest.raises(SourceError, match=r"math.json has no rows"):
        read_processbench(str(tmp_path), "math", "", "\n")


def test_steps_of_prmbench_lose_their_numbers_and_keep_decimals(tmp_path):
    path = tmp_path / "b.jsonl"
    steps = ["1. First", "Step 2. Then 2.5", "3.5 is more than 3", "4.It is 4"]
    path.write_text(json.dumps(prmbench_row("circular", 0, []) | {"modified_process": steps}))
    [item] = read_prmbench(str(path), "", "\n")
    assert item.response.steps == ("First", "Then 2.5", "3.5 is more than 3", "It is 4")


# ---- step scores ----


CPU = torch.device("cpu")
STEPS = [["two é", "plus 🙂 two", "four"], ["x"], ["a longer first step", "b"], ["漢字", "c d"]]


def response(steps, prompt="2+2?"):
    text, ends = join_steps(steps)
    return LabeledResponse(prompt, text, ends, tuple(steps))


RESPONSES = [response(steps) for steps in STEPS]


@pytest.fixture(scope="module")
def scorer(models):
    model, reference = (
        LogProbModel(str(models[k]), CPU, torch.float32, 7, False) for k in ("prm", "reference")
    )
    return ImplicitScorer(model, reference, TextEncoder(byte_tokenizer()), 200)


def slow_step_sums(path, item):
    """Return the log-probability from each step's end to the next; the last has the end token."""
    model = AutoModelForCausalLM.from_pretrained(path)
    prompt = b"[user] 2+2?\n[assistant] "
    tokenizer = byte_tokenizer()
    ids = [*tokenizer(prompt.decode())["input_ids"], *tokenizer(item.text)["input_ids"], 1]
    with torch.no_grad():
        table = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    log_probs = [float(table[index - 1, ids[index]]) for index in range(len(prompt), len(ids))]
    ends = [len(item.text[:end].encode()) for end in item.char_ends]
    ends[-1] += 1
    return [sum(log_probs[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def test_sums_of_steps_equal_a_plain_loop_whatever_the_batch(scorer, models):
    rows = [scorer.tokens(item) for item in RESPONSES]
    together = scorer.score(rows)
    alone = [scorer.score([row])[0] for row in rows]
    assert scorer.model.chunked and scorer.reference.chunked
    for item, result, single in zip(RESPONSES, together, alone, strict=True):
        sums = slow_step_sums(models["prm"], item)
        other = slow_step_sums(models["reference"], item)
        assert result["log_prob"] == pytest.approx(sums, abs=1e-4)
        assert result["log_ratio"] == pytest.approx(
            [a - b for a, b in zip(sums, other, strict=True)], abs=1e-4
        )
        assert result["log_ratio"] == pytest.approx(single["log_ratio"], abs=1e-4)


def test_kinds_of_step_scores():
    result = {"log_ratio": [2.0, -3.0], "log_prob": [-1.0, -2.0]}
    assert score_steps(result, "step", 0.5) == [1.0, -1.5]
    assert score_steps(result, "step", 0.0) == [0.0, 0.0]
    assert score_steps(result, "prefix", 0.5) == [1.0, -0.5]
    assert score_steps(result, "prefix", 1.0, with_reference=False) == [-1.0, -3.0]
    assert score_steps({"probability": [0.3, 0.9]}, "", 7.0) == [0.3, 0.9]


def test_models_that_change_their_logits_are_recognised(tmp_path):
    path = str(tmp_path / "gemma")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    cap = {"final_logit_softcapping": 1.0, "initializer_range": 0.3}
    config = Gemma2Config(
        vocab_size=len(byte_tokenizer()), max_position_embeddings=256, **sizes, **heads, **cap
    )
    Gemma2ForCausalLM(config).save_pretrained(path)
    model = LogProbModel(path, CPU, torch.float32, 7, False)
    assert not model.chunked
    ids = list(range(5, 25))
    [log_probs] = model.log_probs([TokenizedSteps(ids, 4, (19,))], 0)
    with torch.no_grad():
        table = (
            AutoModelForCausalLM.from_pretrained(path)(torch.tensor([ids]))
            .logits[0, :-1]
            .log_softmax(-1)
        )
    expected = table.gather(-1, torch.tensor(ids[1:])[:, None])[3:, 0]
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("separator", ["\n", ""])
@pytest.mark.parametrize("layout", ["plain", "chat"])
def test_a_classifier_is_read_after_each_step(models, separator, layout):
    options = {"layout": layout, "separator": separator, "max_length": 200}
    reader = ResponseReader(str(models["classifier"]), **options)
    scorer = ClassifierScorer(TokenClassifier(reader, device=CPU))
    rows = [scorer.tokens(item) for item in RESPONSES]
    model = AutoModelForTokenClassification.from_pretrained(models["classifier"])
    tokenizer = byte_tokenizer()
    prompt = "2+2?" if layout == "plain" else "[user] 2+2?\n[assistant] "
    for item, result in zip(RESPONSES, scorer.score(rows), strict=True):
        expected = []
        for number in range(len(item.steps)):
            text = prompt + "".join(step + separator for step in item.steps[: number + 1])
            with torch.no_grad():
                logits = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1]
            expected.append(float(logits.softmax(-1)[1]))
        assert result["probability"] == pytest.approx(expected, abs=1e-5)


def test_steps_of_a_text_as_it_was_generated():
    text = "First.\n\nSecond\nline.\n \nThird. \n"
    steps, ends = split_response(text, r"\n\s*\n")
    assert steps == ("First.", "Second\nline.", "Third.")
    assert [text[:end].rsplit("\n\n")[-1] for end in ends][0] == "First." and text[
        : ends[-1]
    ].endswith("Third.")
    steps, ends = split_response("Step 1: a\nStep 2: b", r"\n(?=Step \d+:)")
    assert steps == ("Step 1: a", "Step 2: b") and ends == (9, 19)
    assert split_response("one", r"\n\n") == (("one",), (3,))


# ---- the command ----


def test_separators_of_a_shell_are_line_breaks():
    words = ["processbench", "--model", "m", "--output", "o", "--separator", r"\n"]
    words += ["--step-separator", r"\n\n", "--step-prefix", r"\t"]
    parsed = parser().parse_args(words)
    assert (parsed.separator, parsed.step_separator, parsed.step_prefix) == ("\n", "\n\n", "\t")
    assert run_parser().parse_args(["--stop", r"\n\nQ:"]).stop == ["\n\nQ:"]


@pytest.fixture(scope="module")
def described(models, tmp_path_factory):
    """Return a PRM with a description of its training."""
    folder = save_llama(tmp_path_factory.mktemp("described") / "prm", 1)
    description = {
        "beta": 0.25,
        "loss": "ce",
        "reference": os.path.relpath(models["reference"], folder),
    }
    description |= {"step_prefix": "", "step_separator": "\n"}
    (folder / "prime_ext_prm.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processbench")
    for split, n in (("gsm8k", 12), ("math", 8)):
        rows = [
            {
                "id": f"{split}-{k}",
                "problem": f"{k}+1?",
                "steps": [f"{k}", f"{k + s}", "so"],
                "label": k % 4 - 1,
            }
            for s, k in enumerate(range(n))
        ]
        (folder / f"{split}.json").write_text(json.dumps(rows))
    return folder


def evaluated(out, task, model, *words):
    """Evaluate, and return the results and the lines of ``items.jsonl``."""
    assert main([task, "--model", *map(str, [model, *words]), "--output", str(out)]) == 0
    return get_results(out), get_lines(out / "items.jsonl")


def test_processbench_with_the_protocols_threshold_and_the_oracles(
    models, described, bench, tmp_path, capsys
):
    out = tmp_path / "out"
    words = ["processbench", "--model", str(described), "--data", str(bench), "--output", str(out)]
    words += ["--splits", "gsm8k,math"]
    assert main(words) == 0
    results = get_results(out)
    protocol = results["protocol"]
    oracle = results["oracle"]
    assert {split["threshold"] for split in protocol["splits"].values()} == {protocol["threshold"]}
    assert oracle["splits"]["gsm8k"] == protocol["splits"]["gsm8k"]
    assert oracle["splits"]["math"]["f1"] >= protocol["splits"]["math"]["f1"]
    assert protocol["average_f1"] == pytest.approx(
        sum(split["f1"] for split in protocol["splits"].values()) / 2
    )
    assert (
        protocol["splits"]["gsm8k"]["responses"] == 12
        and protocol["splits"]["gsm8k"]["erroneous"] == 9
    )
    settings = results["settings"]
    assert settings["coefficient"] == 0.25 and settings["reference"] == str(models["reference"])
    assert settings["step_prefix"] == "" and settings["step_separator"] == "\n"
    assert set(results["versions"]) == {"prime-ext", "verl", "torch", "transformers"}
    items = get_lines(out / "items.jsonl")
    assert len(items) == 20 and all(len(item["step_scores"]) == 3 for item in items)
    assert "Official protocol: one threshold, the best on gsm8k" in (out / "report.md").read_text()
    # A second run scores nothing: the same lines, the same numbers.
    scores = out / "scores.jsonl"
    before = scores.read_bytes()
    assert main(words) == 0 and scores.read_bytes() == before and get_results(out) == results
    assert main([*words, "--step-score", "step"]) == 0 and scores.read_bytes() == before
    # After a kill only the response of the unfinished line is scored again.
    scores.write_bytes(before[:-20])
    assert main(words) == 0
    whole = before.rpartition(b"\n")[0].rpartition(b"\n")[0]
    assert scores.read_bytes().startswith(whole) and scores.read_bytes().count(
        b"\n"
    ) == before.count(b"\n")
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


def prmbench_row(kind, index, wrong):
    steps = ["1. Add.", "Step 2. Add 1.5.", "3.Done"]
    row = {"idx": f"p{index}", "classification": kind, "modified_question": f"{index}+1?"}
    return row | {"modified_process": steps, "error_steps": wrong, "question": "not this one"}


def test_prmbench(models, tmp_path):
    rows = [prmbench_row("circular", index, [2, 3, 9]) for index in range(4)]
    rows += [prmbench_row("redundency", index, [1 + index % 3]) for index in range(5)]
    rows += [prmbench_row("multi_solutions", 0, []), prmbench_row("circular", 0, [1])]
    data = tmp_path / "prmbench.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--scorer", "classifier", "--data", data, "--threshold"]
    results, items = evaluated(tmp_path / "all", "prmbench", models["classifier"], *words, "0")
    # All steps are judged right, and 1, 2 or 3 of 3 are. A row that comes twice counts once.
    classes = results["classes"]
    assert {
        kind: (numbers["responses"], numbers["wrong_steps"]) for kind, numbers in classes.items()
    } == {
        **{"circular": (4, 8), "redundency": (5, 5), "multi_solutions": (1, 0), "overall": (10, 13)}
    }
    assert [classes[kind]["prm_score"] for kind in classes] == pytest.approx(
        [0.25, 0.4, 1.0, 34 / 47 / 2]
    )
    assert results["dimensions"] == {"simplicity": pytest.approx((0.25 + 0.4) / 2)}
    assert items[0]["right"] == [True, False, False] and items[0]["id"] == "circular_p0"
    assert read_prmbench(str(tmp_path), "", "|")[0].response.text == "Add.|Add 1.5.|Done"
    report = (tmp_path / "all" / "report.md").read_text()
    assert (
        "| multi\\_solutions (MS) | 1 | 0 | 100.0 | – | 100.0" in report
        and "| mean of simplicity | " in report
    )
    best = results["best_threshold"]
    results, _ = evaluated(
        tmp_path / "best", "prmbench", models["classifier"], *words, str(best["threshold"])
    )
    assert (
        results["classes"]["overall"]["prm_score"]
        == best["prm_score"]
        > classes["overall"]["prm_score"]
    )


def test_best_of_n(models, described, tmp_path, capsys):
    candidates = tmp_path / "candidates.jsonl"
    correctness = [int(k % 3 == 1) for k in range(5)]
    for q in range(6):
        texts = [f"say {k}\n\nso \\boxed{{{q + k % 3}}}" for k in range(5)]
        row = {"id": f"q{q}", "prompt": f"{q}+1?", "completions": texts, "correctness": correctness}
        with candidates.open("a") as file:
            file.write(json.dumps(row) + "\n")
    results, lines = evaluated(tmp_path / "out", "best-of-n", described, "--input", candidates)
    table = results["best_of_n"]
    assert results["n"] == [1, 2, 4] and results["problems"] == 6
    for name, row in table.items():
        assert row["1"]["value"] == pytest.approx(0.4), f"{name}: one candidate is chance"
    # Two of five are right: 1 - C(3, 2) / C(5, 2), and four always hold a right one.
    assert (
        table["pass@N"]["2"]["value"] == pytest.approx(0.7) and table["pass@N"]["4"]["value"] == 1.0
    )
    names = {
        f"best, {how} of {kind}"
        for how in ("min", "sum", "last", "mean")
        for kind in ("step", "prefix")
    }
    assert names | {"maj@N", "best, min of step, no reference"} <= set(table)
    assert results["pairwise_accuracy"]["sum of step"]["pairs"] == 36
    # The sum of the steps is the last prefix.
    assert (
        results["pairwise_accuracy"]["sum of step"]
        == results["pairwise_accuracy"]["last of prefix"]
    )
    assert len(lines) == 30 and lines[1]["answer"] == '"correct"' and lines[0]["answer"] == "0"
    for number in range(0, 30, 5):
        totals = [line["scores"]["sum of step"] for line in lines[number : number + 5]]
        assert [line["chosen"] for line in lines[number : number + 5]] == [
            total == max(totals) for total in totals
        ]
    assert lines[7]["probability"] == pytest.approx(
        1 / (1 + math.exp(-lines[7]["scores"]["sum of step"]))
    )
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(printed) == 2 + 6 and sum("best, " in line for line in printed) == 4
    words = ["--scorer", "classifier", "--input", candidates]
    results, lines = evaluated(tmp_path / "classifier", "best-of-n", models["classifier"], *words)
    assert set(results["best_of_n"]) - {"pass@N", "maj@N"} == {
        f"best, {how}" for how in AGGREGATIONS
    }
    for line in lines:
        chances = line["steps"]["probability"]
        expected = [min(chances), sum(chances), chances[-1], fmean(chances), math.prod(chances)]
        assert list(line["scores"].values()) == pytest.approx(expected)
    assert "| N=4 |" in (tmp_path / "out" / "report.md").read_text()
    # Without labels it only chooses; with a coefficient other than in training, no probability.
    candidates.write_text(candidates.read_text().replace('"correctness"', '"not_known"'))
    words = ["--input", candidates, "--coefficient", "2"]
    results, lines = evaluated(tmp_path / "chosen", "best-of-n", described, *words)
    assert "best_of_n" not in results and sum(line["chosen"] for line in lines) == 6
    assert {line["correct"] for line in lines} == {None} and "probability" not in lines[0]
    assert "6 problems have no labels" in (tmp_path / "chosen" / "report.md").read_text()


def test_candidates_are_graded_by_their_gold_answer(described, tmp_path):
    rows = [
        {
            "problem": "1+1?",
            "responses": [r"\boxed{2}", [r"so \boxed{3}", "done"], r"\boxed{2.0}"],
            "gold": "2",
        },
        {"problem": "1+2?", "responses": [r"\boxed{2}"], "gold": "3"},
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results, _ = evaluated(tmp_path / "out", "best-of-n", described, "--input", path)
    assert results["pairwise_accuracy"]["min of step"]["pairs"] == 2


BON = ["best-of-n", "--model", "{described}", "--input", "{input}"]
STEPS_BENCH = ["prmbench", "--model", "{described}", "--data", "{input}"]
BENCH = ["processbench", "--model", "{described}", "--data", "{bench}", "--splits", "gsm8k"]
ONE = '{"prompt": "p", "completions": ["a"], "correctness": [1]}'


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        ([*BENCH, "--model", "{prm}"], "", "give --reference MODEL, or --reference none"),
        ([*BENCH, "--splits", "math"], "", "--threshold-split gsm8k is not among --splits math"),
        ([*BENCH, "--data", "nowhere"], "", "nowhere is not a folder"),
        ([*BENCH, "--dtype", "float7"], "", "dtype='float7' is not a dtype of torch"),
        ([*BENCH, "--max-length", "5"], "",
         "no response has a step score to fit a threshold on; raise --max-length"),
        ([*STEPS_BENCH, "--data", "nowhere"], "",
         "nowhere is neither a file nor a folder with .jsonl or .parquet"),
        (STEPS_BENCH, '{"idx": "a", "classification": "b"}',
         "row 1: no field 'modified_question'; it has"),
        (STEPS_BENCH, json.dumps(prmbench_row("a", 0, [0])),
         "row 1: error_steps: each must be a whole number from 1, got 0"),
        (STEPS_BENCH, json.dumps(prmbench_row("a", 0, []) | {"modified_process": "1."}),
         "row 1: modified_process must be a list that is not empty, got '1.'"),
        (BON, '{"prompt": "p"}', "row 1: no field 'completions' or 'responses'"),
        (BON, '{"prompt": "p", "completions": ["a", ""], "correctness": [1, 0]}',
         "row 1: response 2 must be a text"),
        (BON, ONE.replace("1", "0.5"), "row 1: correctness must be 0 or 1, got 0.5"),
        (BON, ONE.replace('"correctness": [1]', '"gold": null'),
         "row 1: gold must be a text, got 'None'"),
        (BON, ONE.replace("1", "1, 0"), "row 1: correctness must have 1 values, got 2"),
        (BON, ONE + "\n" + ONE.replace("correctness", "unknown"),
         "row 2: correctness or gold must be in all rows"),
        ([*BENCH, "--reference", "nobody/nothing"], "", "nobody/nothing cannot be loaded"),
        ([*BENCH, "--coefficient", "0"], "", "--coefficient: '0' must be above 0"),
        ([*BENCH, "--coefficient", "nan"], "", "--coefficient: 'nan' must be above 0"),
        ([*BON, "--steps-end", "("], ONE, "--steps-end '(' is not a regular expression"),
        (STEPS_BENCH, "", "in.jsonl has no rows"),
        (BON, "", "in.jsonl has no rows"),
        (BON, ONE.replace('"p"', "7"), "row 1: prompt must be a text or a list of messages"),
        (BON, ONE.replace('["a"]', '"a"'), "row 1: completions must be a list that is not empty"),
        (BON, ONE.replace('["a"]', '[["a", 3]]'),
         "row 1: response 1: step 2 must be a text, got 3"),
        (BON, ONE.replace("[1]", '["1"]'), "row 1: correctness must be 0 or 1, got '1'"),
        (BON, ONE.replace("[1]", "[null]"), "row 1: correctness must be 0 or 1, got None"),
        (BON, ONE.replace("[1]", "[NaN]"), "row 1: correctness must be 0 or 1, got nan"),
        (BON, ONE.replace("}", ', "answers": [{}]}'), "row 1: answers 1 must be a text, got '{}'"),
        (BON, f'{ONE[:-1]}, "id": 3}}\n{ONE[:-1]}, "id": 3}}', "row 2: the id '3' is there a se"),
        (STEPS_BENCH, json.dumps(prmbench_row("a", 0, []) | {"error_steps": "1"}),
         "row 1: error_steps must be a list, got '1'"),
        (STEPS_BENCH, json.dumps(prmbench_row("a", 0, []) | {"modified_question": None}),
         "row 1: modified_question must be a text or a list of messages"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(models, described, bench, tmp_path, capsys, words, text, message):
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    names = {**models, "described": described, "bench": bench, "input": source}
    assert main([word.format(**names) for word in words] + ["--output", str(tmp_path / "out")]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "out" / "results.json").exists()
