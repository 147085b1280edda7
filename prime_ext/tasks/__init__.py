# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: their tasks as files, their rows, what a policy is shown of them, and how their
answers are counted."""
