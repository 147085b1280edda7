# SPDX-License-Identifier: Apache-2.0
"""The PRM on FSDP1 (verl's ``strategy: fsdp``) with untied embeddings, on two gloo ranks."""

import prm_rank as base  # isort: skip

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import flash_attention
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
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import value_loss
from verl.workers.utils.padding import response_from_nested

from prime_ext.generate.export import export
from prime_ext.prm.implicit_prm import update_options
from prime_ext.verl_adapter.worker_engines import average_weights

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__)

FAST = base.FSDP1 | base.PACKED | base.CHUNKED | base.OFFLOAD
BF16 = {
    "prm.engine.mixed_precision": {
        "param_dtype": "bf16",
        "reduce_dtype": "fp32",
        "buffer_dtype": "fp32",
    }
}
VARIANTS = {
    "padded": base.FSDP1,
    "packed, chunked, offload": FAST,
    "bf16": FAST | BF16,
    "last layer": base.FSDP1 | base.OFFLOAD | {"prm.trainable_layers": 0.5},
}
FLASH = {
    "flash-attn": base.FSDP1 | flash_attention.FLASH,
    "flash-attn, packed, Ulysses": base.FSDP1
    | base.PACKED
    | base.OFFLOAD
    | base.ULYSSES
    | flash_attention.FLASH,
}
DYNAMIC = {
    "prm.use_dynamic_bsz": True,
    "prm.max_token_len_per_gpu": 40,
    "prm.infer_max_token_len_per_gpu": 40,
}


def gathered_bytes(prm):
    """Return the bytes that the root of the model holds in addition to its shards."""
    return prm.worker.engine.module._handle.flat_param._full_param_padded.untyped_storage().nbytes()


def train_critic(model_path, rollouts, strategy):
    """Train a critic as verl does; return its values before and after, and its metrics."""
    config = base.engines.configure(model_path, {"critic.strategy": strategy})
    critic = omega_conf_to_dataclass(config.critic)
    critic.engine.max_token_len_per_gpu = critic.engine.infer_max_token_len_per_gpu = 40
    parts = {
        "model_config": critic.model,
        "engine_config": critic.engine,
        "optimizer_config": critic.optim,
    }
    parts |= {"model_type": "value_model", "checkpoint_config": critic.checkpoint}
    worker = TrainingWorker(TrainingWorkerConfig(**parts))
    torch.manual_seed(0)  # of the value head
    worker.reset()
    worker.set_loss_fn(partial(value_loss, config=critic))
    order = range(len(rollouts))
    alone = SimpleNamespace(ulysses=1)

    def values():
        data, _ = base.Prm.batch(alone, rollouts, order, {}, compute_loss=False, temperature=1.0)
        output = worker.infer_batch(data)["values"]
        return [*response_from_nested(output, base.nested([r["mask"] for r in rollouts])).unbind()]

    before = values()
    fields = {
        "values": before,
        "returns": [torch.full(r["mask"].shape, r["label"]) for r in rollouts],
    }
    data, _ = base.Prm.batch(
        alone, rollouts, order, fields, **update_options(len(rollouts), 1, 1.0)
    )
    metrics = tu.get(worker.train_mini_batch(data), "metrics")
    return before, values(), base.get_metrics(metrics)


def main_of_one_rank(model_path, work_dir):
    allow_fsdp1()
    rollouts = base.build_rollouts()
    results = {
        strategy: train_critic(model_path, rollouts, strategy) for strategy in ("fsdp", "fsdp2")
    }
    prm = base.Prm(model_path, base.FSDP1 | BF16)
    layer = prm.worker.engine.module.model.layers[0].self_attn.q_proj
    prm.update(rollouts, prm.score(rollouts))
    held = [layer.weight.untyped_storage().nbytes()]
    prm.worker.save_checkpoint(f"{work_dir}/prm")
    results["held"] = [*held, layer.weight.untyped_storage().nbytes()]
    finish(results, work_dir)


