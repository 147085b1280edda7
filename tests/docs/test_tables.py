# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/how_to are what the scripts in docs write."""

import importlib.util
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Where the scripts of that folder find one another.
sys.path.append(str(DOCS))


def script(name):
    """A script of the folder docs as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["write_memory_tables", "write_configuration"])
def test_a_page_is_what_its_script_writes(name):
    writer = script(name)
    assert writer.page() == writer.PAGE.read_text()
