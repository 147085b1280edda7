# SPDX-License-Identifier: Apache-2.0
"""The PRM with tiny models of the families that recipes use, against a loop over transformers.

Qwen2 has attention biases, Qwen3 norms of queries and keys and heads wider than its hidden states,
and Qwen3-MoE experts; the dense ones have tied embeddings. test_prm_engine.py has a Llama.
"""

import prm_rank as base  # isort: skip

from functools import cache
from pathlib import Path

import flash_attention
import pytest
import torch
import torch.distributed as dist
from gloo_ranks import finish, run_ranks
from plain_prm import (
    assert_rows_close,
    assert_updates_close,
    assert_weights_close,
    response_log_probs,
    two_updates,
)
from transformers import AutoModelForCausalLM
from verl.workers.engine.fsdp.utils import unfuse_moe_params

from prime_ext.generate.export import export
from recipes.tiny_model import QWEN, write_model

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__)

VARIANTS = {
    "padded": {},
    "packed": base.PACKED,
    "packed, chunked": base.PACKED | base.CHUNKED,
    "chunked, last layer": base.CHUNKED | {"prm.trainable_layers": 0.5},
}
# On two ranks each has half of the heads.
FLASH = {
    "flash-attn, packed, Ulysses": base.PACKED | base.ULYSSES | flash_attention.FLASH,
}


def main(models, work_dir):
    rollouts = base.build_rollouts()
    results = {"rollouts": rollouts}
    for family in QWEN:
        path = Path(models) / family
        results["reference", family] = base.Prm(path, role="reference").score(rollouts)
        for name, overrides in VARIANTS.items():
            prm = base.Prm(path, overrides)
            updated = prm.two_updates(rollouts, results["reference", family])
            results[name, family] = updated
            if name == "packed":
                prm.worker.save_checkpoint(f"{work_dir}/{family}")
    flash_attention.install()
    for family in QWEN:
        for name, overrides in FLASH.items():
            flash_attention.CALLS.clear()
            prm = base.Prm(Path(models) / family, overrides)
            results[name, family] = prm.two_updates(rollouts, results["reference", family])
            results["calls", family] = dict(flash_attention.CALLS)
    dist.barrier()
    finish(results, work_dir)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for family in QWEN:
        write_model(folder / family, family)
    return folder


@pytest.fixture(scope="module")
def runs(models, tmp_path_factory):
    folders = {n: tmp_path_factory.mktemp(f"ranks{n}") for n in (1, 2)}
    results = run_ranks(PROGRAM, [models], folders)
    return {n: (results[n], folder) for n, folder in folders.items()}


@pytest.fixture(scope="module", params=QWEN)
def family(request):
    return request.param


def test_untrained_scores_are_the_models_log_probabilities(results, models, family):
    model = AutoModelForCausalLM.from_pretrained(models / family)
    with torch.no_grad():
        expected = [response_log_probs(model, rollout) for rollout in results["rollouts"]]
    assert_rows_close(results["reference", family], expected)


@cache
def train_plainly(path, trainable_layers):
    return two_updates(path, base.build_rollouts(), trainable_layers=trainable_layers)


@pytest.mark.parametrize("variant", VARIANTS | FLASH)
def test_updates_scores_and_weights_equal_a_plain_loop(results, models, family, variant):
    result = results[variant, family]
    plain = train_plainly(models / family, 1 if "last layer" in variant else None)
    assert_updates_close(result["updates"], plain["updates"])
    assert_rows_close(result["scores"], plain["scores"], 5e-5)
    expected = dict(unfuse_moe_params(plain["weights"].items()))
    assert set(result["weights"]) - set(expected) <= {"lm_head.weight"}  # tied
    assert_weights_close({name: result["weights"][name] for name in expected}, expected)


def test_flash_attention_got_packed_rows_and_a_ranks_heads(run, family):
    ranks = len(list(run[1].glob("rank*.log")))
    assert f"packed, {2 // ranks} heads" in run[0]["calls", family]


def test_a_checkpoint_is_exported_as_it_was_trained(run, family, tmp_path):
    results, folder = run
    export(folder / family, tmp_path / "exported")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    with torch.no_grad():
        scores = [response_log_probs(model, rollout) for rollout in results["rollouts"]]
    assert_rows_close(scores, results["packed", family]["scores"], 2e-5)