def main(model_path, work_dir):
    if os.environ["WORLD_SIZE"] == "1":
        return main_of_one_rank(model_path, work_dir)
    allow_fsdp1()
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    frozen = base.Prm(model_path, base.FSDP1, role="reference")
    reference = results["reference"] = frozen.score(rollouts)
    results["gathered by the reference"] = gathered_bytes(frozen)

    for name, overrides in VARIANTS.items():
        prm = base.Prm(model_path, overrides)
        before = {"initial": prm.score(rollouts), "gathered": gathered_bytes(prm)}
        results["variant", name] = before | prm.two_updates(rollouts, reference)

    # Saved, restored into a fresh worker, updated once more; and taken over by the reference.
    results["saved"] = prm.score(rollouts)
    restored = base.saved_and_restored(
        prm, Path(work_dir) / "prm", model_path, VARIANTS["last layer"]
    )
    results["resumed"] = [
        (each.score(rollouts), each.update(rollouts, reference)) for each in (prm, restored)
    ]
    average_weights(prm.worker.engine, frozen.worker.engine, 0.0)
    results["taken over"] = (frozen.score(rollouts), prm.score(rollouts))

    # The reference in the update's packing, and in its own; and the update's first scores.
    packs = FAST | BF16 | DYNAMIC
    fresh = base.Prm(model_path, packs)
    same = base.Prm(model_path, packs, role="reference")
    as_update = same.score(rollouts, as_update=True)
    otherwise = same.score(rollouts)
    results["packing"] = (as_update, otherwise, fresh.update_and_score(rollouts, as_update)[1])

    flash_attention.install()
    for name, overrides in FLASH.items():
        flash_attention.CALLS.clear()
        prm = base.Prm(model_path, overrides)
        results["variant", name] = {
            "initial": prm.score(rollouts),
            **prm.two_updates(rollouts, reference),
        }
        results["calls", name] = dict(flash_attention.CALLS)

    dist.barrier()
    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(model_path, work_dir):
    return run_ranks(PROGRAM, [model_path], {2: work_dir})[2]


@pytest.mark.parametrize("variant", [name for name in VARIANTS | FLASH if name != "bf16"])
def test_scores_losses_gradients_and_weights_equal_a_plain_loop(results, model_path, variant):
    result = results["variant", variant]
    layers = 1 if variant == "last layer" else None
    plain = two_updates(model_path, results["rollouts"], trainable_layers=layers)
    assert_rows_close(result["initial"], results["reference"], 2e-6)
    assert_updates_close(result["updates"], plain["updates"])
    assert_weights_close(result["weights"], plain["weights"])
    assert_rows_close(result["scores"], plain["scores"], 5e-5)


def test_in_bf16_they_are_off_by_rounding(results, model_path):
    result = results["variant", "bf16"]
    plain = two_updates(model_path, results["rollouts"])
    assert 1e-4 < largest_difference(result["initial"], results["reference"]) < 0.05
    for update, expected in zip(result["updates"], plain["updates"], strict=True):
        assert update["loss"] == pytest.approx(expected["loss"], rel=0.03)
        assert update["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.03)
    assert all(weight.dtype == torch.float32 for weight in result["weights"].values())


def test_flash_attention_takes_packed_rows_and_a_ranks_heads(results):
    for variant, heads in zip(FLASH, (4, 2), strict=True):
        assert results["calls", variant].keys() == {f"packed, {heads} heads", "gradient in place"}


def test_nothing_stays_gathered_after_a_scoring_pass(results):
    assert [results["variant", variant]["gathered"] for variant in VARIANTS] == [0] * len(VARIANTS)
    assert results["gathered by the reference"] == 0


def test_a_reference_packed_as_the_update_has_no_rounding_noise(results):
    as_update, otherwise, scores = results["packing"]
    first = {rollout["key"] for rollout in mini_batches(results["rollouts"])[0]}
    rows = [row for row, rollout in enumerate(results["rollouts"]) if rollout["key"] in first]
    assert all(torch.equal(as_update[row], scores[row]) for row in rows)
    assert any(not torch.equal(otherwise[row], scores[row]) for row in rows)


def test_a_restored_prm_updates_equally_and_weights_are_taken_over(results):
    (scores, update), (restored_scores, restored_update) = results["resumed"]
    assert largest_difference(scores, restored_scores) == 0.0
    assert update == restored_update
    taken, source = results["taken over"]
    assert (
        largest_difference(taken, source) == 0.0
        and largest_difference(taken, results["reference"]) > 0.1
    )


def test_a_saved_model_is_merged_from_its_shards(results, work_dir):
    export(work_dir / "prm", work_dir / "exported")
    model = LlamaForCausalLM.from_pretrained(work_dir / "exported")
    with torch.no_grad():
        log_probs = [response_log_probs(model, rollout) for rollout in results["rollouts"]]
    assert_rows_close(log_probs, results["saved"], 2e-5)


@pytest.fixture(scope="module")
def one_rank(model_path, tmp_path_factory):
    return run_ranks(PROGRAM, [model_path], {1: tmp_path_factory.mktemp("rank")})[1]


def test_a_critic_trains_as_on_fsdp2(one_rank):
    (before, after, metrics), (before_2, after_2, metrics_2) = (
        one_rank[name] for name in ("fsdp", "fsdp2")
    )
    assert_rows_close(before, before_2)
    assert_rows_close(after, after_2)
    assert_updates_close([metrics], [metrics_2])
    assert largest_difference(before, after) > 1e-5


def test_one_rank_holds_float32_weights_after_a_save(one_rank):
    after_a_pass, after_a_save = one_rank["held"]
    assert after_a_pass == 0 and after_a_save > 0
