# SPDX-License-Identifier: Apache-2.0
"""An engine for engine processes that doubles numbers, one step at a time, and can be told to fail."""

import os
import signal
import time


class CountingEngine:
    """Jobs: a number, ``refuse``, ``die`` (it kills its own process), ``raise`` or ``hang``."""

    def __init__(self, argument):
        if argument == "broken":
            raise RuntimeError("no room\nfor weights")
        self.jobs, self.seconds = {}, argument

    def add(self, number, job):
        if job == "refuse":
            raise ValueError("not this\none")
        self.jobs[number] = job

    def abort(self, numbers):
        for number in numbers:
            self.jobs.pop(number, None)

    def has_work(self):
        return bool(self.jobs)

    def step(self):
        time.sleep(self.seconds)
        number = next(iter(self.jobs))
        job = self.jobs.pop(number)
        if job == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "raise":
            raise RuntimeError("out of memory")
        return [(number, (2 * job, os.getpid(), os.environ.get("SHARE")))]

    def close(self):
        self.jobs.clear()
