# SPDX-License-Identifier: Apache-2.0
"""The SLURM launcher: what it starts, in which order, and what remains when something fails."""

import os
import signal
import subprocess
import sys
import time

import pytest
from recipe_calls import RECIPES, get_calls, get_overrides

from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import compose_config
from prime_ext.plan.run import plan_run
from prime_ext.preflight.check import check_config

# Stand-ins that record their arguments. `ray start --block` runs until it is told to end.
LOG = '#!/usr/bin/env bash\necho "$(basename "$0") $*" >> "$CALLS"\n'
BLOCK = """#!/usr/bin/env bash
trap 'echo "ended $*" >> "$CALLS"; exit 0' TERM
echo "$(basename "$0") $*" >> "$CALLS"
echo "Ray runtime started."
while :; do sleep 0.05; done
"""
# Like wait_for_nodes, it waits for the number of nodes in its fourth word, also if it then fails.
WAIT_FOR_NODES = """
if [[ -n "${SLURM_JOB_ID:-}" ]]; then
    until (($(grep -c "^srun" "$CALLS") >= $4)); do sleep 0.05; done
fi
[[ "$4" != "$NO_NODES" ]]
"""
STAND_INS = {
    "srun": BLOCK,
    "ray": BLOCK,
    "python": LOG + WAIT_FOR_NODES,
    "scontrol": LOG + 'if [[ "$1" == show ]]; then printf "n0\\nn1\\nn2\\n"; fi\n',
    # As on Debian and Ubuntu.
    "hostname": """#!/usr/bin/env bash
case "$*" in
    -I) echo "127.0.0.53 10.0.0.7 fe80::1 " ;;
    --ip-address) echo "127.0.1.1" ;;
esac
""",
}
RECIPE = LOG + 'echo "RAY_ADDRESS=$RAY_ADDRESS NNODES=$NNODES N_GPUS=${N_GPUS:-}" >> "$CALLS"\n'
JOB = {"SLURM_JOB_NODELIST": "n[0-2]", "SLURM_JOB_ID": "41", "SLURM_GPUS_ON_NODE": "h100:8"}


class Machine:
    """A folder of stand-ins, and what was called."""

    def __init__(self, folder):
        self.folder = folder
        self.calls_file = folder / "calls"
        for name, text in STAND_INS.items():
            self.write(name, text)
        own = {
            "CALLS": str(self.calls_file),
            "PYTHON": f"{folder}/python",
            "PATH": f"{folder}:{os.environ['PATH']}",
        }
        known = {
            name: value
            for name, value in os.environ.items()
            if name not in ("RAY_ADDRESS", "NNODES", "N_GPUS")
        }
        self.environment = {
            **known,
            **own,
            **JOB,
            "NO_NODES": "never",
            "SLURM_SUBMIT_DIR": str(RECIPES.parent),
        }

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def start(self, *words, stderr=None, **knobs):
        command = ["bash", str(RECIPES / "multi_node" / "slurm.sbatch.sh"), *map(str, words)]
        environment = {**self.environment, **knobs}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)

    def calls(self):
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_slurm_starts_the_head_then_workers_then_the_recipe(machine):
    recipe = machine.write("recipe", RECIPE)
    assert machine.start(recipe, "a=1").wait(600) == 0
    step = "srun --overlap --nodes=1 --ntasks=1"
    end = "--num-gpus=8 --block --disable-usage-stats"
    ray = machine.folder / "ray"
    address = "10.0.0.7:20041"
    start = "start --head --node-ip-address=10.0.0.7 --port=20041 --include-dashboard=false"
    workers = {
        f"{step} --nodelist={node} {ray} start --address={address} {end}" for node in ("n1", "n2")
    }
    first, third = (
        f"python -m recipes.multi_node.wait_for_nodes {address} {n} 600" for n in (1, 3)
    )
    calls = machine.calls()
    assert calls[0] == "scontrol show hostnames n[0-2]"
    # The head and the wait for it start together.
    assert set(calls[1:3]) == {f"{step} --nodelist=n0 {ray} {start} {end}", first}
    assert set(calls[3:6]) == workers | {third}
    assert calls[6:8] == ["recipe a=1", f"RAY_ADDRESS={address} NNODES=3 N_GPUS=8"]
    assert [call.split()[0] for call in calls[8:]] == ["ended"] * 3


