# SPDX-License-Identifier: Apache-2.0
"""Asynchronous modes on verl's main generate while they train, and resume with every prompt."""

import math

import e2e_harness as harness
import pytest
import torch

from prime_ext.utils.files import read_json

pytestmark = pytest.mark.slow

BATCH = 4
STEPS = 6
SAVED = 2
COMMON = [
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={SAVED}",
    "trainer.test_freq=-1",
    # Rollouts of full length, six at a time: some are under way whenever the trainer turns to
    # something else. verl's client waits a second before it goes on with them, and new prompts
    # overtake them meanwhile; with six of them some are finished within the run, however fast the
    # machine generates and trains.
    "data.max_response_length=80",
    "actor_rollout_ref.rollout.ignore_eos=true",
    "actor_rollout_ref.rollout.max_num_seqs=6",
    "variant=guarded",
    "prm.update_mode=before",
    "algorithm.rollout_correction.rollout_is=token",
]
COLOCATE = [*COMMON, "trainer.v1.trainer_mode=prime_colocate_async"]
SYNC_STEP = 2
SEPARATE = [
    *COMMON,
    "trainer.v1.trainer_mode=prime_separate_async",
    f"trainer.v1.separate_async.parameter_sync_step={SYNC_STEP}",
    "trainer.v1.separate_async.num_warmup_batches=3",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={BATCH // SYNC_STEP}",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=tcp",
    "ray_kwargs.ray_init.num_gpus=2",
    # No servers on the trainer's device.
    "actor_rollout_ref.hybrid_engine=false",
]

# Weight updates since the version that drew the first token of a rollout.
STALENESS = "training/off_policy/trajectory_staleness_worst/max"


def evicted(metrics):
    names = ("off_policy", "filter_groups", "rollout_failure")
    return sum(
        int(step.get(f"training/{name}/evicted_samples", 0)) for step in metrics for name in names
    )


def assert_it_trains(metrics):
    assert sorted(metrics) == list(range(1, STEPS + 1))
    for step in metrics.values():
        for name in ("prm/loss", "prm/grad_norm", "actor/grad_norm", "actor/pg_loss"):
            assert math.isfinite(step[name]), name
        assert step["prm/grad_norm"] > 0 and step["actor/grad_norm"] > 0
        assert step["prime/filter/kept"] == BATCH
        assert "rollout_corr/rollout_is_mean" in step
    assert metrics[1][STALENESS] == 0 and metrics[1]["training/rollout_probs_diff_max"] < 1e-5
    assert any(step[STALENESS] > 0 for step in metrics.values())


def test_the_colocated_mode_trains_and_accounts_for_every_prompt(tmp_path):
    by_step = harness.train(tmp_path, COLOCATE)
    assert_it_trains(by_step)
    metrics = list(by_step.values())
    for step in (STEPS, SAVED):
        saved = read_json(
            tmp_path / "run" / "checkpoints" / f"global_step_{step}" / "prime_ext.json"
        )
        assert (
            saved["prompts_fetched"]
            == BATCH * step + evicted(metrics[:step]) + saved["prompts_in_system"]
        )
        # The window is (num_warmup_batches + prime.filter.oversample) batches, less the one that
        # was trained on.
        assert saved["prompts_in_system"] == 2 * BATCH
        assert saved["queued_prompts"] == []
    # Some rollouts were interrupted and continued by a later policy.
    assert any(step["training/off_policy/trajectory_spans/max"] > 1 for step in metrics)
    right, total = saved["gate_pairs"]
    assert right / total == pytest.approx(metrics[SAVED - 1]["prime/gate/pair_accuracy_average"])


def test_the_separate_mode_trains_and_generates_while_the_prm_trains(tmp_path):
    metrics = harness.train(tmp_path, SEPARATE)
    assert_it_trains(metrics)
    assert all(step["weight_sync/megabytes"] > 0 for step in metrics.values())
    assert sum(step["prime/rollouts_during_prm/total"] for step in metrics.values()) > 0
    # Steps that the optimizer has made, as it says itself.
    path = (
        tmp_path
        / "run"
        / "checkpoints"
        / f"global_step_{STEPS}"
        / "actor"
        / "optim_world_size_1_rank_0.pt"
    )
    states = torch.load(path, weights_only=False)["state"].values()
    assert {int(state["step"]) for state in states} == {STEPS * SYNC_STEP}
