# SPDX-License-Identifier: Apache-2.0
"""The PRM as an adapter or in its last layers, references that change, several epochs: on one and two gloo ranks."""

from pathlib import Path

import pytest
import torch
from plain_prm import (
    assert_rows_close,
    assert_updates_close,
    assert_weights_close,
    largest_difference,
    response_log_probs,
    two_updates,
)
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from prime_ext.generate.export import export
from prime_ext.prm.frozen_layers import train_last_layers

PROGRAM = Path(__file__).with_name("adapter_rank.py")


def test_a_fresh_adapter_is_the_base_model(results):
    assert largest_difference(results["initial"], results["plain scores"]) == 0.0
    assert largest_difference(results["initial"], results["reference"]) == 0.0


def test_training_moves_the_adapter_and_not_the_reference(results):
    assert largest_difference(results["trained"], results["initial"]) > 1e-3
    assert largest_difference(results["reference after training"], results["reference"]) == 0.0
    losses = [update["loss"] for update in results["updates"]]
    assert sum(losses[-1]) < sum(losses[0])


def test_only_the_adapter_has_an_optimiser_state(results):
    assert results["optimiser size"] < results["plain optimiser size"] / 3


def test_a_resumed_adapter_goes_on_as_if_never_interrupted(results):
    (update, scores), (resumed_update, resumed_scores) = results["resumed"]
    assert update == resumed_update
    assert largest_difference(scores, resumed_scores) == 0.0


def test_ranks_agree(runs):
    one, two = runs[1][0], runs[2][0]
    moved = largest_difference(one["trained"], one["initial"])
    assert largest_difference(one["trained"], two["trained"]) < 0.01 * moved


def test_an_exported_adapter_is_merged(run, tmp_path):
    results, folder = run
    export(folder / "lora", tmp_path / "merged")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "merged")
    assert not any("lora" in name for name in load_file(tmp_path / "merged" / "model.safetensors"))
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab()["<eos>"] == 1
    for row, rollout in enumerate(results["rollouts"]):
        with torch.no_grad():
            response = response_log_probs(model, rollout)
        torch.testing.assert_close(response, results["trained"][row], atol=2e-5, rtol=0)


def test_a_refreshed_reference_is_its_source(results):
    assert results["copied"] > 0
    assert largest_difference(results["refreshed"], results["its source"]) == 0.0
    assert largest_difference(results["refreshed"], results["plain scores"]) > 1e-3
    assert largest_difference(results["restored reference"], results["its source"]) == 0.0


def test_weights_of_another_architecture_are_refused(results):
    assert "not of the same architecture" in results["other architecture"]
    assert largest_difference(results["after a refused copy"], results["refreshed"]) == 0.0


@pytest.fixture(scope="module")
def plain_last_layer(model_path, runs):
    return two_updates(model_path, runs[1][0]["rollouts"], trainable_layers=1)


def test_the_last_layers_are_trained_as_in_a_plain_loop(results, plain_last_layer, model_path):
    found, expected = results["last layer"], plain_last_layer
    assert_updates_close(found["updates"], expected["updates"])
    assert_weights_close(found["weights"], expected["weights"])
    assert_rows_close(found["scores"], expected["scores"], 5e-5)


def test_frozen_layers_keep_their_bits_and_have_no_optimiser_state(results, model_path):
    start = LlamaForCausalLM.from_pretrained(model_path).state_dict()
    for name, weight in results["last layer"]["weights"].items():
        assert torch.equal(weight, start[name]) == ("layers.1." not in name), name
    assert results["last layer's optimiser size"] < results["plain optimiser size"] / 2


def test_resumed_last_layers_go_on_as_if_never_interrupted(results):
    (update, weights), (resumed_update, resumed_weights) = results["resumed last layer"]
    assert update == resumed_update
    assert all(torch.equal(weight, resumed_weights[name]) for name, weight in weights.items())


def test_more_layers_than_there_are_are_refused(model_path):
    model = train_last_layers(LlamaForCausalLM.from_pretrained(model_path), 0.3)
    assert {name.split(".")[2] for name, weight in model.named_parameters() if weight.requires_grad} == {"1"}
    with pytest.raises(ValueError, match="trainable_layers=3 must be at most 2"):
        train_last_layers(LlamaForCausalLM.from_pretrained(model_path), 3)


def test_scores_of_several_epochs_are_those_of_the_first(results):
    once, twice, losses_of_one, losses_of_two = results["epochs"]
    assert losses_of_two == 2 * losses_of_one
    assert largest_difference(once, twice) < 1e-6


def test_passes_are_counted_by_hooks_on_the_model(results):
    tokens = results["tokens"]
    forward = sum(counts["forward"] for counts, _ in results["counts of all ranks"])
    backward = sum(counts["backward"] for counts, _ in results["counts of all ranks"])
    assert forward == backward == 3 * tokens
    for position, epochs in ((0, 1), (1, 2)):
        counts = [of_rank[position] for _, of_rank in results["counts of all ranks"]]
        assert sum(count["forward"] for count in counts) == epochs * tokens
        assert sum(count["backward"] for count in counts) == epochs * tokens


def test_options_reach_the_loss_on_the_workers(results):
    losses = {name: sum(values) for name, values in results["losses"].items()}
    assert losses["late"] != losses["plain"]
