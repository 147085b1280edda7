# SPDX-License-Identifier: Apache-2.0
"""Files appear whole or not at all."""

import json

import pytest

from prime_ext.utils.files import atomic_path, read_json, write_json, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_nothing_but_the_file_is_left(tmp_path):
    write_text(tmp_path / "new" / "file.txt", "grüße\n")
    assert names(tmp_path / "new") == ["file.txt"]
    assert (tmp_path / "new" / "file.txt").read_text(encoding="utf-8") == "grüße\n"


def test_an_error_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    with pytest.raises(RuntimeError, match="half"), atomic_path(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise RuntimeError("half")
    assert read_json(tmp_path / "a.json") == {"x": 1} and names(tmp_path) == ["a.json"]


def test_a_folder_replaces_an_older_one_as_a_whole(tmp_path):
    for content in ("old", "new"):
        with atomic_path(tmp_path / "model") as temporary:
            temporary.mkdir()
            (temporary / content).touch()
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["new"]


def test_an_error_leaves_the_old_folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    with pytest.raises(RuntimeError, match="half"), atomic_path(tmp_path / "model") as temporary:
        temporary.mkdir()
        (temporary / "half").touch()
        raise RuntimeError("half")
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["old"]


def test_libraries_find_the_format_in_the_temporary_name(tmp_path):
    with atomic_path(tmp_path / "figure.png") as temporary:
        assert temporary.suffix == ".png"
        temporary.write_bytes(json.dumps([1]).encode())
