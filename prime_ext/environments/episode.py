# SPDX-License-Identifier: Apache-2.0
"""Episodes of environments in processes that can be killed, for asyncio.

    async with Episode(name) as episode:
        text = await episode.reset(seed)
        turn = await episode.step("guess 5")

An environment that hangs, breaks, leaks or returns what it must not raises EnvironmentFailed, and
affects no other episode.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prime_ext.environments.fork_server import HEAD, pack_message
from prime_ext.verifiers.verdict import Outcome

# Seconds for an import, and for the first turn's and each turn's reply.
START_LIMIT = 120.0
STEP_LIMIT = 10.0
MEMORY_LIMIT = 2 * 1024**3


class EnvironmentFailed(RuntimeError):
    """An environment that did not do its part: ``timeout``, ``error`` or ``out_of_memory``."""

    def __init__(self, outcome: Outcome, detail: str):
        super().__init__(detail)
        self.outcome = outcome


@dataclass(frozen=True)
class Turn:
    """Reply of an environment to an action.

    Attributes:
        text: the observation.
        reward: of this turn.
        done: whether the episode has ended.
        invalid: whether the text was no valid action.
        success: in [0, 1]; 0 before the end, unless the environment says otherwise.
        progress: how much of the task is done, in [0, 1]; None if the environment does not tell.
    """

    text: str
    reward: float
    done: bool
    invalid: bool = False
    success: float = 0.0
    progress: float | None = None


class Episode:
    """One episode of an environment, an asynchronous context manager.

    Args:
        name: of the environment (:mod:`prime_ext.environments.names`).
        step_limit: seconds that a reply may take.
        memory_limit: bytes that the episode may allocate.
    """

    def __init__(
        self, name: str, step_limit: float = STEP_LIMIT, memory_limit: int = MEMORY_LIMIT
    ) -> None:
        self.name = name
        self._step_limit = step_limit
        self._memory_limit = memory_limit
        self._pid = 0  # as long as the server imports the environment

    async def __aenter__(self) -> "Episode":
        """Start the process. Raises EnvironmentFailed: the environment cannot be imported."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._server = _find_server(self._memory_limit)
            try:
                self._server.send(self.name, theirs)
            except OSError as error:
                ours.close()
                raise EnvironmentFailed(Outcome.ERROR, f"{self.name}: {error}") from error
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        try:
            self._pid = (await self._receive(START_LIMIT))["pid"]
        except BaseException as error:
            await self.__aexit__(type(error))
            raise
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            self._kill()
        # Waiting for the end would keep a cancelled rollout.
        self._writer.close()

    async def reset(self, seed: int) -> str:
        """Begin the episode of a seed; return its first observation. Raises EnvironmentFailed."""
        return (await self._ask({"seed": seed}, START_LIMIT))["text"]

    async def step(self, text: str) -> Turn:
        """Act. Raises EnvironmentFailed."""
        return Turn(**await self._ask({"text": text}, self._step_limit))

    async def _ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        self._writer.write(pack_message(request))
        return await self._receive(seconds)

    async def _receive(self, seconds: float) -> dict[str, Any]:
        # Costs less than asyncio.wait_for, which makes a task.
        timer = asyncio.get_running_loop().call_later(seconds, self._give_up)
        try:
            head = await self._reader.readexactly(HEAD.size)
            reply = json.loads(await self._reader.readexactly(HEAD.unpack(head)[0]))
        except asyncio.TimeoutError:
            detail = f"{self.name} did not answer within {seconds:g} seconds"
            raise EnvironmentFailed(Outcome.TIMEOUT, detail) from None
        except (OSError, EOFError) as error:
            detail = f"the process of {self.name} died"
            raise EnvironmentFailed(Outcome.ERROR, detail) from error
        finally:
            timer.cancel()
        if "failure" in reply:
            outcome = Outcome(reply.get("outcome", Outcome.ERROR))
            raise EnvironmentFailed(outcome, reply["failure"])
        return reply

    def _give_up(self) -> None:
        self._kill()
        self._reader.set_exception(asyncio.TimeoutError())

    def _kill(self) -> None:
        if not self._pid:
            self._server.kill()
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


class _ForkServer:
    """A running fork server (:mod:`prime_ext.environments.fork_server`)."""

    def __init__(self, memory_limit: int) -> None:
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        boot = (
            f"import sys; sys.path[:] = {sys.path!r};"
            " from prime_ext.environments.fork_server import serve;"
            f" serve({theirs.fileno()}, {memory_limit})"
        )
        with theirs:
            # Sets of texts have the same order in every process.
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )

    def is_usable(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def send(self, name: str, connection: socket.socket) -> None:
        socket.send_fds(self._control, [name.encode()], [connection.fileno()])


_servers: dict[tuple[int, int], _ForkServer] = {}
_lock = threading.Lock()


def _find_server(memory_limit: int) -> _ForkServer:
    """Return this process's fork server with this limit; start one if there is none."""
    key = (os.getpid(), memory_limit)
    with _lock:
        if key not in _servers or not _servers[key].is_usable():
            _servers[key] = _ForkServer(memory_limit)
        return _servers[key]
