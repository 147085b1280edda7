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
import time
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


def environment(**more):
    """Variables of all processes; without the address of a Ray that may be running here for others."""
    known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    own = {"PYTHON": sys.executable, "PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1", "TQ_NUM_THREADS": "1"}
    return known | own | {"RAY_USAGE_STATS_ENABLED": "0"} | TOKEN | more


def start_node(log, node, *words):
    """Start Ray with an address of its own and wait until it runs."""
    command = [Path(sys.executable).with_name("ray"), "start", "--block", f"--node-ip-address={NODES[node]}"]
    command += [f"--num-cpus={CPUS}", "--num-gpus=1", *words]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment(), stdout=output, stderr=output, start_new_session=True)
    end = time.monotonic() + 600
    while "ray runtime started" not in log.read_text().lower():
        assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.2)
    return process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address of the head of two nodes."""
    folder, address = tmp_path_factory.mktemp("cluster"), f"{NODES[0]}:{free_port()}"
    # Ray's sockets want a short path; a folder of its own keeps other runs on this machine from joining.
    ray_folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    head = ["--head", f"--port={address.split(':')[1]}", "--include-dashboard=false", f"--temp-dir={ray_folder}"]
    processes = []
    try:
        processes.append(start_node(folder / "head.txt", 0, *head))
        processes.append(start_node(folder / "worker.txt", 1, f"--address={address}"))
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)
        shutil.rmtree(ray_folder, ignore_errors=True)


def run_recipe(address, folder, steps):
    """What the shrunk recipe printed."""
    knobs = {"RAY_ADDRESS": address, "NNODES": "2", "SHRINK": "1", "SHRINK_STEPS": str(steps)}
    command = ["bash", str(RECIPES / "prime" / "run_eurus2-7b_fsdp.sh")]
    variables = environment(**knobs, OUTPUT_DIR=str(folder))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-60:])
    return done.stdout


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
    assert "all checks of the run hold" in (run / "log.txt").read_text()


def test_the_ranks_are_on_two_nodes(run, cluster):
    command = [sys.executable, "-c", WHERE, cluster]
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
