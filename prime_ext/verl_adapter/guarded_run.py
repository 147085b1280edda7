# SPDX-License-Identifier: Apache-2.0
"""Fault handling of trainers: one run per folder, complete checkpoints, a watch over workers."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray._private.state import actors
from tensordict import TensorDict
from transfer_queue import KVBatchMeta, interface
from transformers import GenerationConfig

from prime_ext.config.engines import find_longest_sequence
from prime_ext.config.modules import VARIABLE, extend_variable
from prime_ext.generate.generation import end_tokens
from prime_ext.run import checkpoint, resume
from prime_ext.run.console import ConsoleLines, logs_to_console
from prime_ext.run.metrics_file import MetricsFile, metrics_path
from prime_ext.run.ray_cluster import require_resources
from prime_ext.transcripts.record import TranscriptRecorder
from prime_ext.utils.errors import WorkerDied
from prime_ext.utils.run_store import RunError, RunLock
from prime_ext.verl_adapter import rollout_store as transfer
from prime_ext.verl_adapter.patches import replay_buffer, trainer_base
from prime_ext.verl_adapter.rollout_losses import RolloutLosses
from prime_ext.verl_adapter.rollout_store import TransferQueueStore

if TYPE_CHECKING:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as _Trainer
else:
    _Trainer = object

SECONDS_UNTIL_KNOWN = 2.0
# Ray counts five failed health checks, one every three seconds.
SECONDS_UNTIL_NODES_KNOWN = 30.0
SECONDS_BETWEEN_LOOKS = 5.0
SECONDS_TO_END = 60.0


class GuardedRunMixin(_Trainer):
    """Fault handling for a trainer of verl; base class of prime_ext's mixins."""

    # Name of the method in transcripts.
    _method = ""

    def init(self) -> None:
        """Set up workers and models as verl does.

        Raises ``RunError`` before that if a module of the user is not loaded, the cluster is too
        small, or the folder is in use.
        """
        if unknown := [
            module for module in self.config.get("modules", ()) if module not in sys.modules
        ]:
            remedy = f"start with prime_ext.train, or export {VARIABLE}={extend_variable(unknown)}"
            raise RunError(f"modules={unknown} are not loaded: {remedy}")
        require_resources(self.config, ray.nodes())
        # Runs that only validate may share the folder.
        if not self.config.trainer.get("val_only", False):
            self._run_lock = RunLock(
                Path(self.config.trainer.default_local_dir), "trainer.default_local_dir"
            )
            self._run_lock.acquire()
        super().init()

    @cached_property
    def _identity(self) -> resume.Identity:
        """Return the identity of the run, read when it starts because files may change later."""
        return resume.read_identity(self.config)

    @cached_property
    def _transcripts(self) -> TranscriptRecorder:
        """Return the recorder of transcripts."""
        return TranscriptRecorder.from_config(self.config, self._method, lambda: self.tokenizer)

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Run verl's step; write transcripts, and count the rollouts that it lost."""
        is_last = self.global_steps >= self.total_training_steps
        with self._transcripts.record(self.global_steps, is_last, timing_raw):
            batch = super().step(metrics, timing_raw)
        # Sync now, because prompts that returned to the queue end again in a later step.
        self.replay_buffer._sync_metadata_from_transfer_queue()
        metrics["prime/rollouts_lost"] = self._losses.end_step()
        return batch

    def fit(self, agent_loop_manager: Any) -> None:
        """Train as verl does.

        Raises ``WorkerDied`` when a worker that makes rollouts dies, and ``RolloutsLost`` when too
        many rollouts end with an error.
        """
        rollout = self.config.actor_rollout_ref.rollout
        self._losses = RolloutLosses(
            {"train": rollout.n, "val": rollout.val_kwargs.n},
            rollout.n * self.config.data.train_batch_size,
        )
        replay_buffer.apply(self.replay_buffer, self._losses)
        loggers: dict[str, Any] = {}
        if logs_to_console(self.config):
            loggers["console"] = ConsoleLines(self.total_training_steps)
        if path := metrics_path(self.config.trainer):
            loggers["file"] = MetricsFile(path, self.global_steps)
        # Runs that only validate may share the folder.
        if not self.config.trainer.get("val_only", False):
            self._transcripts.resume(self.global_steps)
        workers = find_workers(self, agent_loop_manager)
        nodes = list_nodes() if self.config.trainer.nnodes > 1 else {}
        try:
            with DeathWatch(workers), trainer_base.replace_loggers(loggers):
                super().fit(agent_loop_manager)
        except WorkerDied:
            raise
        except Exception as error:
            # Failed rollouts and the like may follow from a dead worker or node.
            if death := await_death(workers, nodes):
                raise WorkerDied(death) from error
            raise

    def _end_tokens(self) -> set[int]:
        """Return the end tokens of the tokenizer and of the model's generation settings."""
        return end_tokens(self.tokenizer, self._generation_settings)

    @cached_property
    def _generation_settings(self) -> GenerationConfig:
        """Return the policy's generation settings, from a folder or hub id; empty without any."""
        from verl.utils.model import get_generation_config

        model = self.config.actor_rollout_ref.model.path
        return get_generation_config(model) or GenerationConfig()

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Log the share of truncated responses; verl's clip_ratio counts the longest of a batch."""
        tags = {
            key: tag
            for key, tag in zip(batch.keys, batch.tags, strict=True)
            if not transfer.is_padding(tag)
        }
        limit = self.config.data.max_response_length
        longest = find_longest_sequence(self.config)
        cut_off = transfer.find_cut_off(
            batch.partition_id, tags, limit, longest, self._end_tokens()
        )
        metrics["prime/response_length/cut_off"] = len(cut_off) / max(1, len(tags))
        return super()._compute_advantage(batch, metrics)

    def _load_checkpoint(self) -> None:
        trainer = self.config.trainer
        folder = resume.find_checkpoint(self.config)
        if problem := resume.explain_refusal(self.config, self._identity, folder):
            raise RunError(problem)
        if trainer.resume_mode == "auto":
            # verl would look into its tracker, which may be half-written.
            trainer.resume_mode = "resume_path" if folder else "disable"
            trainer.resume_from_path = folder and str(folder)
        super()._load_checkpoint()
        if self.global_steps > 0:
            self._say(f"going on from step {self.global_steps} ({trainer.resume_from_path})")
        if trainer.get("save_freq", -1) <= 0 and not trainer.get("val_only", False):
            self._say(
                "nothing will be saved, and no trained model kept: trainer.save_freq is not set"
            )

    def _decode(self, store: TransferQueueStore) -> list[str]:
        """Return the texts of responses."""
        ids = store.fetch_rows("responses")["responses"]
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)

    def _fetch_one_gen_batch(self) -> TensorDict:
        """Fetch the next prompts; restart at the first row if a checkpoint is past the last row."""
        try:
            return super()._fetch_one_gen_batch()
        except StopIteration:
            self._say(
                "the checkpoint was further in its data than these have rows: they begin with their"
                " first row"
            )
            self.train_dataloader.next_iter_state = None
            return super()._fetch_one_gen_batch()

    def _say(self, line: str) -> None:
        if logs_to_console(self.config):
            print(f"prime_ext: {line}", flush=True)

    def _save_more(self, folder: Path) -> None:
        """Write the state that verl's trainer does not save to ``folder``."""

    def _save_checkpoint(self) -> None:
        """Save everything, mark the checkpoint as complete, and only then delete older ones."""
        trainer = self.config.trainer
        start = time.monotonic()
        root = Path(trainer.default_local_dir)
        folder = root / f"global_step_{self.global_steps}"
        checkpoint.mark_incomplete(folder)
        self._save_more(folder)
        keep = trainer.get("max_actor_ckpt_to_keep", None)
        if trainer.get("remove_previous_ckpt_in_save", False):
            keep = 1
        # verl must not delete checkpoints: it would do so before the new one is complete.
        keys = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep", "remove_previous_ckpt_in_save")
        retention = {key: trainer[key] for key in keys if key in trainer}
        try:
            trainer.update(dict.fromkeys(retention))
            super()._save_checkpoint()
        finally:
            trainer.update(retention)
        checkpoint.mark_complete(folder, {"global_step": self.global_steps, **self._identity})
        self._say(
            f"checkpoint of step {self.global_steps} saved in {time.monotonic() - start:.1f} s:"
            f" {folder}"
        )
        checkpoint.prune(root, keep, self.global_steps)


