# SPDX-License-Identifier: Apache-2.0
"""Two machines in namespaces: host name, network, processes, /tmp/ray and /dev/shm of their own.

They share the disk. The first machine's host name resolves to 127.0.1.1, as on Debian and Ubuntu.
The processes of the second are in a namespace inside that of the first, so that a stand-in for srun
can enter it. Nothing remains when the process that made them ends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import forked_workers

ADDRESSES = {"first": "10.77.0.1", "second": "10.77.0.2"}
HOSTS = {
    "first": "127.0.0.1 localhost\n127.0.1.1 first\n10.77.0.2 second\n",
    "second": "127.0.0.1 localhost\n10.77.0.1 first\n10.77.0.2 second\n",
}
# The first process ends, and with it all others, when the test's end of the pipe is closed.
FIRST_PROCESS = """
hostname "$1" && mount --bind "$2" /etc/hosts && mount -t tmpfs ray /tmp/ray &&
    mount -t tmpfs shm /dev/shm && ip link set lo up && echo ready
while read -r _; do :; done
"""
NAMESPACES = "unshare --uts --mount --net --pid --fork --kill-child --mount-proc".split()
# Path of the server of forks, which is another one on each machine.
FORKS = "/tmp/ray/forks"


def find_obstacle() -> str:
    """Return why this process cannot make machines; empty if it can."""
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    tried = [*NAMESPACES, "ip", "link", "add", "eth0", "type", "bridge"]
    done = subprocess.run(tried, capture_output=True, text=True)
    return f"no right to make namespaces: {done.stderr.strip()}" if done.returncode else ""


class Machine:
    """A running machine, with a shell that keeps what is exported in it."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], inside: list[str]):
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        hosts = folder / "hosts"
        hosts.write_text(HOSTS[name])
        Path("/tmp/ray").mkdir(exist_ok=True)
        words = [*inside, *NAMESPACES, "bash", "-c", FIRST_PROCESS, "bash", name, str(hosts)]
        pipes = {"stdin": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, **pipes)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self.pid = self._process.pid
        while children := Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            self.pid = int(children[0])
        self.enter = ["nsenter", "--target", str(self.pid), "--all"]
        serve = [*self.enter, sys.executable, forked_workers.__file__, "--serve", FORKS]
        self._forks = subprocess.Popen(serve, stdout=subprocess.PIPE, env=environment, **pipes)
        self._log = folder / "shell.txt"
        self._shell = subprocess.Popen(
            [*self.enter, "bash"],
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            env=environment,
            **pipes,
        )
        self._typed = 0

    def wait_for_forks(self) -> None:
        """Wait until the server of forks answers."""
        assert self._forks.stdout is not None
        self._forks.stdout.readline()

    def start(self, line: str) -> None:
        """Type a line."""
        assert self._shell.stdin is not None
        self._typed += 1
        self._begin = self._log.stat().st_size
        self._shell.stdin.write(f"{line}\nprintf '\\nended {self._typed} %d\\n' $?\n")
        self._shell.stdin.flush()

    def read(self) -> str:
        """Return the output of the last line so far."""
        return self._log.read_bytes()[self._begin :].decode(errors="replace")

    def wait(self, seconds: float) -> tuple[int, str]:
        """Return status and output of the last line."""
        end = time.monotonic() + seconds
        while not (ended := re.search(rf"^ended {self._typed} (\d+)$", self.read(), re.MULTILINE)):
            assert time.monotonic() < end, self.read()[-5000:]
            time.sleep(0.1)
        return int(ended[1]), self.read()[: ended.start()].strip()

    def type(self, line: str, seconds: float = 600) -> str:
        """Type a line that must succeed, and return its output."""
        self.start(line)
        status, output = self.wait(seconds)
        assert status == 0, f"{self.name}$ {line}\n{output[-5000:]}"
        return output

    def list_processes(self) -> str:
        """Return all command lines here."""
        words = [*self.enter, "ps", "-eo", "args"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def kill(self) -> None:
        """End all processes at once, as a loss of power does."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            for process in (self._process, self._forks, self._shell):
                process.communicate()


class TwoMachines:
    """Both, joined by a bridge that the first one has as its interface eth0."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self._folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir()
        self._environment = dict(environment)
        self.first = Machine("first", folder / "first", self._environment, [])
        _in_network(
            self.first,
            "ip link add eth0 type bridge",
            f"ip addr add {ADDRESSES['first']}/24 dev eth0",
            "ip link set eth0 up",
        )
        self.start_second()
        self.first.wait_for_forks()
        self.first.type(f"cd {self.shared}")

    def start_second(self) -> None:
        """Start the second machine, which has ended or is new."""
        inside = ["nsenter", "--target", str(self.first.pid), "--pid"]
        self.second = Machine("second", self._folder / "second", self._environment, inside)
        _in_network(
            self.first,
            f"ip link add second type veth peer name eth0 netns {self.second.pid}",
            "ip link set second master eth0 up",
        )
        _in_network(
            self.second,
            f"ip addr add {ADDRESSES['second']}/24 dev eth0",
            "ip link set eth0 up",
        )
        self.second.wait_for_forks()
        self.second.type(f"cd {self.shared}")

    def kill_second(self, silently: bool = False) -> None:
        """End the second machine; ``silently``: no packet says that its connections are over."""
        unplug = [
            "nsenter",
            "--target",
            str(self.first.pid),
            "--net",
            "ip",
            "link",
            "del",
            "second",
        ]
        if silently:
            subprocess.run(unplug, check=True)
        self.second.kill()
        # The kernel may have removed the cable with the machine.
        subprocess.run(unplug, check=False, capture_output=True)

    def end(self) -> None:
        """End both machines."""
        self.kill_second()
        self.first.kill()

    def type(self, lines: Iterable[tuple[str, str]]) -> None:
        """Type lines on ``first``, ``second`` or ``both``."""
        for name, line in lines:
            for machine in (self.first, self.second):
                if name in (machine.name, "both"):
                    machine.type(line)

    def find_second(self) -> int:
        """Return the number of the second machine's first process, as the first machine has it."""
        status = Path(f"/proc/{self.second.pid}/status").read_text()
        return int(re.search(r"^NSpid:\s+\d+\s+(\d+)", status, re.MULTILINE)[1])


def _in_network(machine: Machine, *commands: str) -> None:
    for command in commands:
        words = ["nsenter", "--target", str(machine.pid), "--net", *command.split()]
        subprocess.run(words, check=True)


def write_python(path: Path) -> str:
    """Write an interpreter whose modules run in forks on the machine where it is called."""
    forks = f"{sys.executable} -I {forked_workers.__file__} {FORKS}"
    path.write_text(f'#!/bin/sh\n[ "$1" = -m ] && exec {forks} "$@"\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)
