# SPDX-License-Identifier: Apache-2.0
"""Wait until a Ray cluster has as many nodes as a run wants.

    python -m recipes.multi_node.wait_for_nodes ADDRESS NODES --seconds 600

Status: 0 they are there; 1 they are not after so many seconds, with one line that says how many came.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence


def alive(nodes: Sequence[dict]) -> list[str]:
    """Addresses of the nodes that work, as ``ray.nodes()`` lists them."""
    return sorted(node["NodeManagerAddress"] for node in nodes if node["Alive"])


def wait(list_nodes: Callable[[], Sequence[dict]], wanted: int, seconds: float) -> list[str]:
    """Ask every second until enough nodes are there or the time is over; returns those that are."""
    end = time.monotonic() + seconds
    while len(found := alive(list_nodes())) < wanted and time.monotonic() < end:
        time.sleep(1.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT of the head")
    parser.add_argument("nodes", type=int)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    import ray

    end = time.monotonic() + options.seconds
    while not ray.is_initialized():
        try:
            ray.init(address=options.address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            # The head may be starting still.
            if time.monotonic() > end:
                parser.exit(1, f"wait_for_nodes: no Ray at {options.address} ({str(error).splitlines()[0]})\n")
            time.sleep(1.0)
    found = wait(ray.nodes, options.nodes, end - time.monotonic())
    ray.shutdown()
    if len(found) < options.nodes:
        came = f"{len(found)} of {options.nodes} nodes came in {options.seconds:g} s"
        parser.exit(1, f"wait_for_nodes: {came}: {' '.join(found)}\n")
    print(f"{len(found)} nodes: {' '.join(found)}", file=sys.stderr)


if __name__ == "__main__":
    main()
