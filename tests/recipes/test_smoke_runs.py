# SPDX-License-Identifier: Apache-2.0
"""SHRINK=1: the scripts for GPUs themselves, two steps on the CPU, and what a run leaves behind.

Here are the kinds of training; test_recipes.py composes every script, and tests/e2e/test_two_nodes.py runs PRIME's.
"""

import math

import pytest
import torch
from recipe_calls import run_shrunk
from safetensors import safe_open
from transformers import Qwen2Config, Qwen2ForCausalLM

from prime_ext.plan.memory import Engine, read_shape
from prime_ext.plan.run import checkpoint_bytes
from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics
from prime_ext.utils.files import read_json
from recipes.quickstart.model import build_tokenizer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "words", "logged"),
    [
        ("prime/run_eurusprm-stage2_fsdp.sh", [], ["train/loss", "train/grad_norm"]),
        (
            "pspo_wrs/run_abel-7b_ppo_fsdp.sh",
            ["no/model", "no/step_rm", "no.parquet", "no.parquet"],
            ["critic/vf_loss", "critic/grad_norm", "actor/pg_loss", "actor/grad_norm"],
        ),
    ],
)
def test_two_steps_with_finite_metrics_and_a_checkpoint(tmp_path, script, words, logged):
    folder = run_shrunk(tmp_path, script, *words)
    metrics = read_metrics(folder / "metrics.jsonl")
    assert all(math.isfinite(metrics[step][name]) for step in (1, 2) for name in logged)
    assert any(name.startswith("val") for name in metrics[2])
    assert 2 in complete_steps(folder / "checkpoints")
    if (folder / "hf").exists():
        # A PRM that starts at its reference is at log 2 with every loss.
        assert metrics[1]["train/loss"] == pytest.approx(math.log(2), rel=1e-3)
        assert read_json(folder / "hf" / "prime_ext_prm.json")["loss"] == "step_ce"
        with safe_open(folder / "hf" / "model.safetensors", "pt") as weights:
            assert all(weights.get_tensor(name).isfinite().all() for name in weights.keys())


def test_a_qwen2_without_chatml_trains_and_its_checkpoint_has_the_planned_size(tmp_path):
    """As R1's distilled models are: verl's rule for the type wants a token that they lack."""
    tokenizer = build_tokenizer()
    tokenizer.unk_token = None
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") is None
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    more = {"num_key_value_heads": 2, "max_position_embeddings": 128, "dtype": "float32", **special}
    torch.manual_seed(0)
    model, path = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **sizes, **more)), "shrunk/inputs/model"
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / path)
    folder = run_shrunk(tmp_path, "prime/run_deepseek-r1-distill-1.5b_fsdp.sh")
    metrics = read_metrics(folder / "metrics.jsonl")[2]
    assert all(math.isfinite(metrics[name]) for name in ("actor/pg_loss", "prm/loss", "prm/grad_norm"))
    assert 2 in complete_steps(folder / "checkpoints")
    shape = read_shape("model", str(tmp_path / path))
    planned = checkpoint_bytes(Engine(shape, shape.weights, 0, 4, 4, 1, 1, False))
    for role in ("actor", "prm"):
        saved = [*(folder / "checkpoints" / "global_step_2" / role).glob("*world_size*")]
        weights = sum(file.stat().st_size for file in saved if file.name.startswith(("model", "optim")))
        assert weights == pytest.approx(planned, rel=0.1), role


def test_step_reward_model(tmp_path):
    folder = run_shrunk(tmp_path, "pspo_wrs/run_bert-large_step-rm_ddp.sh", "no/model", "no.jsonl")
    results = read_json(folder / "results.json")
    assert results["steps"] == 2 and 0 <= results["validation"]["accuracy"] <= 1
    assert (folder / "model" / "config.json").is_file() and (folder / "steps.parquet").is_file()
