# SPDX-License-Identifier: Apache-2.0
"""Tokens of prompts and responses, and where steps end in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import CHAT, byte_tokenizer

from prime_ext.utils.text_tokens import TextEncoder, TextError, join_steps

TOKENIZER = byte_tokenizer(None)
WORDS = st.text(st.sampled_from("ab \n.=é漢🙂"), min_size=1, max_size=8).filter(str.strip)


def test_steps_are_joined_as_implicitprm_does():
    text, ends = join_steps(["two", "four"])
    assert text == "Step 1: two\n\nStep 2: four"
    assert [text[:end] for end in ends] == ["Step 1: two", text]
    assert join_steps(["a", "b"], prefix="", separator="; ") == ("a; b", (1, 4))


@given(st.lists(WORDS, min_size=1, max_size=5), st.booleans())
def test_a_steps_last_token_holds_its_last_character(steps, append_eos):
    text, char_ends = join_steps(steps)
    ids, ends = TextEncoder(TOKENIZER, append_eos).response(text, char_ends)
    data = text.encode()
    assert len(ids) == len(data) + append_eos
    # One token per byte here, so the token after the step's last byte is known exactly.
    expected = [len(text[:end].encode()) - 1 for end in char_ends]
    if append_eos:
        expected[-1] = len(data)
    assert ends == expected


def test_a_token_across_a_steps_end_belongs_to_it():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        "<eos>": 0,
        "a": 1,
        ".": 2,
        "\u010a": 3,
        ".\u010a": 4,
        ".\u010a\u010a": 5,
        "\u010a\u010a": 6,
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[(".", "\u010a"), (".\u010a", "\u010a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))
    text, char_ends = join_steps(["a.", "aa."], prefix="")
    assert encoder.response(text, char_ends) == ([1, 5, 1, 1, 2, 0], [1, 5])


def test_a_prompt_goes_through_the_chat_template_if_any():
    chat = TextEncoder(byte_tokenizer(CHAT))
    plain = TextEncoder(TOKENIZER)
    assert chat.tokenizer.decode(chat.prompt("2+2?")) == "[user] 2+2?\n[assistant] "
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert chat.tokenizer.decode(chat.prompt(messages)) == "[system] s\n[user] u\n[assistant] "
    assert plain.tokenizer.decode(plain.prompt("2+2?")) == "2+2?"
    with pytest.raises(
        TextError, match="list of chat messages, and the tokenizer has no chat template"
    ):
        plain.prompt(messages)
    with pytest.raises(TextError, match="the prompt has no tokens"):
        plain.prompt("")
