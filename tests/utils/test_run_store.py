# SPDX-License-Identifier: Apache-2.0
"""A run resumes where it was, whatever cut it off, and refuses the folder of another."""

import errno
import json
import resource
from operator import itemgetter

import pytest
import torch
from safetensors.torch import save_file

from prime_ext.utils.run_store import (
    LineFile,
    RunError,
    check_identity,
    command,
    explain_failed_write,
    run_folder,
)

ROWS = [{"key": key, "value": key * key} for key in range(6)]


def open_lines(path):
    return LineFile(path, itemgetter("key"), ("key", "value"), range(6))


def test_bytes_do_not_depend_on_interruptions(tmp_path):
    path = tmp_path / "lines.jsonl"
    with open_lines(path) as lines:
        for row in reversed(ROWS):
            lines.append(row)
    complete = path.read_bytes()
    assert [json.loads(line)["key"] for line in complete.splitlines()] == list(range(6))
    for cut in range(len(complete)):
        path.write_bytes(complete[:cut])
        with open_lines(path) as lines:
            assert list(lines.rows.values()) == ROWS[: complete[:cut].count(b"\n")]
            for row in ROWS:
                if row["key"] not in lines.rows:
                    lines.append(row)
        assert path.read_bytes() == complete


def test_rows_survive_an_error_and_can_be_forgotten(tmp_path):
    path = tmp_path / "lines.jsonl"
    with pytest.raises(ZeroDivisionError), open_lines(path) as lines:
        lines.append(ROWS[3])
        raise ZeroDivisionError
    lines = open_lines(path)
    assert lines.rows == {3: ROWS[3]}
    lines.keep(lambda row: False)
    with lines:
        lines.append(ROWS[0])
    assert open_lines(path).rows == {0: ROWS[0]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"key": 1, "value": NaN}\n',
         "line 1 is broken or half-written: NaN is not a JSON number"),
        ("[]\n", "line 1 is a list, not an object"),
        ('{"key": 1}\n', "line 1 does not hold key, value"),
        ('{"key": 9, "value": 1}\n', "line 1 9 belongs to no item of this run"),
        ('{"key": 1, "value": 1}\n' * 2, "line 2 1 is there a second time"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_line_and_is_left_alone(tmp_path, text, message):
    path = tmp_path / "lines.jsonl"
    path.write_text(text)
    with pytest.raises(RunError, match=message):
        open_lines(path)
    assert path.read_text() == text


def test_a_folder_belongs_to_one_run(tmp_path):
    folder = tmp_path / "new" / "run"
    identity = {"model": {"name": "a", "sizes": (1, 2)}, "seed": 0}
    for _ in range(2):
        with run_folder(folder, identity):
            pass
    message = 'holds a run with model.name "a", now it is "b"; choose another --output'
    other = {"seed": 0, "model": {"name": "b", "sizes": [1, 2]}}
    with pytest.raises(RunError, match=message), run_folder(folder, other):
        pass
    with pytest.raises(RunError, match='seed null, now it is "xxx.*\\.\\.\\.; choose'):
        check_identity(folder, {}, {"seed": "x" * 100})
    (folder / "settings.json").rename(folder / "results.json")
    with (
        pytest.raises(RunError, match="has results without settings.json"),
        run_folder(folder, identity),
    ):
        pass
    with pytest.raises(RunError, match="is a file"), run_folder(folder / "results.json", identity):
        pass


@pytest.fixture
def small_files():
    """Let files have 100 kB at most, as a full disk would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save(torch.zeros(10**6), path),
        lambda path: save_file({"a": torch.zeros(10**6)}, path),
        lambda path: path.write_bytes(bytes(10**6)),
    ],
)
def test_a_full_disk_is_one_line(tmp_path, capsys, small_files, write):
    @command("program")
    def main():
        try:
            write(tmp_path / "file")
        except Exception as error:
            # What a library may make of it.
            raise ValueError("saving failed") from error

    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith("program: ") and said.count("\n") == 1
    assert "free space on the disk, then give the same command again" in said


def test_other_errors_stay_errors():
    full = OSError(errno.ENOSPC, "No space left on device", "/data/x")
    assert explain_failed_write(full).startswith("No space left on device; free")
    forbidden = explain_failed_write(PermissionError(errno.EACCES, "Permission denied", "/data/x"))
    assert forbidden == "/data/x: Permission denied"
    for error in (ValueError("x"), RuntimeError("PytorchStreamReader failed"), KeyError(28)):
        assert explain_failed_write(error) is None
    with pytest.raises(KeyError):
        command("program")(lambda: {}["x"])()
