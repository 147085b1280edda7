# SPDX-License-Identifier: Apache-2.0
"""Drills that kill one process of a run."""

import time
from collections.abc import Callable

from recipes.drills.outcome import Outcome
from recipes.drills.runs import DrillError, Run
from recipes.drills.session import Session


def killing(title: str | None) -> Callable[[Session], Outcome]:
    """The drill that kills the process that Ray calls so; None for the one that the user started."""

    def fault(run: Run) -> None:
        (run.find(title) if title else run.tree()[0]).kill()

    def drill(session: Session) -> Outcome:
        return session.start_again(session.hit(fault))

    drill.__doc__ = f"SIGKILL of {title or 'the process that the user started'}."
    return drill


def kill_verifiers(session: Session) -> Outcome:
    """SIGKILL of the actor that owns the verifiers of a node. The run goes on."""
    run = session.live()
    saved, since = session.saved(), time.monotonic()
    run.find("ray::NodeVerifiers").kill()
    try:
        # The step in progress may have all its verdicts already.
        run.wait_until(lambda: max(session.saved()) >= max(saved) + 3)
    except DrillError as error:
        return Outcome(run.ended(0), round(time.monotonic() - since, 1), 0.0, [], str(error), saved, session.saved())
    lines = [line for line in run.log.splitlines() if "the verifiers of this node died" in line]
    line = "the run goes on; its log has a warning" if lines else "the run goes on, and says nothing"
    return Outcome(None, round(time.monotonic() - since, 1), 0.0, [], line, saved, session.saved(), survived=True)
