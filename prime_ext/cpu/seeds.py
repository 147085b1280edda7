# SPDX-License-Identifier: Apache-2.0
"""Seeds that are the same in every process and on every machine."""

import hashlib


def stable_seed(*parts: object) -> int:
    """A 64-bit seed from the textual form of the parts; the same in every process and on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
