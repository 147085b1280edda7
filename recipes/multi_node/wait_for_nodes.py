# SPDX-License-Identifier: Apache-2.0
"""Wait until a Ray cluster has the number of nodes that a run needs.

    python -m recipes.multi_node.wait_for_nodes ADDRESS NODES SECONDS

Exit with status 1 and one line when they do not come in time.
"""

import sys
import time

import ray


def count_nodes(address: str) -> int:
    """Return the number of nodes that work; 0 while the head is still starting."""
    try:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        return 0
    return sum(node["Alive"] for node in ray.nodes())


def main() -> None:
    address = sys.argv[1]
    expected = int(sys.argv[2])
    seconds = float(sys.argv[3])
    end = time.monotonic() + seconds
    while (count := count_nodes(address)) < expected:
        if time.monotonic() > end:
            raise SystemExit(
                f"wait_for_nodes: {count} of {expected} nodes came to {address} in {seconds:g} s"
            )
        time.sleep(1.0)


if __name__ == "__main__":
    main()
