# SPDX-License-Identifier: Apache-2.0
"""Print the engine that vLLM would make on an H100 of rollout sections, for verl's server.

    python tests/gpu/vllm_engines.py LIBCUDA CONFIG.yaml ...

LIBCUDA has the functions that vLLM's libraries refer to; none is called. Each file is the section
``actor_rollout_ref`` of a run; of the models only config.json is read. Prints one JSON list.
"""

import asyncio
import ctypes
import json
import sys
from types import SimpleNamespace
from typing import Any

# Before vLLM's libraries ask for it.
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)

from vllm import platforms  # noqa: E402
from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402
from vllm.utils import torch_utils  # noqa: E402

platforms._current_platform = torch_utils.current_platform = NonNvmlCudaPlatform()
H100 = {
    "get_device_capability": DeviceCapability(9, 0),
    "get_device_name": "NVIDIA H100 80GB HBM3",
    "device_count": 8,
}
for name, value in (
    H100 | {"get_device_total_memory": 80 * 2**30, "num_compute_units": 132}
).items():
    setattr(NonNvmlCudaPlatform, name, classmethod(lambda cls, *_, value=value, **__: value))

from omegaconf import OmegaConf  # noqa: E402
from transformers import AutoConfig  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.usage.usage_lib import UsageContext  # noqa: E402


class Server(vLLMHttpServer):
    """verl's server, up to where the engine would start."""

    def __init__(self, section: Any):
        self.config = omega_conf_to_dataclass(section.rollout)
        hf_config = AutoConfig.from_pretrained(section.model.path)
        self.model_config = SimpleNamespace(
            **section.model, local_path=section.model.path, hf_config=hf_config
        )
        self.node_rank = 0
        self.nnodes = 1
        self.replica_rank = 1
        self._disaggregation_role = "null"
        self._validate_configs()

    def _should_profile(self) -> bool:
        return False

    async def run_server(self, args: Any) -> None:
        self.engine = AsyncEngineArgs.from_cli_args(args).create_engine_config(
            UsageContext.OPENAI_API_SERVER
        )


def describe(path: str) -> dict[str, Any]:
    server = Server(OmegaConf.load(path))
    asyncio.run(server.launch_server())
    engine = server.engine
    return {
        "max_model_len": engine.model_config.max_model_len,
        "load_format": engine.load_config.load_format,
        "max_num_seqs": engine.scheduler_config.max_num_seqs,
        "num_gpu_blocks_override": engine.cache_config.num_gpu_blocks_override,
        "gpu_memory_utilization": engine.cache_config.gpu_memory_utilization,
        "tensor_model_parallel_size": engine.parallel_config.tensor_parallel_size,
        "lora_rank": engine.lora_config.max_lora_rank if engine.lora_config else 0,
    }


if __name__ == "__main__":
    print(json.dumps([describe(path) for path in sys.argv[2:]]))
