# SPDX-License-Identifier: Apache-2.0
"""Verifiers: outcome labels for training, data and evaluation alike, without torch and verl."""

from prime_ext.verifiers.verdict import Outcome, Verdict

__all__ = ["Outcome", "Verdict"]
