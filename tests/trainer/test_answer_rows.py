# SPDX-License-Identifier: Apache-2.0
"""How likely the gold answer is after each step: rows that are written, and rewards that come of them."""

import math

import pytest
import torch
from small_batch import settings
from test_scorer_rows import filled
from tiny_llama import byte_tokenizer

from prime_ext.config.reward_settings import AnswerSettings
from prime_ext.prm.worker import PRM_LOG_PROBS
from prime_ext.trainer.prime_step import PrimeStep, ResponseSteps
from prime_ext.trainer.reward_sources import advantages
from prime_ext.trainer.step_scorers import AnswerScorer

TOKENIZER = byte_tokenizer()
RESPONSES = ["3+4=7;7*2=14;", "3+4=8;", "3+4=7;7*2=14;14"]
PROMPT = TOKENIZER.decode([5, 6])
OPTIONS = {
    "process__scorer": "answer_likelihood",
    "process__granularity": "step",
    "process__normalization": "none",
    "steps__splitter": "delimiters",
    "steps__delimiters": [";"],
}


class Asked:
    """Thinks an answer likelier the more of the right steps it has read."""

    longest_row: int | None = None

    def __init__(self, queue, ranks=2):
        self.queue, self.ranks, self.texts = queue, ranks, []

    def follow_policy(self, step):
        self.followed = step
        return True

    def data_parallel_size(self):
        return self.ranks

    def take_pass_counts(self):
        return {"forward": 30}

    def score(self, rows):
        assert len(rows) % self.ranks == 0
        for key in rows.keys:
            row = self.queue.fields["train"][key]
            text = TOKENIZER.decode(row["prompts"], skip_special_tokens=False)
            self.texts.append((text, TOKENIZER.decode(row["responses"], skip_special_tokens=False)))
            row[PRM_LOG_PROBS] = torch.full(row["response_mask"].shape, self.log_prob(text))

    @staticmethod
    def log_prob(text):
        return -2.0 + 0.5 * sum(step in text for step in ("3+4=7;", "7*2=14;"))


def scored(monkeypatch, golds=("14", "14", "14"), end=True, limit=None, **answer):
    ids = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in RESPONSES]
    ids = [[*one, TOKENIZER.eos_token_id] for one in ids] if end else ids
    fields = {"rm_scores": [torch.zeros(len(one)) for one in ids]}
    fields["extra_fields"] = [{"reward_extra_info": {"acc": value}} for value in (1.0, 0.0, 1.0)]
    fields["reward_model"] = [{"ground_truth": gold} for gold in golds]
    queue, batch = filled(monkeypatch, ids, **fields)
    queue.fields["train"]["pad-0_0_0"]["rm_scores"] = torch.zeros(1)
    options = settings(**OPTIONS)
    step = PrimeStep.load(batch, options, False, ResponseSteps(options.steps, TOKENIZER), number=3)
    prm = Asked(queue)
    prm.longest_row = limit
    template = AnswerSettings(**{"template": "=>{gold}.", "per_token": True, "most": 32, **answer})
    assert AnswerScorer(prm, template, TOKENIZER, {TOKENIZER.eos_token_id})(step, batch) == batch
    assert list(queue.fields["train"]) == batch.keys and prm.followed == 3
    return step, prm, step.metrics


@pytest.mark.parametrize("end", [True, False])
def test_each_step_is_paid_by_what_it_adds_to_the_answers_probability(monkeypatch, end):
    step, prm, metrics = scored(monkeypatch, end=end)
    # Every text once, without the end of the response; verl's padding of rows beside them.
    texts = [f"{PROMPT}{text}=>" for text in ("", "3+4=7;", "3+4=7;7*2=14;", "3+4=8;", "3+4=7;7*2=14;14")]
    assert sorted(set(prm.texts[:5])) == sorted((text, "14.") for text in texts)
    assert len(prm.texts) == 6
    value = [math.exp(-2.0 + 0.5 * right) for right in range(3)]
    # The last step ends with the response: with its end-of-sequence token, if it has one.
    last = [int(mask_T.sum()) - 1 for mask_T in step.mask_BT]
    expected_BT = torch.zeros_like(step.mask_BT)
    for row in (0, 2):
        expected_BT[row, 5] = value[1] - value[0]
        expected_BT[row, 12 if row == 2 or not end else last[row]] = value[2] - value[1]
    assert float(step.process_reward_BT.sum()) == pytest.approx(float(expected_BT.sum()))
    torch.testing.assert_close(step.process_reward_BT[2], expected_BT[2])
    assert metrics["prime/answer_likelihood/prompt"] == pytest.approx(value[0])
    assert metrics["prime/answer_likelihood/response"] == pytest.approx((2 * value[2] + value[0]) / 3)
    assert metrics["prm/pair_accuracy/before_update"] == 1.0 and step.pairs_before.total > 0
    assert metrics["prm/passes/forward"] == pytest.approx(30 / (sum(map(len, RESPONSES)) + 3 * end + 2 * 3 + 2))
    advantage_BT, _ = advantages(step, 1.0)
    assert advantage_BT[0, 0] > advantage_BT[1, 0]


def test_the_product_of_the_probabilities_on_demand(monkeypatch):
    step, _, metrics = scored(monkeypatch, per_token=False)
    assert metrics["prime/answer_likelihood/prompt"] == pytest.approx(math.exp(-2.0 * len("14.")))


def test_without_a_gold_answer_or_with_too_many_tokens_nothing_is_paid(monkeypatch):
    step, _, metrics = scored(monkeypatch, golds=("14", None, " "))
    assert step.process_reward_BT[0].any() and not step.process_reward_BT[1:].any()
    assert metrics["prm/inputs/without_hint"] == pytest.approx(2 / 3)
    step, prm, metrics = scored(monkeypatch, limit=13)
    assert metrics["prm/inputs/too_long"] == pytest.approx(2 / 3) and not step.process_reward_BT[[0, 2]].any()
    step, prm, metrics = scored(monkeypatch, limit=3)
    assert not prm.texts and not step.process_reward_BT.any() and "prime/answer_likelihood/prompt" not in metrics


def test_of_many_steps_only_some_are_asked_after_and_nothing_of_the_pay_is_lost(monkeypatch):
    whole, _, _ = scored(monkeypatch)
    step, prm, _ = scored(monkeypatch, most=1)
    assert len({text for text, _ in prm.texts}) == 4
    torch.testing.assert_close(step.process_reward_BT.sum(-1), whole.process_reward_BT.sum(-1))
    assert (step.process_reward_BT != 0).sum(-1).tolist() == [1, 0, 1, 0]
