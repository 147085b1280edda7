# SPDX-License-Identifier: Apache-2.0
"""Fork server: it imports environments, and its children play one episode each.

A child costs milliseconds, has the imports already, and generators of its own. What an environment
does, printing, leaking or hanging, ends with its child. The server and its children end with the
program that started it.
"""

import ctypes
import gc
import importlib
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from typing import Any

from prime_ext.environments import TextEnvironment
from prime_ext.environments.names import load_environment
from prime_ext.utils.rows import SourceError
from prime_ext.verifiers.verdict import Outcome

MAX_REQUEST = 1 << 16
MAX_CHARACTERS = 100_000
_PR_SET_PDEATHSIG = 1
# Before each message: the number of its bytes.
HEAD = struct.Struct("!I")


class WrongReply(Exception):
    """An environment returned what the protocol does not allow."""


def serve(descriptor: int, memory_limit: int) -> None:
    """Fork a child for each request, a name with the child's socket, until the client is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    control = socket.socket(fileno=descriptor)
    _silence()
    makers: dict[str, Callable[[], TextEnvironment]] = {}
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST, 1)
        if not request:
            return
        with socket.socket(fileno=descriptors[0]) as episode:
            name = request.decode()
            try:
                if name not in makers:
                    makers[name] = load_environment(name)
                    _share_memory()
            except BaseException as error:
                _try_to_send(episode, {"failure": _describe(error, name)})
                continue
            if os.fork() == 0:
                control.close()
                _play(episode, name, makers[name], memory_limit)


def _share_memory() -> None:
    """Keep children from importing ``numpy.random``, and their garbage collectors from copying."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")
    gc.collect()
    gc.freeze()


def _silence() -> None:
    """Point standard input, output and error to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _play(
    connection: socket.socket, name: str, make: Callable[[], TextEnvironment], memory: int
) -> None:
    """Answer requests for one episode; end the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    used = _read_data_size()
    resource.setrlimit(resource.RLIMIT_DATA, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _send(connection, {"pid": os.getpid()})
        environment: TextEnvironment | None = None
        while (request := _receive(connection)) is not None:
            try:
                if environment is None:
                    environment = make()
                reply: dict[str, Any]
                if "seed" in request:
                    _seed_generators(request["seed"])
                    reply = {"text": check_text(environment.reset(request["seed"]))}
                else:
                    reply = check_reply(environment.step(request["text"]))
            except MemoryError:
                failure = f"{name}: more than {memory >> 20} MiB of memory"
                reply = {"failure": failure, "outcome": Outcome.OUT_OF_MEMORY}
            except BaseException as error:
                reply = {"failure": _describe(error, name)}
            _send(connection, reply)
        if environment is not None:
            environment.close()
    finally:
        os._exit(0)


def _seed_generators(seed: int) -> None:
    """Seed the global generators, which children of one server would otherwise share."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def check_text(text: Any) -> str:
    """Return an observation. Raises WrongReply: not a text, or too long."""
    if not isinstance(text, str):
        raise WrongReply(f"an observation must be a text, got {type(text).__name__}")
    if len(text) > MAX_CHARACTERS:
        raise WrongReply(f"an observation of {len(text)} characters is above {MAX_CHARACTERS}")
    return text.encode("utf-8", "replace").decode()


def check_reply(reply: Any) -> dict[str, Any]:
    """Return the checked fields of what ``step`` returned. Raises WrongReply."""
    if not isinstance(reply, tuple) or len(reply) != 4:
        raise WrongReply("step must return (text, reward, done, info)")
    text, reward, done, info = reply
    if not isinstance(info, Mapping):
        raise WrongReply(f"info must be a mapping, got {type(info).__name__}")
    if not isinstance(reward, Real) or not isfinite(reward):
        raise WrongReply(f"a reward must be a finite number, got {reward!r}")
    if bool(done) and "success" not in info:
        raise WrongReply("the last turn's info must have the key success")
    checked: dict[str, Any] = {
        "text": check_text(text),
        "reward": float(reward),
        "done": bool(done),
        "invalid": bool(info.get("invalid", False)),
    }
    for key in ("success", "progress"):
        if key in info:
            value = info[key]
            if not isinstance(value, Real) or not 0 <= float(value) <= 1:
                raise WrongReply(f"{key} must be in [0, 1], got {value!r}")
            checked[key] = float(value)
    return checked


def _describe(error: BaseException, name: str) -> str:
    """Return one line about an error, with the environment's name."""
    is_ours = isinstance(error, WrongReply | SourceError)
    line = str(error) if is_ours else f"{type(error).__name__}: {error}"
    return " ".join((line if line.startswith(name) else f"{name}: {line}").split())[:500]


def _read_data_size() -> int:
    """Return the size of this process's data, in bytes, which its limit counts."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


def pack_message(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message between client and child."""
    content = json.dumps(message).encode()
    return HEAD.pack(len(content)) + content


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(pack_message(message))


def _try_to_send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    try:
        _send(connection, message)
    except OSError:
        pass  # the client has given the episode up


def _receive(connection: socket.socket) -> Any:
    """Return the next message; None if the client is gone."""
    with_head = _receive_exactly(connection, HEAD.size)
    if with_head is None:
        return None
    content = _receive_exactly(connection, HEAD.unpack(with_head)[0])
    return None if content is None else json.loads(content)


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            return None
        received += piece
    return bytes(received)
