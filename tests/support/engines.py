# SPDX-License-Identifier: Apache-2.0
"""verl's training workers outside of Ray, on one device, for the benchmarks and for tests. The policy has verl's PPO
loss and the PRM the cross-entropy loss of prime_ext; both run on the engine that verl picks for the device. Import
this before verl: it chooses the device from the environment variable ``VERL_PLATFORM``."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    RANK = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**RANK, "MASTER_PORT": listener.getsockname()[1]}.items():
        os.environ.setdefault(name, str(value))

import torch
from tiny_llama import llama_config
from tokenizers import Tokenizer, models
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.utils.losses import ppo_loss

import prime_ext.plugin  # noqa: F401  (CPU mode, fused kernels of each model on its own)
from prime_ext.prm.loss import (
    LABEL,
    OFFSET,
    OUTPUT_FIELD,
    PRM_LOG_PROBS,
    REFERENCE_LOG_PROBS,
    ROW,
    WEIGHT,
    PRMLoss,
)
from prime_ext.verl_adapter.patches.monkey_patch import bind_chunked
from prime_ext.verl_adapter.prm_worker import ImplicitPRMWorker


def save_llama(path: Path, vocabulary: int, width: int, layers: int, heads: int = 2, **more: Any) -> Path:
    """Save a random model of the Llama layout, and a tokenizer that fits it."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads}
    sizes |= {"intermediate_size": 3 * width, "max_position_embeddings": 4096, "tie_word_embeddings": True, **more}
    LlamaForCausalLM(llama_config(vocabulary, width, **sizes)).save_pretrained(path)
    save_tokenizer(path)
    return path


def save_tokenizer(path: Path) -> None:
    """Save a tokenizer without a vocabulary: the workers only read its special tokens."""
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(path)


def worker_config(
    path: Path,
    *,
    forward_only: bool = False,
    lora_rank: int = 0,
    remove_padding: bool = False,
    learning_rate: float = 1e-6,
    strategy: str = "fsdp2",
    offload: bool = False,
) -> TrainingWorkerConfig:
    """Return settings of a worker whose weights at rest are fp32; its passes are in bf16, on the CPU in fp32 too.
    With ``offload`` weights and optimizer states are on the host between passes."""
    compute = "fp32" if get_device_name() == "cpu" else "bf16"
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(path),
            use_remove_padding=remove_padding,
            enable_gradient_checkpointing=True,
            override_config={"attn_implementation": "sdpa"},
            lora_rank=lora_rank,
            lora_alpha=2 * lora_rank,
        ),
        engine_config=FSDPEngineConfig(
            strategy=strategy,
            forward_only=forward_only,
            model_dtype="fp32",
            mixed_precision={"param_dtype": compute, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            # As the runs' YAML has it; the dataclass says True.
            use_no_sync_for_gradient_accumulation=False,
            param_offload=offload,
            optimizer_offload=offload,
            use_torch_compile=False,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=4,
            infer_micro_batch_size_per_gpu=4,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=learning_rate, total_training_steps=1000, clip_grad=10.0),
        checkpoint_config=CheckpointConfig(),
    )


def build_worker(
    path: Path, *, role: str = "prm", trainable_layers: float | None = None, **options: Any
) -> ImplicitPRMWorker:
    """Build a worker for ``role`` prm, policy or reference; ``options`` are those of :func:`worker_config`."""
    config = worker_config(path, forward_only=role == "reference", **options)
    worker = ImplicitPRMWorker(config, trainable_layers=trainable_layers)
    worker.reset()
    loss: Any = PRMLoss("ce", 0.05)
    if role == "policy":
        rows = config.engine_config.micro_batch_size_per_gpu
        actor = {"strategy": config.engine_config.strategy, "rollout_n": 4, "use_kl_loss": False}
        loss = partial(ppo_loss, config=FSDPActorConfig(ppo_micro_batch_size_per_gpu=rows, **actor))
    worker.set_loss_fn(loss)
    return worker


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Rollouts:
    """Random prompts and responses, and what the workers need of them."""

    def __init__(self, rows: int, prompt: int, response: int, vocabulary: int):
        generator = torch.Generator().manual_seed(0)
        # Lengths differ, as those of responses do; their mean is three quarters of the longest.
        lengths = torch.linspace(response / 2, response, rows).int().tolist()
        self.prompts = [torch.randint(2, vocabulary, (prompt,), generator=generator) for _ in range(rows)]
        self.responses = [torch.randint(2, vocabulary, (length,), generator=generator) for length in lengths]
        self.masks = [torch.ones_like(response) for response in self.responses]
        self.rows = rows
        self.tokens = rows * prompt + sum(lengths)

    def data(self, fields: dict[str, Any] | None = None, **options: Any):
        sequences = [torch.cat(pair) for pair in zip(self.prompts, self.responses, strict=True)]
        tensors = {
            "input_ids": nested(sequences),
            "position_ids": nested([torch.arange(len(ids)) for ids in sequences]),
            "prompts": nested(self.prompts),
            "responses": nested(self.responses),
            "response_mask": nested(self.masks),
            "loss_mask": nested(self.masks),
            ROW: torch.arange(self.rows),
            **(fields or {}),
        }
        options = {"pad_mode": "no_padding", "temperature": 1.0, "calculate_entropy": False, **options}
        return tu.get_tensordict(tensor_dict=tensors, non_tensor_dict=options)

    def update_data(self, fields: dict[str, Any], mini_batch: int, **options: Any):
        options |= {"global_batch_size": mini_batch, "mini_batch_size": mini_batch, "epochs": 1, "seed": 0}
        return self.data(fields, dataloader_kwargs={"shuffle": False}, **options)

    def prm_data(self, reference: torch.Tensor, mini_batch: int, **options: Any):
        fields = {
            REFERENCE_LOG_PROBS: reference,
            LABEL: torch.arange(self.rows).remainder(2).float(),
            WEIGHT: torch.full((self.rows,), 1 / mini_batch),
            OFFSET: torch.zeros(self.rows),
        }
        return self.update_data(fields, mini_batch, **options)

    def policy_data(self, old_log_probs: torch.Tensor, mini_batch: int):
        generator = torch.Generator().manual_seed(1)
        advantages = nested([torch.randn(len(mask), generator=generator) for mask in self.masks])
        return self.update_data({"old_log_probs": old_log_probs, "advantages": advantages}, mini_batch)


def score(worker: ImplicitPRMWorker, rollouts: Rollouts, **options: Any) -> torch.Tensor:
    """Return nested log-probabilities of response tokens; ``options`` are those of verl's engines for one batch."""
    return worker.score(rollouts.data(compute_loss=False, **{OUTPUT_FIELD: PRM_LOG_PROBS}, **options))[PRM_LOG_PROBS]


@contextmanager
def chunked(worker: ImplicitPRMWorker) -> Iterator[None]:
    """Let a worker without an adapter compute chunked log-probabilities in this context."""
    if "_prime_ext_fused" not in vars(worker):
        bind_chunked(worker.engine.module)
        worker._prime_ext_fused = True
    worker.engine_config.use_fused_kernels = True
    try:
        yield
    finally:
        worker.engine_config.use_fused_kernels = False
