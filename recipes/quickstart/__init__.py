# SPDX-License-Identifier: Apache-2.0
"""The CPU quickstart: a small arithmetic task on which PRIME-D trains in minutes on a CPU."""
