# SPDX-License-Identifier: Apache-2.0
"""Programs and Ray's workers as forks of one process with torch and verl: each saves 14 s.

The interpreter :func:`python` starts this file, and Ray does, in place of its workers' Python, in
the environment that :func:`with_forks` returns. It sends arguments, environment, cores and files to
a server, and lives as long as the fork. Ray and verl read settings when they are imported: each
choice of such settings has a server of its own, a fork of the one that has imported the rest.
"""

import atexit
import contextlib
import functools
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

SOCKET = "FORKED_WORKERS_SOCKET"
SETTINGS = ("PYTHONPATH", "RAY_", "VERL_", "TQ_", "VLLM_")
# These are read later. RAY_RAYLET_PID and RAY_JOB_ID are read at once: each run on a cluster has a
# server.
READ_LATER = ("RAY_LOCAL_WORLD_SIZE", "VERL_FILE_LOGGER_PATH")
PRELOADED = """
torch._dynamo tensordict torch.distributed.fsdp torch.distributed.checkpoint.state_dict datasets
peft scipy.stats
transformers.models.auto.modeling_auto transformers.modeling_utils hydra.main aiohttp fastapi
uvicorn openai
""".split()


@functools.cache
def server_of_this_process() -> tuple[str, "subprocess.Popen[bytes]"]:
    """Start the server, which ends with this process; return its socket and its process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = os.path.join(folder, "socket")
    known = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    words = [sys.executable, __file__, "--serve", path]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=known)
    assert server.stdout is not None
    server.stdout.readline()  # the socket is there
    return path, server


def with_forks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run, changed so that its workers are forks."""
    path, _ = server_of_this_process()
    paths = [environment.get("PYTHONPATH"), str(Path(__file__).parent)]
    hook = {"RAY_RUNTIME_ENV_HOOK": f"{Path(__file__).stem}.{use_server.__name__}", SOCKET: path}
    return {**environment, **hook, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@functools.cache
def python() -> str:
    """Return an interpreter whose modules and scripts run in forks."""
    path, _ = server_of_this_process()
    program = Path(path).with_name("python")
    forks = (
        f'[ "$1" = -u ] && shift\ncase "$1" in -m|*.py) exec {sys.executable} -I {__file__} {path}'
        ' "$@";; esac'
    )
    program.write_text(f'#!/bin/sh\n{forks}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


def use_server(runtime_env: dict | None) -> dict:
    """Return the environment of a job with this file as the Python of its workers."""
    return {
        **(runtime_env or {}),
        "py_executable": f"{sys.executable} -I {__file__} {os.environ[SOCKET]}",
    }


def ask_for_fork(path: str, words: list[str]) -> int:
    """Let the server of these settings fork, and return the exit status of the fork."""
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as server:
        first.connect(path)
        first.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
        server.connect(first.makefile().readline().strip())
        socket.send_fds(server, [b"\0"], [0, 1, 2])
        said = [words, dict(os.environ), os.getcwd(), sorted(os.sched_getaffinity(0))]
        server.sendall(json.dumps(said).encode() + b"\n")
        return int(server.makefile().readline() or 1)


def take_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [
        path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path
    ]


def become(words: list[str], environment: dict[str, str], folder: str, cores: list[int]) -> None:
    """Run a module (``-m MODULE ...``) or Ray's program for workers in this fork."""
    os.setsid()
    os.chdir(folder)
    os.sched_setaffinity(0, cores)
    take_environment(environment)
    is_module = words[0] == "-m"
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(words[0]))
    sys.argv = words[1:] if is_module else words
    run = functools.partial(runpy.run_module, alter_sys=True) if is_module else runpy.run_path
    run(sys.argv[0], run_name="__main__")


def serve_settings(path: str) -> None:
    """Answer each environment with the socket of its settings' server, which may have to start."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    servers: dict[str, int] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print(flush=True)
        while listener in select.select([0, listener], [], [])[0]:
            with listener.accept()[0] as asker:
                environment = json.loads(asker.makefile().readline())
                names = [
                    name
                    for name in sorted(environment)
                    if name.startswith(SETTINGS) and name not in READ_LATER
                ]
                settings = repr([(name, environment[name]) for name in names])
                own = f"{path}.{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
                if own not in servers or os.waitpid(servers[own], os.WNOHANG)[0]:
                    Path(own).unlink(missing_ok=True)  # of a server that was killed with its forks
                    served = socket.socket(socket.AF_UNIX)
                    served.bind(own)
                    served.listen(64)
                    servers[own] = os.fork()
                    if servers[own] == 0:
                        take_environment(environment)
                        import_verl()
                        gc.freeze()
                        return serve(served)
                    served.close()
                asker.sendall(own.encode() + b"\n")


def import_verl() -> None:
    """Import verl without a number from Ray's generator, whose state all forks would share.

    Ray's check ``erased == 1`` ends an actor that two forks send calls with equal ids. An actor's
    class, which verl has, takes a number.
    """
    from ray import ActorClassID

    ids = mock.Mock(from_random=lambda: ActorClassID(os.urandom(ActorClassID.size())))
    with mock.patch("ray.actor.ActorClassID", ids):
        importlib.import_module("verl")


def serve(listener: socket.socket) -> None:
    """Fork for each asker, and send it the exit code of its fork.

    A fork whose asker is gone is killed. The server of a cluster ends with the cluster.
    """
    askers: dict[int, socket.socket] = {}
    raylet = os.environ.get("RAY_RAYLET_PID", str(os.getpid()))
    while askers or Path("/proc", raylet).exists():
        ready, _, _ = select.select([0, listener, *askers.values()], [], [], 0.05)
        if 0 in ready:
            return
        for fork, asker in askers.items():
            if asker in ready:
                os.kill(fork, signal.SIGKILL)
        while askers and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with askers.pop(ended[0]) as asker, contextlib.suppress(OSError):
                asker.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())
        if listener not in ready:
            continue
        asker, _ = listener.accept()
        _, outputs, _, _ = socket.recv_fds(asker, 1, 3)
        said = json.loads(asker.makefile().readline())
        fork = os.fork()
        if fork == 0:
            for number, output in enumerate(outputs):
                os.dup2(output, number)
            for one in (listener, asker, *askers.values()):
                one.close()
            become(*said)
            sys.exit()
        for output in outputs:
            os.close(output)
        askers[fork] = asker


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve_settings(sys.argv[2])
    else:
        sys.exit(ask_for_fork(sys.argv[1], sys.argv[2:]))
