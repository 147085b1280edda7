# SPDX-License-Identifier: Apache-2.0
"""Evaluation of checkpoints on math and code reasoning."""
