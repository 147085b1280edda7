# SPDX-License-Identifier: Apache-2.0
"""What the PRM reads in place of the rollouts: hints in its prompt, and tokens of another tokenizer."""

import random
from functools import cache

import numpy as np
import pytest
import torch
from fake_queue import FakeQueue
from hypothesis import given
from hypothesis import strategies as st
from kinds_of_tokenizers import TOKENIZERS
from small_batch import batch_of, settings
from test_prm_phase import UpdatedPRM
from tiny_llama import byte_tokenizer
from tokenizers import AddedToken

from prime_ext.algorithms.estimators import compute_advantage
from prime_ext.algorithms.token_shares import TokenShares, token_bounds
from prime_ext.config.prm_inputs import InputSettings
from prime_ext.prm.worker import PRM_LOG_PROBS, REFERENCE_LOG_PROBS
from prime_ext.trainer.prime_step import PrimeStep
from prime_ext.trainer.prm_phase import PRMPhase
from prime_ext.trainer.reward_sources import advantages, build_sources
from prime_ext.trainer.scorer_rows import PREFIX, ScorerRowsBuilder
from prime_ext.utils import transfer_queue as transfer

CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
TEXTS = [
    "Step 1: We add three and four, which is 7.\n\nSo the answer is \\boxed{\\frac{7}{2}}.",
    "Let x = √2 ≤ 3. 然后相加。所以答案是五。 🙂🙃 a👩‍👧z",
    "  two  spaces\n\n\n and x² ",
]


BYTES = byte_tokenizer()


@cache
def tokenizer_of(kind):
    tokenizer = TOKENIZERS[kind]()
    tokenizer.chat_template = CHAT
    return tokenizer


def filled(monkeypatch, responses, masks=None, **fields):
    """A store with these responses, all to one prompt, and one row of padding."""
    queue = FakeQueue().install(monkeypatch)
    for number, ids in enumerate(responses):
        queue.put(
            f"000000000001_{number}_0",
            {"seq_len": len(ids) + 2, "response_len": len(ids)},
            prompts=torch.tensor([5, 6]),
            responses=torch.tensor(ids),
            response_mask=torch.tensor(masks[number] if masks else [1] * len(ids)),
            raw_prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How much?"}],
            data_source="maths",
            **{name: values[number] for name, values in fields.items()},
        )
    row = {**queue.fields["train"]["000000000001_0_0"], "responses": torch.tensor([1]), "prompts": torch.tensor([1])}
    tag = {"is_padding": True, "seq_len": 2, "response_len": 1}
    queue.put("pad-0_0_0", tag, **{**row, "response_mask": torch.tensor([0])})
    return queue, batch_of(queue)


def built(builder, batch, labels=None):
    label_B = torch.tensor([*(labels or [0.0] * (len(batch) - 1)), 0.0])
    group_B = torch.tensor([0] * (len(batch) - 1) + [1])
    return builder.build(batch, label_B, group_B)


def put_values(queue, rows, name=PRM_LOG_PROBS, seed=0):
    """A value for each token of the PRM's rows; the sums over what counts."""
    generator, sums = torch.Generator().manual_seed(seed), []
    for key in rows.batch.keys:
        row = queue.fields["train"][key]
        row[name] = -torch.rand(len(row["responses"]), generator=generator)
        sums.append(float((row[name] * row["response_mask"]).sum()))
    return sums


