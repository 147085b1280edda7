# SPDX-License-Identifier: Apache-2.0
"""The PRIME trainers without Ray: what they read, submit, save and restore."""

import math
import threading
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_queue import FakeQueue
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.utils import tensordict_utils as tu

from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.methods.settings import PrimeSettings
from prime_ext.verl_adapter.patches import trainer_separate_async
from prime_ext.verl_adapter.patches.trainer_separate_async import SnapshotActorWorker
from prime_ext.verl_adapter.prime_trainer import STATE_FILE
from prime_ext.verl_adapter.prompt_filter_buffer import PromptFilterReplayBufferAsync
from prime_ext.verl_adapter.prompts import pack_prompts

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
GATED = {"prime.process.gate": {"decay": 0.8, "start": 0.5}}


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose("prime_trainer_cpu", ["variant=guarded", *SIZES])


def test_the_modes_are_read_under_verls_names(make):
    colocate = make(**COLOCATE)
    separate = make(**SEPARATE)
    assert isinstance(colocate, PPOTrainerColocateAsync) and isinstance(
        separate, PPOTrainerSeparateAsync
    )
    assert (colocate.trainer_mode, colocate.parameter_sync_step) == ("colocate_async", 1)
    assert (separate.trainer_mode, separate.parameter_sync_step) == ("separate_async", 4)
    for trainer in (colocate, separate):
        assert isinstance(trainer.replay_buffer, PromptFilterReplayBufferAsync)
        assert (
            trainer.replay_buffer.trainer_config == trainer.config.trainer.v1[trainer.trainer_mode]
        )
    kept = make(
        **SEPARATE, **{"trainer.v1.separate_async.hybrid_rollout.switch_threshold_ratio": 0.7}
    )
    assert kept.hybrid_rollout_config.switch_threshold_ratio == 0.7


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "filtered, oversample, warm_up, window",
    [(True, 2.0, 1, 24), (True, 1.5, 0.5, 16), (False, 2.0, 1, 16)],
)
def test_each_step_fills_up_the_prompts_in_the_system(
    make, monkeypatch, mode, filtered, oversample, warm_up, window
):
    queue = FakeQueue().install(monkeypatch)
    section = f"trainer.v1.{mode.removeprefix('prime_')}.num_warmup_batches"
    changes = {
        "prime.filter.enable": filtered,
        "prime.filter.oversample": oversample,
        section: warm_up,
    }
    trainer = make(**MODES[mode], **changes)
    submitted = []
    trainer._add_prompts_to_generate = submitted.append
    trainer._add_batch_to_generate()
    for status, numbers in (
        ("running", range(window - 3)),
        ("finished", range(window - 3, window)),
    ):
        for number in numbers:
            queue.put(f"{number:012d}", {"is_prompt": True, "status": status, "global_steps": 1})
        trainer._add_batch_to_generate()
    assert submitted == [window, 3]


@pytest.mark.parametrize(("changes", "updates"), [({}, 5), (SEPARATE, 5 * 4)])
def test_the_prms_schedule_counts_its_updates(make, monkeypatch, changes, updates):
    trainer = make(**changes)

    def verls_part(self):
        self.train_dataset = [None] * 100
        self.total_training_steps = 5
        self.tokenizer = SimpleNamespace(eos_token_id=2)

    monkeypatch.setattr("verl.trainer.ppo.v1.trainer_base.PPOTrainer._init_dataloader", verls_part)
    trainer._init_dataloader()
    assert trainer.config.prm.optim.total_training_steps == updates


# ---- what a checkpoint remembers -----------------------------------------------------------------


@pytest.fixture
def saved_and_resumed(make, tmp_path):
    def resume(saved, **changes):
        saved._save_prime_state(tmp_path)
        resumed = make(**changes)
        resumed._load_prime_state(tmp_path)
        return resumed

    return resume


