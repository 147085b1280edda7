# SPDX-License-Identifier: Apache-2.0
"""The versions that the installation names are verl's, and the extra `gpu` has nothing that must be built."""

import ast
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT, DOCKERFILE = (ROOT / "docs" / "how_to" / "install.md").read_text(), (ROOT / "Dockerfile").read_text()


# The extra as it is now, and not as it was installed.
GPU = ast.literal_eval(re.search(r"^gpu = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.M)[1])


def of_verl(extras):
    """What extras of verl ask for, with the extras that these name."""
    found, todo = {}, list(extras)
    while todo:
        name = todo.pop()
        for requirement in map(Requirement, requires("verl")):
            if "extra" not in str(requirement.marker) or not requirement.marker.evaluate({"extra": name}):
                continue
            if requirement.name == "verl":
                todo.extend(requirement.extras)
            elif requirement.specifier or requirement.name not in found:
                found[requirement.name] = requirement
    return found


def test_the_extra_asks_for_nothing_that_has_to_be_built():
    ours = [Requirement(word) for word in GPU]
    verl = next(requirement for requirement in ours if requirement.name == "verl")
    assert str(verl.specifier) == "==0.9.1"
    named = of_verl(verl.extras) | {requirement.name: requirement for requirement in ours}
    assert {"torch", "vllm", "transformers"} <= named.keys() and "flash-attn" not in named
    # What is taken over from verl's extra for FSDP says the same as there.
    for requirement in ours:
        if requirement.name != "verl":
            assert of_verl(["fsdp"])[requirement.name].specifier == requirement.specifier


@pytest.mark.parametrize("name", ["torch", "torchvision", "torchaudio", "vllm", "transformers", "flash-attn"])
def test_documented_versions_are_those_that_verl_pins(name):
    pinned = str(of_verl(["vllm", "fsdp"])[name].specifier).removeprefix("==")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.splitlines() if line[:2] == "| "]
    versions = {}
    for names, values in (row for row in rows if len(row) == 2):
        versions |= dict(zip(names.split(", "), re.findall(r"[\d.]*\d", values), strict=False))
    assert versions[name] == pinned
    if name == "flash-attn":
        assert f"flash-attn=={pinned}" in DOCKERFILE and f"flash-attn=={pinned}" in DOCUMENT
