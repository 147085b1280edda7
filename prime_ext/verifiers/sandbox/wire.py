# SPDX-License-Identifier: Apache-2.0
"""What the client and the fork server say to each other: one JSON object per packet, descriptors beside it.

The server only sees limits and descriptors. Programs, inputs and tests travel in anonymous files that the server never
reads, so that nothing of one run is in the memory which the next one inherits.
"""

import array
import json
import socket
from typing import Any

MAX_PACKET = 1 << 16
MAX_DESCRIPTORS = 16

# The descriptors of a run, in the order in which they are sent and under the numbers that they get.
STDIN, STDOUT, STDERR, PAYLOAD, RESULT = range(5)
PER_PROCESS = 5
# The stream between solution and tests, in both processes of a suite.
CHANNEL = 5

# Takes the place of the payload's first byte just before the program starts.
STARTED = b"S"


def send(connection: socket.socket, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
    data = json.dumps(message).encode()
    if descriptors:
        rights = array.array("i", descriptors)
        connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    else:
        connection.send(data)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a message and the descriptors sent with it; the message is None if the other side is gone."""
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if not data:
        return None, list(descriptors)
    return json.loads(data), list(descriptors)