# ---- other tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(TOKENIZERS))
@pytest.mark.parametrize("own", sorted(TOKENIZERS.keys() - {"quickstart"}))
def test_values_of_other_tokens_keep_their_sum_and_order_and_reach_every_token(monkeypatch, policy, own):
    policy, own = tokenizer_of(policy), tokenizer_of(own)
    choose = random.Random(0)
    plain = [token for token in range(len(policy)) if token not in policy.all_special_ids]
    # The quickstart's vocabulary is that of its task.
    texts = TEXTS if policy is not tokenizer_of("quickstart") else ["12+3=15"]
    responses = [policy(text, add_special_tokens=False)["input_ids"] for text in texts]
    # What a policy may write, though no encoder would.
    responses += [choose.choices(plain, k=12) for _ in range(8)]
    responses = [[*ids, policy.eos_token_id] if number % 3 else ids for number, ids in enumerate(responses)]
    queue, batch = filled(monkeypatch, responses)
    builder = ScorerRowsBuilder(InputSettings(True, None), policy, own, {policy.eos_token_id})
    rows = built(builder, batch)
    sums = put_values(queue, rows)
    found_BT = rows.fetch(PRM_LOG_PROBS)
    pieces = builder._text
    for at, ids in enumerate(responses):
        assert float(found_BT[at].sum()) == pytest.approx(sums[at], abs=1e-5)
        has_text = [bool(piece) for piece in pieces.pieces(ids)]
        ended = ids[-1] == policy.eos_token_id
        # Parts of a character share it; without characters are only tokens that stand for nothing.
        scored = rows.scored_BT[at, : len(ids)].tolist()
        assert all(seen for seen, text in zip(scored, has_text, strict=True) if text) and scored[-1] >= ended
        shares = rows._shares[at]
        assert shares is None or (shares.target_N.diff() >= 0).all() and (shares.source_N.diff() >= 0).all()
        response = queue.fields["train"][rows.batch.keys[at]]["responses"].tolist()
        assert (response[-1] == own.eos_token_id) == ended or not any(has_text)
        text = "".join(pieces.pieces(ids))
        if own is tokenizer_of("byte-level BPE"):
            assert own.decode(response, skip_special_tokens=True) == text
    assert not rows.scored_BT[-1].any() and not found_BT[-1].any()
    # What is not scored is padding.
    assert [transfer.is_padding(tag) for tag in rows.batch.tags] == (~rows.scored_BT.any(-1)).tolist()
    old_BT = -torch.rand(found_BT.shape)
    smoothed_BT = rows.smoothed(old_BT)
    torch.testing.assert_close(smoothed_BT.sum(-1), (old_BT * rows.scored_BT).sum(-1))
    # As a reference: carried there and back, it is what it was compared with.
    rows.put(REFERENCE_LOG_PROBS, old_BT)
    torch.testing.assert_close(rows.fetch(REFERENCE_LOG_PROBS), smoothed_BT)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(0, 2**32 - 1))
def test_shares_are_those_of_the_characters(lengths, seed):
    """Against a loop over characters."""
    choose = random.Random(seed)
    total = sum(lengths)
    cuts = sorted(choose.choices(range(total + 1), k=choose.randrange(4)))
    others = [right - left for left, right in zip([0, *cuts], [*cuts, total], strict=True)]
    valid = [choose.random() < 0.8 for _ in lengths]
    shares = TokenShares.of(token_bounds(others), token_bounds(lengths), np.array(valid))
    value_S = [choose.random() for _ in others]
    owner = [token for token, length in enumerate(lengths) for _ in range(length)]
    other = [token for token, length in enumerate(others) for _ in range(length)]
    expected = [0.0] * len(lengths)
    for token, value in enumerate(value_S):
        mine = [owner[at] for at in range(total) if other[at] == token and valid[owner[at]]]
        for target in mine:
            expected[target] += value / len(mine)
    assert shares.to_target(torch.tensor(value_S)).tolist() == pytest.approx(expected, abs=1e-6)
    assert shares.source_mask_S.tolist() == [
        any(valid[owner[at]] for at in range(total) if other[at] == token) for token in range(len(others))
    ]


def test_parts_of_a_character_share_it_and_texts_of_other_lengths_are_refused():
    # Two tokens complete a character of the third; the fourth is a special token.
    assert token_bounds([0, 0, 1, 0, 2], [True, True, False, False, False]).tolist() == pytest.approx(
        [0, 1 / 3, 2 / 3, 1, 1, 3]
    )
    with pytest.raises(ValueError, match="a text of 2 characters was compared with one of 3"):
        TokenShares.of(token_bounds([2]), token_bounds([3]), np.array([True]))


