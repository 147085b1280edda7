# SPDX-License-Identifier: Apache-2.0
"""Files, report pages, tokens, verl's store of rollouts. Imports nothing else of prime_ext."""
