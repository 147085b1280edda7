# SPDX-License-Identifier: Apache-2.0
"""GPUs that PyTorch seems to find on this machine, with a compiler and Python's header."""

import sysconfig

import torch


def install(monkeypatch, folder, name="NVIDIA H100", capability=(9, 0), count=8):
    """Let PyTorch list ``count`` devices; ``folder`` gets a compiler, a header and the PATH."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    write_program(folder / "gcc")
    (folder / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda *_, **__: {"include": str(folder)})


def write_program(path, output=""):
    """Write a program that prints a text."""
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
