# SPDX-License-Identifier: Apache-2.0
"""Files, pages of reports, tokens, and verl's store of rollouts. Imports nothing else of
prime_ext."""
