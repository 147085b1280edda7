# SPDX-License-Identifier: Apache-2.0
"""Two steps of other choices than PRIME's own, through verl's main."""

import math

import e2e_harness as harness
import pytest

from recipes.quickstart.model import build_model, build_tokenizer

pytestmark = pytest.mark.slow

VARIANTS = {
    "ppo on the outcome, weibull on implicit step rewards": [
        "algorithm.adv_estimator=gae",
        "prime.outcome.estimator=gae",
        "algorithm.lam=0.95",
        "critic.optim.lr=1e-3",
        "prm.update_mode=before",
        "chain@prime.process=pspo_wrs",
        "prime.process.granularity=step",
        "prime.process.step_score=sigmoid",
        "prime.process.step_score_scale=10",
        "prime.process.normalization=none",
        "prime.steps.splitter=delimiters",
        'prime.steps.delimiters=[";","="]',
        "trainer.save_freq=2",
    ],
    "remax, LoRA on its own base, chunked log-probabilities": [
        "prm.model.use_fused_kernels=true",
        "prm.model.lora_rank=4",
        "prm.model.target_modules=all-linear",
        "prm.reference=base",
        "prime.outcome.estimator=remax",
        "prime.process.reliability_gate=true",
        "prime.process.gate_start=1.0",
        "prime.process.gate_decay=0.9",
    ],
}
# What must be among the metrics of every step.
LOGGED = [
    ["critic/vf_loss", "prime/steps/mean", *(f"prime/chain/{name}" for name in ("score", "factor", "reward"))],
    ["prime/remax/greedy_reward", "prime/remax/group_mean_instead", "timing_s/greedy_baseline"],
]
# Forward and backward passes of the PRM and forward passes of a reference model, over the tokens of a step.
PASSES = [(2, 1, 1), (2, 1, 0)]


@pytest.mark.parametrize(("variant", "names", "passes"), zip(VARIANTS, LOGGED, PASSES, strict=True), ids=VARIANTS)
def test_two_steps(tmp_path, variant, names, passes):
    harness.write_inputs(tmp_path)
    overrides = ["trainer.total_training_steps=2", "trainer.total_epochs=50", "trainer.save_freq=-1"]
    harness.run(tmp_path, tmp_path / "run", [*overrides, *VARIANTS[variant]])
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2]
    for logged in metrics.values():
        assert all(math.isfinite(logged[name]) for name in [*names, "prm/loss", "prime/process/return_std"])
        assert logged["prm/grad_norm"] > 0 and logged["actor/grad_norm"] > 0
        counted = tuple(logged[f"prm/passes/{name}"] for name in ("forward", "backward", "reference"))
        assert counted == pytest.approx(passes, abs=1e-12)
    fused = "prm.model.use_fused_kernels=true" in VARIANTS[variant]
    critic = tmp_path / "run" / "checkpoints" / "global_step_2" / "critic" / "model_world_size_1_rank_0.pt"
    assert critic.is_file() != fused


def test_an_estimator_that_a_user_registered(tmp_path, monkeypatch):
    """verl calls it for the outcome, and PRIME adds the process rewards."""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "user_estimator")
    harness.write_inputs(tmp_path)
    words = ["prime.outcome.estimator=two_thirds", "prime.whitening=false", "trainer.total_training_steps=1"]
    harness.run(tmp_path, tmp_path / "run", [*words, "prime.process.coefficient=0", "prm.enable=false"])
    (logged,) = harness.metrics(tmp_path / "run").values()
    assert logged["critic/advantages/max"] == pytest.approx(2 / 3) == logged["critic/advantages/min"]


def test_distillation_from_a_teacher(tmp_path):
    """One pass of a model that is never trained, and that is in no checkpoint."""
    harness.write_inputs(tmp_path)
    build_model(build_tokenizer(), seed=1).save_pretrained(tmp_path / "teacher")
    build_tokenizer().save_pretrained(tmp_path / "teacher")
    words = ["variant=on_policy_distillation", f"prm.model.path={tmp_path}/teacher", "trainer.save_freq=2"]
    harness.run(tmp_path, tmp_path / "run", [*words, "trainer.total_training_steps=2"])
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2]
    for logged in metrics.values():
        counted = tuple(logged[f"prm/passes/{name}"] for name in ("forward", "backward", "reference"))
        assert counted == pytest.approx((1, 0, 0), abs=1e-12)
        assert logged["actor/grad_norm"] > 0 and logged["prime/process/return_std"] > 0
        assert "prime/outcome/return_std" not in logged and "prm/loss" not in logged
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step_2"
    assert (checkpoint / "actor").is_dir() and not (checkpoint / "prm").exists()
