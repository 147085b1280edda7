# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
