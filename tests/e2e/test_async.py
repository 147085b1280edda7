# SPDX-License-Identifier: Apache-2.0
"""The asynchronous modes through verl's main: they train, generate meanwhile, and resume without losing a prompt."""

import math

import e2e_harness as harness
import pytest
import torch

from prime_ext.utils.files import read_json

pytestmark = pytest.mark.slow

BATCH, STEPS, SAVED = 4, 8, 2
COMMON = [
    f"trainer.total_training_steps={STEPS}",
    "trainer.total_epochs=50",
    f"trainer.save_freq={SAVED}",
    "trainer.test_freq=-1",
    # Rollouts of full length, six at a time: some are under way whenever the trainer turns to something else. verl's
    # client waits a second before it goes on with them, and new prompts overtake them meanwhile; with six of them some
    # are finished within the run, however fast the machine generates and trains.
    "data.max_response_length=80",
    "actor_rollout_ref.rollout.ignore_eos=true",
    "actor_rollout_ref.rollout.max_num_seqs=6",
    "prime.process.reliability_gate=true",
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
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    harness.write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def colocate(inputs, tmp_path_factory):
    """Folder of a run in the colocated mode."""
    folder = tmp_path_factory.mktemp("colocate")
    harness.run(inputs, folder, COLOCATE)
    return folder


@pytest.fixture(scope="module")
def separate(inputs, tmp_path_factory):
    """Folder of a run in the separate mode, without servers on the trainer's device."""
    folder = tmp_path_factory.mktemp("separate")
    harness.run(inputs, folder, [*SEPARATE, "actor_rollout_ref.hybrid_engine=false"])
    return folder


def state(folder, step):
    return read_json(folder / "checkpoints" / f"global_step_{step}" / "prime_ext.json")


def updates(folder, step, part):
    """Steps that an optimiser has made, as it says itself."""
    path = folder / "checkpoints" / f"global_step_{step}" / part / "optim_world_size_1_rank_0.pt"
    values = torch.load(path, weights_only=False)["state"].values()
    return {int(value["step"]) for value in values}


def evicted(metrics):
    names = ("off_policy", "filter_groups", "rollout_failure")
    return sum(int(step.get(f"training/{name}/evicted_samples", 0)) for step in metrics for name in names)


def assert_it_trains(metrics):
    assert metrics
    for step in metrics.values():
        for name in ("prm/loss", "prm/grad_norm", "actor/grad_norm", "prime/staleness/mean", "actor/pg_loss"):
            assert math.isfinite(step[name]), name
        assert step["prm/grad_norm"] > 0 and step["actor/grad_norm"] > 0
        assert step["prime/filter/kept"] == BATCH
        assert (
            0 <= step["prime/staleness/last_token/mean"] <= step["prime/staleness/mean"] <= step["prime/staleness/max"]
        )
        assert 0 <= step["prime/staleness/partial_fraction"] <= 1
        assert "rollout_corr/rollout_is_mean" in step
    assert metrics[1]["prime/staleness/max"] == 0
    assert any(step["prime/staleness/max"] > 0 for step in metrics.values())


def test_the_colocated_mode_trains(colocate):
    metrics = harness.metrics(colocate)
    assert sorted(metrics) == list(range(1, STEPS + 1))
    assert_it_trains(metrics)
    assert metrics[1]["training/rollout_probs_diff_max"] < 1e-5


def test_every_prompt_is_accounted_for_at_every_checkpoint(colocate):
    metrics = list(harness.metrics(colocate).values())
    for step in (SAVED, STEPS):
        saved = state(colocate, step)
        assert saved["prompts_fetched"] == BATCH * step + evicted(metrics[:step]) + saved["prompts_in_system"]
        # The window is (num_warmup_batches + prime.filter.oversample) batches, less the one that was trained on.
        assert saved["prompts_in_system"] == 2 * BATCH
        assert saved["queued_prompts"] == []
    # Some rollouts were interrupted and continued by a later policy.
    assert any(step["prime/staleness/partial_fraction"] > 0 for step in metrics)
    right, total = state(colocate, SAVED)["gate_pairs"]
    assert right / total == pytest.approx(metrics[SAVED - 1]["prime/gate/pair_accuracy_average"])


def test_the_separate_mode_trains(separate):
    metrics = harness.metrics(separate)
    assert sorted(metrics) == list(range(1, STEPS + 1))
    assert_it_trains(metrics)
    assert all(step["weight_sync/megabytes"] > 0 for step in metrics.values())
    assert metrics[1]["training/rollout_probs_diff_max"] < 1e-5
    assert updates(separate, STEPS, "actor") == {STEPS * SYNC_STEP}


def test_rollouts_go_on_while_the_prm_trains(separate):
    assert sum(step["prime/rollouts_during_prm/total"] for step in harness.metrics(separate).values()) > 0
