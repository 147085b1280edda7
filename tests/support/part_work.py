# SPDX-License-Identifier: Apache-2.0
"""Work on parts that other processes can import."""

import os


def work(numbers, part):
    part.with_suffix(".txt").write_text(" ".join(map(str, numbers)))
    return {"sum": sum(numbers)}


def dying(numbers, part):
    if numbers == [3]:
        os._exit(1)
    return work(numbers, part)