def test_a_word_of_one_token_here_and_two_there_is_worth_the_difference():
    shares = TokenShares.of(token_bounds([12]), token_bounds([2, 10]), np.array([True, True]))
    there, here = torch.tensor([-3.0]), torch.tensor([-2.9, -0.1])
    difference = shares.to_target(there) - shares.to_target(shares.to_source(here))
    torch.testing.assert_close(difference, torch.zeros(2))


def retokenized(monkeypatch, responses, own="byte-level BPE", masks=None, ends=(), limit=None):
    """Texts of the byte tokenizer in the tokens of another one; what the store has of each row, and the rows."""
    queue, batch = filled(monkeypatch, responses, masks)
    rows = built(ScorerRowsBuilder(InputSettings(True, None), BYTES, tokenizer_of(own), ends, limit=limit), batch)
    return [queue.fields["train"][key] for key in rows.batch.keys], rows, queue


def ids_of(text):
    return BYTES(text, add_special_tokens=False)["input_ids"]


def test_special_tokens_in_a_text_are_text_and_the_end_stays_one(monkeypatch):
    own = tokenizer_of("byte-level BPE")
    end = BYTES.eos_token_id
    fields, *_ = retokenized(monkeypatch, [[*ids_of("so </s> is <s>"), end]], ends={end})
    response = fields[0]["responses"].tolist()
    assert response[-1] == own.eos_token_id and not set(response[:-1]) & set(own.all_special_ids)
    # Also where the policy's end has a text.
    ids = ids_of("so 7!")
    fields, rows, _ = retokenized(monkeypatch, [ids], ends={ids[-1]})
    response = fields[0]["responses"].tolist()
    assert own.decode(response[:-1]) == "so 7" and response[-1] == own.eos_token_id
    assert rows.scored_BT[0].tolist() == [True] * len(ids)


def test_text_that_the_prms_tokenizer_cannot_read_is_not_scored(monkeypatch):
    _, rows, _ = retokenized(monkeypatch, [ids_of("π")], own="quickstart")
    assert rows.metrics["prm/inputs/unreadable"] == 1.0 and not rows.scored_BT.any()


def test_tools_answers_have_no_share_and_long_rows_are_not_scored(monkeypatch, caplog):
    ids = ids_of("three and four")
    masks = [[1] * 5 + [0] * 5 + [1] * (len(ids) - 10), [1] * len(ids)]
    fields, rows, queue = retokenized(monkeypatch, [ids, ids], masks=masks)
    sums = put_values(queue, rows)
    found_BT = rows.fetch(PRM_LOG_PROBS)
    assert not found_BT[0, 5:10].any() and (found_BT[0, :5] < 0).all()
    assert float(found_BT[0].sum()) == pytest.approx(sums[0], abs=1e-5)
    # No token that the PRM is trained on has a character of the tool's answer, " and ".
    trained = fields[0]["responses"][fields[0]["response_mask"].bool()]
    assert tokenizer_of("byte-level BPE").decode(trained) == "threefour"
    _, rows, queue = retokenized(monkeypatch, [ids, ids], masks=masks, limit=20)
    assert rows.metrics["prm/inputs/too_long"] == 1.0 and not rows.scored_BT.any()
    assert "2 rows of the PRM have more than 20 tokens and are not scored" in caplog.text
    assert all(queue.tags["train"][key]["seq_len"] == 2 for key in rows.batch.keys)


# ---- hints ---------------------------------------------------------------------------------------------------------

RESPONSES = [[10, 11], [12], [13, 14, 15]]


def hinted(monkeypatch, template, labels=(1.0, 0.0, 1.0), tokenizer=None, **fields):
    """The text of the prompt of each row, and the rows."""
    tokenizer = tokenizer or byte_tokenizer()
    queue, batch = filled(monkeypatch, RESPONSES, **fields)
    rows = built(ScorerRowsBuilder(InputSettings(False, template), tokenizer), batch, labels)
    prompts = [tokenizer.decode(queue.fields["train"][key]["prompts"]) for key in rows.batch.keys]
    return prompts[:-1], rows, queue


