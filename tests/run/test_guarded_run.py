# SPDX-License-Identifier: Apache-2.0
"""Faults as every trainer treats them, on a stand-in for verl's that writes files and polls."""

import errno
import json
import subprocess
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from threading import Event, Timer
from types import MappingProxyType, SimpleNamespace
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from transfer_queue import interface
from verl.trainer.ppo.v1 import trainer_base

from prime_ext.run.checkpoint import find_complete_steps
from prime_ext.transcripts.files import step_file
from prime_ext.utils.errors import WorkerDied
from prime_ext.utils.files import write_json, write_json_lines
from prime_ext.utils.run_store import RunError
from prime_ext.verl_adapter import guarded_run
from prime_ext.verl_adapter.guarded_run import GuardedRunMixin, find_workers

KEYS = ("pending_keys", "running_keys", "finished_keys", "failure_keys")


class Verl:
    """The parts of verl's trainer that are called."""

    fails = None
    global_steps = total_training_steps = 0

    def __init__(self, config):
        self.config = config
        self.kept_while_saving = []
        self.replay_buffer = SimpleNamespace(
            _sync_metadata_from_transfer_queue=lambda: None,
            **{name: defaultdict(set) for name in KEYS},
            partitions=defaultdict(dict),
        )
        self.llm_server_manager = SimpleNamespace(get_replicas=list)

    def init(self):
        pass

    def waits(self):
        pass

    def get_reward_handles(self):
        return None

    train_dataloader_it = None
    _fetch_one_gen_batch = trainer_base.PPOTrainer._fetch_one_gen_batch

    def fit(self, agent_loop_manager):
        self.logger = trainer_base.Tracking(
            project_name="p",
            experiment_name="e",
            default_backend=self.config.trainer.get("logger", []),
        )
        self.waits()
        if self.fails:
            raise self.fails

    def _load_checkpoint(self):
        self.loaded = True

    def _save_checkpoint(self):
        self.kept_while_saving.append(self.config.trainer.max_actor_ckpt_to_keep)
        folder = f"{self.config.trainer.default_local_dir}/global_step_{self.global_steps}"
        with open(f"{folder}/weights", "w") as stream:
            stream.write("half")
            if self.fails:
                raise self.fails
            stream.write(" and half")
        with open(
            f"{self.config.trainer.default_local_dir}/latest_checkpointed_iteration.txt", "w"
        ) as stream:
            stream.write(str(self.global_steps))


class Trainer(GuardedRunMixin, Verl):
    def _save_more(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "more").write_text("more")


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(
        guarded_run.RunLock,
        "acquire",
        lambda lock, _take=guarded_run.RunLock.acquire: _take(lock, 0),
    )
    monkeypatch.setattr(guarded_run.ray, "nodes", list)
    monkeypatch.setattr(guarded_run, "require_resources", lambda config, nodes: None)
    made = []

    def make(data=MappingProxyType({}), path="org/model", **changes):
        trainer = {
            "default_local_dir": str(tmp_path),
            "resume_mode": "auto",
            "nnodes": 1,
            **changes,
        }
        keep = dict.fromkeys(
            ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep", "project_name", "experiment_name")
        )
        parts = {"model": {"path": path}, "rollout": {"n": 4, "val_kwargs": {"n": 1}}}
        config = {"trainer": {**keep, **trainer}, "actor_rollout_ref": parts}
        config["transcripts"] = {"every": 10, "prompts": 4}
        trainer = Trainer(
            OmegaConf.create(
                {
                    **config,
                    "data": {"train_files": "a.parquet", "seed": 1, "train_batch_size": 2, **data},
                }
            )
        )
        trainer.init()
        made.append(trainer)
        return trainer

    yield make
    for trainer in made:
        if not trainer.config.trainer.get("val_only", False):
            trainer._run_lock.release()


def save(trainer, step):
    trainer.global_steps = step
    trainer._save_checkpoint()


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_end_tokens_are_those_of_folders_and_hub_ids(make, tmp_path, monkeypatch, place):
    folder = tmp_path / "folder"
    if place == "hub":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        folder = tmp_path / "models--org--chat" / "snapshots" / "abc"
        (tmp_path / "models--org--chat" / "refs").mkdir(parents=True)
        (tmp_path / "models--org--chat" / "refs" / "main").write_text("abc")
    folder.mkdir(parents=True)
    write_json(folder / "generation_config.json", {"eos_token_id": [5, 6]})
    trainer = make(path=str(folder) if place == "folder" else "org/chat")
    trainer.tokenizer = SimpleNamespace(eos_token_id=7)
    assert trainer._end_tokens() == {5, 6, 7}


def test_validation_leaves_the_transcripts_of_the_run_alone(make, tmp_path):
    file = step_file(tmp_path / "transcripts", 10)
    write_json_lines(file, [])
    for changes, stays in (({"val_only": True}, True), ({}, False)):
        trainer = make(**changes)
        trainer.global_steps = 0
        trainer.fit(SimpleNamespace())
        assert file.exists() is stays


