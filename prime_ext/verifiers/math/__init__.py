# SPDX-License-Identifier: Apache-2.0
"""Math answers: extraction, rules, and computer algebra in killable workers."""

from prime_ext.verifiers.math.extraction import STYLES, extract, extract_answer
from prime_ext.verifiers.math.verifier import MathVerifier

__all__ = ["STYLES", "MathVerifier", "extract", "extract_answer"]
