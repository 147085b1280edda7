# SPDX-License-Identifier: Apache-2.0
"""Sizes of published models: recipes/model_configs against published counts, and a formula."""

import json
from pathlib import Path

import pytest

from prime_ext.plan.memory import read_shape

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "model_configs"
# Billions of the model cards: all parameters, and without embeddings.
CARDS = {
    "Qwen3-0.6B": (0.6, 0.44),
    "Qwen3-1.7B": (1.7, 1.4),
    "Qwen3-4B": (4.0, 3.6),
    "Qwen3-8B": (8.2, 6.95),
    "Qwen3-30B-A3B": (30.5, 29.9),
}
# Of Keras' presets, which load the published weights.
EXACT = {"Qwen3-0.6B": 596_049_920, "Qwen3-1.7B": 1_720_574_976, "Qwen3-4B": 4_022_468_096}


def read_config(name):
    return json.loads((FOLDER / name / "config.json").read_text())


def count_block(config, experts=None):
    """Return the parameters of a block, with the given number of its experts."""
    width, head = config["hidden_size"], config["head_dim"]
    heads = 2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    attention = width * head * heads + 2 * head
    if experts is None:
        return 2 * width + attention + 3 * width * config["intermediate_size"]
    router = width * config["num_experts"]
    return 2 * width + attention + router + experts * 3 * width * config["moe_intermediate_size"]


@pytest.mark.parametrize("name", CARDS)
def test_counts_are_published_ones_and_follow_from_the_sizes(name):
    config = read_config(name)
    shape = read_shape("model", str(FOLDER / name))
    layers = config["num_hidden_layers"]
    embedding = config["vocab_size"] * config["hidden_size"]
    embeddings = embedding * (1 if config["tie_word_embeddings"] else 2)
    block = count_block(config, config.get("num_experts"))
    assert shape.block_weights == block and shape.layers == layers
    assert shape.weights == layers * block + embeddings + config["hidden_size"]
    assert config["tie_word_embeddings"] == (name in ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B"))
    everything, inside = CARDS[name]
    assert round(shape.weights / 1e9, 1) == everything
    assert (shape.weights - embeddings) / 1e9 == pytest.approx(inside, abs=0.05)
    assert shape.weights == EXACT.get(name, shape.weights)
    assert shape.attention_width == config["num_attention_heads"] * 128


def test_memory_counts_all_experts():
    config = read_config("Qwen3-30B-A3B")
    shape = read_shape("model", str(FOLDER / "Qwen3-30B-A3B"))
    reached = config["num_experts_per_tok"]
    layers = config["num_hidden_layers"]
    embedding = config["vocab_size"] * config["hidden_size"]
    used = layers * count_block(config, reached) + 2 * embedding + config["hidden_size"]
    assert shape.weights - shape.idle_weights == used
    assert int(used / 1e8) == 33  # the card's 3.3 billion
    # The input embedding is looked up.
    assert shape.weights - shape.idle_weights == used
    # Of a critic, values take the place of the untied output layer.
    assert shape.weights - shape.make_critic().weights == embedding
    assert shape.intermediate == reached * config["moe_intermediate_size"]


def test_a_model_without_experts_uses_all_of_its_weights():
    shape = read_shape("model", str(FOLDER / "Qwen3-8B"))
    assert shape.idle_weights == 0 and shape.intermediate == 12_288
