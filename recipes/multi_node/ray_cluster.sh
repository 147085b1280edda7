#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Ray cluster of several nodes without a scheduler, and any recipe on it.
#
#   on the first node:   bash recipes/multi_node/ray_cluster.sh head              # prints ADDRESS
#   on every other node: bash recipes/multi_node/ray_cluster.sh worker ADDRESS
#   on the first node:   NNODES=2 bash recipes/multi_node/ray_cluster.sh run recipes/prime/run_eurus2-7b_fsdp.sh [words ...]
#   on every node:       bash recipes/multi_node/ray_cluster.sh stop
#
# All nodes want the same Python environment, this repository at the same path, and a file system that they share for data,
# models and OUTPUT_DIR. Relative paths are relative to the folder where head and worker were started: start all of them in
# the same one. What belongs to a node or is secret (NCCL_SOCKET_IFNAME, WANDB_API_KEY) is exported before head and worker;
# what the recipe sets reaches the workers by itself (prime_ext/run/ray_cluster.py).
# Anybody who reaches the head's port can run programs on the cluster, unless there is a token (ray get-auth-token
# --generate makes ~/.ray/auth_token, as any local run of Ray does; RAY_AUTH_TOKEN): the same on all nodes, and used if there.
# run waits until NNODES nodes are there, sets RAY_ADDRESS and becomes the recipe. The cluster stays until stop, which ends
# the node that head or worker started here, and no other Ray. DRY_RUN=1 prints the commands.
#
# NEVER RUN ON SEVERAL MACHINES; docs/how_to/multi_node.md says what has been tried.
set -euo pipefail

# shellcheck source=recipes/head.sh
source "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
begin 1 "NNODES NODE_IP PORT NUM_GPUS NUM_CPUS RAY_TEMP_DIR STATE_DIR WAIT RAY PYTHON DRY_RUN" "$@"
# shellcheck source=recipes/python.sh
source "$PROJECT_ROOT/recipes/python.sh"
RAY=${RAY:-$(dirname "$PYTHON")/ray}
# Address under which the other nodes reach this one; empty: what Ray finds.
NODE_IP=${NODE_IP:-}
PORT=${PORT:-6379}
# Empty: what Ray finds on the node.
NUM_GPUS=${NUM_GPUS:-}
NUM_CPUS=${NUM_CPUS:-}
# Ray's files; another folder keeps two clusters on one machine apart. Must be a short path.
RAY_TEMP_DIR=${RAY_TEMP_DIR:-}
# What this script remembers of the node it started.
STATE_DIR=${STATE_DIR:-${TMPDIR:-/tmp}/prime_ext_ray_$(id -u)}
# Seconds to wait for nodes.
WAIT=${WAIT:-600}
# Whether Ray asks for its token. A head does as soon as there is one; a worker and a run have to be told.
if [[ -z "${RAY_AUTH_MODE:-}" ]]; then
    RAY_AUTH_MODE=disabled
    [[ -z "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" && ! -e ~/.ray/auth_token ]] || RAY_AUTH_MODE=token
fi
export RAY_AUTH_MODE
dry_run() { [[ "${DRY_RUN:-0}" != 0 ]]; }
fail() { echo "ray_cluster.sh: $*" >&2; exit 2; }

# start_node WORDS...: `ray start` in the background, in a session of its own so that Ctrl-C in this terminal spares it.
start_node() {
    local words=(start "$@" --block --disable-usage-stats)
    [[ -z "$NODE_IP" ]] || words+=(--node-ip-address="$NODE_IP")
    [[ -z "$NUM_GPUS" ]] || words+=(--num-gpus="$NUM_GPUS")
    [[ -z "$NUM_CPUS" ]] || words+=(--num-cpus="$NUM_CPUS")
    if dry_run; then
        echo "$RAY ${words[*]}"
        return
    fi
    [[ ! -e "$STATE_DIR/pid" ]] || ! kill -0 "$(< "$STATE_DIR/pid")" 2> /dev/null ||
        fail "a node started from here is running (pid $(< "$STATE_DIR/pid")); stop it first"
    mkdir -p "$STATE_DIR"
    PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}" setsid nohup "$RAY" "${words[@]}" \
        > "$STATE_DIR/ray.log" 2>&1 < /dev/null &
    echo $! > "$STATE_DIR/pid"
    local end=$((SECONDS + WAIT))
    until grep -qis "ray runtime started" "$STATE_DIR/ray.log"; do
        kill -0 "$(< "$STATE_DIR/pid")" 2> /dev/null || { tail -20 "$STATE_DIR/ray.log" >&2; fail "ray start failed"; }
        ((SECONDS < end)) || fail "ray start is not ready after $WAIT s; see $STATE_DIR/ray.log"
        sleep 0.2
    done
}

stop_node() {
    dry_run && { echo "kill \$(cat $STATE_DIR/pid)"; return; }
    [[ -e "$STATE_DIR/pid" ]] || fail "no node was started from here ($STATE_DIR/pid)"
    local pid end=$((SECONDS + 60))
    pid=$(< "$STATE_DIR/pid")
    # `ray start --block` ends the processes of its node, and only those.
    kill "$pid" 2> /dev/null || echo "ray_cluster.sh: the node (pid $pid) had ended already" >&2
    while kill -0 "$pid" 2> /dev/null; do
        ((SECONDS < end)) || fail "the node (pid $pid) is still running after 60 s"
        sleep 0.2
    done
    rm -f "$STATE_DIR/pid" "$STATE_DIR/address"
}

command=$1
shift
case "$command" in
    head)
        [[ $# -eq 0 ]] || fail "head takes no arguments; -h explains"
        if [[ -z "$NODE_IP" ]]; then
            dry_run && NODE_IP=THIS_NODE || NODE_IP=$("$PYTHON" -c "import ray; print(ray.util.get_node_ip_address())")
        fi
        start_node --head --port="$PORT" --include-dashboard=false ${RAY_TEMP_DIR:+--temp-dir="$RAY_TEMP_DIR"}
        dry_run || echo "$NODE_IP:$PORT" > "$STATE_DIR/address"
        echo "$NODE_IP:$PORT"
        ;;
    worker)
        [[ $# -eq 1 && "$1" == *:* ]] || fail "worker takes one argument, the HOST:PORT that head printed"
        start_node --address="$1"
        ;;
    run)
        [[ $# -ge 1 ]] || fail "run wants a recipe; -h explains"
        [[ "${NNODES:-}" =~ ^[1-9][0-9]*$ ]] || fail "NNODES=${NNODES:-} must be the number of nodes"
        if [[ -z "${RAY_ADDRESS:-}" ]]; then
            if dry_run; then
                RAY_ADDRESS=THIS_NODE:$PORT
            else
                [[ -e "$STATE_DIR/address" ]] || fail "no head was started from here; start it, or set RAY_ADDRESS"
                RAY_ADDRESS=$(< "$STATE_DIR/address")
            fi
        fi
        export RAY_ADDRESS NNODES PYTHON
        wait_for=("$PYTHON" -m recipes.multi_node.wait_for_nodes "$RAY_ADDRESS" --seconds "$WAIT" "$NNODES")
        if dry_run; then
            echo "${wait_for[*]}"
            echo "RAY_ADDRESS=$RAY_ADDRESS NNODES=$NNODES bash $*"
            exit 0
        fi
        PYTHONPATH="$PROJECT_ROOT${PYTHONPATH:+:$PYTHONPATH}" "${wait_for[@]}"
        exec bash "$@"
        ;;
    stop) stop_node ;;
    *) fail "$command is none of head, worker, run, stop" ;;
esac
