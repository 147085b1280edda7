# SPDX-License-Identifier: Apache-2.0
"""PRIME on verl's V1 trainer, as a mixin that goes before one of verl's trainers."""

import json
import logging
import math
from collections import deque
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.debug import marked_timer

from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.prompt_filter import AccuracyBand
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.config.asynchronous import get_base_mode
from prime_ext.config.checks import refuse
from prime_ext.config.engines import find_longest_sequence, shard_over_all_ranks
from prime_ext.generate.prm_description import FILE as PRM_DESCRIPTION
from prime_ext.generate.prm_description import model_name
from prime_ext.methods.changed_keys import method_name, variant_line
from prime_ext.methods.prm_settings import PRMSettings, TrainedPRMSettings
from prime_ext.methods.settings import PrimeSettings, prm_section
from prime_ext.methods.step_scorer.scorer import StepRewardModel
from prime_ext.methods.step_scorer.settings import StepScorerSettings
from prime_ext.methods.step_scorer.source import build_shaping
from prime_ext.methods.store import average_counts, reward_info
from prime_ext.names import SINGLE_TURN_LOOPS
from prime_ext.preflight.machine import check_amount
from prime_ext.step.rollouts import load_rollouts
from prime_ext.step.step import Scorer, prime_step
from prime_ext.step.step_watch import StepWatch
from prime_ext.step_rm.response_cut import ResponseCutter
from prime_ext.utils.files import read_json, write_json, write_text
from prime_ext.verl_adapter import prompt_filter_buffer as buffers
from prime_ext.verl_adapter.build_models import build_average, build_prm
from prime_ext.verl_adapter.guarded_run import GuardedRunMixin
from prime_ext.verl_adapter.policy_loss import COEFFICIENTS, install_targets
from prime_ext.verl_adapter.prm_worker import ImplicitPRMWorker
from prime_ext.verl_adapter.prompt_judge import PromptJudge
from prime_ext.verl_adapter.prompts import pack_prompts, set_uids, unpack_prompts
from prime_ext.verl_adapter.rollout_store import TransferQueueStore
from prime_ext.verl_adapter.side_models import PolicyAverage, PRMModels, SideModel

logger = logging.getLogger(__name__)

STATE_FILE = "prime_ext.json"


