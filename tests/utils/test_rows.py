# SPDX-License-Identifier: Apache-2.0
"""Files of benchmarks: every format gives the same rows, and what is broken is named."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prime_ext.utils.rows import BadRow, SourceError, read_source

ROWS = [
    {"question": "How many?\nAll of them.", "answer": "7"},
    {"question": "Which, then?", "answer": "8"},
]


LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TEXTS = {
    "rows.csv": '\ufeffquestion,answer\n"How many?\nAll of them.",7\n"Which, then?",8\n',
    "list.json": json.dumps(ROWS, indent=1),
    "columns.json": json.dumps({key: {"0": ROWS[0][key], "1": ROWS[1][key]} for key in ROWS[0]}),
    "lists.json": json.dumps({key: [row[key] for row in ROWS] for key in ROWS[0]}),
    **dict.fromkeys(("lines.json", "rows.txt", "rows.jsonl"), LINES),
}


def test_every_format_gives_the_same_numbered_rows(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for name in (*TEXTS, "rows.jsonl.gz", "rows.parquet"):
        assert list(read_source(tmp_path / name)) == list(enumerate(ROWS, start=1)), name


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.csv", "premise,label\na,b,c\n", "3 cells under 2 columns"),
        ("x.csv", 'premise,label\n"a', "not CSV"),
        ("x.jsonl", '{"a": 1\n', "not JSON"),
        ("x.jsonl", "[" * 100_000, "not JSON"),
        ("x.jsonl", "[1, 2]\n", "not an object"),
    ],
)
def test_a_bad_row_keeps_its_place_and_says_why(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    ((number, row),) = read_source(tmp_path / name)
    assert number == 1 and isinstance(row, BadRow) and reason in str(row)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.csv", b"", "is empty; the first line must name the columns"),
        ("x.json", b'[{"a": 1}', "is neither JSON nor JSON Lines"),
        ("x.json", b'{"a": [1], "b": [1, 2]}', "columns of different lengths"),
        ("x.jsonl", b"\xff\xfe", "is not UTF-8 text"),
        ("x.jsonl.gz", b"not gzip", "cannot be read"),
        ("x.parquet", b"not parquet", "cannot be read"),
        ("x.xlsx", b"", "has none of the formats"),
    ],
)
def test_an_unreadable_file_is_named_in_one_line(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=reason) as caught:
        list(read_source(tmp_path / name))
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_rows_behind_a_bad_one_are_read(tmp_path):
    (tmp_path / "x.csv").write_text('premise,label\n"a"b,c\nd,e\n')
    (tmp_path / "x.json").write_text('{"a": "one\u2028line"}\n{"a": \n{"a": 3}\n')
    bad, good = [row for _, row in read_source(tmp_path / "x.csv")]
    assert isinstance(bad, BadRow) and good == {"premise": "d", "label": "e"}
    first, bad, last = [row for _, row in read_source(tmp_path / "x.json")]
    assert first == {"a": "one\u2028line"} and isinstance(bad, BadRow) and last == {"a": 3}


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path, said in (
        (tmp_path / "nothing.csv", "nothing.csv does not exist"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(SourceError, match=said):
            list(read_source(path))