def test_a_run_locks_its_folder_once_ray_can_place_it(make, monkeypatch):
    make()
    with pytest.raises(RunError):
        make()
    # Looking at a model needs no folder.
    make(val_only=True)
    monkeypatch.setattr(guarded_run, "require_resources", Mock(side_effect=RunError))
    with pytest.raises(RunError):
        make()


@pytest.mark.parametrize("again", [False, True])
def test_a_save_that_fails_leaves_the_earlier_ones_alone(make, tmp_path, again):
    trainer = make(max_actor_ckpt_to_keep=2)
    for step in (1, 2) if again else (1,):
        save(trainer, step)
    trainer.fails = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        save(trainer, 2)
    assert find_complete_steps(tmp_path) == [1]
    assert trainer.config.trainer.max_actor_ckpt_to_keep == 2
    trainer.fails = None
    for step in (2, 3):
        save(trainer, step)
    # The oldest goes when the new one is whole, and verl itself is never asked to delete any.
    assert find_complete_steps(tmp_path) == [2, 3] and set(trainer.kept_while_saving) == {None}


def test_a_resume_passes_over_a_damaged_checkpoint(make, tmp_path):
    trainer = make()
    for step in (1, 2):
        save(trainer, step)
    (tmp_path / "global_step_2" / "weights").write_text("h")
    trainer._load_checkpoint()
    assert (
        trainer.config.trainer.resume_from_path == str(tmp_path / "global_step_1")
        and trainer.loaded
    )
    trainer.config.trainer.resume_mode = "auto"
    (tmp_path / "global_step_1" / "weights").unlink()
    with pytest.raises(RunError, match="no whole checkpoint is left"):
        trainer._load_checkpoint()


CAUSE = (
    'actor_died_error_context {\n  error_message: "The actor is dead. End of file. Some common'
    ' causes include: (1)"\n}'
)


@pytest.fixture
def states(monkeypatch):
    """States of actors as Ray gives them, by their names; an actor that is not here is alive."""
    states = {}
    monkeypatch.setattr(guarded_run, "actors", lambda name: states.get(name, {"State": "ALIVE"}))
    monkeypatch.setattr(guarded_run, "SECONDS_UNTIL_KNOWN", 0)
    return states


def actor(name):
    return SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: name))


@pytest.mark.parametrize("wait", [time.sleep, lambda seconds: Event().wait(seconds)])
def test_a_workers_death_ends_whatever_the_trainer_waits_for(make, monkeypatch, states, wait):
    monkeypatch.setattr(guarded_run, "SECONDS_BETWEEN_LOOKS", 0.05)
    trainer = make()
    workers = SimpleNamespace(agent_loop_workers=[actor("a")])
    trainer.fit(workers)
    states["a"] = {"State": "RESTARTING"}
    trainer.waits = lambda: wait(0.3)
    trainer.fit(workers)
    trainer.waits = lambda: (states.update(a={"State": "DEAD", "DeathCause": CAUSE}), wait(60))
    start = time.monotonic()
    with pytest.raises(
        WorkerDied, match=r"^the agent-loop worker 0 died \(The actor is dead. End of file.\)$"
    ):
        trainer.fit(workers)
    assert time.monotonic() - start < 10


def test_an_error_after_the_loss_of_a_node_names_it(make, monkeypatch, states):
    monkeypatch.setattr(guarded_run, "SECONDS_UNTIL_NODES_KNOWN", 0.5)
    kinds = {"NodeManagerAddress": "10.0.0.2", "Alive": True}
    # The first of these was lost in an earlier run, at the same address.
    nodes = [{"NodeID": name, **kinds} for name in "abc"]
    nodes[0]["Alive"] = False
    monkeypatch.setattr(guarded_run.ray, "nodes", lambda: nodes)
    trainer = make(nnodes=2)
    trainer.fails = RuntimeError("Connection reset by peer")
    workers = SimpleNamespace(agent_loop_workers=[])
    with pytest.raises(RuntimeError, match="^Connection reset by peer$"):
        trainer.fit(workers)
    trainer.waits = lambda: Timer(0.1, lambda: nodes[2].update(Alive=False)).start()
    with pytest.raises(WorkerDied, match=r"^the node 10\.0\.0\.2 died$"):
        trainer.fit(workers)