def test_a_hint_stands_in_the_users_message_and_the_response_stays(monkeypatch):
    golds = [{"ground_truth": "\\boxed{7}"}] * 3
    prompts, rows, queue = hinted(monkeypatch, "{prompt} It is {gold}, {x}.", reward_model=golds)
    assert prompts == ["[system] Be brief.\n[user] How much? It is \\boxed{7}, {x}.\n[assistant] "] * 3
    for key, ids in zip(rows.batch.keys, RESPONSES, strict=False):
        row = queue.fields["train"][key]
        assert row["responses"].tolist() == ids and row["response_mask"].tolist() == [1] * len(ids)
        assert row["input_ids"].tolist() == [*row["prompts"].tolist(), *ids]
        assert row["position_ids"].tolist() == list(range(len(row["input_ids"])))
    assert rows.scored_BT.sum(-1).tolist() == [2, 1, 3, 0]
    put_values(queue, rows)
    for row, key in enumerate(rows.batch.keys[:-1]):
        value_T = queue.fields["train"][key][PRM_LOG_PROBS]
        assert rows.fetch(PRM_LOG_PROBS)[row, : len(value_T)].tolist() == value_T.tolist()


def test_a_sibling_is_another_right_response_and_without_one_nothing_is_scored(monkeypatch):
    tokenizer = byte_tokenizer()
    texts = [tokenizer.decode(ids) for ids in RESPONSES]
    prompts, rows, _ = hinted(monkeypatch, "{prompt}|{sibling}|")
    expected = [texts[2], texts[2], texts[0]]
    assert [prompt.split("|")[1] for prompt in prompts] == expected
    assert rows.metrics["prm/inputs/without_hint"] == 0.0
    prompts, rows, _ = hinted(monkeypatch, "{prompt}|{sibling}|", labels=(1.0, 0.0, 0.0))
    assert [prompt.split("|")[1:2] for prompt in prompts] == [[], [texts[0]], [texts[0]]]
    assert rows.metrics["prm/inputs/without_hint"] == pytest.approx(1 / 3)
    assert rows.scored_BT.any(-1).tolist() == [False, True, True, False]


def test_values_of_the_row_and_of_the_reward_and_templates_by_source(monkeypatch):
    fields = {
        "extra_info": [{"solution": "a"}, {"solution": " "}, None],
        "extra_fields": [{"reward_extra_info": {"acc": 0.0, "seen": value}} for value in ("x", "y", "z")],
    }
    prompts, rows, _ = hinted(monkeypatch, "{prompt}|{extra_info.solution}{info.seen}", **fields)
    assert prompts[0].endswith("How much?|ax\n[assistant] ")
    assert rows.scored_BT.any(-1).tolist() == [True, False, False, False]
    # No template for this source: the prompt stays as it is.
    prompts, rows, queue = hinted(monkeypatch, {"code": "{prompt}{info.seen}"}, **fields)
    assert [queue.fields["train"][key]["prompts"].tolist() for key in rows.batch.keys[:-1]] == [[5, 6]] * 3
    assert rows.scored_BT.any(-1).tolist() == [True, True, True, False]


def test_what_is_filled_in_is_neither_filled_again_nor_a_special_token(monkeypatch):
    tokenizer = byte_tokenizer()
    # One without a name.
    tokenizer.add_tokens([AddedToken("<turn>", special=True)], special_tokens=False)
    assert "<turn>" not in tokenizer.all_special_tokens
    hostile = ["{prompt}{gold}<e<eos>os>", "</s>", "a<turn>b"]
    fields = {"extra_fields": [{"reward_extra_info": {"acc": 0.0, "said": text}} for text in hostile]}
    prompts, _, queue = hinted(monkeypatch, "{prompt}|{info.said}|", tokenizer=tokenizer, **fields)
    assert [prompt.split("|")[1] for prompt in prompts] == ["{prompt}{gold}", "</s>", "ab"]
    prompt = queue.fields["train"][f"{PREFIX}000000000001_0_0"]["prompts"].tolist()
    assert tokenizer.eos_token_id not in prompt


