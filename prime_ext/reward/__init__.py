# SPDX-License-Identifier: Apache-2.0
"""Reward functions for verl's reward loop."""
