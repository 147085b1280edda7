# SPDX-License-Identifier: Apache-2.0
"""The last line of a run that failed."""

import shutil
from collections import namedtuple

import pytest
from ray.exceptions import ActorUnavailableError

from prime_ext.run.checkpoint import mark_complete
from prime_ext.run.ray_cluster import summarize_error
from prime_ext.train import failure_message


class TaskError(Exception):
    """An error like Ray's: that of a task, with its cause."""

    def __init__(self, cause):
        super().__init__("a traceback\nof many lines")
        self.cause = cause


ANNOUNCED = (
    "Error in call to target 'HFModelConfig':\nOSError('no such model' {})\nfull_key: critic.model"
)
DIED = "The actor died unexpectedly before finishing this task.\n\tclass_name: WorkerDict\n\tpid: 7"


@pytest.mark.parametrize(
    ("error", "start", "end"),
    [
        (TaskError(TaskError(ValueError("too few\nprompts"))), "ValueError: too few", "too few"),
        (RuntimeError(DIED), "RuntimeError: The actor died unexpectedly",
         "task. class_name: WorkerDict"),
        (RuntimeError(ANNOUNCED.format("x" * 500)), "RuntimeError: Error in call to",
         " full_key: critic.model"),
        (ValueError(), "ValueError", "ValueError"),
        (ActorUnavailableError("refused", None), "ActorUnavailableError: a process", "any more"),
    ],
)  # fmt: skip
def test_the_cause_is_what_counts(error, start, end):
    """A dead process is named by its class; a line that only announces the error is not all."""
    said = summarize_error(error)
    assert said.startswith(start) and said.endswith(end) and len(said) <= 300 and "\n" not in said


def test_what_is_saved_and_what_to_do(tmp_path):
    assert failure_message(tmp_path, ValueError("why")) == (
        f"the run failed with ValueError: why; nothing was saved in {tmp_path}"
    )
    for step in (2, 4):
        (tmp_path / f"global_step_{step}").mkdir()
        mark_complete(tmp_path / f"global_step_{step}", {})
    (tmp_path / "global_step_6").mkdir()
    assert failure_message(tmp_path, ValueError("why")).endswith(
        f"{tmp_path}/global_step_4, and the same command goes on from there"
    )
    assert failure_message(tmp_path, None).startswith("the run failed;")


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1e9, 1e9 - 5e5, 5e5))
    said = failure_message(tmp_path / "not" / "there", RuntimeError("file write failed"))
    assert (
        "file write failed" in said
        and f"the disk of {tmp_path} is full (0.5 of 1000 MB left)" in said
    )
