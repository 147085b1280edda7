# SPDX-License-Identifier: Apache-2.0
"""Trainers, workers, the policy's loss, CPU mode and patches: all that touches verl's insides
(README.md)."""