class DeathWatch:
    """Context that raises ``WorkerDied`` in its block when a worker dies, even during a wait.

    A thread checks the workers every few seconds, and interrupts the block by a signal. If the
    block does not end within ``SECONDS_TO_END``, the thread ends the process.
    """

    def __init__(self, workers: Mapping[str, Any]):
        self._workers = workers
        self._ended = threading.Event()
        self._death = ""

    def __enter__(self) -> None:
        # Python's handlers run in the main thread, where Ray runs a trainer.
        self._in_main = threading.current_thread() is threading.main_thread()
        if self._in_main:
            self._handler = signal.signal(signal.SIGUSR1, self._raise)
        threading.Thread(target=self._watch, name="death watch", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._in_main:
            signal.signal(signal.SIGUSR1, self._handler)

    def _raise(self, *_: object) -> None:
        if not self._ended.is_set():
            raise WorkerDied(self._death)

    def _watch(self) -> None:
        while not self._death:
            if self._ended.wait(SECONDS_BETWEEN_LOOKS):
                return
            with suppress(Exception):  # Ray itself may be gone.
                self._death = find_death(self._workers)
        if self._in_main:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        if not self._ended.wait(SECONDS_TO_END):
            print(f"prime_ext: {self._death}; the run does not end by itself", flush=True)
            os._exit(1)


def find_death(workers: Mapping[str, Any]) -> str:
    """Return the name of a dead worker, with Ray's message about its end; empty if none is dead."""
    for name, worker in workers.items():
        state = actors(worker._actor_id.hex())
        if state.get("State") == "DEAD":
            # Ray adds a list of common causes.
            cause = re.search(
                r'error_message: "(.*?)(?: Some common causes|")', str(state["DeathCause"])
            )
            return f"the {name} died ({cause[1][:200] if cause else 'no reason given'})"
    return ""


def list_nodes() -> dict[str, str]:
    """Return the addresses of all living nodes by their ids."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def await_death(workers: Mapping[str, Any], nodes: Mapping[str, str]) -> str:
    """Return which node or named worker is dead; empty if none is when Ray must know of it."""
    end = time.monotonic() + (SECONDS_UNTIL_NODES_KNOWN if nodes else 0.0)
    with suppress(Exception):  # Ray itself may be gone.
        while True:
            time.sleep(SECONDS_UNTIL_KNOWN)
            living = list_nodes() if nodes else {}
            if dead := [address for name, address in nodes.items() if name not in living]:
                return f"the node {', '.join(dead)} died"
            if (death := find_death(workers)) or time.monotonic() >= end:
                return death
    return ""


def find_store() -> dict[str, Any]:
    """Return the actors of the store by name; empty in processes that have not started it."""
    units = (interface._TQ_STORAGE or {}).get("SimpleStorage") or {}
    parts = {f"storage unit {name} of TransferQueue": unit for name, unit in units.items()}
    if interface._TQ_CONTROLLER is not None:
        parts["controller of TransferQueue"] = interface._TQ_CONTROLLER
    return parts


def find_workers(trainer: Any, agent_loop_manager: Any) -> dict[str, Any]:
    """Return by name the actors of the store and all actors that fill it.

    The latter are agent-loop workers, reward workers and rollout servers.
    """
    loops = getattr(agent_loop_manager, "agent_loop_workers", None) or []
    workers = {f"agent-loop worker {number}": worker for number, worker in enumerate(loops)}
    workers |= find_store()
    workers |= {
        f"reward worker {number}": worker
        for number, worker in enumerate(trainer.get_reward_handles() or [])
    }
    for manager in (
        trainer.llm_server_manager,
        getattr(trainer, "standalone_server_manager", None),
    ):
        for replica in manager.get_replicas() if manager is not None else []:
            for number, server in enumerate(replica.servers):
                workers[f"rollout server {replica.replica_rank}.{number}"] = server
    return workers
