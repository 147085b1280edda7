#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Any RL recipe on several nodes under SLURM: one Ray head, workers by srun, the recipe, and a
# cleanup of all Ray processes.
#
#   sbatch --nodes=4 --gpus-per-node=8 --exclusive recipes/multi_node/slurm.sbatch.sh RECIPE [words ...]
#   sbatch --nodes=4 --gpus-per-node=8 --exclusive recipes/multi_node/slurm.sbatch.sh recipes/prime/run_eurus2-7b_fsdp.sh
#
# Submit from the root of this repository, with the Python environment activated or in .venv, or
# with PYTHON set. All nodes must see the repository, data, models and OUTPUT_DIR at the same paths.
# The environment of sbatch reaches all nodes; NNODES is the job's number of nodes, N_GPUS the value
# of --gpus-per-node. Give partition, account, time and memory to sbatch. Export NCCL_SOCKET_IFNAME
# and GLOO_SOCKET_IFNAME, the network interface between the nodes; gloo needs it where a host name
# resolves to 127.0.1.1.
# 300 s before the time limit (USR1) the recipe gets TERM and the job is queued again; it resumes
# from its last checkpoint, so set SAVE_FREQ to the steps that may be lost. After preemption or the
# failure of a node, SLURM itself queues the job again. A recipe that fails ends the job with its
# status. REQUEUE=0 does not queue again at the time limit. DRY_RUN=1 prints the commands. Outside
# of a job, use
#   DRY_RUN=1 NNODES=2 bash recipes/multi_node/slurm.sbatch.sh RECIPE
#
# NEVER RUN UNDER SLURM: its commands, their order and the cleanup are tested with stand-ins for
# srun and scontrol.
#SBATCH --job-name=prime_ext
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
set -euo pipefail

if [[ $# -lt 1 || "$1" == "-h" || "$1" == "--help" ]]; then
    sed -n '/^# Any RL recipe on/,/^#SBATCH/p' "${BASH_SOURCE[0]}" | grep '^# \|^#$' | cut -c3-
    echo "Knobs (environment): PROJECT_ROOT PYTHON RAY N_GPUS NUM_CPUS HEAD_IP PORT WAIT REQUEUE DRY_RUN"
    [[ $# -ge 1 ]] && exit 0 || exit 2
fi
dry_run() { [[ "${DRY_RUN:-0}" != 0 ]]; }
fail() { echo "slurm.sbatch.sh: $*" >&2; exit 2; }

# sbatch runs a copy of this script, so the script's own path is of no use.
PROJECT_ROOT=${PROJECT_ROOT:-${SLURM_SUBMIT_DIR:-$PWD}}
[[ -e "$PROJECT_ROOT/recipes/launch.sh" ]] ||
    fail "$PROJECT_ROOT is not the root of this repository; submit from there, or set PROJECT_ROOT"
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
RAY=${RAY:-$(dirname "$PYTHON")/ray}
REQUEUE=${REQUEUE:-1}
WAIT=${WAIT:-600}
# Jobs that share a node must not share a port.
PORT=${PORT:-$((20000 + ${SLURM_JOB_ID:-0} % 10000))}
# SLURM writes 8, or a100:8.
export N_GPUS=${N_GPUS:-${SLURM_GPUS_ON_NODE:-8}}
N_GPUS=${N_GPUS##*:}
if dry_run && [[ -z "${SLURM_JOB_NODELIST:-}" ]]; then
    NODES=()
    for ((i = 0; i < ${NNODES:-2}; i++)); do NODES+=("node$i"); done
    HEAD_IP=${HEAD_IP:-node0}
else
    [[ -n "${SLURM_JOB_NODELIST:-}" ]] || fail "this is not a SLURM job; submit it with sbatch, or set DRY_RUN=1"
    mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    # This script runs on the first node, whose name may resolve to 127.0.1.1.
    HEAD_IP=${HEAD_IP:-$(hostname -I | awk '{for (i = 1; i <= NF; i++) if ($i !~ /^127\./) {print $i; exit}}' || true)}
    [[ -n "$HEAD_IP" && "$HEAD_IP" != 127.* ]] ||
        fail "HEAD_IP=$HEAD_IP: other nodes cannot reach it; set HEAD_IP to the address of this node in their network"
fi
export NNODES=${#NODES[@]} RAY_ADDRESS=$HEAD_IP:$PORT
export PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}"
# A secret of this job's cluster; job steps and the recipe get it from the environment.
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
export RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}

step=(srun --overlap --nodes=1 --ntasks=1)
options=(--num-gpus="$N_GPUS" ${NUM_CPUS:+--num-cpus="$NUM_CPUS"} --block --disable-usage-stats)
head=("${step[@]}" --nodelist="${NODES[0]}" "$RAY" start --head --node-ip-address="$HEAD_IP" --port="$PORT"
    --include-dashboard=false "${options[@]}")
worker=("$RAY" start --address="$RAY_ADDRESS" "${options[@]}")
wait_for=("$PYTHON" -m recipes.multi_node.wait_for_nodes "$RAY_ADDRESS")
if dry_run; then
    echo "${head[*]} &"
    echo "${wait_for[*]} 1 $WAIT"
    for node in "${NODES[@]:1}"; do echo "${step[*]} --nodelist=$node ${worker[*]} &"; done
    echo "${wait_for[*]} $NNODES $WAIT"
    echo "RAY_ADDRESS=$RAY_ADDRESS NNODES=$NNODES N_GPUS=$N_GPUS bash $*"
    exit 0
fi

node_pids=() recipe_pid='' time_is_over=''
# Ends the job steps, and with them, because of --block, every process of Ray on their nodes.
cleanup() {
    local status=$?
    trap - EXIT TERM INT USR1
    if [[ -n "$recipe_pid" ]]; then
        kill -TERM "$recipe_pid" 2> /dev/null || true
        wait "$recipe_pid" || true
    fi
    for pid in "${node_pids[@]}"; do kill -TERM "$pid" 2> /dev/null || true; done
    wait || true
    if [[ -n "$time_is_over" && "$REQUEUE" != 0 ]]; then
        echo "slurm.sbatch.sh: the time limit is near; queued again, to resume from the last checkpoint" >&2
        scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'time_is_over=1; exit 138' USR1
trap 'exit 143' TERM
trap 'exit 130' INT

# Everything that takes time is in the background, because a shell runs traps only between commands,
# or while it waits for one.
"${head[@]}" &
node_pids+=($!)
"${wait_for[@]}" 1 "$WAIT" & wait $!
for node in "${NODES[@]:1}"; do
    "${step[@]}" --nodelist="$node" "${worker[@]}" &
    node_pids+=($!)
done
"${wait_for[@]}" "$NNODES" "$WAIT" & wait $!
bash "$@" &
recipe_pid=$!
status=0
wait "$recipe_pid" || status=$?
recipe_pid=''
exit "$status"
