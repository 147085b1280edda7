# SPDX-License-Identifier: Apache-2.0
"""``python -m prime_ext.verifiers.sandbox``: what confines programs here; exit code 1 if that is not enough."""

import sys

from prime_ext.verifiers.sandbox import SandboxUnavailable, find_protection


def main() -> int:
    try:
        protection = find_protection()
    except SandboxUnavailable as error:
        print(error)
        return 1
    print(protection.describe())
    for line in protection.missing:
        print(f"  {line}")
    return 0 if protection.sufficient else 1


if __name__ == "__main__":
    sys.exit(main())
