# SPDX-License-Identifier: Apache-2.0
"""Threads of torch on a CPU."""

import os

import torch


def use_one_thread() -> None:
    """Let torch compute small models in one thread, unless ``OMP_NUM_THREADS`` is set.

    Threads wait for each other longer than they compute, many times as long where the cores have
    other work.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
