# SPDX-License-Identifier: Apache-2.0
"""Verifiers: outcome labels for training, data preprocessing and evaluation alike. No torch and no
verl in here."""

from prime_ext.verifiers.verdict import Outcome, Verdict

__all__ = ["Outcome", "Verdict"]
