# SPDX-License-Identifier: Apache-2.0
"""Training of a three-class step reward model with transformers' Trainer."""
