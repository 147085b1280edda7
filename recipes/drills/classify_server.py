# SPDX-License-Identifier: Apache-2.0
"""A server that answers /classify with the same probabilities for every step."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prime_ext.step_rm.labels import ID2LABEL

PROBABILITIES = [0.2, 0.3, 0.5]
LIKELIEST = ID2LABEL[PROBABILITIES.index(max(PROBABILITIES))]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What vLLM answers, for every input of the request."""
    numbers = range(len(request["input"]))
    return {"data": [{"index": number, "label": LIKELIEST, "probs": PROBABILITIES} for number in numbers]}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(answer(request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class ClassifyServer:
    """Can be stopped and started again on the same port."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
