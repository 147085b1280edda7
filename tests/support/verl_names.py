# SPDX-License-Identifier: Apache-2.0
"""Every name of verl that prime_ext relies on in addition to its documented registries, and a check that they exist.

verl calls these names private or moves them without notice; the version is pinned for that reason. After an upgrade of
verl this list shows what needs a look (tests/canary.py, docs/how_to/upgrading_verl.md).
"""

import importlib
import inspect
from operator import attrgetter

_TRAINER = "verl.trainer.ppo.v1.trainer_base"
_PPO = f"{_TRAINER}:PPOTrainer"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_SEPARATE = "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync"
_WORKERS = "verl.workers.engine_workers"
_FSDP = "verl.workers.engine.fsdp.transformer_impl"
_LOOP = "verl.experimental.agent_loop"
_MANAGER = "verl.experimental.reward_loop.reward_manager"

# Module and name: what it is for, and a text that its source must contain ("" for any).
VERL_NAMES = {
    f"{_TRAINER}:register_trainer": ("registering the PRIME trainer", ""),
    f"{_PPO}._build_replay_buffer": ("the accuracy band", ""),
    f"{_PPO}._init_dataloader": ("one prompt per fetch; the PRM's schedule", ""),
    f"{_PPO}._setup": ("adding the PRM to workers", "self.resource_pool_to_cls = {pool: {} for pool in"),
    f"{_PPO}._load_checkpoint": ("starting and resuming the PRM", ""),
    f"{_PPO}._save_checkpoint": ("saving the PRM", ""),
    f"{_PPO}.init": ("locking the folder of the run", "self._setup()"),
    f"{_PPO}.fit": ("watching the workers while it trains", "self.agent_loop_manager = agent_"),
    f"{_TRAINER}:Tracking": ("one line for each step on the console", ""),
    f"{_TRAINER}:tqdm": ("one line for each step on the console", ""),
    f"{_PPO}.get_reward_handles": ("watching the reward workers", ""),
    f"{_PPO}._compute_advantage": ("PRIME's advantage", ""),
    f"{_PPO}._balance_batch": ("pspo_*: dropped responses", "upsample_batch_to_divisible_size(batch"),
    f"{_PPO}._get_required_batch_multiple": ("padding to the PRM's mini-batch", ""),
    f"{_PPO}._fetch_one_gen_batch": ("prompts with stable ids", ""),
    f"{_PPO}._submit_batch_to_rollout": ("knowing what was submitted", ""),
    f"{_PPO}.prepare_step": ("oversampling", "self._add_batch_to_generate()"),
    f"{_PPO}.step": ("metrics of a step of several mini-batches", "self.prepare_step()"),
    f"{_PPO}._add_prompts_to_generate": ("refilling", ""),
    f"{_PPO}._add_async_warmup_batches": ("prompts after a resume", "target_prompts - restored_prompts"),
    f"{_PPO}._reissue_inflight_prompts": (
        "prompts after a resume",
        "self.agent_loop_manager.generate_sequences(batch)",
    ),
    f"{_PPO}._update_actor": ("the policy's targets", "batch.extra_info.update(extra_info)"),
    f"{_BUFFER}:ReplayBuffer._sync_metadata_from_transfer_queue": ("finding finished rollouts", ""),
    f"{_BUFFER}:ReplayBuffer._clear_groups": ("dropping rejected prompts", ""),
    f"{_BUFFER}:ReplayBuffer._materialize_batch": ("handing out the batch", ""),
    f"{_BUFFER}:ReplayBuffer._wait_for_next_poll": ("waiting for rollouts", ""),
    f"{_BUFFER}:ReplayBufferAsync._terminal_eviction_reasons": ("the accuracy band", ""),
    f"{_BUFFER}:ReplayBufferAsync._stale_terminal_keys": ("staleness of groups with failed rollouts", ""),
    f"{_BUFFER}:ReplayBufferAsync._has_enough_samples": ("the bound on examined prompts", ""),
    f"{_BUFFER}:ReplayBufferAsync.wait_for_sampleable": ("one new prompt for each evicted one", "self.refill_fn(len("),
    f"{_BUFFER}:ReplayBuffer._select_prompt_uids": ("taking the earliest prompts first", ""),
    _SEPARATE: ("the base of prime_separate_async", ""),
    f"{_SEPARATE}._init_resource_pool_mgr": ("snapshots of the policy", "ray.remote(DetachActorWorker)"),
    f"{_SEPARATE}._setup": ("logging without hybrid replicas", "flush=True"),
    f"{_SEPARATE}._enable_hybrid_replicas": ("logging without hybrid replicas", ""),
    f"{_WORKERS}:TrainingWorker.infer_batch": ("scoring", ""),
    f"{_WORKERS}:TrainingWorker.train_mini_batch": ("training the PRM and its bias", "self.train_batch(mini_batch_td)"),
    f"{_WORKERS}:TrainingWorker.set_loss_fn": ("training the PRM", ""),
    f"{_WORKERS}:TrainingWorker.reset": ("building the PRM", ""),
    f"{_WORKERS}:ActorRolloutRefWorker.update_actor": (
        "the policy's targets",
        "self.actor.train_mini_batch(data=data)",
    ),
    f"{_FSDP}:FSDPEngine.optimizer_step": ("the PRM's bias: it steps when the optimiser does", "self.optimizer.step()"),
    f"{_FSDP}:FSDPEngine.get_per_tensor_param": ("offline training: the final model", ""),
    f"{_FSDP}:FSDPEngine._build_fsdp_module": ("CPU mode: engines", ""),
    f"{_FSDP}:FSDPEngine._build_model_optimizer": ("prm.trainable_layers", "module = self._build_module()"),
    f"{_FSDP}:FSDPEngineWithLMHead": ("CPU mode: engines", ""),
    f"{_FSDP}:FSDPEngineWithValueHead": ("CPU mode: engines", ""),
    f"{_FSDP}:FSDPEngineWithLMHead.prepare_model_outputs": (
        "the policy's targets",
        "logits_processor_func(student_logits=logits_rmpad.unsqueeze(0), data=micro_batch)",
    ),
    f"{_LOOP}.agent_loop:AgentLoopManager._init_agent_loop_workers": (
        "watching the workers",
        "self.agent_loop_workers = []",
    ),
    f"{_LOOP}.agent_loop:AgentLoopWorker._compute_score": (
        "pspo_wrs: what it is given of a response",
        'final_output.extra_fields["reward_extra_info"] = result["reward_extra_info"]',
    ),
    f"{_LOOP}.tool_agent_loop:ToolAgentLoop._call_tool": ("bounded_tool_agent", "Error executing tool '{tool_name}'"),
    f"{_LOOP}.tool_agent_loop:ToolAgentLoop._handle_generating_state": (
        "seeded_tool_agent",
        "sampling_params=sampling_params",
    ),
    f"{_LOOP}.tool_parser:ToolParser._registry": ("refusing unknown parsers before the start", ""),
    f"{_MANAGER}.naive:NaiveRewardManager.run_single": (
        "naive_with_prompt",
        'data_item.non_tensor_batch.get("extra_info", {})',
    ),
    f"{_MANAGER}.base:RewardManagerBase": ("pspo_wrs", ""),
    "verl.workers.rollout.llm_server:LLMServerManager.get_replicas": ("watching the rollout servers", ""),
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync": ("the base of prime_sync", ""),
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync": ("the base of prime_colocate_async", ""),
    "verl.experimental.separation.engine_workers:DetachActorWorker.save_model_to_cpu": (
        "snapshots of the policy",
        "self.copy_handler(self.actor.engine.module)",
    ),
    "verl.trainer.ppo.utils:Role": ("snapshots of the policy", ""),
    "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size": ("rows that only the PRM sees", ""),
    "verl.workers.config:TrainingWorkerConfig": ("building the PRM", ""),
    "verl.workers.utils.padding:response_from_nested": ("reading log-probabilities", ""),
    "verl.workers.utils.padding:response_to_nested": ("writing advantages", ""),
    "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions": ("balancing the PRM's mini-batches", ""),
    "verl.utils.seqlen_balancing:calculate_workload": ("balancing the PRM's mini-batches", ""),
    "verl.utils.checkpoint.checkpoint_manager:find_latest_ckpt_path": ("resuming", ""),
    "verl.single_controller.base.decorator:make_nd_compute_dataproto_dispatch_fn": ("PRM worker methods", ""),
    "verl.utils.tokenizer.continuous_token_wiring:logger": ("hiding what verl repeats for every rollout", ""),
    "verl.utils.distributed:initialize_global_process_group": ("CPU mode: gloo; offline training", ""),
    "verl.utils.tracking:Tracking": ("offline training: loggers", ""),
    "verl.utils.distributed:initialize_global_process_group_ray": ("CPU mode: gloo", ""),
    "verl.utils.model:load_valuehead_model": ("CPU mode: critics", ""),
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY": ("CPU mode: rollouts by transformers", ""),
    "verl.checkpoint_engine.base:CheckpointEngineRegistry": ("CPU mode: weights to standalone servers", ""),
    "verl.checkpoint_engine.base:CheckpointEngine": ("CPU mode: weights to standalone servers", ""),
    "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient": ("CPU mode: interrupted rollouts", ""),
    "verl.models.transformers.monkey_patch:apply_monkey_patch": (
        "fused kernels of each model",
        "patch_forward_with_backends(model, use_fused_kernels=use_fused_kernels, fused_kernels_backend",
    ),
    "verl.models.transformers.dense_common:CausalLMOutputForPPO": ("chunked log-probabilities", ""),
    "verl.trainer.ppo.v1:agent_loop_tq": ("greedy responses of remax", 'do_sample = prompt.pop("__do_sample__", True)'),
    "verl.workers.utils.losses:value_loss": (
        "the critic's target",
        'data.select("values", "returns", "response_mask")',
    ),
    "verl.workers.utils.losses:ppo_loss": ("the policy's targets", "config.global_batch_info["),
    "transfer_queue:kv_batch_get": ("reading rollouts", ""),
    "transfer_queue:kv_batch_put": ("writing scores and advantages", ""),
}


def missing_names() -> list[str]:
    """Return one line for each of :data:`VERL_NAMES` that the imported verl lacks, or that changed there."""
    problems = []
    for key, (purpose, text) in VERL_NAMES.items():
        module, _, name = key.partition(":")
        try:
            found = attrgetter(name)(importlib.import_module(module))
            if text and text not in inspect.getsource(found):
                raise AttributeError(f"its source no longer contains {text!r}")
        except (ImportError, AttributeError) as error:
            problems.append(f"{module}.{name}, needed for {purpose}, is gone or changed ({error})")
    return problems
