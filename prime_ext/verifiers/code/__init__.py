# SPDX-License-Identifier: Apache-2.0
"""Code: the program in a response, run against its problem's tests."""

from prime_ext.verifiers.code.cases import MalformedTests, parse_test_cases
from prime_ext.verifiers.code.code_verifier import CodeVerifier
from prime_ext.verifiers.code.program_extraction import extract_program

__all__ = ["CodeVerifier", "MalformedTests", "extract_program", "parse_test_cases"]
