# SPDX-License-Identifier: Apache-2.0
"""Transcripts of a run: what training records of some rollouts, and the page that shows them."""