@pytest.mark.parametrize(
    ("addresses", "knobs"), [("127.0.0.1", {}), ("", {}), ("10.0.0.7", {"HEAD_IP": "127.0.1.1"})]
)
def test_addresses_that_other_nodes_cannot_reach_are_refused(machine, addresses, knobs):
    machine.write("hostname", f'#!/usr/bin/env bash\necho "{addresses}"\n')
    process = machine.start("recipe", stderr=subprocess.PIPE, **knobs)
    (line,) = process.communicate(timeout=600)[1].decode().splitlines()
    assert process.returncode == 2 and "other nodes cannot reach it; set HEAD_IP" in line
    assert not any(call.startswith("srun") for call in machine.calls())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("prime/run_eurus2-7b_sft_fsdp.sh", ["train.parquet"]),
        ("pspo_wrs/run_abel-7b_sft_fsdp.sh", ["model", "train.parquet"]),
        ("prime/run_eurusprm-stage1_fsdp.sh", []),
        ("pspo_wrs/run_bert-large_step-rm_ddp.sh", ["model", "steps.parquet"]),
    ],
)
def test_torchrun_leaves_no_node_idle(tmp_path, script, words):
    knobs = {"NNODES": "4", "DRY_RUN": "1", "OUTPUT_DIR": str(tmp_path / "out")}
    command = ["bash", str(RECIPES / script), *words]

    def run(**more):
        environment = {**os.environ, "PYTHON": sys.executable, **knobs, **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    refused = run()
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 2 and "NNODES=4, and torchrun starts processes on this" in line
    options = "--nnodes=4 --node-rank=1 --master-addr=10.0.0.1"
    started = run(TORCHRUN=options)
    assert started.returncode == 0 and f" {options} --nproc-per-node " in started.stdout


@pytest.mark.parametrize(
    ("knobs", "status", "runs"), [({}, 7, True), ({"NO_NODES": "3"}, 1, False)]
)
def test_failed_recipes_and_missing_nodes_end_the_job_and_ray(machine, knobs, status, runs):
    recipe = machine.write("recipe", RECIPE + "exit 7\n")
    assert machine.start(recipe, **knobs).wait(600) == status
    calls = machine.calls()
    assert any(call.startswith("recipe") for call in calls) == runs and not any(
        "requeue" in call for call in calls
    )
    assert sum(call.startswith("ended") for call in calls) == 3


@pytest.mark.parametrize(
    ("sent", "knobs", "status", "again"),
    [
        (signal.SIGUSR1, {}, 138, ["scontrol requeue 41"]),
        (signal.SIGUSR1, {"REQUEUE": "0"}, 138, []),
        # Preempted jobs are queued again by SLURM, canceled ones by nobody.
        (signal.SIGTERM, {}, 143, []),
    ],
)
def test_signals_stop_the_recipe_and_only_time_limits_requeue_it(
    machine, sent, knobs, status, again
):
    on_term = (
        'trap \'echo told >> "$CALLS"; exit 1\' TERM\necho ready >> "$CALLS"\nwhile :; do sleep'
        " 0.05; done\n"
    )
    process = machine.start(machine.write("recipe", RECIPE + on_term), **knobs)
    end = time.monotonic() + 600
    while "ready" not in machine.calls():
        assert time.monotonic() < end, machine.calls()
        time.sleep(0.02)
    process.send_signal(sent)
    assert process.wait(600) == status
    calls = machine.calls()
    after = calls[calls.index("told") + 1 :]
    assert [call.split()[0] for call in after[:3]] == ["ended"] * 3
    assert after[3:] == again


def test_only_the_policy_can_run_on_megatron(tmp_path):
    (tmp_path / "data.parquet").touch()
    files = {name: str(tmp_path / "data.parquet") for name in ("TRAIN_FILES", "VAL_FILES")}
    (call,) = get_calls(tmp_path, "multi_node/run_eurus2-7b_megatron.sh", TP="2", PP="2", **files)
    overrides, _ = get_overrides(call, "prime_ext.train")
    config = compose_config("prime_trainer", overrides)
    assert check_config(config) == []
    assert (config.actor_rollout_ref.actor.strategy, config.prm.engine.strategy) == (
        "megatron",
        "fsdp2",
    )
    assert config.actor_rollout_ref.actor.megatron.param_offload and config.prm.engine.param_offload
    with pytest.raises(SettingsError, match="megatron"):
        plan_run(config, None)
    with pytest.raises(SettingsError, match="^prm.engine.strategy must be 'fsdp'"):
        compose_config("prime_trainer", [*overrides, "prm.engine.strategy=megatron"])
    # 8 ranks in groups of 4 that share weights are 2 data-parallel ones; 3 rollouts do not divide.
    odd = [
        "actor_rollout_ref.rollout.n=3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "prm.mini_batch_size=8",
    ]
    (line,) = check_config(compose_config("prime_trainer", [*overrides, *odd]))
    assert "do not divide over 2 data-parallel ranks" in line