def test_the_gate_goes_on_where_it_was(make, saved_and_resumed):
    saved = make(**GATED)
    saved.gate.update(PairCount(8.0, 10.0))
    saved.replay_buffer.acceptance_rate = 0.8125
    saved._prompts_fetched = 41
    resumed = saved_and_resumed(saved, **GATED)
    # So that it submits as many prompts as the uninterrupted run.
    assert (resumed.replay_buffer.acceptance_rate, resumed._prompts_fetched) == (0.8125, 41)
    assert resumed.gate == saved.gate
    assert resumed.gate.update(PairCount(1.0, 3.0)) == saved.gate.update(PairCount(1.0, 3.0))


def test_a_resumed_run_may_add_or_remove_the_gate(make, saved_and_resumed):
    without = {"prime.process.gate": None}
    resumed = saved_and_resumed(make(**without), **GATED)
    fresh = make(**GATED)
    assert resumed.gate == fresh.gate
    assert saved_and_resumed(resumed, **without).gate is None


PENALTY = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.5}


def test_a_resumed_run_has_the_saved_kl_coefficient(make, saved_and_resumed):
    saved = make(**PENALTY)
    saved.kl_ctrl_in_reward.value = 0.125
    assert saved_and_resumed(saved, **PENALTY).kl_ctrl_in_reward.value == 0.125
    assert saved_and_resumed(make(), **PENALTY).kl_ctrl_in_reward.value == 0.5


@pytest.mark.parametrize(
    ("changes", "watches"),
    [
        ({}, True),
        ({"prime.process.accumulation.single_step": "keep"}, False),
        ({"prime.process.accumulation": None, "prime.process.shaping": None}, False),
    ],
)
def test_steps_are_watched_where_one_alone_pays_nothing(changes, watches):
    config = compose_config("prime_trainer_cpu", ["variant=pspo_wrs", "step_scorer.model_path=m"])
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    trainer = object.__new__(get_trainer_cls("prime_sync"))
    trainer.prime = PrimeSettings.from_config(config)
    assert (trainer._watch is not None) == watches


def test_a_synchronous_run_reports_skipped_prompts_of_an_asynchronous_one(
    make, monkeypatch, saved_and_resumed, caplog
):
    queue = FakeQueue().install(monkeypatch)
    trainer = make(**COLOCATE, **GATED)
    trainer.gate.right = 7.0
    trainer.gate.total = 10.0
    trainer._prompts_fetched = 41
    queue.put("000000000040", {"is_prompt": True, "status": "running", "global_steps": 1})
    for changes in (COLOCATE, {}):
        assert not caplog.text
        resumed = saved_and_resumed(trainer, **changes, **GATED)
        assert (resumed.gate.average, resumed._prompts_fetched) == (0.7, 41)
    assert "the 1 prompts it was generating are skipped" in caplog.text


def prompt(**values):
    """Make a prompt as verl does of a row of the dataset."""
    fields = {name: np.fromiter([value], dtype=object, count=1) for name, value in values.items()}
    return tu.get_tensordict({**fields, "dummy_tensor": torch.tensor([[3]], dtype=torch.uint8)})


ROW = {
    "raw_prompt": [{"role": "user", "content": "1 + 1 = ?\n\u00e9"}],
    "reward_model": {"ground_truth": "2", "style": None, "tests": [[], [1, 2.5]]},
    "extra_info": {},
    "index": 7,
    "uid": "000000000003",
}


def test_prompts_of_the_queue_come_back_as_they_were(make, saved_and_resumed):
    saved = make()
    saved._queued_prompts = deque(
        [prompt(**ROW), prompt(**{**ROW, "index": 8, "weight": math.nan})]
    )
    resumed = saved_and_resumed(saved)
    assert len(resumed._queued_prompts) == 2
    for before, after in zip(saved._queued_prompts, resumed._queued_prompts, strict=True):
        assert before.batch_size == after.batch_size and set(before.keys()) == set(
            after.keys()
        ) > set(ROW)
        for name in before.keys():
            assert type(after.get(name)) is type(before.get(name))
            assert str(after.get(name).tolist()) == str(before.get(name).tolist())
        assert after["dummy_tensor"].dtype == torch.uint8


