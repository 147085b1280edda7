# SPDX-License-Identifier: Apache-2.0
"""Checks of a configuration and what it names, one line per problem, before Ray or models start."""
