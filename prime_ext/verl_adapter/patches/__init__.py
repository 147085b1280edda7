# SPDX-License-Identifier: Apache-2.0
"""Replacements for parts of verl, vLLM or Python: a file for each patched module."""
