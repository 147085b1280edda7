# SPDX-License-Identifier: Apache-2.0
"""Math answers: extraction, rules, and computer algebra in killable workers."""

from prime_ext.verifiers.math.answer_extraction import STYLES, extract, extract_answer
from prime_ext.verifiers.math.math_verifier import MathVerifier

__all__ = ["STYLES", "MathVerifier", "extract", "extract_answer"]
