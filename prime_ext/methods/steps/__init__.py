# SPDX-License-Identifier: Apache-2.0
"""Rewards of the implicit PRM at the ends of steps, turns or responses."""
