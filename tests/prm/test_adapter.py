# SPDX-License-Identifier: Apache-2.0
"""The PRM as an adapter or its last layers, copied weights, epochs; on one and two gloo ranks."""

import prm_rank as base  # isort: skip

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import finish
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
from prime_ext.verl_adapter.worker_engines import average_weights

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__)


def optimizer_size(prm):
    """Count numbers in the optimizer's state over all ranks, less its step counters."""
    states = prm.worker.engine.optimizer.state.values()
    local = [getattr(value, "_local_tensor", value) for state in states for value in state.values()]
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, sum(value.numel() for value in local if value.dim() > 0))
    return sum(sizes)


def main(model_path, work_dir):
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    plain = base.Prm(model_path)
    results["plain scores"] = plain.score(rollouts)

    # LoRA: adapter off is the reference, whatever the adapter has learned.
    adapted = base.Prm(model_path, base.LORA)
    results["initial"] = adapted.score(rollouts)
    reference = adapted.score(rollouts, no_lora_adapter=True)
    results["reference"] = reference
    results["updates"] = [adapted.update(rollouts, reference) for _ in range(3)]
    results["optimizer size"] = optimizer_size(adapted)
    results["trained"] = adapted.score(rollouts)
    results["reference after training"] = adapted.score(rollouts, no_lora_adapter=True)
    resumed = base.saved_and_restored(
        adapted, Path(work_dir) / "lora", model_path, base.LORA, step=3
    )
    results["resumed"] = [
        (each.update(rollouts, reference), each.score(rollouts)) for each in (adapted, resumed)
    ]

    # Weights are taken over, or refused.
    frozen = base.Prm(model_path, role="reference")
    plain.update(rollouts, frozen.score(rollouts))
    results["plain optimizer size"] = optimizer_size(plain)
    average_weights(plain.worker.engine, frozen.worker.engine, 0.0)
    try:
        average_weights(adapted.worker.engine, frozen.worker.engine, 0.0)
    except RuntimeError as error:
        results["other architecture"] = str(error)
    results["taken over"] = frozen.score(rollouts)
    results["its source"] = plain.score(rollouts)

    # Two epochs: the scores are those of the first, the weights those after two passes.
    once = base.Prm(model_path)
    twice = base.Prm(model_path, {"prm.epochs": 2})
    reference = once.score(rollouts)
    once_metrics, once_scores = once.update_and_score(rollouts, reference)
    twice_metrics, twice_scores = twice.update_and_score(rollouts, reference)
    results["epochs"] = (
        once_scores,
        twice_scores,
        len(once_metrics["loss"]),
        len(twice_metrics["loss"]),
    )

    # Only the last of two layers is trained; saved and restored.
    last_layer = {"prm.trainable_layers": 0.5}
    upper = base.Prm(model_path, last_layer)
    results["last layer"] = upper.two_updates(rollouts, reference)
    results["last layer's optimizer size"] = optimizer_size(upper)
    restored = base.saved_and_restored(upper, Path(work_dir) / "upper", model_path, last_layer)
    results["resumed last layer"] = [
        (each.update(rollouts, reference), each.weights()) for each in (upper, restored)
    ]
    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------


def test_training_moves_the_adapter_and_not_the_reference(results):
    assert largest_difference(results["initial"], results["plain scores"]) == 0.0
    assert largest_difference(results["initial"], results["reference"]) == 0.0
    assert largest_difference(results["trained"], results["initial"]) > 1e-3
    assert largest_difference(results["reference after training"], results["reference"]) == 0.0
    losses = [update["loss"] for update in results["updates"]]
    assert sum(losses[-1]) < sum(losses[0])
    assert results["optimizer size"] < results["plain optimizer size"] / 3


def test_a_resumed_adapter_goes_on_as_if_never_interrupted(results):
    (update, scores), (resumed_update, resumed_scores) = results["resumed"]
    assert update == resumed_update
    assert largest_difference(scores, resumed_scores) == 0.0


def test_ranks_agree(runs):
    one = runs[1][0]
    two = runs[2][0]
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


def test_weights_are_taken_over_and_those_of_another_architecture_refused(results):
    assert largest_difference(results["taken over"], results["its source"]) == 0.0
    assert largest_difference(results["taken over"], results["plain scores"]) > 1e-3
    assert "not of the same architecture" in results["other architecture"]


def test_only_the_last_layers_train_as_in_a_plain_loop(results, model_path):
    trained = results["last layer"]
    expected = two_updates(model_path, results["rollouts"], trainable_layers=1)
    assert_updates_close(trained["updates"], expected["updates"])
    assert_weights_close(trained["weights"], expected["weights"])
    assert_rows_close(trained["scores"], expected["scores"], 5e-5)
    start = LlamaForCausalLM.from_pretrained(model_path).state_dict()
    for name, weight in trained["weights"].items():
        assert torch.equal(weight, start[name]) == ("layers.1." not in name), name
    assert results["last layer's optimizer size"] < results["plain optimizer size"] / 2
    (update, weights), (resumed_update, resumed_weights) = results["resumed last layer"]
    assert update == resumed_update
    assert all(torch.equal(weight, resumed_weights[name]) for name, weight in weights.items())


def test_a_share_of_the_layers_is_rounded_up(model_path):
    model = train_last_layers(LlamaForCausalLM.from_pretrained(model_path), 0.3)
    assert {
        name.split(".")[2] for name, weight in model.named_parameters() if weight.requires_grad
    } == {"1"}


def test_scores_of_several_epochs_are_those_of_the_first(results):
    once, twice, losses_of_one, losses_of_two = results["epochs"]
    assert losses_of_two == 2 * losses_of_one
    assert largest_difference(once, twice) < 1e-6
