# SPDX-License-Identifier: Apache-2.0
"""verl's training workers outside of Ray, as runs configure them, for tests and benchmarks.

The policy has verl's PPO loss and the PRM the cross-entropy loss of prime_ext; both run on the
engine that verl picks for the device. Import this before verl: it chooses the device from the
environment variable ``VERL_PLATFORM``.
"""

import prime_ext.plugin  # noqa: F401  isort: skip  (CPU mode, fused kernels of each model on its own)

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict
from tiny_llama import llama_config
from tokenizers import Tokenizer, models
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.workers.utils.losses import ppo_loss

from prime_ext.config.engines import shard_over_all_ranks
from prime_ext.methods.prm_settings import PRMSettings
from prime_ext.prm.fields import (
    LABEL,
    OFFSET,
    OUTPUT_FIELD,
    PRM_LOG_PROBS,
    REFERENCE_LOG_PROBS,
    ROW,
    WEIGHT,
)
from prime_ext.prm.loss import PRMLoss
from prime_ext.verl_adapter.build_models import prm_model
from prime_ext.verl_adapter.patches.monkey_patch import bind_chunked
from prime_ext.verl_adapter.prm_worker import ImplicitPRMWorker


def save_llama(
    path: Path, vocabulary: int, width: int, layers: int, heads: int = 2, **more: Any
) -> Path:
    """Save a random model of the Llama layout, and a tokenizer that fits it."""
    torch.manual_seed(0)
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    sizes |= {
        "intermediate_size": 3 * width,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        **more,
    }
    LlamaForCausalLM(llama_config(vocabulary, width, **sizes)).save_pretrained(path)
    save_tokenizer(path)
    return path


def save_tokenizer(path: Path) -> None:
    """Save a tokenizer without a vocabulary: the workers only read its special tokens."""
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(path)


@cache
def base_config() -> DictConfig:
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose(
            f"prime_trainer{'_cpu' if get_device_name() == 'cpu' else ''}", ["variant=paper"]
        )


def configure(path: Path, overrides: Mapping[str, Any]) -> DictConfig:
    """Return the configuration of a run from the model at ``path``, on this program's ranks."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        rank = {
            "RANK": 0,
            "WORLD_SIZE": 1,
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": "127.0.0.1",
        }
        for name, value in {**rank, "MASTER_PORT": listener.getsockname()[1]}.items():
            os.environ.setdefault(name, str(value))
    config = base_config().copy()
    changes = {
        "actor_rollout_ref.model.path": str(path),
        "trainer.n_gpus_per_node": int(os.environ["WORLD_SIZE"]),
    }
    changes |= {"prm.optim.total_training_steps": 1000, "prm.use_dynamic_bsz": False}
    changes |= {"prm.micro_batch_size_per_gpu": 4}
    with open_dict(config):
        for key, value in {**changes, **overrides}.items():
            OmegaConf.update(config, key, value)
    OmegaConf.resolve(config)
    shard_over_all_ranks(config)
    return config


def build_worker(config: DictConfig, role: str = "prm") -> ImplicitPRMWorker:
    """Build a worker of the PRM's kind for ``role`` prm, policy, average or reference."""
    settings = PRMSettings.from_mapping(OmegaConf.to_container(config.prm))
    frozen_path = config.prm.reference_path if role in ("average", "reference") else None
    model = prm_model(config.prm, settings, frozen_path, is_target=role == "average")
    worker = ImplicitPRMWorker(
        model, bias_lr=settings.bias_lr, trainable_layers=settings.trainable_layers
    )
    worker.reset()
    loss: Any = PRMLoss(settings.loss, settings.beta)
    if role == "policy":
        loss = partial(ppo_loss, config=omega_conf_to_dataclass(config.actor_rollout_ref.actor))
    worker.set_loss_fn(loss)
    return worker


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def build_batch(
    prompts: list[torch.Tensor], responses: list[torch.Tensor], masks: list[torch.Tensor]
) -> dict:
    """Return the tensors of rollouts that every pass needs."""
    sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    rows = {"input_ids": sequences, "position_ids": [torch.arange(len(ids)) for ids in sequences]}
    rows |= {"prompts": prompts, "responses": responses, "response_mask": masks, "loss_mask": masks}
    return {name: nested(values) for name, values in rows.items()}


class Rollouts:
    """Random prompts and responses, and what the workers need of them."""

    def __init__(self, rows: int, prompt: int, response: int, vocabulary: int):
        generator = torch.Generator().manual_seed(0)
        # Lengths differ, as those of responses do; their mean is three quarters of the longest.
        lengths = torch.linspace(response / 2, response, rows).int().tolist()
        self.prompts = [
            torch.randint(2, vocabulary, (prompt,), generator=generator) for _ in range(rows)
        ]
        self.responses = [
            torch.randint(2, vocabulary, (length,), generator=generator) for length in lengths
        ]
        self.masks = [torch.ones_like(response) for response in self.responses]
        self.rows = rows
        self.tokens = rows * prompt + sum(lengths)

    def data(self, fields: dict[str, Any] | None = None, **options: Any):
        tensors = build_batch(self.prompts, self.responses, self.masks)
        tensors |= {ROW: torch.arange(self.rows), **(fields or {})}
        options = {
            "pad_mode": "no_padding",
            "temperature": 1.0,
            "calculate_entropy": False,
            **options,
        }
        return tu.get_tensordict(tensor_dict=tensors, non_tensor_dict=options)

    def update_data(self, fields: dict[str, Any], mini_batch: int, **options: Any):
        options |= {
            "global_batch_size": mini_batch,
            "mini_batch_size": mini_batch,
            "epochs": 1,
            "seed": 0,
        }
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
        return self.update_data(
            {"old_log_probs": old_log_probs, "advantages": advantages}, mini_batch
        )


def score(worker: ImplicitPRMWorker, rollouts: Rollouts, **options: Any) -> torch.Tensor:
    """Return nested log-probabilities of response tokens, with ``options`` of verl's engines."""
    return worker.score(
        rollouts.data(compute_loss=False, **{OUTPUT_FIELD: PRM_LOG_PROBS}, **options)
    )[PRM_LOG_PROBS]


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
