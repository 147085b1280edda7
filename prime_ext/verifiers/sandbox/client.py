# SPDX-License-Identifier: Apache-2.0
"""The sandbox as the rest of the package uses it: a pool of fork servers."""

import functools
import marshal
from concurrent.futures import Future

from prime_ext.verifiers.sandbox.probe import Protection
from prime_ext.verifiers.sandbox.runs import Execution, Limits, Roles, SandboxUnavailable, failure
from prime_ext.verifiers.sandbox.server_process import Options, start_server
from prime_ext.verifiers.worker_pool import Pool


class Sandbox(Pool):
    """Runs hostile Python programs, at most ``workers`` at a time, each in a confined process of its own.

    Args:
        limits: limits of a run unless it brings its own.
        workers: most runs at a time; None: one per processor that this process may use.
        bubblewrap: ``auto`` puts the fork servers into bubblewrap if that is installed and works, ``always`` insists,
            ``never`` does without.
        unsafe_no_sandbox: run programs even where the machine cannot confine them.
        left_out: protections to do without (``landlock``, ``seccomp``, ``rlimits``); for tests.

    Thread-safe. After a fork of this process, servers of its own are started on first use.

    Raises:
        SandboxUnavailable: the machine lacks what is needed; the message says what.
        ValueError: an argument makes no sense.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        *,
        bubblewrap: str = "auto",
        unsafe_no_sandbox: bool = False,
        left_out: tuple[str, ...] = (),
    ) -> None:
        if bubblewrap not in ("auto", "always", "never"):
            raise ValueError(f"bubblewrap={bubblewrap!r} is not one of auto, always, never")
        self.limits = limits or Limits()
        options = Options(bubblewrap, unsafe_no_sandbox, tuple(left_out))
        super().__init__(workers, functools.partial(start_server, options), failure)
        try:
            self.protection  # noqa: B018  starts the first server
        except SandboxUnavailable:
            self.close()
            raise

    @property
    def protection(self) -> Protection:
        """What confines the programs on this machine."""
        found = self._put(None).result()
        if isinstance(found, Execution):
            raise SandboxUnavailable(found.stderr)
        return found

    def start(self, roles: Roles, stdin: bytes = b"", limits: Limits | None = None) -> "Future[Execution]":
        """Queue a run and return its future, which never raises for what a program does.

        Raises:
            ValueError: it cannot be sent, being nested too deeply.
            RuntimeError: the sandbox is closed.
        """
        # A child trusts what it is told and reads it before anything of the program runs.
        told = {role: marshal.dumps(payload) for role, payload in roles.items()}
        return self._put((told, stdin, limits or self.limits))

    def submit(self, program: str, stdin: bytes | str = b"", limits: Limits | None = None) -> "Future[Execution]":
        """Queue a script and its standard input, and return the future of :meth:`start`."""
        given = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
        return self.start({"program": {"program": program}}, given, limits)

    def run(self, program: str, stdin: bytes | str = b"", limits: Limits | None = None) -> Execution:
        """Run a script on its standard input and wait for its end."""
        return self.submit(program, stdin, limits).result()


def find_protection() -> Protection:
    """Start a server as :class:`~prime_ext.verifiers.sandbox.client.Sandbox` does, and return its protections.

    Raises:
        SandboxUnavailable: the server does not start at all.
    """
    with Sandbox(workers=1, unsafe_no_sandbox=True) as sandbox:
        return sandbox.protection
