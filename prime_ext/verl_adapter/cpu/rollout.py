# SPDX-License-Identifier: Apache-2.0
"""rollout.name=transformers: the replica that starts the server, the adapter that sends weights.

On an accelerator the server shares the training rank's device and keeps its weights there: for
small models, and where vLLM is not installed.
"""

import os
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch.distributed.device_mesh import DeviceMesh
from verl.plugin.platform import get_platform
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from prime_ext.verl_adapter.cpu import ROLLOUT_NAME
from prime_ext.verl_adapter.cpu.rollout_server import TransformersServer
from prime_ext.verl_adapter.cpu.weights import Weights, pack_in_buckets

# Environment variables that the server needs; Ray starts it in another process.
_FORWARDED_VARIABLES = {"VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES", "OMP_NUM_THREADS"}
_NAMED = f"rollout.name={ROLLOUT_NAME}"


def _node_and_devices(worker: Any) -> tuple[str, dict[str, str]]:
    """Return this training worker's node, and an environment that shares its accelerator."""
    platform = get_platform()
    name = platform.visible_devices_envvar()
    visible = {name: os.environ[name]} if name in os.environ else {}
    # Ray hides the accelerators from an actor that reserves none.
    return ray.get_runtime_context().get_node_id(), visible | dict.fromkeys(
        platform.ray_noset_envvars(), "1"
    )


def _server_name(replica_rank: int, suffix: str = "") -> str:
    return f"{ROLLOUT_NAME}_server_{replica_rank}{suffix}"


class TransformersReplica(RolloutReplica):
    """A rollout server per training rank, on its node. Raises ValueError: a wrong setting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in (
            "tensor_model_parallel_size",
            "data_parallel_size",
            "pipeline_model_parallel_size",
        ):
            if getattr(self.config, name) != 1:
                raise ValueError(f"{_NAMED} runs one replica per rank; set rollout.{name}=1.")
        if self.is_reward_model or self.is_teacher_model:
            raise ValueError(f"{_NAMED} serves the policy only, not a reward or teacher model.")

    async def launch_servers(self) -> None:
        """Start the server actor and wait until its model is loaded."""
        node_id, devices = await self.workers[0].__ray_call__.remote(_node_and_devices)
        name = _server_name(self.replica_rank, self.name_suffix)
        forwarded = {key: os.environ[key] for key in _FORWARDED_VARIABLES & set(os.environ)}
        actor = ray.remote(TransformersServer).options(
            name=name,
            num_cpus=0,
            max_concurrency=self.max_concurrency,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
            runtime_env={"env_vars": devices | forwarded},
        )
        server = actor.remote(self.config, self.model_config)
        await server.__ray_ready__.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name


class TransformersServerAdapter(BaseRollout):
    """The training rank's side, which sends weights to the server of the replica of its rank."""

    def __init__(
        self,
        config: RolloutConfig,
        model_config: HFModelConfig,
        device_mesh: DeviceMesh,
        replica_rank: int = -1,
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank

    async def do_nothing(self, tags: list[str] | None = None) -> None:
        """Do nothing: the server keeps its memory."""

    resume = release = do_nothing

    async def update_weights(  # type: ignore[override]
        self,
        weights: Weights,
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        peft_config: Any = None,
        **kwargs: Any,
    ) -> None:
        """Send all weights; requests in flight finish first with the old ones.

        ValueError: another wire format than named tensors, LoRA adapters, or weights that do not
        match the model.
        """
        if wire_format != "named_tensors":
            raise ValueError(
                f"{_NAMED} cannot receive {wire_format!r}; set checkpoint_engine.backend to naive"
                " or tcp."
            )
        if peft_config is not None:
            raise ValueError(
                f"{_NAMED} cannot serve LoRA adapters; set actor_rollout_ref.model.lora.merge=True."
            )
        bucket_bytes = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        server = ray.get_actor(_server_name(self.replica_rank))
        await server.begin_weight_update.remote()
        try:
            async for bucket in pack_in_buckets(weights, bucket_bytes):
                await server.receive_weights.remote(bucket)
            await server.finish_weight_update.remote(global_steps)
        except BaseException:
            await server.abandon_weight_update.remote()
            raise