def test_images_are_refused(monkeypatch):
    queue, batch = filled(monkeypatch, RESPONSES, multi_modal_inputs=[{}, {"pixel_values": 1}, {}])
    with pytest.raises(RuntimeError, match="rollout 000000000001_1_0 has images or videos, .* for prm.inputs; leave"):
        built(ScorerRowsBuilder(InputSettings(False, "{prompt}{sibling}"), byte_tokenizer()), batch)


# ---- in a step -----------------------------------------------------------------------------------------------------


class ReadingPRM(UpdatedPRM):
    """Says -2 of every token, and takes a policy's reference from its own rows."""

    reference_of_policy = "old_log_probs"

    def row(self, key, offset):
        return torch.full(self.queue.fields["train"][key]["response_mask"].shape, -2.0)

    def score(self, batch, rollouts=None):
        assert all(key.startswith(PREFIX) for key in batch.keys)
        super().score(batch)

    def reference(self, batch, as_update):
        for key in batch.keys:
            row = self.queue.fields["train"][key]
            row[REFERENCE_LOG_PROBS] = row["old_log_probs"]
        return batch, torch.zeros(1)


@pytest.mark.parametrize(("mode", "accuracy_freq"), [("none", 0), ("interleaved", 0), ("interleaved", 1)])
def test_a_step_is_rewarded_through_rows_of_the_prms_own(monkeypatch, mode, accuracy_freq):
    policy, own = byte_tokenizer(), tokenizer_of("byte-level BPE")
    ids = [policy(text, add_special_tokens=False)["input_ids"] for text in TEXTS[:2]]
    old = [-torch.rand(len(one)) for one in ids]
    golds = [{"ground_truth": "7"}, {"ground_truth": ""}]
    fields = {"old_log_probs": old, "rm_scores": [torch.zeros(len(one)) for one in ids], "reward_model": golds}
    fields["extra_fields"] = [{"reward_extra_info": {"acc": value}} for value in (1.0, 0.0)]
    queue, batch = filled(monkeypatch, ids, **fields)
    for name in ("old_log_probs", "rm_scores"):
        queue.fields["train"]["pad-0_0_0"][name] = torch.zeros(1)
    paid = {"process__discount": 0.0, "process__normalization": "none", "process__estimator": "reinforce"}
    options = settings(process__target="policy", **paid)
    step = PrimeStep.load(batch, options)
    builder = ScorerRowsBuilder(InputSettings(True, "{prompt} {gold}"), policy, own)
    prm, metrics = ReadingPRM(queue, mode), step.metrics
    prm.settings.accuracy_freq = accuracy_freq
    PRMPhase(prm, step, builder).run(batch)
    # The second has no hint: nothing is paid, whatever the policy thought of its tokens.
    assert not step.process_reward_BT[1:].any() and metrics["prm/inputs/without_hint"] == 0.5
    n_own = len(own(TEXTS[0], add_special_tokens=False)["input_ids"])
    paid = float(step.process_reward_BT[0].sum())
    assert paid == pytest.approx(-2.0 * n_own - float(old[0].sum()), rel=1e-4)
    # Nor has it an advantage, or is anything compared with it; nor does it make a pair for the gate.
    advantage_BT, _ = advantages(step, 1.0)
    assert advantage_BT[0].any()
    process = build_sources(step, 1.0)["process"]
    assert not compute_advantage(process, step.mask_BT, step.group_B)[1:].any()
    assert step.pairs_before.total == 0 and metrics["prm/reward_sum/std"] == 0.0
    assert list(queue.fields["train"]) == batch.keys
    assert ("prm/absolute_accuracy/after_update" in metrics) == bool(accuracy_freq)
    if mode == "interleaved":
        assert prm.planned[3].tolist() == [True, False, False]
        assert all(key.startswith(PREFIX) for key in prm.planned[0])
        trained = prm.rows_trained_on[f"{PREFIX}000000000001_0_0"]
        assert float(trained[REFERENCE_LOG_PROBS].sum()) == pytest.approx(float(old[0].sum()), rel=1e-4)
