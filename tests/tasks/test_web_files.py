# SPDX-License-Identifier: Apache-2.0
"""Rows that are published on the web: fetched once, never half, and one line if they cannot be."""

import dataclasses
import http.server
import threading

import pytest

from prime_ext.tasks.task_file import load_task
from prime_ext.tasks.task_rows import NoData, load_problems, web_file
from prime_ext.utils.rows import SourceError


class Answer(http.server.BaseHTTPRequestHandler):
    """Every file is ``rows``; ``half`` breaks off, ``none`` does not exist."""

    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(404 if "none" in self.path else 200)
        self.send_header("Content-Length", "8" if "half" in self.path else "4")
        self.end_headers()
        self.wfile.write(b"rows")

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.asked = []
        server.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_file_is_fetched_once_and_kept(server, tmp_path):
    path = web_file(f"{server.address}/v1/Rows.jsonl.gz")
    assert path.read_bytes() == b"rows" and tmp_path in path.parents and path.name.endswith("-Rows.jsonl.gz")
    assert web_file(f"{server.address}/v1/Rows.jsonl.gz") == path and len(server.asked) == 1
    # Another release has a file of the same name.
    assert web_file(f"{server.address}/v2/Rows.jsonl.gz") != path and len(server.asked) == 2


@pytest.mark.parametrize("name", ["half.jsonl", "none.jsonl"])
def test_a_file_that_does_not_come_whole_leaves_nothing_behind(server, tmp_path, name):
    with pytest.raises(SourceError, match=f"/{name} cannot be fetched .*; give local files instead") as caught:
        web_file(f"{server.address}/{name}")
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_task_says_where_its_rows_are(monkeypatch, tmp_path):
    def fails(address):
        raise SourceError(f"{address} cannot be fetched (no line); give local files instead")

    monkeypatch.setattr("prime_ext.tasks.task_rows.web_file", fails)
    task = load_task("mbpp")
    source = dataclasses.replace(
        task.source, hub=None, files={}, origin="", url={"test": ("https://example.org/rows.jsonl",)}
    )
    task = dataclasses.replace(task, source=source)
    with pytest.raises(NoData, match="^mbpp: https://example.org/rows.jsonl cannot be fetched"):
        load_problems(task)
    with pytest.raises(NoData, match="does not exist; get it from https://example.org/rows.jsonl"):
        load_problems(task, tmp_path)
