# SPDX-License-Identifier: Apache-2.0
"""The implicit PRM on FSDP1, verl's ``strategy: fsdp``, with embeddings that are not tied, on two gloo ranks."""

import prm_rank as base  # isort: skip

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fsdp1_on_cpu import allow_fsdp1
from gloo_ranks import finish, run_ranks
from plain_prm import (
    assert_rows_close,
    assert_updates_close,
    assert_weights_close,
    largest_difference,
    mini_batches,
    response_log_probs,
    two_updates,
)
from transformers import LlamaForCausalLM

from prime_ext.generate.export import export
from prime_ext.prm.engines import average_weights

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__)

BF16 = {"prm.engine.mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}}
VARIANTS = {
    "padded": {},
    "packed": base.PACKED,
    "chunked": base.CHUNKED,
    "packed, chunked, offload": base.PACKED | base.CHUNKED | base.OFFLOAD,
    "bf16": BF16,
    "bf16, packed, chunked, offload": BF16 | base.PACKED | base.CHUNKED | base.OFFLOAD,
}
LORA_VARIANT = "packed, chunked, offload"


def gathered_bytes(prm):
    """What the root of the model holds beside its shards."""
    return prm.worker.engine.module._handle.flat_param._full_param_padded.untyped_storage().nbytes()


def main(model_path, work_dir):
    allow_fsdp1()
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    frozen = base.Prm(model_path, base.FSDP1, forward_only=True)
    reference = results["reference"] = frozen.score(rollouts)
    results["gathered by the reference"] = gathered_bytes(frozen)

    for name, overrides in VARIANTS.items():
        prm = base.Prm(model_path, base.FSDP1 | overrides)
        before = {"initial": prm.score(rollouts), "gathered": gathered_bytes(prm)}
        results["variant", name] = before | prm.two_updates(rollouts, reference)

    # The reference scored as the update packs, and in passes of its own; and the first scores of the update.
    packs = (
        base.FSDP1
        | VARIANTS["bf16, packed, chunked, offload"]
        | {
            "prm.use_dynamic_bsz": True,
            "prm.max_token_len_per_gpu": 40,
            "prm.infer_max_token_len_per_gpu": 40,
        }
    )
    fresh, same = base.Prm(model_path, packs), base.Prm(model_path, packs, forward_only=True)
    as_update, otherwise = same.score(rollouts, as_update=True), same.score(rollouts)
    results["packing"] = (as_update, otherwise, fresh.update_and_score(rollouts, as_update)[1])

    # Saved, restored into a fresh worker, updated once more; in its last layer only.
    options = base.FSDP1 | base.OFFLOAD | {"prm.trainable_layers": 1}
    prm = base.Prm(model_path, options)
    results["last layer"] = prm.two_updates(rollouts, reference)
    restored = base.saved_and_restored(prm, Path(work_dir) / "prm", model_path, options)
    results["resumed"] = [(each.score(rollouts), each.update(rollouts, reference)) for each in (prm, restored)]

    # The reference takes over the PRM's weights, after a pass of its own.
    average_weights(prm.worker.engine, frozen.worker.engine, 0.0)
    results["taken over"] = (frozen.score(rollouts), prm.score(rollouts))

    adapted = base.Prm(model_path, base.FSDP1 | base.LORA | VARIANTS[LORA_VARIANT])
    initial = adapted.score(rollouts)
    updates = [adapted.update(rollouts, reference) for _ in range(2)]
    adapted.worker.save_checkpoint(str(Path(work_dir) / "lora"), global_step=1)
    results["lora"] = (initial, updates, adapted.score(rollouts))
    dist.barrier()
    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------------------------


FLOAT32 = ["padded", "packed", "chunked", "packed, chunked, offload"]
BFLOAT16 = ["bf16", "bf16, packed, chunked, offload"]


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(model_path, work_dir):
    return run_ranks(PROGRAM, [model_path], work_dir, 2)


@pytest.fixture(scope="module")
def plain(model_path, results):
    return two_updates(model_path, results["rollouts"])


@pytest.mark.parametrize("variant", FLOAT32)
def test_scores_losses_gradients_and_weights_equal_a_plain_loop(results, plain, variant):
    found = results["variant", variant]
    assert_rows_close(found["initial"], results["reference"], 2e-6)
    assert_updates_close(found["updates"], plain["updates"])
    assert_weights_close(found["weights"], plain["weights"])
    assert_rows_close(found["scores"], plain["scores"], 5e-5)


def test_the_last_layers_are_trained_as_in_a_plain_loop(results, model_path):
    found, plain = results["last layer"], two_updates(model_path, results["rollouts"], trainable_layers=1)
    assert_updates_close(found["updates"], plain["updates"])
    assert_weights_close(found["weights"], plain["weights"])
    assert_rows_close(found["scores"], plain["scores"], 5e-5)


@pytest.mark.parametrize("variant", BFLOAT16)
def test_in_bf16_they_are_off_by_rounding(results, plain, variant):
    found = results["variant", variant]
    difference = largest_difference(found["initial"], results["reference"])
    assert 1e-4 < difference < 0.05
    for update, expected in zip(found["updates"], plain["updates"], strict=True):
        assert update["loss"] == pytest.approx(expected["loss"], rel=0.03)
        assert update["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.03)
    assert all(weight.dtype == torch.float32 for weight in found["weights"].values())


def test_nothing_stays_gathered_after_a_scoring_pass(results):
    assert [results["variant", variant]["gathered"] for variant in VARIANTS] == [0] * len(VARIANTS)
    assert results["gathered by the reference"] == 0


def test_a_reference_that_is_packed_as_the_update_has_no_rounding_noise(results):
    as_update, otherwise, scores = results["packing"]
    first = {rollout["key"] for rollout in mini_batches(results["rollouts"])[0]}
    rows = [row for row, rollout in enumerate(results["rollouts"]) if rollout["key"] in first]
    assert all(torch.equal(as_update[row], scores[row]) for row in rows)
    assert any(not torch.equal(otherwise[row], scores[row]) for row in rows)


def test_a_restored_prm_makes_the_same_next_update(results):
    (scores, update), (restored_scores, restored_update) = results["resumed"]
    assert largest_difference(scores, restored_scores) == 0.0
    assert update == restored_update


def test_weights_that_are_taken_over_are_whole(results):
    taken, source = results["taken over"]
    assert largest_difference(taken, source) == 0.0 and largest_difference(taken, results["reference"]) > 0.1


def scores_in_transformers(folder, rollouts):
    export(folder, folder / "exported")
    model = LlamaForCausalLM.from_pretrained(folder / "exported")
    with torch.no_grad():
        return [response_log_probs(model, rollout) for rollout in rollouts]


def test_a_saved_prm_is_merged_from_its_shards(results, work_dir):
    saved, _ = results["resumed"][0]
    assert_rows_close(scores_in_transformers(work_dir / "prm", results["rollouts"]), saved, 2e-5)


def test_an_adapter_starts_at_the_base_model_learns_and_is_merged(results, work_dir):
    initial, updates, trained = results["lora"]
    assert_rows_close(initial, results["reference"], 2e-6)
    assert sum(updates[-1]["loss"]) < 0.5 * sum(updates[0]["loss"])
    assert_rows_close(scores_in_transformers(work_dir / "lora", results["rollouts"]), trained, 2e-5)


if __name__ == "__main__":
    main(*sys.argv[1:])
