# SPDX-License-Identifier: Apache-2.0
"""PRIME-D: a pull of the policy toward the PRM as a distribution."""
