# SPDX-License-Identifier: Apache-2.0
"""Runs on two machines, started as the page says: two sets of namespaces, a rank on each."""

import json
import os
import re
import secrets
import sys
import time
from pathlib import Path

import pytest
import torch
from forked_workers import SOCKET, use_server
from transformers import Qwen2Config, Qwen2ForCausalLM
from two_machines import FORKS, TwoMachines, find_obstacle, write_python

from prime_ext.plan.memory import Engine, read_shape
from prime_ext.plan.run import checkpoint_bytes
from prime_ext.run.checkpoint import find_complete_steps
from prime_ext.run.metrics_file import read_metrics
from recipes.quickstart.small_model import build_tokenizer

OBSTACLE = find_obstacle()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how_to" / "multi_node.md"
RECIPE = "recipes/prime/run_eurus2-7b_fsdp.sh"
# Seconds until a run has ended after the death of a machine.
LIMIT = 120
# Where the actors of the finished run were, as Ray remembers: class and node of each.
WHERE = """
import json, ray
from ray._private.state import actors
ray.init(address="10.77.0.1:6379", log_to_driver=False, logging_level="ERROR")
keys = ("JobID", "ActorClassName")
rows = [[*map(actor.get, keys), actor["Address"]["NodeID"]] for actor in actors().values()]
print(json.dumps(rows))
"""
# A run's check of its cluster, and its connection.
JOIN = """
import ray
from omegaconf import OmegaConf
from prime_ext.run.ray_cluster import check_cluster
found = [*check_cluster(OmegaConf.create({"ray_kwargs": {"ray_init": {}}}))]
print("found", *found)
if not found:
    ray.init(log_to_driver=False, logging_level="ERROR")
    print("nodes", sum(node["Alive"] for node in ray.nodes()))
"""
SRUN = """#!/usr/bin/env bash
# Runs the words after the options on the node of --nodelist, until they end or TERM comes.
while [[ "$1" == --* ]]; do [[ "$1" != --nodelist=* ]] || node=${1#*=}; shift; done
enter=()
[[ "$node" == first ]] || enter=(nsenter --target "$SECOND" --all)
"${enter[@]}" bash -c 'cd "$0" && echo $$ > /tmp/ray/step && exec "$@"' "$PWD" "$@" &
trap '"${enter[@]}" bash -c "kill -TERM \\$(cat /tmp/ray/step)"' TERM
wait $!
wait $!
"""
SCONTROL = '#!/bin/sh\n[ "$1" != show ] || printf "first\\nsecond\\n"\n'


