# SPDX-License-Identifier: Apache-2.0
"""vLLM in processes of this machine: tensor parallel within a copy of the model, data parallel over copies.

Responses come out one by one, as they are finished.
"""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prime_ext.generate.backend import BackendError, Request, Response
from prime_ext.generate.engine_processes import EngineProcesses, Failed
from prime_ext.generate.local_model import LocalModel
from prime_ext.generate.options import BackendOptions
from prime_ext.generate.vllm_engine import EngineSettings, Job, VLLMEngine
from prime_ext.utils.files import read_json

# Adapter ranks that vLLM has kernels for.
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_BATCH_SIZE = 256


class VLLMBackend:
    """A model in vLLM. The processes start with the first responses, so that checks cost nothing.

    Args:
        local: what is known of the model.
        settings: of every copy's engine.
        environments: environment variables of every copy, one mapping each.
        batch_size: responses that a copy makes at a time.
    """

    def __init__(
        self, local: LocalModel, settings: EngineSettings, environments: Sequence[dict[str, str]], batch_size: int
    ) -> None:
        self.local, self.encoder, self.settings = local, local.encoder, settings
        self.environments, self.batch_size = environments, batch_size
        self.processes: EngineProcesses | None = None

    def description(self) -> dict[str, Any]:
        parallel = self.settings.arguments["tensor_parallel_size"]
        return {"backend": "vllm", **self.local.description(), "tensor_parallel": parallel}

    def check(self, requests: Sequence[Request]) -> None:
        self.encoder.check(requests)
        for request in requests:
            if request.sampling.num_beams > 1:
                raise BackendError(
                    f"request {request.key}: --backend vllm has no beams (num_beams {request.sampling.num_beams}); use "
                    "--backend transformers"
                )

    def shown(self, request: Request) -> str:
        return self.encoder.shown(request.prompt)

    def generate(self, requests: Sequence[Request]) -> Iterator[Response]:
        answerable = []
        for request in requests:
            if (problem := self.encoder.problem(request)) is not None:
                yield Response(request.key, "", 0, 0, "failed", problem)
            else:
                answerable.append(request)
        if self.processes is None:
            copies = [self.settings] * len(self.environments)
            # As many again wait in the process, so that its batch stays full between two messages.
            self.processes = EngineProcesses(VLLMEngine, copies, self.environments, 2 * self.batch_size)
        jobs = [Job(self.encoder.ids(request.prompt), request.sampling, request.seed) for request in answerable]
        for place, output in self.processes.run(jobs):
            request, n_prompt = answerable[place], len(jobs[place].ids)
            if isinstance(output, Failed):
                yield Response(request.key, "", 0, n_prompt, "failed", output.reason)
            else:
                detail = "vLLM ended the response" if output.finish == "failed" else ""
                yield Response(request.key, output.text, output.tokens, n_prompt, output.finish, detail)

    def close(self) -> None:
        if self.processes is not None:
            self.processes.close()
            self.processes = None


def device_shares(n_devices: int, visible: str | None, tensor_parallel: int, data_parallel: int) -> list[list[str]]:
    """Devices of every copy, as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        n_devices: that can be used.
        visible: ``CUDA_VISIBLE_DEVICES`` of this process.
        tensor_parallel: devices per copy.
        data_parallel: copies.

    Raises:
        BackendError: there are too few.
    """
    names = visible.split(",") if visible else [str(number) for number in range(n_devices)]
    wanted = tensor_parallel * data_parallel
    if wanted > len(names):
        raise BackendError(
            f"--tensor-parallel {tensor_parallel} times --data-parallel {data_parallel} needs {wanted} devices, there "
            f"are {len(names)}"
        )
    return [names[start : start + tensor_parallel] for start in range(0, wanted, tensor_parallel)]


def lora_rank(adapter: Path) -> int:
    """The smallest rank that vLLM has kernels for and an adapter fits into.

    Raises:
        BackendError: it is too large, or the folder is not here.
    """
    if not (adapter / "adapter_config.json").is_file():
        raise BackendError(f"--backend vllm needs the adapter {adapter} as a folder; download it first")
    rank = int(read_json(adapter / "adapter_config.json").get("r", 0))
    fitting = [known for known in _LORA_RANKS if known >= rank]
    if not fitting:
        raise BackendError(f"{adapter} has rank {rank}, vLLM takes at most {_LORA_RANKS[-1]}; merge it into its base")
    return fitting[0]


def open_vllm(options: BackendOptions) -> VLLMBackend:
    """Prepare a model.

    Raises:
        BackendError: no vLLM, no such model, or too few devices.
    """
    if importlib.util.find_spec("vllm") is None:
        raise BackendError(
            "vLLM is not installed: pip install 'prime-ext[gpu]', or use --backend transformers or --backend server"
        )
    import torch

    on_cpu = not torch.cuda.is_available()
    tensor_parallel, data_parallel = options.tensor_parallel or 1, options.data_parallel or 1
    # One process per copy: the engine's core is not given another one.
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    environments = [environment] * data_parallel
    if not on_cpu:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        shares = device_shares(torch.cuda.device_count(), visible, tensor_parallel, data_parallel)
        environments = [{**environment, "CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]
    elif tensor_parallel > 1:
        raise BackendError(f"--tensor-parallel {tensor_parallel} needs GPUs; on the CPU use --data-parallel")
    local = LocalModel(options, on_cpu)
    source = local.source
    batch_size = options.batch_size or _BATCH_SIZE
    arguments: dict[str, Any] = {
        "model": source.path,
        "revision": source.revision,
        "dtype": local.dtype,
        "trust_remote_code": local.remote_code,
        "tensor_parallel_size": tensor_parallel,
        "max_model_len": local.encoder.context,
        "max_num_seqs": batch_size,
        "disable_log_stats": True,
        **options.given("gpu_memory_utilization"),
    }
    if source.adapter is not None:
        arguments |= {"enable_lora": True, "max_lora_rank": lora_rank(Path(source.adapter)), "max_loras": 1}
    return VLLMBackend(local, EngineSettings(arguments, source.adapter), environments, batch_size)
