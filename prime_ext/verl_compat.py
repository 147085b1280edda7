# SPDX-License-Identifier: Apache-2.0
"""Every name of verl that prime_ext relies on beyond its documented registries, and a check that they are there.

verl calls these names private or moves them without notice; the version is pinned for that reason. When verl is
upgraded, this list says what has to be looked at.
"""

import importlib
import inspect
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

SUPPORTED_VERL = "0.9.1"


@dataclass(frozen=True)
class VerlName:
    """A name of verl: where it is, what it is for, and (optionally) a text its source must contain."""

    module: str
    attribute: str
    used_for: str
    source_contains: str = ""


_TRAINER = "verl.trainer.ppo.v1.trainer_base"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_SEPARATE = "verl.trainer.ppo.v1.trainer_separate_async"
_WORKERS = "verl.workers.engine_workers"

VERL_NAMES = (
    VerlName(_TRAINER, "register_trainer", "registering the PRIME trainer"),
    VerlName(_TRAINER, "PPOTrainer._build_replay_buffer", "the accuracy band"),
    VerlName(_TRAINER, "PPOTrainer._init_dataloader", "one prompt per fetch; the PRM's schedule"),
    VerlName(
        _TRAINER,
        "PPOTrainer._setup",
        "adding the PRM to the actor's worker processes",
        "self.resource_pool_to_cls = {pool: {} for pool in",
    ),
    VerlName(_TRAINER, "PPOTrainer._load_checkpoint", "starting and resuming the PRM"),
    VerlName(_TRAINER, "PPOTrainer._save_checkpoint", "saving the PRM"),
    VerlName(_TRAINER, "PPOTrainer.init", "locking the folder of the run", "self._setup()"),
    VerlName(_TRAINER, "PPOTrainer.fit", "watching the workers while it trains", "self.agent_loop_manager = agent_"),
    *(VerlName(_TRAINER, name, "one line for each step on the console") for name in ("Tracking", "tqdm", "pprint")),
    VerlName(_TRAINER, "PPOTrainer.get_reward_handles", "watching the reward workers"),
    VerlName("verl.workers.rollout.llm_server", "LLMServerManager.get_replicas", "watching the rollout servers"),
    VerlName(
        "verl.experimental.agent_loop.agent_loop",
        "AgentLoopManager._init_agent_loop_workers",
        "watching the agent-loop workers",
        "self.agent_loop_workers = []",
    ),
    VerlName(_TRAINER, "PPOTrainer._compute_advantage", "PRIME's advantage"),
    VerlName(
        _TRAINER,
        "PPOTrainer._balance_batch",
        "rewards at steps, and dropping responses without a reward (pspo_*)",
        "upsample_batch_to_divisible_size(batch",
    ),
    VerlName(
        "verl.experimental.reward_loop.reward_manager.naive",
        "NaiveRewardManager.run_single",
        "the reward manager naive_with_prompt",
        'data_item.non_tensor_batch.get("extra_info", {})',
    ),
    VerlName("verl.experimental.reward_loop.reward_manager.base", "RewardManagerBase", "the reward manager pspo_wrs"),
    VerlName(
        "verl.experimental.agent_loop.agent_loop",
        "AgentLoopWorker._compute_score",
        "the reward manager pspo_wrs: what it is given of a response",
        'final_output.extra_fields["reward_extra_info"] = result["reward_extra_info"]',
    ),
    VerlName(
        "verl.experimental.agent_loop.tool_agent_loop",
        "ToolAgentLoop._call_tool",
        "bounded_tool_agent: limits around a call",
        "Error executing tool '{tool_name}'",
    ),
    VerlName(
        "verl.experimental.agent_loop.tool_agent_loop",
        "ToolAgentLoop._handle_generating_state",
        "seeded_tool_agent: a seed for every turn",
        "sampling_params=sampling_params",
    ),
    VerlName(
        "verl.experimental.agent_loop.tool_parser", "ToolParser._registry", "refusing unknown parsers before the start"
    ),
    VerlName(_TRAINER, "PPOTrainer._get_required_batch_multiple", "padding to the PRM's mini-batch"),
    VerlName(_TRAINER, "PPOTrainer._fetch_one_gen_batch", "prompts with stable ids"),
    VerlName(_TRAINER, "PPOTrainer._submit_batch_to_rollout", "knowing what was submitted"),
    VerlName(_TRAINER, "PPOTrainer.prepare_step", "oversampling", "self._add_batch_to_generate()"),
    VerlName(_TRAINER, "PPOTrainer.step", "metrics of a step of several mini-batches", "self.prepare_step()"),
    VerlName(_TRAINER, "PPOTrainer._add_prompts_to_generate", "refilling"),
    VerlName("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync", "the base of prime_sync"),
    VerlName(
        _TRAINER,
        "PPOTrainer._add_async_warmup_batches",
        "prompts in the system after a resume",
        "target_prompts - restored_prompts",
    ),
    VerlName(
        _TRAINER,
        "PPOTrainer._reissue_inflight_prompts",
        "prompts that were generating when a checkpoint was saved",
        "self.agent_loop_manager.generate_sequences(batch)",
    ),
    VerlName(
        "verl.trainer.ppo.v1.trainer_colocate_async", "PPOTrainerColocateAsync", "the base of prime_colocate_async"
    ),
    VerlName(_SEPARATE, "PPOTrainerSeparateAsync", "the base of prime_separate_async"),
    VerlName(
        _SEPARATE,
        "PPOTrainerSeparateAsync._init_resource_pool_mgr",
        "snapshots of the policy",
        "ray.remote(DetachActorWorker)",
    ),
    VerlName(_SEPARATE, "PPOTrainerSeparateAsync._setup", "logging without hybrid replicas", "flush=True"),
    VerlName(_SEPARATE, "PPOTrainerSeparateAsync._enable_hybrid_replicas", "logging without hybrid replicas"),
    VerlName(
        "verl.experimental.separation.engine_workers",
        "DetachActorWorker.save_model_to_cpu",
        "snapshots of the policy",
        "self.copy_handler(self.actor.engine.module)",
    ),
    VerlName("verl.trainer.ppo.utils", "Role", "snapshots of the policy"),
    VerlName(_BUFFER, "ReplayBuffer._sync_metadata_from_transfer_queue", "finding finished rollouts"),
    VerlName(_BUFFER, "ReplayBuffer._clear_groups", "dropping rejected prompts"),
    VerlName(_BUFFER, "ReplayBuffer._materialize_batch", "handing out the batch"),
    VerlName(_BUFFER, "ReplayBuffer._wait_for_next_poll", "waiting for rollouts"),
    VerlName(_BUFFER, "ReplayBufferAsync._terminal_eviction_reasons", "the accuracy band"),
    VerlName(_BUFFER, "ReplayBufferAsync._stale_terminal_keys", "staleness of groups with failed rollouts"),
    VerlName(_BUFFER, "ReplayBufferAsync._has_enough_samples", "the bound on examined prompts"),
    VerlName(
        _BUFFER, "ReplayBufferAsync.wait_for_sampleable", "one new prompt for each evicted one", "self.refill_fn(len("
    ),
    VerlName(_BUFFER, "ReplayBuffer._select_prompt_uids", "taking the earliest prompts first"),
    VerlName(_WORKERS, "TrainingWorker.infer_batch", "scoring"),
    VerlName(_WORKERS, "TrainingWorker.train_mini_batch", "training the PRM"),
    VerlName(_WORKERS, "TrainingWorker.train_mini_batch", "the PRM's bias", "self.train_batch(mini_batch_td)"),
    VerlName(
        "verl.workers.engine.fsdp.transformer_impl",
        "FSDPEngine.optimizer_step",
        "the PRM's bias: it steps when the optimiser does",
        "self.optimizer.step()",
    ),
    VerlName("verl.trainer.ppo.padding_utils", "upsample_batch_to_divisible_size", "rows that only the PRM sees"),
    VerlName(_WORKERS, "TrainingWorker.set_loss_fn", "training the PRM"),
    VerlName(_WORKERS, "TrainingWorker.reset", "building the PRM"),
    VerlName("verl.workers.config", "TrainingWorkerConfig", "building the PRM"),
    VerlName("verl.workers.utils.padding", "response_from_nested", "reading log-probabilities"),
    VerlName("verl.workers.utils.padding", "response_to_nested", "writing advantages"),
    VerlName("verl.utils.seqlen_balancing", "get_seqlen_balanced_partitions", "balancing the PRM's mini-batches"),
    VerlName("verl.utils.seqlen_balancing", "calculate_workload", "balancing the PRM's mini-batches"),
    VerlName("verl.utils.checkpoint.checkpoint_manager", "find_latest_ckpt_path", "resuming"),
    VerlName("verl.single_controller.base.decorator", "make_nd_compute_dataproto_dispatch_fn", "PRM worker methods"),
    VerlName(
        "verl.utils.tokenizer.continuous_token_wiring",
        "logger",
        "hiding what verl repeats for every rollout",
    ),
    VerlName("verl.utils.distributed", "initialize_global_process_group", "CPU mode: gloo; offline training"),
    VerlName("verl.utils.tracking", "Tracking", "offline training: loggers"),
    VerlName(
        "verl.workers.engine.fsdp.transformer_impl",
        "FSDPEngine.get_per_tensor_param",
        "offline training: the final model",
    ),
    VerlName("verl.utils.distributed", "initialize_global_process_group_ray", "CPU mode: gloo"),
    VerlName("verl.utils.model", "load_valuehead_model", "CPU mode: critics"),
    VerlName("verl.workers.rollout.base", "_ROLLOUT_REGISTRY", "CPU mode: rollouts by transformers"),
    VerlName("verl.workers.engine.fsdp.transformer_impl", "FSDPEngine._build_fsdp_module", "CPU mode: engines"),
    VerlName(
        "verl.workers.engine.fsdp.transformer_impl",
        "FSDPEngine._build_model_optimizer",
        "prm.trainable_layers",
        "module = self._build_module()",
    ),
    VerlName("verl.workers.engine.fsdp.transformer_impl", "FSDPEngineWithLMHead", "CPU mode: engines"),
    VerlName("verl.workers.engine.fsdp.transformer_impl", "FSDPEngineWithValueHead", "CPU mode: engines"),
    VerlName("verl.checkpoint_engine.base", "CheckpointEngineRegistry", "CPU mode: weights to standalone servers"),
    VerlName("verl.checkpoint_engine.base", "CheckpointEngine", "CPU mode: weights to standalone servers"),
    VerlName("verl.workers.rollout.llm_server", "FullyAsyncLLMServerClient", "CPU mode: interrupted rollouts"),
    VerlName(
        "verl.models.transformers.monkey_patch",
        "apply_monkey_patch",
        "fused kernels for each model on its own",
        "patch_forward_with_backends(model, use_fused_kernels=use_fused_kernels, fused_kernels_backend",
    ),
    VerlName("verl.models.transformers.dense_common", "CausalLMOutputForPPO", "chunked log-probabilities"),
    VerlName(
        "verl.trainer.ppo.v1",
        "agent_loop_tq",
        "greedy responses (prime.outcome.estimator=remax)",
        'do_sample = prompt.pop("__do_sample__", True)',
    ),
    VerlName(
        "verl.workers.utils.losses",
        "value_loss",
        "the critic's target (estimator gae)",
        'data.select("values", "returns", "response_mask")',
    ),
    VerlName(
        "verl.workers.engine.fsdp.transformer_impl",
        "FSDPEngine.forward_backward_batch",
        "leaving rollouts out of the update (prime.selection)",
        'batch_num_tokens = data["loss_mask"].sum()',
    ),
    VerlName(
        _TRAINER, "PPOTrainer._update_actor", "targets of the policy's loss", "batch.extra_info.update(extra_info)"
    ),
    VerlName(
        _WORKERS,
        "ActorRolloutRefWorker.update_actor",
        "targets of the policy's loss",
        "self.actor.train_mini_batch(data=data)",
    ),
    VerlName(
        "verl.workers.engine.fsdp.transformer_impl",
        "FSDPEngineWithLMHead.prepare_model_outputs",
        "targets of the policy's loss: logits of a micro-batch",
        "logits_processor_func(student_logits=logits_rmpad.unsqueeze(0), data=micro_batch)",
    ),
    VerlName("verl.workers.utils.losses", "ppo_loss", "targets of the policy's loss", "config.global_batch_info["),
    VerlName("transfer_queue", "kv_batch_get", "reading rollouts"),
    VerlName("transfer_queue", "kv_batch_put", "writing scores and advantages"),
)


