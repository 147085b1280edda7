# SPDX-License-Identifier: Apache-2.0
"""Responses of language models outside of training, for evaluation and data: one interface, several
backends."""
