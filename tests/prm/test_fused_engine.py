# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities without logits on verl's FSDP2 engine, on one and on two gloo ranks. Models with and without fused
kernels, and with different backends, share one process, as the policy, the PRM and its reference do."""

import prm_rank as base  # isort: skip

import os
from pathlib import Path

import pytest
from gloo_ranks import finish
from plain_prm import assert_rows_close, largest_difference
from transformers import AutoTokenizer, LlamaForCausalLM

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__)


def fused(backend):
    return base.CHUNKED | {"prm.model.fused_kernel_options.impl_backend": backend}


# What each is compared with, and its settings.
VARIANTS = {
    "plain": (None, {}),
    "torch": ("plain", fused("torch")),
    "chunked": ("plain", fused("chunked") | base.PACKED),
    "adapter": (None, base.LORA),
    "chunked adapter": ("adapter", fused("chunked") | base.LORA),
}
FUSED = [name for name, (plain, _) in VARIANTS.items() if plain]
# verl's own backend takes no output layer that FSDP2 gathers by itself.
CASES = [(model, name) for model in ("untied", "tied") for name in VARIANTS if (model, name) != ("untied", "torch")]


def entropies(prm, rollouts):
    options = {"calculate_entropy": True, "compute_loss": False, "temperature": 1.0}
    data, rows = prm.batch(rollouts, list(range(len(rollouts))), {}, **options)
    return base.gathered(dict(zip(rows, prm.worker.infer_batch(data)["entropy"].unbind(), strict=True)))


def message_of(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return None


def main(model_path, work_dir):
    rollouts = base.build_rollouts()
    # An output layer of its own, which FSDP2 gathers for its own passes only, and one that is the embeddings.
    tied_path = Path(work_dir) / f"tied{os.environ['RANK']}"
    LlamaForCausalLM.from_pretrained(model_path, tie_word_embeddings=True).save_pretrained(tied_path)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(tied_path)
    results = {}
    for model, path in (("untied", model_path), ("tied", tied_path)):
        workers = {name: base.Prm(path, VARIANTS[name][1]) for of, name in CASES if of == model}
        reference = workers["plain"].score(rollouts)
        for name, prm in workers.items():
            before = prm.score(rollouts)
            for _ in range(2):
                prm.update_and_score(rollouts, reference)
            results[model, name] = {"before": before, "after": prm.score(rollouts)}
            results[model, name]["entropy"] = entropies(prm, rollouts)
    results["unknown backend"] = message_of(lambda: base.Prm(model_path, fused("magic")))
    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "variant"), [case for case in CASES if case[1] in FUSED])
def test_scores_entropies_and_updates_do_not_depend_on_the_backend(results, model, variant):
    found, plain = results[model, variant], results[model, VARIANTS[variant][0]]
    assert_rows_close(found["before"], plain["before"], 2e-5)
    assert_rows_close(found["after"], plain["after"], 1e-4)
    assert largest_difference(found["after"], found["before"]) > 1e-3
    # The last position predicts nothing.
    assert_rows_close([row[:-1] for row in found["entropy"]], [row[:-1] for row in plain["entropy"]], 1e-4)


def test_an_unknown_backend_is_an_error(results):
    assert results["unknown backend"] == (
        "fused_kernel_options.impl_backend='magic' is not one of chunked, torch, triton, liger"
    )