def check_verl() -> list[str]:
    """Check the version of verl and each name of :data:`VERL_NAMES`.

    Returns:
        One actionable line per problem; empty when everything is as expected.
    """
    problems = []
    try:
        installed = version("verl")
    except PackageNotFoundError:
        return [f"verl is not installed; install verl=={SUPPORTED_VERL}"]
    if installed != SUPPORTED_VERL:
        problems.append(
            f"verl {installed} is installed, prime_ext needs {SUPPORTED_VERL}: pip install verl=={SUPPORTED_VERL}"
        )
    return [*problems, *missing_names()]


def missing_names() -> list[str]:
    """One line for each of :data:`VERL_NAMES` that the verl which is imported does not have, or has otherwise."""
    problems = []
    for name in VERL_NAMES:
        try:
            target = importlib.import_module(name.module)
            for part in name.attribute.split("."):
                target = getattr(target, part)
            if name.source_contains and name.source_contains not in inspect.getsource(target):
                raise AttributeError(f"its source no longer contains {name.source_contains!r}")
        except (ImportError, AttributeError) as error:
            problems.append(
                f"{name.module}.{name.attribute}, needed for {name.used_for}, is gone or changed ({error}); "
                f"install verl=={SUPPORTED_VERL} or adapt prime_ext/verl_compat.py"
            )
    return problems


def require_verl_name(module: ModuleType, name: str) -> Any:
    """Return ``module.name``, where ``name`` may be dotted.

    Raises:
        RuntimeError: the name is gone, which means that verl is not the version that prime_ext was written for.
    """
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise RuntimeError(
                f"prime_ext relies on {module.__name__}.{name}, which this verl does not have; "
                f"install verl=={SUPPORTED_VERL}."
            )
        value = getattr(value, part)
    return value
