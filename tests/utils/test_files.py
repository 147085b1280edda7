# SPDX-License-Identifier: Apache-2.0
"""Files appear whole or not at all."""

import pytest

from prime_ext.utils.files import read_json, write_atomically, write_json


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "new" / "a.json"
    write_json(path, {"x": "grüße"})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"x": float("nan")})
    with pytest.raises(RuntimeError, match="half"), write_atomically(path) as temporary:
        # Libraries find the format in the name.
        assert temporary.suffix == ".json"
        temporary.write_text("half")
        raise RuntimeError("half")
    assert read_json(path) == {"x": "grüße"} and names(path.parent) == ["a.json"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    for content in ("old", "new"):
        with write_atomically(tmp_path / "model") as temporary:
            temporary.mkdir()
            (temporary / content).touch()
    with (
        pytest.raises(RuntimeError, match="half"),
        write_atomically(tmp_path / "model") as temporary,
    ):
        temporary.mkdir()
        (temporary / "half").touch()
        raise RuntimeError("half")
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["new"]
