# SPDX-License-Identifier: Apache-2.0
"""Every name of verl, TransferQueue and Ray's insides that prime_ext relies on, and a check.

They call these names private or moves them without notice; the version is pinned for that reason.
After an upgrade of verl this list shows what needs a look (tests/canary.sh,
docs/how_to/upgrading_verl.md); ``git grep NAME prime_ext`` shows its use.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name

ROOT = Path(__file__).resolve().parents[2]

_V1 = "verl.trainer.ppo.v1"
_TRAINER = f"{_V1}.trainer_base"
_PPO = f"{_TRAINER}.PPOTrainer"
_BUFFER = f"{_V1}.replay_buffer.ReplayBuffer"
_SEPARATE = f"{_V1}.trainer_separate_async.PPOTrainerSeparateAsync"
_WORKERS = "verl.workers.engine_workers"
_FSDP = "verl.workers.engine.fsdp.transformer_impl"
_LOOP = "verl.experimental.agent_loop"

# What prime_ext overrides, calls or replaces without importing it by name.
MEMBERS = {
    _TRAINER: "Tracking tqdm",
    _PPO: (
        "_build_replay_buffer _init_dataloader _load_checkpoint _save_checkpoint get_reward_handles"
        " _compute_advantage _get_required_batch_multiple _fetch_one_gen_batch"
        " _submit_batch_to_rollout _add_prompts_to_generate"
    ),
    _BUFFER: (
        "_sync_metadata_from_transfer_queue _clear_groups _materialize_batch _wait_for_next_poll "
        "_select_prompt_uids"
    ),
    f"{_BUFFER}Async": "_terminal_eviction_reasons _stale_terminal_keys _has_enough_samples",
    _SEPARATE: "_enable_hybrid_replicas",
    f"{_WORKERS}.TrainingWorker": "infer_batch set_loss_fn reset",
    f"{_FSDP}.FSDPEngine": "get_per_tensor_param _build_fsdp_module _build_module",
    f"{_LOOP}.tool_parser.ToolParser": "_registry",
    f"{_LOOP}.agent_loop.AgentLoopWorker": "_run_agent_loop",
    f"{_LOOP}.agent_loop": "_agent_loop_registry create_continuous_token_builder",
    "verl.workers.rollout.replica.RolloutReplicaRegistry": "_registry",
    "verl.trainer.ppo.core_algos": "POLICY_LOSS_REGISTRY",
    "verl.experimental.reward_loop.reward_manager.registry": "REWARD_MANAGER",
    "verl.experimental.reward_loop.reward_manager.base": "RewardManagerBase",
    "verl.workers.rollout.llm_server": "LLMServerManager.get_replicas FullyAsyncLLMServerClient",
    "verl.workers.rollout.base": "_ROLLOUT_REGISTRY",
    "verl.utils.tokenizer.continuous_token_wiring": "logger",
    f"{_LOOP}.tool_parser": "logger",
    "verl.utils.distributed": "initialize_global_process_group initialize_global_process_group_ray",
    "verl.models.transformers.monkey_patch": "patch_forward_with_backends",
    "verl.utils.import_utils": "load_module load_extern_object",
    "verl.utils.checkpoint.checkpoint_handler.CheckpointHandler": "_load_dataloader_state",
    "verl.utils.model": "load_valuehead_model AutoModelForTokenClassification",
    # Ray's public list of actors needs its dashboard.
    "ray._private.state": "actors",
    "ray._private.utils": "read_ray_address",
    "ray._raylet": "Config",
    "transfer_queue.interface": "_TQ_STORAGE _TQ_CONTROLLER",
    "transfer_queue": "kv_batch_get kv_batch_put kv_list kv_clear async_kv_put",
}
# Texts that the source of an object must contain, because prime_ext counts on what they do.
TEXTS = {
    f"{_PPO}._setup": "self.resource_pool_to_cls = {pool: {} for pool in",
    f"{_PPO}.init": "self._setup()",
    f"{_PPO}.fit": "self.agent_loop_manager = agent_",
    f"{_PPO}._balance_batch": "upsample_batch_to_divisible_size(batch",
    f"{_PPO}.prepare_step": "self._add_batch_to_generate()",
    f"{_PPO}.step": "self.prepare_step()",
    f"{_PPO}._add_async_warmup_batches": "target_prompts - restored_prompts",
    f"{_PPO}._reissue_inflight_prompts": "self.agent_loop_manager.generate_sequences(batch)",
    f"{_PPO}._update_actor": "batch.extra_info.update(extra_info)",
    f"{_BUFFER}Async.wait_for_sampleable": "self.refill_fn(len(",
    f"{_SEPARATE}._init_resource_pool_mgr": "ray.remote(DetachActorWorker)",
    f"{_SEPARATE}._setup": "flush=True",
    f"{_WORKERS}.TrainingWorker.train_mini_batch": "self.train_batch(mini_batch_td)",
    f"{_WORKERS}.ActorRolloutRefWorker.update_actor": "self.actor.train_mini_batch(data=data)",
    f"{_FSDP}.FSDPEngine.optimizer_step": "self.optimizer.step()",
    f"{_FSDP}.FSDPEngine._build_model_optimizer": "module = self._build_module()",
    f"{_FSDP}.FSDPEngineWithLMHead.prepare_model_outputs": (
        "logits_processor_func(student_logits=logits_rmpad.unsqueeze(0), data=micro_batch)"
    ),
    f"{_LOOP}.agent_loop.AgentLoopManager._init_agent_loop_workers": "self.agent_loop_workers = []",
    f"{_LOOP}.agent_loop.AgentLoopWorker._compute_score": (
        'final_output.extra_fields["reward_extra_info"] = result["reward_extra_info"]'
    ),
    f"{_LOOP}.tool_parser.HermesToolParser.extract_tool_calls": (
        'logger.error(f"Failed to decode tool call: {e}")'
    ),
    f"{_LOOP}.tool_agent_loop.ToolAgentLoop._call_tool": "Error executing tool '{tool_name}'",
    f"{_LOOP}.tool_agent_loop.ToolAgentLoop._handle_generating_state": (
        "sampling_params=sampling_params"
    ),
    f"{_LOOP}.tool_agent_loop.ToolAgentLoop._handle_processing_tools_state": (
        "agent_data.user_turns += 1"
    ),
    "verl.experimental.reward_loop.reward_manager.naive.NaiveRewardManager.run_single": (
        'data_item.non_tensor_batch.get("extra_info", {})'
    ),
    "verl.experimental.separation.engine_workers.DetachActorWorker.save_model_to_cpu": (
        "self.copy_handler(self.actor.engine.module)"
    ),
    "verl.models.transformers.monkey_patch.apply_monkey_patch": (
        "patch_forward_with_backends(model, use_fused_kernels=use_fused_kernels,"
        " fused_kernels_backend"
    ),
    "verl.utils.checkpoint.checkpoint_handler.CheckpointHandler.load_checkpoint": (
        "self.resume_global_step = resume_step"
    ),
    f"{_V1}.agent_loop_tq": 'do_sample = prompt.pop("__do_sample__", True)',
    "verl.workers.utils.losses.value_loss": 'data.select("values", "returns", "response_mask")',
    "verl.workers.utils.losses.ppo_loss": "config.global_batch_info[",
}


def imported_names(packages: Sequence[str] = ("verl", "transfer_queue")) -> Iterator[str]:
    """Yield what the modules of prime_ext import from packages."""
    for path in (ROOT / "prime_ext").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.partition(".")[0] in packages:
                yield from (f"{module}.{alias.name}" for alias in node.names)


VERL_NAMES = dict.fromkeys(sorted(imported_names()), "")
VERL_NAMES |= {f"{owner}.{name}": "" for owner, names in MEMBERS.items() for name in names.split()}
VERL_NAMES |= TEXTS


def touched_names() -> Iterator[str]:
    """Yield what modules except verl_adapter patch of others, and verl's private names they use."""
    listed = {name.rpartition(".")[2] for name in VERL_NAMES}
    packages = ("verl", "vllm", "importlib")
    for path in (ROOT / "prime_ext").rglob("*.py"):
        nodes = [] if "verl_adapter" in path.parts else list(ast.walk(ast.parse(path.read_text())))
        imports = [
            node
            for node in nodes
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(packages)
        ]
        others = {
            *packages,
            *(alias.asname or alias.name for node in imports for alias in node.names),
        }
        for node in (node for node in nodes if isinstance(node, ast.Attribute)):
            owner = ast.unparse(node.value)
            replaces = not isinstance(node.ctx, ast.Load)
            known = node.attr in listed and owner not in ("self", "cls", "super()")
            if (
                known
                and (replaces or node.attr.startswith("_"))
                or replaces
                and owner.partition(".")[0] in others
            ):
                yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def missing_names() -> list[str]:
    """Return a line for each of :data:`VERL_NAMES` that the imported verl lacks or has changed."""
    problems = []
    for name, text in VERL_NAMES.items():
        try:
            target = resolve_name(name)
            if text and text not in inspect.getsource(target):
                raise AttributeError(f"its source no longer contains {text!r}")
        except (ImportError, AttributeError) as error:
            problems.append(f"{name} is gone or changed ({error})")
    return problems


if __name__ == "__main__":
    lacking = missing_names()
    print(*lacking, f"{len(lacking)} of {len(VERL_NAMES)} names are gone or changed", sep="\n")
    sys.exit(bool(lacking))