def test_a_checkpoint_that_would_run_code_is_not_read(make, saved_and_resumed, tmp_path):
    """The checkpoint of earlier versions was a pickle, which does what its writer likes."""
    trainer = make()
    (tmp_path / "prime_ext.pt").write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(
        FileNotFoundError, match=f"{STATE_FILE} is missing: .* of this version of prime_ext"
    ):
        trainer._load_prime_state(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(ValueError):
        trainer._load_prime_state(tmp_path)


@pytest.mark.parametrize(
    "value", [b"bytes", (1, 2), {"at": {1: 2}}, np.float32(1.0), np.float64(1.0)]
)
def test_a_prompt_that_json_would_change_is_refused(value):
    with pytest.raises(
        SettingsError, match="^data.train_files: image of a prompt holds .*; checkpoints keep"
    ):
        pack_prompts(prompt(**ROW, image=value))


# ---- snapshots of the policy, which verl's separate mode takes when parameter_sync_step > 1 ------


@pytest.fixture
def sharded_model(tmp_path):
    if torch.distributed.is_initialized():
        # Left by a test that trained with transformers in this process.
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    yield fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "copies"), [(SnapshotActorWorker, True), (DetachActorWorker, False)]
)
def test_snapshots_in_host_memory_are_copies_and_verls_are_not(sharded_model, kind, copies):
    """verl takes these snapshots for the old log-probabilities of a second mini-batch."""
    worker = kind.__new__(kind)
    worker.config = OmegaConf.create({"actor": {"strategy": "fsdp2"}})
    worker._strategy_handlers = None
    worker.actor = SimpleNamespace(engine=SimpleNamespace(module=sharded_model))

    def values():
        return torch.cat(
            [one.full_tensor().detach().flatten() for one in sharded_model.parameters()]
        )

    old = values()
    worker.save_model_to_cpu(0)
    with torch.no_grad():
        for parameter in sharded_model.parameters():
            parameter.add_(1.0)
    new = values()
    worker.save_model_to_cpu(1)
    worker.restore_model_from_cpu(0)
    looked_back = values()
    worker.restore_model_from_cpu(1)
    assert (torch.equal(looked_back, old) and torch.equal(values(), new)) is copies


def test_a_snapshot_waits_for_weights_in_transfer_to_the_host(sharded_model, monkeypatch):
    worker = SnapshotActorWorker.__new__(SnapshotActorWorker)
    waited = []
    worker._strategy_handlers = (lambda module: waited.append("read") or {}, None)
    device = SimpleNamespace(synchronize=lambda: waited.append("waited"))
    monkeypatch.setattr(trainer_separate_async, "get_torch_device", lambda: device)
    worker.copy_handler(sharded_model)
    assert waited == ["waited", "read"]


def test_trainers_and_servers_that_do_not_meet_end_the_run(monkeypatch):
    monkeypatch.setattr(trainer_separate_async, "MEETING_SECONDS", 0.05)
    met = []
    trainer_separate_async._join_group(met.append, "workers")
    assert met == ["workers"]
    with pytest.raises(RuntimeError, match="have not met within 0.05 s to exchange weights"):
        trainer_separate_async._join_group(threading.Event().wait)
    with pytest.raises(ZeroDivisionError):
        trainer_separate_async._join_group(lambda: 1 / 0)


@pytest.mark.parametrize("hybrid", [True, False])
def test_the_separate_mode_uses_these_snapshots(make, hybrid):
    trainer = make(**SEPARATE, **{"actor_rollout_ref.hybrid_engine": hybrid})
    trainer._init_resource_pool_mgr()
    (worker,) = trainer.role_worker_mapping.values()
    assert worker.__ray_metadata__.modified_class.__name__ == SnapshotActorWorker.__name__
