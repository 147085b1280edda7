# SPDX-License-Identifier: Apache-2.0
"""Code: the program in a response, run against its problem's tests."""

from prime_ext.verifiers.code.extraction import extract_program
from prime_ext.verifiers.code.problems import MalformedTests, parse_test_cases
from prime_ext.verifiers.code.verifier import CodeVerifier

__all__ = ["CodeVerifier", "MalformedTests", "extract_program", "parse_test_cases"]
