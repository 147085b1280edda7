# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Starts the ranks of an engine test on gloo, and makes the model they share."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write_model(path):
    """A small Llama with a vocabulary of 40 tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.mul_(2.5)  # away from the uniform distribution of a fresh model
    model.save_pretrained(path)
    vocabulary = {"<pad>": 0, "<eos>": 1, **{str(number): number for number in range(2, 40)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(path)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(program, model_path, work_dir, n_ranks):
    """Run ``program MODEL_PATH WORK_DIR`` on every rank; returns what rank 0 saved as results.pt."""
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "WORLD_SIZE": str(n_ranks),
        "LOCAL_WORLD_SIZE": str(n_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    logs = [work_dir / f"rank{rank}.log" for rank in range(n_ranks)]
    processes = []
    for rank, log in enumerate(logs):
        with open(log, "w") as stream:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).parent / program), str(model_path), str(work_dir)],
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * n_ranks, "\n".join(log.read_text()[-3000:] for log in logs)
    return torch.load(work_dir / "results.pt", weights_only=False)
