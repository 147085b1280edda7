# SPDX-License-Identifier: Apache-2.0
"""What every trainer of prime_ext does about faults: one run per folder, whole checkpoints, no waiting for the dead.
And one line on the console for what happens (:mod:`prime_ext.run.console`)."""

import logging
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1 import trainer_base

from prime_ext.run import checkpoint
from prime_ext.run.console import ConsoleLines, lines_in, prints_lines
from prime_ext.run.ray_reservations import require_resources
from prime_ext.run.run_lock import RunLock
from prime_ext.run.worker_watch import WorkerDied, WorkerWatch, workers_of

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as _Trainer
else:
    _Trainer = object


class GuardedRunMixin(_Trainer):
    """Goes between a mixin of prime_ext and verl's trainer."""

    def init(self) -> None:
        """verl's set-up of workers and models, once nobody else works in the folder.

        Raises:
            RunFolderInUse: somebody does.
            ClusterTooSmall: Ray has fewer logical CPUs than the run reserves.
        """
        require_resources(self.config, ray.nodes())
        # Looking at a model harms nobody.
        if not self.config.trainer.get("val_only", False):
            self._run_lock = RunLock(Path(self.config.trainer.default_local_dir))
            self._run_lock.acquire()
        super().init()

    def fit(self, agent_loop_manager: Any) -> None:
        """verl's training; the wait for rollouts ends when one of those that make them dies.

        Raises:
            WorkerDied: see there.
        """
        self._watch = WorkerWatch(workers_of(self, agent_loop_manager))
        buffer, wait = self.replay_buffer, self.replay_buffer._wait_for_next_poll

        def checked(*arguments: Any, **keywords: Any) -> float:
            self._watch.check()
            return wait(*arguments, **keywords)

        buffer._wait_for_next_poll = checked
        lines = prints_lines(self.config)
        try:
            with lines_in(trainer_base, ConsoleLines(self.total_training_steps)) if lines else nullcontext():
                super().fit(agent_loop_manager)
        except WorkerDied:
            raise
        except Exception as error:
            # What a dead worker leaves behind, as rollouts that failed, is not the reason.
            death = self._watch.death()
            if death:
                raise WorkerDied(death) from error
            raise

    def _pause(self, seconds: float) -> None:
        """Wait for those that make rollouts, outside the replay buffer. Raises ``WorkerDied``."""
        self._watch.check()
        time.sleep(seconds)

    def _load_checkpoint(self) -> None:
        if self.config.trainer.resume_mode == "auto":
            checkpoint.repair_tracker(Path(self.config.trainer.default_local_dir))
        super()._load_checkpoint()
        if self.global_steps > 0:
            self._say(f"going on from step {self.global_steps} ({self._checkpoint_folder()})")

    def _checkpoint_folder(self) -> Path:
        """Where verl has just resumed from."""
        if self.config.trainer.resume_mode == "resume_path":
            return Path(self.config.trainer.resume_from_path)
        return Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _say(self, line: str) -> None:
        if prints_lines(self.config):
            print(line, flush=True)

    def _save_more(self, folder: Path) -> None:
        """Write to ``folder`` what verl's trainer knows nothing of."""

    def _save_checkpoint(self) -> None:
        """Save everything, declare the checkpoint whole, and only then delete older ones."""
        trainer = self.config.trainer
        if self.config.actor_rollout_ref.actor.checkpoint.get("async_save", False):
            # Nobody knows when it is whole; verl writes its tracker by itself then.
            super()._save_checkpoint()
            return
        start = time.monotonic()
        root = Path(trainer.default_local_dir)
        folder = root / f"global_step_{self.global_steps}"
        checkpoint.mark_incomplete(folder)
        self._save_more(folder)
        keep = 1 if trainer.get("remove_previous_ckpt_in_save", False) else trainer.get("max_actor_ckpt_to_keep", None)
        with _without_retention(self.config):
            super()._save_checkpoint()
        checkpoint.mark_complete(folder, {"global_step": self.global_steps})
        self._say(f"checkpoint of step {self.global_steps} saved in {time.monotonic() - start:.1f} s: {folder}")
        deleted = checkpoint.prune(root, keep, self.global_steps)
        if deleted:
            logger.info("deleted checkpoints of steps %s", deleted)


class _without_retention:  # noqa: N801
    """Context in which verl deletes no checkpoint: it would do so before the new one is whole."""

    _KEYS = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep", "remove_previous_ckpt_in_save")

    def __init__(self, config: DictConfig):
        self._trainer = config.trainer

    def __enter__(self) -> None:
        self._saved: dict[str, Any] = {key: self._trainer[key] for key in self._KEYS if key in self._trainer}
        with open_dict(self._trainer):
            for key in self._saved:
                self._trainer[key] = None

    def __exit__(self, *exception: object) -> None:
        with open_dict(self._trainer):
            self._trainer.update(self._saved)
