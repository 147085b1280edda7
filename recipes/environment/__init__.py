# SPDX-License-Identifier: Apache-2.0
"""An agent in an environment: the game of numbers, from demonstrations to a report."""
