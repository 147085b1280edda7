# SPDX-License-Identifier: Apache-2.0
"""Trainers, workers, policy loss, CPU mode, patches: what touches verl's insides (README.md)."""
