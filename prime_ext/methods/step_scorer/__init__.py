# SPDX-License-Identifier: Apache-2.0
"""Rewards of steps from a step reward model or a server, PSPO-WRS among them."""