def read_commands(recipe):
    """Return machine and line of the page's commands that end with this recipe."""
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if recipe in block]
    return [re.fullmatch(r"(\w+)\$ +(.*)", line).groups() for line in block.splitlines()]


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Yield two machines whose shells are in one folder, with the recipes."""
    folder = tmp_path_factory.mktemp("machines")
    known = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "GLOO_", "NCCL_", "SLURM_"))
    }
    programs = Path(sys.executable).parent
    pair = TwoMachines(
        folder,
        known
        | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHON": write_python(folder / "python"),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TQ_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            # verl's reservations for a rank, its store of rollouts, and the runner.
            "RAY_OVERRIDE_RESOURCES": '{"CPU": 12, "GPU": 1}',
            "RAY_RUNTIME_ENV_HOOK": f"{Path(use_server.__code__.co_filename).stem}.use_server",
            SOCKET: FORKS,
            "SHRINK": "1",
        },
    )
    try:
        (pair.shared / "recipes").symlink_to(ROOT / "recipes")
        yield pair
    finally:
        pair.end()


def give_homes(machines, folder, tokens):
    """Give each machine an empty home, or one with a token of its own."""
    for machine in (machines.first, machines.second):
        home = folder / machine.name
        home.mkdir()
        if tokens:
            (home / ".ray").mkdir()
            (home / ".ray" / "auth_token").write_text(secrets.token_hex(32))
        machine.type(f"unset RAY_AUTH_MODE RAY_AUTH_TOKEN_PATH; export HOME={home}")


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


def check_checkpoint(folder, model):
    """Check that a checkpoint has the shards of two ranks, with the planned sizes."""
    names = {
        f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)
    }
    shape = read_shape("model", model)
    planned = checkpoint_bytes(Engine(shape, shape.weights, 0, 4, 4, 1, 1, False))
    for part in ("actor", "prm"):
        saved = {path.name: path.stat().st_size for path in (folder / part).iterdir()}
        assert all(saved[name] for name in names)
        assert sum(saved[name] for name in names) == pytest.approx(planned, rel=0.1), part


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "no tokens"])
def test_the_page_joins_machines_with_and_without_tokens(machines, tmp_path, tokens):
    give_homes(machines, tmp_path, tokens)
    machines.type(read_commands(RECIPE)[:-1])
    join = f"RAY_ADDRESS=10.77.0.1:6379 python -c '{JOIN}'"
    assert machines.first.type(join).splitlines()[-2:] == ["found", "nodes 2"]
    # A run in another shell gets the mode from the cluster, if its token is the cluster's.
    forgot = "env -u RAY_AUTH_MODE"
    assert machines.first.type(f"{forgot} {join}").splitlines()[-2:] == ["found", "nodes 2"]
    said = machines.first.type(f"{forgot} -u RAY_AUTH_TOKEN_PATH {join}").splitlines()[-1]
    wrong = (
        "that of ~/.ray/auth_token is not the cluster's" if tokens else "~/.ray/auth_token has none"
    )
    assert f"cluster at 10.77.0.1:6379 needs its token, and {wrong}; set RAY_AUTH_MODE" in said
    machines.type([("second", "ray stop --force"), ("first", "ray stop --force")])


def test_a_run_resumes_after_one_of_its_machines_died(machines, tmp_path):
    """One of PRIME's scripts for GPUs, shrunk, with a Qwen2 that has no ChatML."""
    give_homes(machines, tmp_path, tokens=True)
    output = tmp_path / "output"
    checkpoints = output / "shrunk" / "checkpoints"
    model = write_qwen2(output / "shrunk" / "inputs" / "model")
    commands = read_commands(RECIPE)
    machines.type(commands[:-1])
    first = machines.first
    first.type(f"export OUTPUT_DIR={output} SHRINK_STEPS=200")
    first.start(commands[-1][1])
    end = time.monotonic() + 900
    while not find_complete_steps(checkpoints):
        assert time.monotonic() < end and "ended" not in first.read(), first.read()[-5000:]
        time.sleep(0.2)
    machines.kill_second()
    killed = time.monotonic()
    status, said = first.wait(600)
    assert time.monotonic() - killed < LIMIT and status == 1
    (newest,) = find_complete_steps(checkpoints)[-1:]
    (line,) = [line for line in said.splitlines() if "the run failed" in line]
    # The trainer itself may have been on the second machine.
    assert re.match(
        r"prime_ext: the run failed with (WorkerDied: the .* died|Actor(Unavailable|Died)Error: .*"
        rf"node).*; the newest whole checkpoint is \S+/global_step_{newest}, and the same command",
        line,
    ), line
    # The machine comes back.
    machines.start_second()
    machines.second.type(f"export HOME={tmp_path / 'second'}")
    machines.type([command for command in commands if command[0] != "first"])
    first.type(f"export SHRINK_STEPS={newest + 2}")
    assert f"going on from step {newest} " in first.type(commands[-1][1], 900)
    metrics = read_metrics(output / "shrunk" / "metrics.jsonl")
    assert max(metrics) == newest + 2
    for step in (newest + 1, newest + 2):
        assert metrics[step]["actor/grad_norm"] > 0 and metrics[step]["prm/grad_norm"] > 0
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-5
    # The ranks are on two nodes, and the checkpoint has the shards of both.
    actors = json.loads(first.type(f"python -c '{WHERE}'").splitlines()[-1])
    # Actors of the run that was killed are listed, too, in any order.
    last = max(job for job, _, _ in actors)
    nodes = [node for job, name, node in actors if job == last and name.endswith("WorkerDict")]
    assert len(nodes) == 2 and len(set(nodes)) == 2
    check_checkpoint(checkpoints / f"global_step_{newest + 2}", model)
    machines.type([("second", "ray stop --force"), ("first", "ray stop --force")])


def test_supervised_recipes_train_on_two_machines(machines, tmp_path):
    for machine in (machines.first, machines.second):
        # Another test may have left its number of steps in one of the shells.
        machine.type(f"unset SHRINK_STEPS; export OUTPUT_DIR={tmp_path}")
    *exports, (_, line) = read_commands("sft_fsdp.sh")
    machines.type(exports)
    machines.first.start(line)
    # Both would write the same shrunk inputs.
    end = time.monotonic() + 600
    while "torch.distributed.run" not in machines.first.read():
        assert time.monotonic() < end, machines.first.read()[-5000:]
        time.sleep(0.2)
    machines.second.type(line, 900)
    assert machines.first.wait(900)[0] == 0, machines.first.read()[-6000:]
    saved = {
        path.name for path in (tmp_path / "shrunk" / "checkpoints" / "global_step_2").iterdir()
    }
    assert {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)} <= saved
    machines.type([("both", "unset NNODES TORCHRUN")])


def test_the_slurm_script_trains_on_two_machines(machines, tmp_path):
    give_homes(machines, tmp_path, tokens=True)
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = {
        "SLURM_JOB_NODELIST": "first,second",
        "SLURM_JOB_ID": "77",
        "SLURM_GPUS_ON_NODE": "1",
        "NUM_CPUS": "12",
        "GLOO_SOCKET_IFNAME": "eth0",
        "SECOND": str(machines.find_second()),
        "RAY": str(Path(sys.executable).with_name("ray")),
        "PATH": f"{tmp_path}:$PATH",
        "OUTPUT_DIR": str(tmp_path / "output"),
        "SHRINK_STEPS": "2",
    }
    words = " ".join(f'{name}="{value}"' for name, value in job.items())
    script = "recipes/multi_node/slurm.sbatch.sh"
    machines.first.type(
        f"env -u RAY_AUTH_MODE -u RAY_AUTH_TOKEN_PATH {words} bash {script} {RECIPE}"
    )
    folder = tmp_path / "output" / "shrunk"
    assert find_complete_steps(folder / "checkpoints") == [2]
    check_checkpoint(folder / "checkpoints" / "global_step_2", str(folder / "inputs" / "model"))
    for machine in (machines.first, machines.second):
        assert not re.search("raylet|gcs_server|ray::", machine.list_processes())
