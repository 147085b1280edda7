# SPDX-License-Identifier: Apache-2.0
"""Responses as steps, and a reward model that judges each. No verl; torch for training and local
scorers only."""
