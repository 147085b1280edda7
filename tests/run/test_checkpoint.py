# SPDX-License-Identifier: Apache-2.0
"""A run killed at any moment, also while saving, resumes from the last whole checkpoint."""

from pathlib import Path

import pytest
import torch

from prime_ext.run import checkpoint
from prime_ext.run.checkpoint import MARKER, TRACKER
from prime_ext.utils.run_store import RunError

PARTS = ("prm/weights", "prime_ext.json", "actor/weights", "data.pt")


def get_folder(root: Path, step: int) -> Path:
    return root / f"global_step_{step}"


def write_part(root, step, part, text):
    path = get_folder(root, step) / part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def operations_of_a_save(root: Path, step: int, version: str):
    """Yield what the trainer and verl do to the disk in a save, operation by operation."""
    yield lambda: checkpoint.mark_incomplete(get_folder(root, step))
    for part in PARTS:
        yield lambda part=part: write_part(root, step, part, "")  # opened
        yield lambda part=part: write_part(root, step, part, version)  # written
    yield lambda: (root / TRACKER).write_text("")  # verl opens the tracker for writing ...
    yield lambda: (root / TRACKER).write_text(str(step))  # ... and writes it
    yield lambda: checkpoint.mark_complete(get_folder(root, step), {"global_step": step})


N_OPERATIONS = len(list(operations_of_a_save(Path(), 0, "")))
TRACKER_WRITTEN = N_OPERATIONS - 1


def save(root, step, version, n_operations=N_OPERATIONS):
    for operation in list(operations_of_a_save(root, step, version))[:n_operations]:
        operation()


def contents(root, step):
    return {(get_folder(root, step) / part).read_text() for part in PARTS}


def resumes_from(root):
    folder = checkpoint.find_latest(root)
    return folder and int(folder.name.removeprefix("global_step_"))


@pytest.mark.parametrize("before", [[], [2, 4]])
@pytest.mark.parametrize("killed_after", range(N_OPERATIONS + 1))
def test_killed_while_saving_a_new_step(tmp_path, before, killed_after):
    for step in before:
        save(tmp_path, step, "old")
    save(tmp_path, 6, "new", killed_after)
    whole = killed_after >= TRACKER_WRITTEN
    step = resumes_from(tmp_path)
    assert step == (6 if whole else before[-1] if before else None)
    assert step is None or contents(tmp_path, step) == {"new" if whole else "old"}


@pytest.mark.parametrize("killed_after", range(N_OPERATIONS + 1))
def test_killed_while_saving_a_tracked_step_again(tmp_path, killed_after):
    """After resume_mode=resume_path from an older step, step 4 is overwritten part by part."""
    save(tmp_path, 2, "two")
    save(tmp_path, 4, "old")
    save(tmp_path, 4, "new", killed_after)
    step = resumes_from(tmp_path)
    assert contents(tmp_path, step) in ({"two"}, {"old"}, {"new"}), "a mixture of two checkpoints"
    if killed_after >= TRACKER_WRITTEN:
        assert step == 4 and contents(tmp_path, 4) == {"new"}


@pytest.mark.parametrize(
    # A good one, which the user may have set back by hand, is left alone.
    ("tracker", "resumed"),
    [("", 10), ("999", 10), ("four", 10), (None, 10), ("9", 9)],
)
def test_without_a_usable_tracker_the_latest_whole_checkpoint_is_used(tmp_path, tracker, resumed):
    save(tmp_path, 9, "nine")
    save(tmp_path, 10, "ten")
    save(tmp_path, 12, "torn", 4)
    (tmp_path / TRACKER).unlink()
    if tracker is not None:
        (tmp_path / TRACKER).write_text(tracker)
    assert resumes_from(tmp_path) == resumed


def test_folders_of_other_programs_are_no_checkpoints(tmp_path):
    for name in ("global_step_x", "global_step_3_merged", "hf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).write_text("{}")
    assert checkpoint.find_complete_steps(tmp_path) == [] and resumes_from(tmp_path) is None


@pytest.mark.parametrize(
    # Steps after the newest belong to a run that was resumed from an older one.
    ("keep", "newest", "left"),
    [
        (None, 8, [2, 3, 4, 6, 8]),
        (0, 8, [2, 3, 4, 6, 8]),
        (1, 8, [8]),
        (2, 8, [6, 8]),
        (9, 8, [2, 4, 6, 8]),
        (1, 4, [4, 6, 8]),
    ],
)
def test_prune_keeps_the_latest_whole_ones_and_removes_remains(tmp_path, keep, newest, left):
    (tmp_path / "notes.txt").write_text("mine")
    for step in (2, 4, 6, 8):
        save(tmp_path, step, str(step))
        if step == 2:
            save(tmp_path, 3, "torn", 5)
    checkpoint.prune(tmp_path, keep, newest=newest)
    on_disk = sorted(int(path.name.split("_")[-1]) for path in tmp_path.glob("global_step_*"))
    assert on_disk == left and (tmp_path / "notes.txt").exists()
    assert resumes_from(tmp_path) == 8


def cut_short(path):
    path.write_text(path.read_text()[:-1])


@pytest.mark.parametrize("spoil", [cut_short, Path.unlink])
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, part, spoil, caplog):
    for step in (2, 4):
        save(tmp_path, step, "contents")
    spoil(get_folder(tmp_path, 4) / part)
    assert checkpoint.find_complete_steps(tmp_path) == [2] and resumes_from(tmp_path) == 2
    assert f"global_step_4: {part}" in caplog.text


def test_more_or_longer_files_are_fine_but_broken_markers_not(tmp_path):
    save(tmp_path, 2, "two")
    write_part(tmp_path, 2, PARTS[0], "two, and more than it was")
    write_part(tmp_path, 2, "exported/weights", "new")
    assert resumes_from(tmp_path) == 2
    (get_folder(tmp_path, 2) / MARKER).write_text('{"files": ')
    assert checkpoint.find_complete_steps(tmp_path) == []


@pytest.mark.parametrize("name", ["tensors.pt", "state.json"])
def test_flipped_bytes_of_a_checkpoint_are_found(tmp_path, name, caplog):
    """Tensors bring their checksums, which ``torch.load`` does not compare."""
    for step in (2, 4):
        folder = get_folder(tmp_path, step)
        folder.mkdir()
        torch.save({"weight": torch.ones(1000)}, folder / "tensors.pt")
        write_part(tmp_path, step, "state.json", '{"bias": 1.25}')
        checkpoint.mark_complete(folder, {})
    path = get_folder(tmp_path, 4) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert resumes_from(tmp_path) == 2
    assert f"global_step_4: {name} has changed bytes" in caplog.text


def test_a_run_with_only_damaged_checkpoints_is_refused(tmp_path):
    save(tmp_path, 2, "two")
    cut_short(get_folder(tmp_path, 2) / PARTS[0])
    with pytest.raises(RunError, match="2 of 3 bytes.*start anew"):
        checkpoint.find_latest(tmp_path)
