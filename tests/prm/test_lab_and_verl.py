# SPDX-License-Identifier: Apache-2.0
"""A step of the laboratory is that of the trainer on verl: gate, advantages, both models after their updates."""

import itertools
from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from launch import write_model

PROGRAM = Path(__file__).with_name("lab_and_verl_rank.py")
VARIANTS = ["rloo", "paper", "guarded", "distilled", "distilled, top 3", "sampled"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    model = tmp_path_factory.mktemp("model")
    write_model(model)
    return run_ranks(PROGRAM, [model], tmp_path_factory.mktemp("rank"), 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_batch_through_both(results, variant):
    lab, verl = results[variant]
    assert lab["gate"] == pytest.approx(verl["gate"], abs=1e-6)
    torch.testing.assert_close(lab["advantages"], verl["advantages"], atol=1e-5, rtol=0)
    for model in ("prm", "policy"):
        assert (model in lab) == (model in verl)
        for name, weight in lab.get(model, {}).items():
            torch.testing.assert_close(weight, verl[model][name], atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
    assert lab.get("bias", 0.0) == pytest.approx(verl.get("bias", 0.0), abs=1e-5)


def test_the_variants_differ(results):
    # A PRM that scores while it is first trained still equals its reference: `paper` and `guarded` pay nothing yet.
    policies = {name: verl["policy"]["lm_head.weight"] for name, (_, verl) in results.items()}
    kinds = ("rloo", "distilled", "distilled, top 3", "sampled")
    for one, other in itertools.combinations(kinds, 2):
        assert float((policies[one] - policies[other]).abs().max()) > 1e-5
