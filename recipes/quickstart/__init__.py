# SPDX-License-Identifier: Apache-2.0
"""The CPU quickstart: a small arithmetic task on which PRIME is trained in minutes without an
accelerator."""
