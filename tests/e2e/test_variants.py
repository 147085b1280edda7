# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Other choices than PRIME's own, through verl's main: losses, references, orders of update, estimators."""

import math

import e2e_harness as harness
import pytest

pytestmark = pytest.mark.slow

VARIANTS = {
    "dpo, grpo": [
        "prm.loss=dpo",
        "prm.update_mode=after",
        "prime.outcome.estimator=grpo",
        "prime.process.estimator=reinforce",
        "prime.process.normalization=return_std",
        "prime.process.warm_up_steps=1",
    ],
    "ipvrm, policy reference": [
        "prm.loss=ipvrm",
        "prm.beta=10",
        "prm.reference=policy",
        "prime.outcome.estimator=reinforce_plus_plus_baseline",
        "prime.process.estimator=dr_grpo",
        "prime.whitening=null",
    ],
    "ppo on the outcome, steps": [
        "algorithm.adv_estimator=gae",
        "prime.outcome.estimator=gae",
        "prime.outcome.trace=0.95",
        "prime.process.granularity=step",
        "prime.process.credit=min_form",
        "prime.process.redistribution=uniform",
        "prime.process.normalization=outcome_relative",
        "prime.process.estimator=rloo_per_token",
        "prime.steps.splitter=delimiters",
        "prime.steps.delimiters=[;,=]",
        "critic.optim.lr=1e-3",
    ],
    "remax, lambda, selection": [
        "prime.outcome.estimator=remax",
        "prime.process.granularity=prefix_value",
        "prime.process.reward_lambda=0.9",
        "prime.process.discount=0",
        "prime.process.estimator=dr_grpo",
        "prime.process.normalization=prefix_std",
        "prime.process.reliability_gate=true",
        "prime.process.gate_start=1.0",
        "prime.process.gate_decay=0.9",
        "prime.selection.remove=1",
    ],
}
# What must be among the metrics of every step.
LOGGED = {
    "ppo on the outcome, steps": ["critic/vf_loss", "prime/steps/mean", "prime/process/relative_factor"],
    "remax, lambda, selection": [
        "prime/remax/greedy_reward",
        "prime/remax/missing",
        "prime/selection/consistency",
        "timing_s/greedy_baseline",
    ],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_steps(tmp_path, variant):
    harness.write_inputs(tmp_path)
    overrides = ["trainer.total_training_steps=2", "trainer.total_epochs=50", "trainer.save_freq=-1"]
    harness.run(tmp_path, tmp_path / "run", [*overrides, *VARIANTS[variant]])
    metrics = harness.metrics(tmp_path / "run")
    assert sorted(metrics) == [1, 2]
    for step in metrics.values():
        assert all(math.isfinite(step[name]) for name in LOGGED.get(variant, []))
        assert math.isfinite(step["prm/loss"]) and step["prm/grad_norm"] > 0 and step["actor/grad_norm"] > 0
    warm_up = "prime.process.warm_up_steps=1" in VARIANTS[variant]
    assert ("prime/process/return_std" not in metrics[1]) == warm_up and "prime/process/return_std" in metrics[2]
