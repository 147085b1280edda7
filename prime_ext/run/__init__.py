# SPDX-License-Identifier: Apache-2.0
"""Parts of a run outside its algorithm: Ray, checkpoints, resuming, metrics, the console."""
