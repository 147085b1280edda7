# SPDX-License-Identifier: Apache-2.0
"""Texts that a step reward model reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_step_rm import bert_tokenizer, byte_tokenizer, llama_tokenizer, roberta_tokenizer

from prime_ext.config.checks import SettingsError, read
from prime_ext.step_rm.description import PairEncoder, PairFormat
from prime_ext.step_rm.labels import StepRMError

BERT = bert_tokenizer()
LLAMA = llama_tokenizer()
ROBERTA = roberta_tokenizer()
BARE = byte_tokenizer()


def encode(tokenizer, *arguments, **options):
    return PairEncoder(tokenizer, PairFormat(**options)).encode_all([arguments])[0]


def test_layouts_match_the_tokenizer_and_the_released_pspo_model():
    for tokenizer in (BERT, ROBERTA):
        assert (
            list(encode(tokenizer, "", ["we add"], "so 3.").ids)
            == tokenizer("we add", "so 3.")["input_ids"]
        )
        assert list(encode(tokenizer, "", [], "so 3.").ids) == tokenizer("so 3.")["input_ids"]
    released = BERT("[1] . we add. </s><s>[2] . so 3.")["input_ids"]
    assert list(encode(BERT, "", ["[1] . we add."], "[2] . so 3.", layout="text").ids) == released


STEPS = ["[1] . a", "Step 2: b", "3. c"]


@pytest.mark.parametrize(
    "tokenizer, arguments, options, expected",
    [
        # Where the tokenizer puts nothing between two texts, the separator stands there.
        (LLAMA, ("", ["a"], "b"), {}, "<s>a </s><s>b"),
        (BARE, ("", ["a"], "b"), {"separator": "\n\n"}, "a\n\nb"),
        (ROBERTA, ("Q?", STEPS, "4. d"), {}, "<s>3. c</s></s>4. d</s>"),
        (ROBERTA, ("Q?", STEPS, "4. d"), {"previous": 2}, "<s>Step 2: b\n3. c</s></s>4. d</s>"),
        (ROBERTA, ("", STEPS, "4. d"), {"previous": 0, "strip_markers": True},
         "<s>. a\nb\nc</s></s>d</s>"),
        (ROBERTA, ("Q?", STEPS, "4. d"), {"question": True}, "<s>Q?\n3. c</s></s>4. d</s>"),
        (ROBERTA, ("Q?", [], "4."), {"question": True, "strip_markers": True},
         "<s>Q?</s></s>4.</s>"),
    ],
)  # fmt: skip
def test_what_is_shown(tokenizer, arguments, options, expected):
    assert tokenizer.decode(encode(tokenizer, *arguments, **options).ids) == expected


@pytest.mark.parametrize(
    "arguments, question, expected, cut",
    [
        # The previous steps lose their beginning, then the question its end, then the step its own.
        (("", ["0123456789abcdef"], "STEP"), False, "<s>456789abcdef</s></s>STEP</s>",
         (True, False)),
        (("question", ["0123456789"], "STEP"), True, "<s>question\n789</s></s>STEP</s>",
         (True, False)),
        (("question", ["01"], "LONGER STEP"), True, "<s>quest</s></s>LONGER STEP</s>",
         (True, False)),
        (("", [], "x" * 40), True, f"<s>{'x' * 18}</s>", (False, True)),
        (("", ["y"], "x" * 40), True, f"<s></s></s>{'x' * 16}</s>", (True, True)),
    ],
)  # fmt: skip
def test_what_is_too_long_is_cut_and_said(arguments, question, expected, cut):
    item = encode(ROBERTA, *arguments, max_length=20, previous=0, question=question)
    assert (ROBERTA.decode(item.ids), (item.context_cut, item.step_cut)) == (expected, cut)


@given(
    st.lists(st.text(max_size=30), max_size=4), st.text(min_size=1, max_size=40), st.integers(8, 40)
)
@pytest.mark.parametrize(
    "tokenizer", [BERT, LLAMA, ROBERTA, BARE], ids=["bert", "llama", "roberta", "bare"]
)
@pytest.mark.parametrize("layout", ["pair", "text"])
def test_inputs_never_exceed_the_limit_and_say_what_they_lost(
    tokenizer, layout, previous, current, limit
):
    try:
        item = encode(tokenizer, "", previous, current, layout=layout, max_length=limit, previous=0)
    except StepRMError:
        return
    whole = encode(tokenizer, "", previous, current, layout=layout, max_length=10_000, previous=0)
    assert len(item.ids) <= limit
    assert (item.ids == whole.ids) == (not item.context_cut and not item.step_cut)


@pytest.mark.parametrize(
    "tokenizer, spelt", [(BERT, "[SEP]"), (ROBERTA, "</s>"), (LLAMA, "</s><s>")]
)
def test_special_tokens_that_a_step_spells_out_are_text(tokenizer, spelt):
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    plain, spelled = (encode(tokenizer, "", ["a"], step).ids for step in ("b", f"b {spelt} a"))
    assert sum(token in special for token in plain) == sum(token in special for token in spelled)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"previous": -1}, "previous must be"),
        ({"separator": "0123456789 step", "max_length": 8}, "leaves no room"),
        ({"layout": "text", "separator": "\n\n"}, "separator"),
    ],
)
def test_a_format_that_cannot_work_is_refused(options, message):
    with pytest.raises((SettingsError, StepRMError), match=message):
        PairEncoder(BERT, read(PairFormat, options, "pair_format"))
