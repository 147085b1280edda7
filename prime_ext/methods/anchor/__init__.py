# SPDX-License-Identifier: Apache-2.0
"""A pull of the policy toward a running average of its own weights."""
