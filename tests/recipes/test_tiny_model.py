# SPDX-License-Identifier: Apache-2.0
"""Tiny models have what distinguishes their families, and read any text."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.command_line import OPTIONS
from recipes.smoke.prepare import find_model_family
from recipes.smoke.prepare import write_model as write_shrunk_model
from recipes.tiny_model import QWEN, write_model

FAMILIES = OPTIONS["family"]["choices"]
TEXTS = ["1+1?\n\n", "\\boxed{7}", "Ärger: 然后 🙂", "  two  spaces, it's", "<|im_start|> x"]


@pytest.mark.parametrize("family", FAMILIES)
def test_any_text_is_read_and_written(tmp_path, family):
    write_model(tmp_path / "model", family)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.model_type == family
    # What transformers adds to a tokenizer of its own class would have no embedding.
    assert len(tokenizer) == model.config.vocab_size == model.get_input_embeddings().num_embeddings
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text and model(torch.tensor([ids])).logits.isfinite().all()
    tokenizer.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "tokenizer.json").read_text())
    assert max(token["id"] for token in again["added_tokens"]) < model.config.vocab_size
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 1


@pytest.mark.parametrize("family", QWEN)
def test_a_family_has_its_own_weights_at_other_than_neutral_values(tmp_path, family):
    for seed in (0, 1):
        write_model(tmp_path / str(seed), family, seed)
    model, other = (AutoModelForCausalLM.from_pretrained(tmp_path / str(seed)) for seed in (0, 1))
    weights = dict(model.named_parameters())
    attention = "model.layers.0.self_attn"
    if family == "qwen2":
        assert weights[f"{attention}.q_proj.bias"].abs().min() > 0
    else:
        assert (weights[f"{attention}.k_norm.weight"] - 1).abs().min() > 0
        assert weights[f"{attention}.q_proj.weight"].shape == (128, 64)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == (family != "qwen3_moe")
    assert ("model.layers.1.mlp.experts.gate_up_proj" in weights) == (family == "qwen3_moe")
    assert all(not torch.equal(weight, weights[name]) for name, weight in other.named_parameters())


@pytest.mark.parametrize(
    ("words", "family"),
    [
        (["actor_rollout_ref.model.path=PRIME-RL/Eurus-2-7B-SFT"], "qwen2"),
        (["model.path=Qwen/Qwen3-0.6B", "trainer.logger=[]"], "qwen3"),
        (["actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B"], "qwen3_moe"),
        (["actor_rollout_ref.model.path=GAIR/Abel-7B-002"], "llama"),
        (["actor_rollout_ref.model.path=org/unknown"], "llama"),
        # The last one counts, as for Hydra.
        (["model.path=Qwen/Qwen3-4B", "model.path=Qwen/Qwen2.5-3B"], "qwen2"),
        ([], "llama"),
    ],
)
def test_a_shrunk_run_keeps_the_family_of_the_recipes_model(capsys, words, family):
    assert find_model_family(words) == family
    said = capsys.readouterr()
    assert said.out == "" and f"a tiny {family} in place of" in said.err


def test_a_local_model_is_shrunk_to_its_family(tmp_path):
    write_shrunk_model(tmp_path / "mine", "tools", family="qwen3")
    assert find_model_family([f"model.path={tmp_path / 'mine'}"]) == "qwen3"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "mine")
    assert len(tokenizer.encode("<tool_response>7</tool_response>")) == 3
    # What is there stays.
    before = Path(tmp_path / "mine" / "config.json").read_bytes()
    write_shrunk_model(tmp_path / "mine", family="qwen2")
    assert (tmp_path / "mine" / "config.json").read_bytes() == before
