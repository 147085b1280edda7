# SPDX-License-Identifier: Apache-2.0
"""Responses of language models for evaluation and data: one interface, several backends."""
