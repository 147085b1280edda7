# SPDX-License-Identifier: Apache-2.0
"""A run on two Ray nodes: two `ray start` on this machine, with addresses of their own, and one rank on each."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from prime_ext.run.checkpoint import complete_steps
from prime_ext.run.metrics_file import read_metrics

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
NODES = ("127.0.0.1", "127.0.0.2")
# verl's reservations for a rank, its store of rollouts, and the runner; see prime_ext/preflight/machine.py.
CPUS = "12"
# Of this cluster alone.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

# Where the actors of the finished run were, as Ray remembers: class and node of each.
WHERE = """
import json, sys, ray
from ray._private.state import actors
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps([[actor["ActorClassName"], actor["Address"]["NodeID"]] for actor in actors().values()]))
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cluster_command(folder, node, *words, **knobs):
    """One call of the launcher on one of the nodes; what it printed."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "TQ_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "STATE_DIR": str(folder / f"state{node}"),
        "NODE_IP": NODES[node],
        "NUM_CPUS": CPUS,
        "NUM_GPUS": "1",
        **TOKEN,
        **knobs,
    }
    # Ray may be running here for others.
    environment.pop("RAY_ADDRESS", None)
    command = ["bash", str(RECIPES / "multi_node" / "ray_cluster.sh"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-60:])
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Folder of the launcher's state, and address of the head."""
    folder = tmp_path_factory.mktemp("cluster")
    # Ray's sockets want a short path; a folder of its own keeps other runs on this machine from joining.
    ray_folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    try:
        address = cluster_command(folder, 0, "head", PORT=str(free_port()), RAY_TEMP_DIR=ray_folder).strip()
        cluster_command(folder, 1, "worker", address)
        yield folder, address
    finally:
        for node in (1, 0):
            if (folder / f"state{node}" / "pid").exists():
                cluster_command(folder, node, "stop")
        shutil.rmtree(ray_folder, ignore_errors=True)


def run_recipe(cluster, folder, steps):
    """What the shrunk recipe printed."""
    recipe = str(RECIPES / "prime" / "run_eurus2-7b_fsdp.sh")
    knobs = {"NNODES": "2", "SHRINK": "1", "SHRINK_STEPS": str(steps), "OUTPUT_DIR": str(folder)}
    return cluster_command(cluster[0], 0, "run", recipe, **knobs)


@pytest.fixture(scope="module")
def run(cluster, tmp_path_factory):
    """Folder of the shrunk recipe's run."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "log.txt").write_text(run_recipe(cluster, folder, 2))
    return folder


def test_all_steps_are_made_and_the_conditions_of_the_recipe_hold(run):
    metrics = read_metrics(run / "shrunk" / "metrics.jsonl")
    assert {1, 2} <= set(metrics)
    for step in (1, 2):
        assert metrics[step]["actor/grad_norm"] > 0 and metrics[step]["prm/grad_norm"] > 0
        assert metrics[step]["training/rollout_probs_diff_max"] < 1e-5
    assert any(name.startswith("val-") for name in metrics[2])
    assert "conditions hold" in (run / "log.txt").read_text()


def test_the_ranks_are_on_two_nodes(run, cluster):
    command = [sys.executable, "-c", WHERE, cluster[1]]
    done = subprocess.run(command, env={**os.environ, **TOKEN}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    nodes = [node for name, node in json.loads(done.stdout.splitlines()[-1]) if name.endswith("WorkerDict")]
    assert len(nodes) == 2 and len(set(nodes)) == 2


@pytest.mark.parametrize("part", ["actor", "prm"])
def test_a_checkpoint_has_the_shards_of_both(run, part):
    checkpoints = run / "shrunk" / "checkpoints"
    assert complete_steps(checkpoints) == [2]
    for rank in (0, 1):
        for kind in ("model", "optim"):
            assert (checkpoints / "global_step_2" / part / f"{kind}_world_size_2_rank_{rank}.pt").stat().st_size > 0


def test_the_same_command_goes_on_from_it_on_both(run, cluster):
    assert "conditions hold" in run_recipe(cluster, run, 4)
    # Each start has a file of its own.
    for name, steps in (("metrics.part0.jsonl", [1, 2]), ("metrics.jsonl", [3, 4])):
        lines = map(json.loads, (run / "shrunk" / name).read_text().splitlines())
        assert [line["step"] for line in lines if "prm/loss" in line["data"]] == steps
    assert complete_steps(run / "shrunk" / "checkpoints") == [2, 4]
