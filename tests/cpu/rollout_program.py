# SPDX-License-Identifier: Apache-2.0
"""Program of the rollout tests: verl's replica and weight adapter for one rollout engine, on a private Ray.

Starts the server as verl's trainer does, generates, sends other weights through the adapter as a training rank does,
generates again, and saves the tokens and log-probabilities:
``python rollout_program.py ROLLOUT_NAME MODEL_PATH OTHER_MODEL_PATH RESULT_FILE``. A program of its own, because Ray
sends the classes of the main module to its workers by value.
"""

import asyncio
import json
import os
import sys
import tempfile

import ray

ENVIRONMENT = ("VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES", "PYTHONPATH")


def rollout_config(name):
    from verl.workers.config import RolloutConfig

    lengths = {"prompt_length": 16, "response_length": 24, "max_model_len": 64}
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 1024, "tensor_model_parallel_size": 1}
    off = {"enforce_eager": True, "free_cache_engine": False, "enable_sleep_mode": False}
    weights = {"dtype": "float32", "load_format": "auto"}
    return RolloutConfig(name=name, calculate_log_probs=True, **lengths, **sizes, **off, **weights)


def model_config(path):
    from verl.workers.config import HFModelConfig

    return HFModelConfig(path=path, override_config={"attn_implementation": "sdpa"})


class TrainingRank:
    """What the rollout sees of a training worker: a process with a rank that holds the weights."""

    def __init__(self, name, model_path):
        from verl.workers.rollout.base import get_rollout_class

        os.environ |= {"RANK": "0", "RAY_LOCAL_WORLD_SIZE": "1"}
        self.adapter = get_rollout_class(name)(rollout_config(name), model_config(model_path), device_mesh=None)

    async def send_weights(self, path, global_steps):
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        await self.adapter.update_weights(iter(model.state_dict().items()), global_steps=global_steps)


async def generate(replica):
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    prompts = [[5, 6, 7, 8], [9, 10], [4, 11, 12, 13, 14, 15]] * 4
    outputs = await asyncio.gather(
        *[
            replica.server_handle.generate.remote(
                prompt_ids=prompt, sampling_params=sampling | {"seed": i}, request_id=f"request-{i}"
            )
            for i, prompt in enumerate(prompts)
        ]
    )
    return [
        {"prompt": p, "tokens": list(o.token_ids), "log_probs": o.log_probs, "steps": o.extra_fields["global_steps"]}
        for p, o in zip(prompts, outputs, strict=True)
    ]


async def run(name, model_path, other_model_path):
    from verl.workers.rollout.replica import RolloutMode, get_rollout_replica_class

    rank = ray.remote(TrainingRank).options(num_cpus=1, num_gpus=1).remote(name, model_path)
    replica = get_rollout_replica_class(name)(
        replica_rank=0, config=rollout_config(name), model_config=model_config(model_path), gpus_per_node=1
    )
    replica.rollout_mode, replica.workers = RolloutMode.HYBRID, [rank]
    await replica.launch_servers()
    results = {"before": await generate(replica)}
    await replica.sleep()
    await rank.send_weights.remote(other_model_path, 7)
    results["after"] = await generate(replica)
    await replica.abort_all_requests()
    await replica.resume_generation()
    results["resumed"] = await generate(replica)
    return results


def main(name, model_path, other_model_path, result_file):
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as directory:
        ray.init(
            address="local",
            num_cpus=8,
            num_gpus=1,  # logical: verl's resource pools count nothing else
            include_dashboard=False,
            _temp_dir=directory,
            runtime_env={"env_vars": {key: os.environ[key] for key in ENVIRONMENT if key in os.environ}},
        )
        try:
            results = asyncio.run(run(name, model_path, other_model_path))
        finally:
            ray.shutdown()
    with open(result_file, "w") as stream:
        json.dump(results, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
