# SPDX-License-Identifier: Apache-2.0
"""What a run has beside its algorithm: Ray's resources, checkpoints, its folder's lock, metrics, the last message."""
