# SPDX-License-Identifier: Apache-2.0
"""A run on two Ray nodes: two `ray start` here with addresses of their own, a rank on each."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from forked_workers import with_forks
from gloo_ranks import free_port
from transformers import Qwen2Config, Qwen2ForCausalLM

from prime_ext.plan.memory import Engine, read_shape
from prime_ext.plan.run import checkpoint_bytes
from prime_ext.run.checkpoint import find_complete_steps
from prime_ext.run.metrics_file import read_metrics
from recipes.quickstart.small_model import build_tokenizer

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
# Where the actors of the finished run were, as Ray remembers: class and node of each.
WHERE = """
import json, sys, ray
from ray._private.state import actors
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
names = [[actor["ActorClassName"], actor["Address"]["NodeID"]] for actor in actors().values()]
print(json.dumps(names))
"""
# Of all processes: with a token of this cluster, without the address of another Ray here.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
    "PYTHON": sys.executable,
    "PYTHONPATH": str(RECIPES.parent),
    "OMP_NUM_THREADS": "1",
    "TQ_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


def start_node(log, node, *words):
    """Start Ray with an address of its own and wait until it runs."""
    command = [
        Path(sys.executable).with_name("ray"),
        "start",
        "--block",
        f"--node-ip-address={node}",
        *words,
    ]
    # verl's reservations for a rank, its store of rollouts, and the runner.
    command += ["--num-cpus=12", "--num-gpus=1"]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=output, stderr=output, start_new_session=True
        )
    end = time.monotonic() + 600
    while "ray runtime started" not in log.read_text().lower():
        assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.2)
    return process


@pytest.fixture
def cluster(tmp_path):
    """Yield the address of the head of two nodes."""
    port = free_port()
    # Ray's sockets need a short path; a folder of its own keeps out other runs on this machine.
    ray_folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={ray_folder}"]
    processes = []
    try:
        processes.append(start_node(tmp_path / "head.txt", "127.0.0.1", *head))
        processes.append(
            start_node(tmp_path / "worker.txt", "127.0.0.2", f"--address=127.0.0.1:{port}")
        )
        yield f"127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)
        shutil.rmtree(ray_folder, ignore_errors=True)


def write_qwen2(folder):
    """Write a model like R1's distilled ones, without a token that verl needs of every Qwen2."""
    tokenizer = build_tokenizer()
    tokenizer.unk_token = None
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") is None
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    special = {
        name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")
    }
    more = {"num_key_value_heads": 2, "max_position_embeddings": 128, "dtype": "float32", **special}
    torch.manual_seed(0)
    for part in (
        Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **sizes, **more)),
        tokenizer,
    ):
        part.save_pretrained(folder)
    return str(folder)


def test_a_qwen2_without_chatml_trains_on_two_nodes(cluster, tmp_path):
    """One of PRIME's scripts for GPUs, shrunk."""
    model = write_qwen2(tmp_path / "shrunk" / "inputs" / "model")
    knobs = {
        "RAY_ADDRESS": cluster,
        "NNODES": "2",
        "SHRINK": "1",
        "SHRINK_STEPS": "2",
        "OUTPUT_DIR": str(tmp_path),
    }
    command = ["bash", str(RECIPES / "prime" / "run_deepseek-r1-distill-1.5b_fsdp.sh")]
    done = subprocess.run(
        command, env=with_forks(ENVIRONMENT | knobs), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-60:])
    metrics = read_metrics(tmp_path / "shrunk" / "metrics.jsonl")
    for step in (1, 2):
        assert metrics[step]["actor/grad_norm"] > 0 and metrics[step]["prm/grad_norm"] > 0
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-5
    assert any(name.startswith("val-") for name in metrics[2])
    # The ranks are on two nodes, and the checkpoint has the shards of both.
    command = [sys.executable, "-c", WHERE, cluster]
    where = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert where.returncode == 0, where.stderr[-3000:]
    nodes = [
        node
        for name, node in json.loads(where.stdout.splitlines()[-1])
        if name.endswith("WorkerDict")
    ]
    assert len(nodes) == 2 and len(set(nodes)) == 2
    checkpoints = tmp_path / "shrunk" / "checkpoints"
    assert find_complete_steps(checkpoints) == [2]
    names = {
        f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)
    }
    shape = read_shape("model", model)
    planned = checkpoint_bytes(Engine(shape, shape.weights, 0, 4, 4, 1, 1, False))
    for part in ("actor", "prm"):
        saved = {
            path.name: path.stat().st_size
            for path in (checkpoints / "global_step_2" / part).iterdir()
        }
        assert all(saved[name] for name in names)
        assert sum(saved[name] for name in names) == pytest.approx(planned, rel=0.1), part
