# SPDX-License-Identifier: Apache-2.0
"""Tokenizer and model: what verl loads with the Auto classes is what was built."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.tokenizer.chat_template import extract_system_prompt_and_generation

from prime_ext.tasks import last_digit_chain as task
from recipes.quickstart.model import build_model
from recipes.quickstart.sft import IGNORED_LABEL, DemonstrationDataset, SameLengthBatches
from recipes.quickstart.tokenizer import VOCABULARY, build_tokenizer

QUESTION, ANSWER = "3*9+6?", r"3*9=7;7+6=3;\boxed{3}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    build_model(tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def chat_ids(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)


def test_the_vocabulary_has_21_tokens_and_the_model_as_many(tokenizer, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert len(tokenizer) == len(VOCABULARY) == model.config.vocab_size == 21
    assert model.num_parameters() == 108_160


def test_special_tokens_are_set_everywhere(tokenizer, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    for holder in (tokenizer, model.config, model.generation_config):
        assert (holder.pad_token_id, holder.bos_token_id, holder.eos_token_id) == (0, 1, 2)


def test_the_chat_template_gives_bos_and_the_prompt_and_nothing_else(tokenizer):
    ids = chat_ids(tokenizer, [{"role": "user", "content": QUESTION}], add_generation_prompt=True)
    assert ids == [VOCABULARY.index(token) for token in ["<bos>", *QUESTION]]


def test_a_conversation_is_bos_question_answer_eos(tokenizer):
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    tokens = tokenizer.convert_ids_to_tokens(chat_ids(tokenizer, messages))
    assert tokens == ["<bos>", *QUESTION, *ANSWER[:12], "\\boxed{", "3", "}", "<eos>"]


def test_turns_rendered_one_by_one_join_to_the_conversation(tokenizer):
    """verl's SFT data set renders every turn alone, after removing what it takes for a system prompt."""
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    assert extract_system_prompt_and_generation(tokenizer) == ([], [])
    assert sum((chat_ids(tokenizer, [message]) for message in messages), []) == chat_ids(tokenizer, messages)


def test_responses_round_trip_without_added_spaces(tokenizer):
    rng, misconceptions = random.Random(0), task.draw_misconceptions(0.25, 0)
    for problem in task.generate_problems("test", 50, seed=0):
        text = task.demonstrate(problem, misconceptions, rng)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_text_outside_the_alphabet_is_an_error_not_a_guess(tokenizer):
    with pytest.raises(Exception, match="WordLevel"):
        tokenizer("3 * 9")


def test_weights_survive_the_folder_exactly(folder, tokenizer):
    saved, built = AutoModelForCausalLM.from_pretrained(folder), build_model(tokenizer, seed=0)
    assert saved.dtype == torch.float32
    assert all(torch.equal(saved.state_dict()[name], value) for name, value in built.state_dict().items())


def test_the_loss_of_the_warm_start_is_on_the_response_tokens_only(tokenizer):
    conversation = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    sample = DemonstrationDataset([conversation], tokenizer)[0]
    response = [*tokenizer(ANSWER, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert sample["input_ids"] == chat_ids(tokenizer, conversation)
    assert sample["labels"] == [IGNORED_LABEL] * (1 + len(QUESTION)) + response


def test_batches_hold_one_length_and_cover_the_data_once():
    lengths = [30] * 10 + [36] * 7
    batches = list(SameLengthBatches(lengths, batch_size=3, seed=0))
    assert len(batches) == len(SameLengthBatches(lengths, batch_size=3, seed=0)) == 5
    assert all(len({lengths[index] for index in batch}) == 1 and len(batch) == 3 for batch in batches)
    assert len({index for batch in batches for index in batch}) == 15
    with pytest.raises(ValueError, match="too few"):
        SameLengthBatches(lengths, batch_size=11, seed=0)
