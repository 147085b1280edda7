# SPDX-License-Identifier: Apache-2.0
"""What a step reward model reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_step_rm import bert_tokenizer, byte_tokenizer, llama_tokenizer, roberta_tokenizer

from prime_ext.step_rm.description import PairEncoder, PairFormat
from prime_ext.step_rm.labels import StepRMError

BERT, LLAMA, ROBERTA, BARE = bert_tokenizer(), llama_tokenizer(), roberta_tokenizer(), byte_tokenizer()


def read(tokenizer, *arguments, **options):
    return tokenizer.decode(PairEncoder(tokenizer, PairFormat(**options)).encode(*arguments).ids)


@pytest.mark.parametrize("tokenizer", [BERT, ROBERTA])
def test_the_pair_layout_is_the_tokenizers_own(tokenizer):
    encoder = PairEncoder(tokenizer, PairFormat())
    assert list(encoder.encode("", ["we add"], "so 3.").ids) == tokenizer("we add", "so 3.")["input_ids"]
    assert list(encoder.encode("", [], "so 3.").ids) == tokenizer("so 3.")["input_ids"]


def test_a_tokenizer_that_puts_nothing_between_texts_gets_the_separator():
    assert read(LLAMA, "", ["a"], "b") == "<s>a </s><s>b"
    assert read(BARE, "", ["a"], "b") == "a </s><s>b"
    assert read(BARE, "", ["a"], "b", separator="\n\n") == "a\n\nb"
    assert read(LLAMA, "", [], "b") == "<s>b"


def test_the_text_layout_is_what_the_released_model_of_pspo_was_trained_on():
    encoder = PairEncoder(BERT, PairFormat(layout="text"))
    released = BERT("[1] . we add. </s><s>[2] . so 3.")["input_ids"]
    assert list(encoder.encode("", ["[1] . we add."], "[2] . so 3.").ids) == released


def test_the_number_of_previous_steps_the_question_and_the_markers_are_options():
    steps = ["[1] . a", "Step 2: b", "3. c"]
    assert read(ROBERTA, "Q?", steps, "4. d") == "<s>3. c</s></s>4. d</s>"
    assert read(ROBERTA, "Q?", steps, "4. d", previous=2) == "<s>Step 2: b\n3. c</s></s>4. d</s>"
    assert read(ROBERTA, "Q?", steps, "4. d", previous=0, strip_markers=True) == "<s>. a\nb\nc</s></s>d</s>"
    assert read(ROBERTA, "Q?", steps, "4. d", question=True) == "<s>Q?\n3. c</s></s>4. d</s>"
    assert read(ROBERTA, "Q?", [], "4. d", question=True) == "<s>Q?</s></s>4. d</s>"
    assert read(ROBERTA, "", [], "4.", strip_markers=True) == "<s>4.</s>"


def test_special_tokens_that_a_step_spells_out_are_text():
    for tokenizer, spelt in ((BERT, "[SEP]"), (ROBERTA, "</s>"), (LLAMA, "</s><s>")):
        encoder = PairEncoder(tokenizer, PairFormat())
        plain, spelled = encoder.encode("", ["a"], "b"), encoder.encode("", ["a"], f"b {spelt} a")
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        count = [sum(token in special for token in item.ids) for item in (plain, spelled)]
        assert count[0] == count[1]


def test_over_long_previous_steps_lose_their_beginning_and_the_current_step_is_kept():
    options = {"max_length": 20, "previous": 0}
    assert read(ROBERTA, "", ["0123456789abcdef"], "STEP", **options) == "<s>456789abcdef</s></s>STEP</s>"
    item = PairEncoder(ROBERTA, PairFormat(**options)).encode("", ["0123456789abcdef"], "STEP")
    assert item.context_cut and not item.step_cut and len(item.ids) == 20


def test_the_question_is_cut_after_the_previous_steps_and_the_step_last():
    options = {"max_length": 20, "question": True}
    assert read(ROBERTA, "question", ["0123456789"], "STEP", **options) == "<s>question\n789</s></s>STEP</s>"
    assert read(ROBERTA, "question", ["01"], "LONGER STEP", **options) == "<s>quest</s></s>LONGER STEP</s>"
    encoder = PairEncoder(ROBERTA, PairFormat(**options))
    alone = encoder.encode("", [], "x" * 40)
    assert alone.step_cut and not alone.context_cut and len(alone.ids) == 20
    both = encoder.encode("", ["y"], "x" * 40)
    assert both.step_cut and both.context_cut and len(both.ids) == 20


@given(st.lists(st.text(max_size=30), max_size=4), st.text(min_size=1, max_size=40), st.integers(8, 40))
@pytest.mark.parametrize("tokenizer", [BERT, LLAMA, ROBERTA, BARE], ids=["bert", "llama", "roberta", "bare"])
@pytest.mark.parametrize("layout", ["pair", "text"])
def test_inputs_never_exceed_the_limit_and_say_what_they_lost(tokenizer, layout, previous, current, limit):
    try:
        encoder = PairEncoder(tokenizer, PairFormat(layout=layout, max_length=limit, previous=0))
    except StepRMError:
        return
    item = encoder.encode("", previous, current)
    whole = PairEncoder(tokenizer, PairFormat(layout=layout, max_length=10_000, previous=0)).encode(
        "", previous, current
    )
    assert len(item.ids) <= limit
    assert (item.ids == whole.ids) == (not item.context_cut and not item.step_cut)


def test_every_step_of_a_response_sees_only_what_came_before():
    encoder = PairEncoder(ROBERTA, PairFormat())
    assert [ROBERTA.decode(item.ids) for item in encoder.encode_steps("", ["a", "b", "c"])] == [
        "<s>a</s>",
        "<s>a</s></s>b</s>",
        "<s>b</s></s>c</s>",
    ]
    assert encoder.encode_steps("", []) == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layout": "x"}, "layout='x' is not one of"),
        ({"separator": ""}, "separator='' must be a text"),
        ({"previous": -1}, "previous=-1"),
        ({"question": 1}, "question=1 must be true or false"),
        ({"separator": "0123456789", "max_length": 8}, "leaves no room"),
    ],
)
def test_a_format_that_cannot_work_is_refused(options, message):
    with pytest.raises(StepRMError, match=message):
        PairEncoder(BARE, PairFormat(**options))


def test_a_separator_without_tokens_is_refused_where_it_is_needed():
    with pytest.raises(StepRMError, match="separator"):
        PairEncoder(BERT, PairFormat(layout="text", separator="\n\n"))
    PairEncoder(BERT, PairFormat(separator="\n\n"))
