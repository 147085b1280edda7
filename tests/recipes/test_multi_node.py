# SPDX-License-Identifier: Apache-2.0
"""The launchers for several nodes: what they start, in which order, and what they leave behind when something fails."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from prime_ext.config.compose import compose_config
from prime_ext.plan.model_shape import PlanError
from prime_ext.plan.plan import Known
from prime_ext.plan.rl import read_rl
from prime_ext.preflight.check import check_config
from recipes.multi_node.wait_for_nodes import wait

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ROOT / "recipes" / "multi_node"

# Stand-ins that write down what they are called with. `ray start --block` runs until it is told to end.
LOG = '#!/usr/bin/env bash\necho "$(basename "$0") $*" >> "$CALLS"\n'
BLOCK = """#!/usr/bin/env bash
trap 'echo "ended $*" >> "$CALLS"; exit 0' TERM
echo "$(basename "$0") $*" >> "$CALLS"
echo "Ray runtime started."
while :; do sleep 0.05; done
"""
# As wait_for_nodes does, it waits for as many as its last word says, whether it gives up then or not.
WAIT_FOR_NODES = """
if [[ -n "${SLURM_JOB_ID:-}" ]]; then
    until (($(grep -c "^srun" "$CALLS") >= ${*: -1})); do sleep 0.05; done
