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
"""Drills that kill one process of a run."""

import time
from collections.abc import Callable

from prime_ext.trainer.checkpoint import complete_steps
from recipes.drills.inputs import STEPS, prime_run
from recipes.drills.outcome import Outcome, observe, start_again
from recipes.drills.runs import Run

# What Ray calls the processes.
TITLES = {
    "kill_driver": None,
    "kill_trainer": "ray::TaskRunnerV1",
    "kill_rank": "ray::WorkerDict",
    "kill_rollout_server": "ray::TransformersServer",
    "kill_agent_loop": "ray::AgentLoopWorker",
    "kill_reward_worker": "ray::RewardLoopWorker",
    "kill_verifiers": "ray::NodeVerifiers",
}


def killing(title: str | None) -> Callable[..., Outcome]:
    """The drill that kills the process of this title; None for the one that was started first."""

    def drill(folder, inputs) -> Outcome:
        run = prime_run(folder, inputs)
        run.start()
        try:
            run.wait_for_step(1)
            processes = run.tree()
            victim = processes[0] if title is None else run.find(title)
            saved = complete_steps(run.checkpoints)
            since = time.monotonic()
            victim.kill()
            outcome = observe(run, saved, processes, since)
        finally:
            end(run)
        if outcome.exit_status == 0:
            return went_on(run, outcome)
        return start_again(run, outcome, STEPS)

    drill.__doc__ = f"SIGKILL of {title or 'the process that was started first'}."
    return drill


def went_on(run: Run, outcome: Outcome) -> Outcome:
    """Of a run that did not end by the fault."""
    from dataclasses import replace

    return replace(outcome, finished=STEPS in complete_steps(run.checkpoints))


def end(run: Run) -> None:
    """Kill what is left of a run."""
    if run.process is not None and run.process.poll() is None:
        run.kill()
