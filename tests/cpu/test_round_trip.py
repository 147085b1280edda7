# SPDX-License-Identifier: Apache-2.0
"""A model and its tokenizer saved together come back as they were, through the classes verl uses to load them.

AutoTokenizer replaces a custom tokenizer by Qwen2's own when the config beside it says ``qwen2``; the llama layout is
left alone. These tests would show it if that changed.
"""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = ["12+34=46", "a b  c", "x*(y-1)\n= z?", "0123456789+-*/=(). abcdefghijklmnopqrstuvwxyz?\n"]


def test_a_llama_layout_model_and_its_tokenizer_survive_a_round_trip(model, tokenizer, model_path, tmp_path):
    loaded_tokenizer = AutoTokenizer.from_pretrained(model_path)
    loaded_model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    for _ in range(2):  # and once more, as a checkpoint that is loaded and saved again
        assert len(loaded_tokenizer) == len(tokenizer) == loaded_model.config.vocab_size
        for text in TEXTS:
            ids = tokenizer(text).input_ids
            assert loaded_tokenizer(text).input_ids == ids
            assert loaded_tokenizer.decode(ids) == text
            with torch.no_grad():
                assert torch.equal(loaded_model(torch.tensor([ids])).logits, model(torch.tensor([ids])).logits)
        messages = [{"role": "user", "content": "1+2"}]
        assert loaded_tokenizer.apply_chat_template(messages, tokenize=False) == "1+2="
        assert (loaded_tokenizer.eos_token_id, loaded_tokenizer.pad_token_id) == (1, 0)
        loaded_model.save_pretrained(tmp_path)
        loaded_tokenizer.save_pretrained(tmp_path)
        loaded_tokenizer = AutoTokenizer.from_pretrained(tmp_path)
        loaded_model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()


def test_verl_loads_the_same_tokenizer(model_path, tokenizer):
    from verl.utils import hf_tokenizer

    for text in TEXTS:
        assert hf_tokenizer(str(model_path))(text).input_ids == tokenizer(text).input_ids
