# SPDX-License-Identifier: Apache-2.0
"""What is hidden is what is named, nothing else; each in a process of its own."""

import os
import subprocess
import sys


def said(code, *options, **environment):
    """What a new process prints that runs ``code``."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONWARNINGS", "VERL_LOGGING_LEVEL")}
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_verls_missing_engines_are_not_told_and_other_warnings_are_and_whoever_asks_gets_all():
    code = "import verl, verl.workers.engine, warnings; warnings.warn('look at this')"
    told = said(code, VERL_PLATFORM="cpu")
    assert "engine is not available" not in told and "look at this" in told
    assert "megatron engine is not available" in said(code, VERL_PLATFORM="cpu", PYTHONWARNINGS="default")


NOTES = """
import logging
from prime_ext.run import quiet
quiet.install(); quiet.install()
worker = logging.getLogger("ray._private.worker")
assert len(worker.filters) == 1
worker.warning("Using blocking ray.get inside async actor. This blocks")
worker.warning("a worker died")
"""


def test_a_logger_loses_the_named_record_only():
    told = said(NOTES)
    assert "blocking ray.get" not in told and "a worker died" in told


LEVEL = """
from prime_ext.run.quiet import set_levels
set_levels()
import verl.trainer.main_ppo as main_ppo
main_ppo.pprint({"a": "dump of the configuration"})
"""


def test_verl_tells_of_its_progress_when_asked_to():
    assert said(LEVEL, VERL_PLATFORM="cpu") == ""
    told = said(LEVEL, VERL_PLATFORM="cpu", VERL_LOGGING_LEVEL="INFO")
    assert "Platform override" in told and "dump of the configuration" in told
