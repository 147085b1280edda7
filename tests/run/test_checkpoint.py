# SPDX-License-Identifier: Apache-2.0
"""A run that is killed at any moment, also while it saves, resumes from the last whole checkpoint."""

from pathlib import Path

import pytest

from prime_ext.run import checkpoint
from prime_ext.run.checkpoint import MARKER, TRACKER

PARTS = ("prm/weights", "prime_ext.json", "actor/weights", "data.pt")


def folder_of(root: Path, step: int) -> Path:
    return root / f"global_step_{step}"


def write_part(root, step, part, text):
    path = folder_of(root, step) / part
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def operations_of_a_save(root: Path, step: int, version: str):
    """What the trainer and verl do to the disk, one operation after another, in their order."""
    yield lambda: checkpoint.mark_incomplete(folder_of(root, step))
    for part in PARTS:
        yield lambda part=part: write_part(root, step, part, "")  # opened
        yield lambda part=part: write_part(root, step, part, version)  # written
    yield lambda: (root / TRACKER).write_text("")  # verl opens the tracker for writing ...
    yield lambda: (root / TRACKER).write_text(str(step))  # ... and writes it
    yield lambda: checkpoint.mark_complete(folder_of(root, step), {"global_step": step})


N_OPERATIONS = len(list(operations_of_a_save(Path(), 0, "")))
TRACKER_EMPTY, TRACKER_WRITTEN = 1 + 2 * len(PARTS) + 1, 1 + 2 * len(PARTS) + 2


def save(root, step, version, n_operations=N_OPERATIONS):
    for operation in list(operations_of_a_save(root, step, version))[:n_operations]:
        operation()


def contents(root, step):
    return {(folder_of(root, step) / part).read_text() for part in PARTS}


def resumes_from(root):
    """The step, and what verl finds with the repaired tracker."""
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    step = checkpoint.repair_tracker(root)
    found = find_latest_ckpt_path(str(root))
    assert found == (None if step is None else str(folder_of(root, step)))
    return step


@pytest.mark.parametrize("killed_after", range(N_OPERATIONS + 1))
def test_killed_while_saving_a_new_step(tmp_path, killed_after):
    save(tmp_path, 2, "two")
    save(tmp_path, 4, "four")
    save(tmp_path, 6, "six", killed_after)
    step = resumes_from(tmp_path)
    assert step == (6 if killed_after >= TRACKER_WRITTEN else 4)
    assert contents(tmp_path, step) == {"six" if step == 6 else "four"}


@pytest.mark.parametrize("killed_after", range(N_OPERATIONS + 1))
def test_killed_while_saving_the_very_first_checkpoint(tmp_path, killed_after):
    save(tmp_path, 2, "two", killed_after)
    assert resumes_from(tmp_path) == (2 if killed_after >= TRACKER_WRITTEN else None)


@pytest.mark.parametrize("killed_after", range(N_OPERATIONS + 1))
def test_killed_while_saving_a_step_again_that_the_tracker_already_names(tmp_path, killed_after):
    """Happens after resume_mode=resume_path from an older step: the old step 4 is overwritten part by part."""
    save(tmp_path, 2, "two")
    save(tmp_path, 4, "old")
    save(tmp_path, 4, "new", killed_after)
    step = resumes_from(tmp_path)
    assert contents(tmp_path, step) in ({"two"}, {"old"}, {"new"}), "a mixture of two checkpoints"
    if killed_after >= TRACKER_WRITTEN:
        assert step == 4 and contents(tmp_path, 4) == {"new"}


def test_a_run_killed_twice_in_a_row_still_resumes(tmp_path):
    save(tmp_path, 2, "two")
    save(tmp_path, 4, "four", TRACKER_EMPTY)
    assert resumes_from(tmp_path) == 2
    save(tmp_path, 4, "again", 5)
    assert resumes_from(tmp_path) == 2
    save(tmp_path, 4, "third")
    assert resumes_from(tmp_path) == 4 and contents(tmp_path, 4) == {"third"}


def test_a_good_tracker_is_left_alone_even_when_newer_folders_exist(tmp_path):
    """The user may have set it back by hand."""
    save(tmp_path, 2, "two")
    save(tmp_path, 4, "four")
    (tmp_path / TRACKER).write_text("2")
    assert resumes_from(tmp_path) == 2


