# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/how_to/cost.md have the memory that the plan has."""

import importlib.util

import pytest
from pages import ROOT

pytestmark = pytest.mark.slow


def test_the_tables_of_memory_are_up_to_date():
    spec = importlib.util.spec_from_file_location("memory", ROOT / "docs" / "write_memory.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text()
    assert page == module.build_page(page), "run python docs/write_memory.py"
