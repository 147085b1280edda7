# SPDX-License-Identifier: Apache-2.0
"""Rewards of turns that the agent loop reports."""
