# SPDX-License-Identifier: Apache-2.0
"""The asynchronous trainers as objects, without Ray: what they read of the configuration, submit, save and restore."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch
from fake_queue import FakeQueue
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.trainer.prime_trainer import STATE_FILE
from prime_ext.trainer.registration import SnapshotActorWorker
from prime_ext.trainer.replay_buffer import PromptFilterReplayBufferAsync
from prime_ext.utils.files import read_json

SIZES = ["actor_rollout_ref.model.path=org/model", "data.train_batch_size=8"]
SIZES += ["actor_rollout_ref.actor.ppo_mini_batch_size=8"]
SEPARATE = {
    "trainer.v1.trainer_mode": "prime_separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 4,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "tcp",
    "ray_kwargs.ray_init.num_gpus": 2,
}
COLOCATE = {"trainer.v1.trainer_mode": "prime_colocate_async"}
MODES = {"prime_colocate_async": COLOCATE, "prime_separate_async": SEPARATE}


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose("prime_trainer_cpu", ["variant=guarded", *SIZES])


def test_the_modes_are_read_under_verls_names(make):
    colocate = make(**COLOCATE)
    separate = make(**SEPARATE)
    assert isinstance(colocate, PPOTrainerColocateAsync) and isinstance(separate, PPOTrainerSeparateAsync)
    assert (colocate.trainer_mode, colocate.parameter_sync_step) == ("colocate_async", 1)
    assert (separate.trainer_mode, separate.parameter_sync_step) == ("separate_async", 4)
    for trainer in (colocate, separate):
        assert isinstance(trainer.replay_buffer, PromptFilterReplayBufferAsync)
        assert trainer.replay_buffer.trainer_config == trainer.config.trainer.v1[trainer.trainer_mode]
    kept = make(**SEPARATE, **{"trainer.v1.separate_async.hybrid_rollout.switch_threshold_ratio": 0.7})
    assert kept.hybrid_rollout_config.switch_threshold_ratio == 0.7


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "filtered, oversample, warm_up, window", [(True, 2.0, 1, 24), (True, 1.5, 0.5, 16), (False, 2.0, 1, 16)]
)
def test_each_step_fills_up_the_prompts_in_the_system(make, monkeypatch, mode, filtered, oversample, warm_up, window):
    queue = FakeQueue().install(monkeypatch)
    section = f"trainer.v1.{mode.removeprefix('prime_')}.num_warmup_batches"
    changes = {"prime.filter.enable": filtered, "prime.filter.oversample": oversample, section: warm_up}
    trainer = make(**MODES[mode], **changes)
    submitted = []
    trainer._add_prompts_to_generate = submitted.append
    trainer.agent_loop_manager = None
    trainer._add_batch_to_generate()
    for number in range(window - 3):
        queue.put(f"{number:012d}", {"is_prompt": True, "status": "running", "global_steps": 1})
    trainer._add_batch_to_generate()
    for number in range(window - 3, window):
        queue.put(f"{number:012d}", {"is_prompt": True, "status": "finished", "global_steps": 1})
    trainer._add_batch_to_generate()
    assert submitted == [window, 3]


def test_the_gate_remembers_as_many_steps_in_every_mode(make):
    gated = {"prime.process.reliability_gate": True}
    once, four_times = make(**COLOCATE, **gated).gate, make(**SEPARATE, **gated).gate
    for accuracy in (0.9, 0.6, 0.8):
        pairs = PairCount(10 * accuracy, 10.0)
        once.update(pairs)
        for _ in range(4):
            four_times.update(pairs)
    assert four_times.average == pytest.approx(once.average)
    assert once.decay == pytest.approx(four_times.decay**4)


@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({}, 5),
        ({"prm.update_freq": 2}, 2),
        ({"prm.update_freq": 50}, 1),
        ({"prm.optim.total_training_steps": 7}, 7),
        (SEPARATE, 5 * 4),
        ({**SEPARATE, "prm.update_freq": 2}, 2 * 4),
    ],
)
def test_the_prms_schedule_counts_its_updates(make, monkeypatch, changes, updates):
    trainer = make(**changes)

    def verls_part(self):
        self.train_dataset, self.total_training_steps = [None] * 100, 5
        self.tokenizer = SimpleNamespace(eos_token_id=2)

    monkeypatch.setattr("verl.trainer.ppo.v1.trainer_base.PPOTrainer._init_dataloader", verls_part)
    trainer._init_dataloader()
    assert trainer.config.prm.optim.total_training_steps == updates


def test_a_reference_is_refreshed_once_per_step_however_many_updates_it_has(make):
    prm = make(**SEPARATE, **{"prm.reference_refresh_freq": 2}).prm
    taken = []
    prm._reference_group = SimpleNamespace(take_over_weights=taken.append)
    steps = (1, 1, 2, 3, 3, 4, 5, 5)
    assert [place for place, step in enumerate(steps) if prm.refresh_reference(step)] == [3, 6]
    assert len(taken) == 2


def test_what_is_saved_comes_back_and_a_synchronous_run_says_what_it_cannot_take_over(
    make, monkeypatch, tmp_path, caplog
):
    queue = FakeQueue().install(monkeypatch)
    gated = {"prime.process.reliability_gate": True}
    trainer = make(**COLOCATE, **gated)
    trainer.gate.right, trainer.gate.total, trainer._prompts_fetched = 7.0, 10.0, 41
    trainer._queued_prompts = deque()
    queue.put("000000000040", {"is_prompt": True, "status": "running", "global_steps": 1})
    trainer._save_prime_state(tmp_path)
    assert read_json(tmp_path / STATE_FILE)["prompts_in_system"] == 1
    other = make(**COLOCATE, **gated)
    other.prm = None
    other._load_prime_state(tmp_path)
    assert (other.gate.average, other._prompts_fetched) == (0.7, 41)
    synchronous = make()
    synchronous.prm = None
    synchronous._load_prime_state(tmp_path)
    assert "the 1 prompts it was generating are skipped" in caplog.text


# ---- snapshots of the policy, which verl's separate mode takes when parameter_sync_step > 1 -----------------------


@pytest.fixture
def sharded_model(tmp_path):
    if torch.distributed.is_initialized():
        # Left by a test that trained with transformers in this process.
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    yield fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    torch.distributed.destroy_process_group()


def worker_with(worker_class, model):
    worker = worker_class.__new__(worker_class)
    worker.config = OmegaConf.create({"actor": {"strategy": "fsdp2"}})
    worker._strategy_handlers = None
    worker.actor = SimpleNamespace(engine=SimpleNamespace(module=model))
    return worker


def values(model):
    return [parameter.full_tensor().detach().clone() for parameter in model.parameters()]


def train_and_look_back(worker, model):
    """What verl does for the old log-probabilities of a second mini-batch. Returns pairs of expected and found."""
    old = values(model)
    worker.save_model_to_cpu(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    new = values(model)
    worker.save_model_to_cpu(1)
    worker.restore_model_from_cpu(0)
    looked_back = values(model)
    worker.restore_model_from_cpu(1)
    return zip(old + new, looked_back + values(model), strict=True)


@pytest.mark.parametrize(("worker", "copies"), [(SnapshotActorWorker, True), (DetachActorWorker, False)])
def test_snapshots_in_host_memory_are_copies_and_verls_are_not(sharded_model, worker, copies):
    pairs = train_and_look_back(worker_with(worker, sharded_model), sharded_model)
    assert all(torch.equal(expected, found) for expected, found in pairs) is copies


@pytest.mark.parametrize("hybrid", [True, False])
def test_the_separate_mode_uses_these_snapshots(make, hybrid):
    trainer = make(**SEPARATE, **{"actor_rollout_ref.hybrid_engine": hybrid})
    trainer._init_resource_pool_mgr()
    (worker,) = trainer.role_worker_mapping.values()
    assert worker.__ray_metadata__.modified_class.__name__ == SnapshotActorWorker.__name__
