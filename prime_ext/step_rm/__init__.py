# SPDX-License-Identifier: Apache-2.0
"""Responses as steps: where they begin and end, and a reward model that judges each. No verl.

Splitting, labels and data need no torch; training and the local scorer do.
"""