def test_a_run_that_a_signal_cannot_end_is_ended():
    """Something in the trainer catches the error and goes on."""
    source = """
import time
import prime_ext.plugin
from prime_ext.verl_adapter import guarded_run
guarded_run.SECONDS_BETWEEN_LOOKS = 0.05
guarded_run.SECONDS_TO_END = 0.5
guarded_run.find_death = lambda workers: "the storage unit 0 of TransferQueue died"
with guarded_run.DeathWatch({}):
    while True:
        try:
            time.sleep(60)
        except guarded_run.WorkerDied:
            pass
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "the storage unit 0 of TransferQueue died; the run does not end" in done.stdout


def test_errors_of_a_dead_worker_are_reported_as_its_death(make, monkeypatch, states):
    trainer = make()
    trainer.fails = ValueError("no rollout came")
    monkeypatch.setattr(trainer, "get_reward_handles", lambda: [actor("r")])
    with pytest.raises(ValueError, match="no rollout came"):
        trainer.fit(SimpleNamespace())
    states["r"] = {"State": "DEAD", "DeathCause": ""}
    with pytest.raises(WorkerDied, match="the reward worker 0 died") as error:
        trainer.fit(SimpleNamespace())
    assert error.value.__cause__ is trainer.fails
    # Nobody is blamed when Ray itself is gone.
    monkeypatch.setattr(guarded_run, "actors", Mock(side_effect=RuntimeError))
    with pytest.raises(ValueError, match="no rollout came"):
        trainer.fit(SimpleNamespace())


def test_who_is_watched(monkeypatch):
    monkeypatch.setattr(interface, "_TQ_STORAGE", {"SimpleStorage": {0: "u0"}})
    monkeypatch.setattr(interface, "_TQ_CONTROLLER", "c")
    servers = [
        SimpleNamespace(replica_rank=0, servers=["s0", "s1"]),
        SimpleNamespace(replica_rank=1, servers=["s2"]),
    ]
    manager = SimpleNamespace(get_replicas=lambda: servers)
    trainer = SimpleNamespace(get_reward_handles=lambda: ["r0"], llm_server_manager=manager)
    assert find_workers(trainer, SimpleNamespace(agent_loop_workers=["a0", "a1"])) == {
        **{"storage unit 0 of TransferQueue": "u0", "controller of TransferQueue": "c"},
        **{"agent-loop worker 0": "a0", "agent-loop worker 1": "a1", "reward worker 0": "r0"},
        **{"rollout server 0.0": "s0", "rollout server 0.1": "s1", "rollout server 1.0": "s2"},
    }


def test_a_resumed_run_appends_its_metrics_to_one_file(make, tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))

    def start(step):
        trainer = make(logger=["file"], val_only=True)
        trainer.global_steps = step
        trainer.fit(SimpleNamespace())
        trainer.logger.log(data={"loss": float("nan")}, step=step + 1)
        return [json.loads(line) for line in path.read_text().splitlines()]

    path.write_text('{"step": 7, "data": {"loss": 1}}\n')
    assert start(0) == [{"step": 1, "data": {"loss": None}}]
    assert len((tmp_path / "metrics.old0.jsonl").read_text().splitlines()) == 1
    # A step that was lost, and a line that a kill cut off.
    path.write_text(path.read_text() + '{"step": 2, "data": {"loss": 2}}\n{"step": 3, "da')
    assert [line["step"] for line in start(1)] == [1, 2] and start(2)[1]["data"] == {"loss": None}


@pytest.mark.parametrize(
    ("data", "path", "said"),
    [
        ({}, "org/model", ""),
        ({"train_files": ["moved.parquet"]}, "org/model", ""),
        ({"train_files": "other.parquet"}, "org/model",
         "data.train_files a.parquet, now it is other.parquet"),
        ({"seed": 2}, "org/model", "data.seed 1, now it is 2"),
        ({}, "org/other", "the tokenizer of org/model, now it is org/other"),
    ],
)  # fmt: skip
def test_no_run_continues_with_other_data_tokenizers_and_seeds_unasked(
    make, tmp_path, monkeypatch, data, path, said
):
    monkeypatch.chdir(tmp_path)
    for name, content in (("a", "1"), ("moved", "1"), ("other", "2")):
        Path(f"{name}.parquet").write_text(content)
    trainer = make()
    save(trainer, 3)
    trainer._run_lock.release()
    again = make(data=data, path=path)
    if said:
        with pytest.raises(RunError, match="global_step_3 was trained with") as error:
            again._load_checkpoint()
        assert said in str(error.value)
        # Asked for, with the step named.
        again.config.trainer.resume_mode = "resume_path"
    again._load_checkpoint()
    assert again.loaded


def test_a_position_after_the_last_row_starts_again(make):
    def loader(rows):
        data = [{"raw_prompt": row} for row in range(rows)]
        return StatefulDataLoader(data, sampler=RandomSampler(data))

    long = loader(9)
    trainer = make()
    list(islice(long, 7))
    trainer.train_dataloader = loader(4)
    trainer.train_dataloader.load_state_dict(long.state_dict())
    assert sorted(int(trainer._fetch_one_gen_batch()["raw_prompt"][0]) for _ in range(4)) == [
        0,
        1,
        2,
        3,
    ]
