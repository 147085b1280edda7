# SPDX-License-Identifier: Apache-2.0
"""Checks of a configuration and of what it names, before Ray or a model starts. One line per
problem."""
