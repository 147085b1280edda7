# SPDX-License-Identifier: Apache-2.0
"""Step scores equal plain loops over transformers, whatever the batches; finished responses are not scored again."""

import pytest
import torch
from tiny_llama import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, Gemma2Config, Gemma2ForCausalLM

from eval.prm_data import Response, split_response
from eval.prm_scorers import ClassifierScorer, ImplicitScorer, LogProbModel, score_all, step_scores
from prime_ext.step_rm.scorers.token_classifier import TokenClassifier
from prime_ext.utils.text_tokens import TextEncoder, TokenizedSteps, join_steps

CPU = torch.device("cpu")
STEPS = [["two é", "plus 🙂 two", "four"], ["x"], ["a longer first step", "b"], ["漢字", "c d"]]


def response(steps, prompt="2+2?"):
    text, ends = join_steps(steps)
    return Response(prompt, text, ends, tuple(steps))


RESPONSES = [response(steps) for steps in STEPS]


@pytest.fixture(scope="module")
def scorer(models):
    model, reference = (LogProbModel(str(models[k]), CPU, torch.float32, 7, False) for k in ("prm", "reference"))
    return ImplicitScorer(model, reference, TextEncoder(byte_tokenizer()), 200)


def slow_step_sums(path, item):
    """Sum of log-probabilities of the bytes of each step, and of what stands before it; the end belongs to the last."""
    model = AutoModelForCausalLM.from_pretrained(path)
    prompt = b"[user] 2+2?\n[assistant] "
    tokenizer = byte_tokenizer()
    ids = [*tokenizer(prompt.decode())["input_ids"], *tokenizer(item.text)["input_ids"], 1]
    with torch.no_grad():
        table = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    log_probs = [float(table[place - 1, ids[place]]) for place in range(len(prompt), len(ids))]
    ends = [len(item.text[:end].encode()) for end in item.char_ends]
    ends[-1] += 1
    return [sum(log_probs[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def test_sums_of_steps_equal_a_plain_loop_whatever_the_batch(scorer, models):
    rows = [scorer.tokens(item) for item in RESPONSES]
    together = scorer.score(rows)
    alone = [scorer.score([row])[0] for row in rows]
    assert scorer.model.chunked and scorer.reference.chunked
    for item, result, single in zip(RESPONSES, together, alone, strict=True):
        own, other = slow_step_sums(models["prm"], item), slow_step_sums(models["reference"], item)
        assert result["log_prob"] == pytest.approx(own, abs=1e-4)
        assert result["log_ratio"] == pytest.approx([a - b for a, b in zip(own, other, strict=True)], abs=1e-4)
        assert result["log_ratio"] == pytest.approx(single["log_ratio"], abs=1e-4)


def test_kinds_of_step_scores():
    result = {"log_ratio": [2.0, -3.0], "log_prob": [-1.0, -2.0]}
    assert step_scores(result, "step", 0.5) == [1.0, -1.5]
    assert step_scores(result, "prefix", 0.5) == [1.0, -0.5]
    assert step_scores(result, "prefix", 1.0, with_reference=False) == [-1.0, -3.0]
    assert step_scores({"probability": [0.3, 0.9]}, "", 7.0) == [0.3, 0.9]


def test_models_that_change_their_logits_are_recognised(tmp_path):
    path = str(tmp_path / "gemma")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    cap = {"final_logit_softcapping": 1.0, "initializer_range": 0.3}
    config = Gemma2Config(vocab_size=len(byte_tokenizer()), max_position_embeddings=256, **sizes, **heads, **cap)
    Gemma2ForCausalLM(config).save_pretrained(path)
    model = LogProbModel(path, CPU, torch.float32, 7, False)
    assert not model.chunked
    ids = list(range(5, 25))
    [found] = model.log_probs([TokenizedSteps(ids, 4, (19,))], 0)
    with torch.no_grad():
        table = AutoModelForCausalLM.from_pretrained(path)(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    expected = table.gather(-1, torch.tensor(ids[1:])[:, None])[3:, 0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("separator", ["\n", ""])
@pytest.mark.parametrize("layout", ["plain", "chat"])
def test_a_classifier_is_read_after_each_step(models, separator, layout):
    options = {"layout": layout, "separator": separator, "max_length": 200}
    scorer = ClassifierScorer(TokenClassifier(str(models["classifier"]), **options, device=CPU))
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


class CountingScorer:
    """Scores a response by its length, and remembers what it was asked."""

    max_length = 30

    def __init__(self, fail_after=None):
        self.asked, self.fail_after = [], fail_after

    def tokens(self, item):
        return TokenizedSteps(list(item.text.encode()), 0, (len(item.text) - 1,))

    def score(self, batch):
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise KeyboardInterrupt
        self.asked += [len(row.ids) for row in batch]
        return [{"probability": [len(row.ids) / 100]} for row in batch]


def test_finished_responses_are_never_scored_again(tmp_path):
    path = tmp_path / "scores.jsonl"
    rows = [TokenizedSteps([7] * n, 0, (n - 1,)) for n in (5, 20, 10, 40, 5)]
    first = CountingScorer(fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        score_all(first, rows, path, 12)
    assert first.asked == [20, 10], "long ones first, and no batch above the limit"
    with path.open("a") as lines:
        lines.write('{"key": "half')
    second = CountingScorer()
    results = score_all(second, rows, path, 30)
    assert second.asked == [5], "equal responses are scored once"
    assert [r.get("probability") for r in results] == [[0.05], [0.2], [0.1], None, [0.05]]
    assert results[3] == {"overlong": 40} and step_scores(results[3], "step", 1.0) is None
    third = CountingScorer()
    assert score_all(third, rows, path, 30) == results and third.asked == []
    assert len(path.read_text().splitlines()) == 3


def test_steps_of_a_text_as_it_was_generated():
    text = "First.\n\nSecond\nline.\n \nThird. \n"
    steps, ends = split_response(text, r"\n\s*\n")
    assert steps == ("First.", "Second\nline.", "Third.")
    assert [text[:end].rsplit("\n\n")[-1] for end in ends][0] == "First." and text[: ends[-1]].endswith("Third.")
    steps, ends = split_response("Step 1: a\nStep 2: b", r"\n(?=Step \d+:)")
    assert steps == ("Step 1: a", "Step 2: b") and ends == (9, 19)
    assert split_response("one", r"\n\n") == (("one",), (3,))
