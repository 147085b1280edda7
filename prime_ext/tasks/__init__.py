# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: tasks as files, their rows, a policy's prompts, and how its answers are counted."""
