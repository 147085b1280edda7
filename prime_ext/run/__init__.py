# SPDX-License-Identifier: Apache-2.0
"""Parts of a run outside its algorithm: Ray's resources, checkpoints, its folder's lock, metrics,
the last message."""
