# SPDX-License-Identifier: Apache-2.0
"""PRIME: a reward for every token, from the implicit PRM."""
