# SPDX-License-Identifier: Apache-2.0
"""PRIME in one process without verl or Ray: the loop to step through, and to try a method on many seeds in minutes."""