@pytest.mark.parametrize("tracker", ["", "999", "four", None])
def test_a_broken_or_missing_tracker_is_replaced_by_the_latest_whole_checkpoint(tmp_path, tracker):
    save(tmp_path, 9, "nine")
    save(tmp_path, 10, "ten")
    save(tmp_path, 12, "torn", 4)
    (tmp_path / TRACKER).unlink()
    if tracker is not None:
        (tmp_path / TRACKER).write_text(tracker)
    assert resumes_from(tmp_path) == 10


def test_folders_of_other_programs_are_no_checkpoints(tmp_path):
    for name in ("global_step_x", "global_step_3_merged", "hf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).write_text("{}")
    assert checkpoint.complete_steps(tmp_path) == [] and resumes_from(tmp_path) is None


def steps_on_disk(root):
    return sorted(int(path.name.split("_")[-1]) for path in root.glob("global_step_*"))


@pytest.mark.parametrize(
    "keep, left", [(None, [2, 3, 4, 6, 8]), (0, [2, 3, 4, 6, 8]), (1, [8]), (2, [6, 8]), (9, [2, 4, 6, 8])]
)
def test_prune_keeps_the_latest_whole_ones_and_removes_remains(tmp_path, keep, left):
    for step in (2, 4, 6, 8):
        save(tmp_path, step, str(step))
        if step == 2:
            save(tmp_path, 3, "torn", 5)
    deleted = checkpoint.prune(tmp_path, keep, newest=8)
    assert steps_on_disk(tmp_path) == left
    assert sorted(deleted + left) == [2, 3, 4, 6, 8]
    assert resumes_from(tmp_path) == 8


def test_prune_leaves_steps_after_the_newest_and_foreign_files_alone(tmp_path):
    """They belong to a run that was resumed from an older step, or to someone else."""
    for step in (2, 8, 4):
        save(tmp_path, step, str(step))
    (tmp_path / "notes.txt").write_text("mine")
    assert checkpoint.prune(tmp_path, 1, newest=4) == [2]
    assert steps_on_disk(tmp_path) == [4, 8] and (tmp_path / "notes.txt").exists()


def test_killed_while_pruning_the_torn_checkpoint_is_not_resumed_from(tmp_path):
    for step in (2, 4):
        save(tmp_path, step, str(step))
    checkpoint.mark_incomplete(folder_of(tmp_path, 2))  # prune begins with this, then deletes file by file
    (folder_of(tmp_path, 2) / PARTS[0]).unlink()
    (tmp_path / TRACKER).write_text("")
    assert checkpoint.complete_steps(tmp_path) == [4] and resumes_from(tmp_path) == 4


def cut_short(path):
    path.write_text(path.read_text()[:-1])


@pytest.mark.parametrize("spoil", [cut_short, Path.unlink])
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, part, spoil, caplog):
    for step in (2, 4):
        save(tmp_path, step, "contents")
    spoil(folder_of(tmp_path, 4) / part)
    assert checkpoint.complete_steps(tmp_path) == [2] and resumes_from(tmp_path) == 2
    assert f"global_step_4: {part}" in caplog.text and "resuming from global_step_2" in caplog.text


def test_when_all_checkpoints_are_damaged_the_run_does_not_begin_anew_in_silence(tmp_path):
    save(tmp_path, 2, "two")
    cut_short(folder_of(tmp_path, 2) / PARTS[0])
    with pytest.raises(checkpoint.CheckpointDamaged, match=r"2 of 3 bytes.*trainer.resume_mode=disable"):
        checkpoint.repair_tracker(tmp_path)


def test_files_that_grew_or_were_added_are_no_damage(tmp_path):
    save(tmp_path, 2, "two")
    write_part(tmp_path, 2, PARTS[0], "more than it was")
    write_part(tmp_path, 2, "exported/weights", "new")
    assert resumes_from(tmp_path) == 2


def test_markers_of_earlier_versions_list_no_files(tmp_path):
    save(tmp_path, 2, "two", N_OPERATIONS - 1)
    (folder_of(tmp_path, 2) / MARKER).write_text('{"global_step": 2}')
    assert resumes_from(tmp_path) == 2


def test_a_marker_that_is_cut_short_is_damage(tmp_path):
    save(tmp_path, 2, "two")
    (folder_of(tmp_path, 2) / MARKER).write_text("{")
    assert checkpoint.complete_steps(tmp_path) == []