class PrimeTrainerMixin(GuardedRunMixin):
    """Mixin that adds PRIME to a verl trainer: prompt filter, implicit PRM, combined advantage."""

    def __init__(self, config: DictConfig):
        self.prime = PrimeSettings.from_config(config)
        self._method = method_name(config)
        print(f"prime_ext: {self._method}", flush=True)
        self.prm_settings = (
            PRMSettings.from_config(config) if prm_section(config) is not None else None
        )
        self.gate: ReliabilityGate | None = None
        self._kl_coefficients: dict[str, float] = {}
        # Prompts that were fetched but not used, which are next; and all prompts of this step.
        self._queued_prompts: deque[TensorDict] = deque()
        self._prompt_of_uid: dict[str, TensorDict] = {}
        self._prompts_fetched = 0
        with open_dict(config):
            # verl compares the mode with its names to distinguish synchronous from asynchronous.
            config.trainer.v1.trainer_mode = get_base_mode(config)
            # Refilling needs prompts one by one.
            if config.data.get("gen_batch_size", None) not in (None, 1):
                logger.warning(
                    "data.gen_batch_size=%s becomes 1 with PRIME", config.data.gen_batch_size
                )
            config.data.gen_batch_size = 1
            if self.prime.outcome.of_verl:
                # verl computes this advantage before PRIME's step, with all arguments of its
                # estimators.
                config.algorithm.adv_estimator = self.prime.outcome.estimator
        shard_over_all_ranks(config)
        super().__init__(config)
        if (gate := self.prime.gate) is not None:
            # It is updated once per mini-batch of a step; in every mode it decays alike per step.
            self.gate = ReliabilityGate(gate.decay ** (1 / self.parameter_sync_step), gate.start)

    # ---- prompts: submission, filter, refill -----------------------------------------------------

    def _build_replay_buffer(self) -> ReplayBuffer:
        sampler = self.config.trainer.v1.sampler
        if sampler.custom_sampler.path and sampler.custom_sampler.name:
            return super()._build_replay_buffer()
        settings = self.prime.filter
        size = self.config.data.train_batch_size
        band = AccuracyBand(0.0, 1.0)
        if settings.enable:
            band = AccuracyBand(settings.lower, settings.upper, settings.drop_truncated)
        limits = self.config.data.max_response_length, find_longest_sequence(self.config)
        # Asynchronous modes have prompts in the system beyond those of a step.
        mode = self.config.trainer.v1.get(self.trainer_mode, {})
        warm_up = 0 if self.trainer_mode == "sync" else math.floor(size * mode.num_warmup_batches)
        options = {
            "judge": PromptJudge(
                band,
                self.prime.label_key,
                self.prime.verifier,
                *limits,
                self._end_tokens,
                self.prime.needs.labels,
                self._transcripts.add_removed,
            ),
            "max_in_flight": self._count_oversampled() + warm_up,
            "max_examined": math.ceil(size * settings.max_examined),
            "partial": settings.on_exhausted == "partial",
            "trainer_mode": self.trainer_mode,
            "trainer_config": mode,
            "max_off_policy_threshold": sampler.max_off_policy_threshold,
            "max_off_policy_strategy": sampler.max_off_policy_strategy,
            "sampler_kwargs": sampler.sampler_kwargs,
            "refill_fn": self._add_prompts_to_generate,
            "poll_interval": buffers.POLL_SECONDS.get(self.config.trainer.device, 0.5),
        }
        if self.trainer_mode != "sync":
            return buffers.PromptFilterReplayBufferAsync(**options)
        return buffers.PromptFilterReplayBuffer(requeue=self._requeue_prompts, **options)

    @property
    def _requeues_prompts(self) -> bool:
        return isinstance(self.replay_buffer, buffers.PromptFilterReplayBuffer)

    @property
    def _buffers_prompts(self) -> bool:
        """Return whether prompts stay in the buffer between steps, as in asynchronous modes."""
        return isinstance(self.replay_buffer, buffers.PromptFilterReplayBufferAsync)

    def _count_oversampled(self) -> int:
        factor = self.prime.filter.oversample if self.prime.filter.enable else 1.0
        return math.ceil(self.config.data.train_batch_size * factor)

    def _add_batch_to_generate(self) -> None:
        """Submit the prompts of a step, or in asynchronous modes those that the system may hold."""
        missing = self._count_oversampled()
        if self._requeues_prompts or self._buffers_prompts:
            missing = self.replay_buffer.prompts_to_start(self.config.data.train_batch_size)
        if missing > 0:
            self._add_prompts_to_generate(missing)

    def _fetch_one_gen_batch(self) -> TensorDict:
        """Return the next prompt: from the queue, or a new one with a reproducible id."""
        if self._queued_prompts:
            prompt = self._queued_prompts.popleft()
        else:
            prompt = super()._fetch_one_gen_batch()
            set_uids(prompt, [f"{self._prompts_fetched:012d}"])
            if self._prompts_fetched == 0:
                # Fail at the first prompt, not at the first checkpoint.
                pack_prompts(prompt)
            self._prompts_fetched += 1
        if self._requeues_prompts:
            self._prompt_of_uid[_uids(prompt)[0]] = prompt.copy()
        return prompt

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        if self._requeues_prompts:
            self.replay_buffer.on_submit(_uids(batch))
        return super()._submit_batch_to_rollout(batch)

    def _requeue_prompts(self, uids: list[str]) -> None:
        """Put prompts back in front of the queue, in order, and drop those of the past step."""
        for uid in reversed(uids):
            self._queued_prompts.appendleft(self._prompt_of_uid[uid])
        self._prompt_of_uid.clear()

    # ---- models alongside the policy -------------------------------------------------------------

    @cached_property
    def prm_models(self) -> PRMModels | None:
        """Return the implicit PRM, or a frozen model in its place."""
        if self.prm_settings is None:
            return None
        return build_prm(self.config, self.prm_settings, self.prime, self.tokenizer.eos_token_id)

    @cached_property
    def scorer(self) -> Scorer | None:
        """Return the scorer that gives the process rewards."""
        if self.prime.needs.step_scores:
            process = self.prime.process
            if isinstance(process, StepScorerSettings):
                return StepRewardModel(build_shaping(process))
            return StepRewardModel(ProcessShaping())
        return None if self.prm_models is None else self.prm_models.prm

    @cached_property
    def average(self) -> PolicyAverage | None:
        """Return the running average of the policy, if the policy is pulled toward it."""
        if self.prime.anchor is None:
            return None
        return build_average(self.config.actor_rollout_ref, self.prime.anchor.decay)

    @property
    def _side_models(self) -> list[SideModel]:
        return [model for model in (self.prm_models, self.average) if model is not None]

    @property
    def _learners(self) -> list[SideModel]:
        return [model for model in self._side_models if model.checkpoint_folder]

    @property
    def resource_pool_to_cls(self) -> dict:
        """Return each pool's worker classes; verl's ``_setup`` sets them before they start."""
        return self._resource_pool_to_cls

    @resource_pool_to_cls.setter
    def resource_pool_to_cls(self, pools: dict) -> None:
        pool = self.resource_pool_manager.resource_pool_dict["global_pool"]
        for model in self._side_models:
            pools[pool].update(model.worker_classes(ray.remote(ImplicitPRMWorker)))
        self._resource_pool_to_cls = pools

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        refuse(check_amount(self.config, len(self.train_dataset)))
        if (
            isinstance(self.prm_settings, TrainedPRMSettings)
            and self.config.prm.optim.total_training_steps <= 0
        ):
            with open_dict(self.config):
                # The schedule advances once per update of the PRM.
                steps = self.total_training_steps * self.parameter_sync_step
                self.config.prm.optim.total_training_steps = max(1, steps)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        multiple = super()._get_required_batch_multiple(dp_size)
        return (
            multiple
            if self.prm_models is None
            else math.lcm(multiple, self.prm_models.prm.mini_batch_rows)
        )

    # ---- checkpoints -----------------------------------------------------------------------------

    def _load_checkpoint(self) -> None:
        if self.prime.needs.target_logits:
            self.actor_rollout_wg.execute_with_func_generator(install_targets)
        for model in self._side_models:
            model.attach(self.actor_rollout_wg)
        super()._load_checkpoint()
        if self.global_steps > 0:
            folder = Path(self.config.trainer.resume_from_path)
            for model in self._learners:
                model.load(str(folder), self.config.trainer.del_local_ckpt_after_load)
            self._load_prime_state(folder)
            if self._buffers_prompts:
                self.replay_buffer.drop_orphans()

    def _load_prime_state(self, folder: Path) -> None:
        path = folder / STATE_FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing: {folder} is not a checkpoint of this version of prime_ext"
            )
        state = read_json(path)
        if self.trainer_mode == "sync" and state["prompts_in_system"]:
            logger.warning(
                "%s was saved by an asynchronous trainer: the %d prompts it was generating are"
                " skipped in this epoch",
                folder,
                state["prompts_in_system"],
            )
        self._queued_prompts = deque(map(unpack_prompts, state["queued_prompts"]))
        self._prompts_fetched = state["prompts_fetched"]
        if self._requeues_prompts and state["acceptance_rate"] is not None:
            self.replay_buffer.acceptance_rate = state["acceptance_rate"]
        if self.gate is not None and state["gate_pairs"] is not None:
            self.gate.right, self.gate.total = state["gate_pairs"]
        if self.config.algorithm.use_kl_in_reward and state["kl_coefficient"] is not None:
            self.kl_ctrl_in_reward.value = state["kl_coefficient"]

    def _save_prime_state(self, folder: Path) -> None:
        kl_control = getattr(self, "kl_ctrl_in_reward", None)
        state = {
            "queued_prompts": list(map(pack_prompts, self._queued_prompts)),
            "prompts_fetched": self._prompts_fetched,
            "acceptance_rate": (
                self.replay_buffer.acceptance_rate if self._requeues_prompts else None
            ),
            # verl saves these prompts itself, with its store of rollouts.
            "prompts_in_system": self.replay_buffer.count_prompts() if self._buffers_prompts else 0,
            "gate_pairs": None if self.gate is None else (self.gate.right, self.gate.total),
            "kl_coefficient": None if kl_control is None else kl_control.value,
        }
        # A dataset may hold NaN.
        write_text(folder / STATE_FILE, json.dumps(state))

    def _describe_prm(self) -> dict[str, Any]:
        """Return this step's description for :mod:`prime_ext.generate.prm_description`."""
        prm = self.config.prm
        return {
            "variant": variant_line(self.config),
            "step": self.global_steps,
            "prm": model_name(prm.model.path),
            # If the policy is the reference, only its initial model has a name.
            "reference": model_name(
                prm.reference_path if prm.reference == "frozen" else prm.model.path
            ),
            "reference_mode": prm.reference,
            "reference_moves": prm.reference == "policy",
            "loss": prm.get("loss"),
            "beta": prm.beta,
        }

    def _save_more(self, folder: Path) -> None:
        # verl 0.9.1 copies nothing to trainer.default_hdfs_dir either.
        for model in self._learners:
            model.save(str(folder), self.global_steps)
        if self.prm_models is not None:
            write_json(folder / PRM_DESCRIPTION, self._describe_prm())
        self._save_prime_state(folder)

    # ---- one step --------------------------------------------------------------------------------

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Run verl's step, and add the metrics of the filter."""
        batch = super().step(metrics, timing_raw)
        if self._buffers_prompts:
            metrics.update(self.replay_buffer.step_metrics())
        return batch

    @cached_property
    def _cutter(self) -> ResponseCutter | None:
        return ResponseCutter(self.prime.steps, self.tokenizer) if self.prime.needs.steps else None

    @cached_property
    def _watch(self) -> StepWatch | None:
        """Return the watch for responses of one step, where these get no reward."""
        process = self.prime.process
        if not isinstance(process, StepScorerSettings) or not process.zeroes_single_steps:
            return None
        return StepWatch(self.prime.steps.name)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Run verl's computation (KL penalty, rollout correction), then PRIME's step."""
        store = TransferQueueStore(super()._compute_advantage(batch, metrics))
        config = self.config.algorithm
        rollouts = load_rollouts(
            store, self.prime, self.global_steps, config.use_kl_in_reward, self._cutter
        )
        if self._watch is not None:
            rows = [row for row, padding in enumerate(store.padding) if not padding]
            infos = [reward_info(store.keys[row], rollouts.extras[row]) for row in rows]
            counts = [info["n_steps"] for info in infos]
            self._watch.look(counts, lambda: self._decode(store.select(rows)))
        finished = self.replay_buffer.count_rollouts() if self._buffers_prompts else 0
        result = prime_step(rollouts, self.scorer, self.gate, self.prime, config.gamma, config.lam)
        if self._buffers_prompts and self.prm_models is not None:
            metrics["prime/rollouts_during_prm/total"] = (
                self.replay_buffer.count_rollouts() - finished
            )
        metrics.update(result.metrics)
        if self.config.actor_rollout_ref.rollout.agent.default_agent_loop not in SINGLE_TURN_LOOPS:
            loop_extras = [
                extra
                for extra, padding in zip(rollouts.extras, store.padding, strict=True)
                if not padding
            ]
            metrics.update(
                {f"agent/{name}": value for name, value in average_counts(loop_extras).items()}
            )
        for name, seconds in result.seconds.items():
            self.timing_raw[name] = self.timing_raw.get(name, 0.0) + seconds
        self._kl_coefficients = result.kl_coefficients
        with marked_timer("transcripts", self.timing_raw):
            self._transcripts.add_prime(rollouts, result, self.prime)
        return store.write(advantages=result.advantage_BT, returns=result.return_BT)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Run verl's update, with the KL coefficients that its loss reads."""
        if self.average is not None:
            with marked_timer("policy_average", self.timing_raw):
                self.average.follow()
        batch.extra_info[COEFFICIENTS] = self._kl_coefficients
        batch = super()._update_actor(batch, metrics)
        for role in self._kl_coefficients:
            # verl puts its prefix before every metric of a loss.
            if (kl := metrics.pop(f"actor/kl_to_{role}", None)) is not None:
                metrics[f"prime/kl/{role}"] = kl
        return batch


def _uids(prompts: TensorDict) -> list[str]:
    return [str(uid) for uid in prompts["uid"]]