fi
[[ "$*" != *"$NO_NODES" ]]
"""
STAND_INS = {
    "srun": BLOCK,
    "ray": BLOCK,
    "python": LOG + WAIT_FOR_NODES,
    "scontrol": LOG + 'if [[ "$1" == show ]]; then printf "n0\\nn1\\nn2\\n"; fi\n',
    "hostname": '#!/usr/bin/env bash\necho "10.0.0.7 fe80::1"\n',
}
RECIPE = LOG + 'echo "RAY_ADDRESS=$RAY_ADDRESS NNODES=$NNODES N_GPUS=${N_GPUS:-}" >> "$CALLS"\n'


class Machine:
    """A folder of stand-ins, and what was called."""

    def __init__(self, folder):
        self.folder, self.calls_file = folder, folder / "calls"
        for name, text in STAND_INS.items():
            self.write(name, text)
        self.environment = {
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "CALLS": str(self.calls_file),
            "PYTHON": str(folder / "python"),
            "STATE_DIR": str(folder / "state"),
            "NO_NODES": "never",
            "SLURM_SUBMIT_DIR": str(ROOT),
        }
        for name in ("RAY_ADDRESS", "NNODES", "N_GPUS"):
            self.environment.pop(name, None)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def start(self, script, *words, **knobs):
        command = ["bash", str(LAUNCHERS / script), *map(str, words)]
        return subprocess.Popen(
            command, env={**self.environment, **knobs}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, script, *words, **knobs):
        process = self.start(script, *words, **knobs)
        out, errors = process.communicate(timeout=600)
        return process.returncode, out, errors

    def calls(self):
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def wait_for_call(self, start):
        end = time.monotonic() + 600
        while not any(call.startswith(start) for call in self.calls()):
            assert time.monotonic() < end, self.calls()
            time.sleep(0.02)


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    if (tmp_path / "state" / "pid").exists():
        machine.run("ray_cluster.sh", "stop")


JOB = {"SLURM_JOB_NODELIST": "n[0-2]", "SLURM_JOB_ID": "41", "SLURM_GPUS_ON_NODE": "h100:8"}


def test_under_slurm_the_head_comes_first_then_workers_then_the_recipe(machine):
    recipe = machine.write("recipe", RECIPE)
    status, _, errors = machine.run("slurm.sbatch.sh", recipe, "a=1", **JOB)
    assert status == 0, errors
    calls = machine.calls()
    assert calls[0] == "scontrol show hostnames n[0-2]"
    step, end = "srun --overlap --nodes=1 --ntasks=1", "--num-gpus=8 --block --disable-usage-stats"
    ray = machine.folder / "ray"
    start = "start --head --node-ip-address=10.0.0.7 --port=20041 --include-dashboard=false"
    head = f"{step} --nodelist=n0 {ray} {start} {end}"
    workers = {f"{step} --nodelist={node} {ray} start --address=10.0.0.7:20041 {end}" for node in ("n1", "n2")}
    # The head and the wait for it start together.
    assert set(calls[1:3]) == {head, wait_call(1)}
    assert set(calls[3:6]) == workers | {wait_call(3)}
    assert calls[6:8] == ["recipe a=1", "RAY_ADDRESS=10.0.0.7:20041 NNODES=3 N_GPUS=8"]
    assert [call.split()[0] for call in calls[8:]] == ["ended"] * 3


def wait_call(nodes):
    return f"python -m recipes.multi_node.wait_for_nodes 10.0.0.7:20041 --seconds 600 {nodes}"


def test_a_recipe_that_fails_ends_the_job_with_its_status_and_all_of_ray(machine):
    recipe = machine.write("recipe", RECIPE + "exit 7\n")
    status, _, _ = machine.run("slurm.sbatch.sh", recipe, **JOB)
    assert status == 7
    assert sum(call.startswith("ended") for call in machine.calls()) == 3
    assert not any("requeue" in call for call in machine.calls())


def test_nodes_that_do_not_come_end_the_job_before_the_recipe(machine):
    recipe = machine.write("recipe", RECIPE)
    status, _, _ = machine.run("slurm.sbatch.sh", recipe, **JOB, NO_NODES=" 3")
    assert status == 1
    assert not any(call.startswith("recipe") for call in machine.calls())
    assert sum(call.startswith("ended") for call in machine.calls()) == 3


@pytest.mark.parametrize(
    ("sent", "knobs", "status", "again"),
    [
        (signal.SIGUSR1, {}, 138, True),
        (signal.SIGUSR1, {"REQUEUE": "0"}, 138, False),
        # Preempted jobs are queued again by SLURM, cancelled ones by nobody.
        (signal.SIGTERM, {}, 143, False),
    ],
)
def test_near_the_time_limit_the_recipe_is_told_and_the_job_queued_again(machine, sent, knobs, status, again):
    on_term = 'trap \'echo told >> "$CALLS"; exit 1\' TERM\necho ready >> "$CALLS"\nwhile :; do sleep 0.05; done\n'
    recipe = machine.write("recipe", RECIPE + on_term)
    process = machine.start("slurm.sbatch.sh", recipe, **JOB, **knobs)
    machine.wait_for_call("ready")
    process.send_signal(sent)
    process.communicate(timeout=600)
    assert process.returncode == status
    calls = machine.calls()
    after = calls[calls.index("told") + 1 :]
    assert [call.split()[0] for call in after[:3]] == ["ended"] * 3
    assert after[3:] == (["scontrol requeue 41"] if again else [])


# ---- without a scheduler ----


def test_what_ray_says_when_it_does_not_start_is_shown(machine):
    machine.write("ray", "#!/usr/bin/env bash\necho 'port 6379 is in use'\nexit 1\n")
    status, _, errors = machine.run("ray_cluster.sh", "worker", "10.0.0.7:6379")
    assert status == 2 and "port 6379 is in use" in errors and "ray start failed" in errors


@pytest.mark.parametrize(
    ("words", "knobs", "hint"),
    [
        (["worker", "10.0.0.7"], {}, "HOST:PORT"),
        (["run", "recipe.sh"], {}, "NNODES= must be the number of nodes"),
        (["run", "recipe.sh"], {"NNODES": "2"}, "no head was started from here"),
        (["stop"], {}, "no node was started from here"),
        (["restart"], {}, "restart is none of head, worker, run, stop"),
    ],
)
def test_mistakes_are_one_line(machine, words, knobs, hint):
    status, _, errors = machine.run("ray_cluster.sh", *words, **knobs)
    assert status == 2 and hint in errors and len(errors.splitlines()) == 1
    assert machine.calls() == []


def test_waiting_ends_when_the_nodes_are_there_or_the_time_is_over():
    node = {"NodeManagerAddress": "10.0.0.1", "Alive": True}
    dead = {"NodeManagerAddress": "10.0.0.2", "Alive": False}
    answers = iter([[node], [node, dead], [node, node]])
    assert len(wait(lambda: next(answers), 2, seconds=60)) == 2
    assert wait(lambda: [node, dead], 2, seconds=0) == ["10.0.0.1"]


# ---- any recipe on any number of nodes, and Megatron ----


def started(machine, script, *words, **knobs):
    """The words with which a recipe hands over to Python."""
    machine.write("python", '#!/usr/bin/env bash\nprintf "%s\\0" "$@" >> "$CALLS"\n')
    data = machine.write("data.parquet", "")
    files = {"TRAIN_FILES": str(data), "VAL_FILES": str(data), "OUTPUT_DIR": str(machine.folder / "out")}
    command = ["bash", str(ROOT / "recipes" / script), *map(str, words)]
    environment = {**machine.environment, **files, **knobs}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    return done, machine.calls_file.read_text().split("\0")[:-1] if machine.calls_file.exists() else []


def test_the_policy_can_be_on_megatron_and_the_prm_is_not(machine):
    done, words = started(machine, "multi_node/run_eurus2-7b_megatron.sh", TP="2", PP="2")
    assert done.returncode == 0, done.stderr
    overrides = [word for word in words if "=" in word and not word.startswith("--")]
    config = compose_config("prime_trainer", overrides)
    assert check_config(config) == []
    assert (config.actor_rollout_ref.actor.strategy, config.prm.engine.strategy) == ("megatron", "fsdp2")
    assert config.actor_rollout_ref.actor.megatron.param_offload and config.prm.engine.param_offload
    with pytest.raises(PlanError, match="^the plan knows the strategies fsdp and fsdp2, not megatron of the policy$"):
        read_rl(config, Known())
    (line,) = check_config(compose_config("prime_trainer", [*overrides, "prm.engine.strategy=megatron"]))
    assert line.startswith("prm.engine.strategy=megatron: the PRM runs on fsdp and fsdp2 only")
    # 8 ranks in groups of 4 that share the weights: 2 data-parallel ones, which 3 rollouts do not divide over.
    odd = ["actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.ppo_mini_batch_size=1", "prm.mini_batch_size=8"]
    (line,) = check_config(compose_config("prime_trainer", [*overrides, *odd]))
    assert "do not divide over 2 data-parallel ranks" in line


def test_megatron_has_no_shrunk_run(machine):
    done, _ = started(machine, "multi_node/run_eurus2-7b_megatron.sh", SHRINK="1")
    assert done.returncode == 2 and "SHRINK=1 runs on the CPU, and Megatron does not" in done.stderr
