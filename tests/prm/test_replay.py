# SPDX-License-Identifier: Apache-2.0
"""What the PRM remembers of earlier updates: bounded, and the same after a resume."""

import shutil

import pytest
import torch

from prime_ext.config.settings import ReplaySettings
from prime_ext.prm.replay import PRMReplay


def rollout(number):
    """Its tokens, lengths and label follow from its number."""
    prompt = torch.arange(2 + number % 3) + 100 * number
    response = torch.arange(1 + number % 4) + 1000 * number
    mask = torch.ones(len(response), dtype=torch.long)
    mask[: number % 2] = 0
    return {
        "prompts": prompt,
        "responses": response,
        "position_ids": torch.arange(len(prompt) + len(response)),
        "response_mask": mask,
        "reference": -torch.rand(len(response), generator=torch.Generator().manual_seed(number)),
        "label": torch.tensor(number % 5 / 4),
    }


def batch_of(numbers):
    rows = [rollout(number) for number in numbers]
    return {name: [row[name] for row in rows] for name in rows[0]}


def numbers_of(drawn):
    return [int(row["responses"][0]) // 1000 for row in drawn]


def replay(folder, batches=3, ratio=1.0):
    return PRMReplay(ReplaySettings(batches, ratio), folder / "prm_replay")


def filled(folder, updates, **options):
    """Four rollouts per update."""
    found = replay(folder, **options)
    for update in range(updates):
        found.add(batch_of(range(4 * update, 4 * update + 4)))
    return found


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_is_drawn_is_what_was_added(tmp_path):
    drawn = filled(tmp_path, 1).draw(4)
    assert sorted(numbers_of(drawn)) == [0, 1, 2, 3]
    for number, row in zip(numbers_of(drawn), drawn, strict=True):
        expected = rollout(number)
        for name, value in expected.items():
            assert torch.equal(row[name], value), name
            assert row[name].dtype == value.dtype
        assert torch.equal(row["input_ids"], torch.cat((expected["prompts"], expected["responses"])))


def test_only_the_last_batches_are_remembered(tmp_path):
    drawn = filled(tmp_path, 5).draw(100)
    assert sorted(numbers_of(drawn)) == list(range(8, 20))
    expected = [f"update_{number:09d}.safetensors" for number in (3, 4, 5)]
    assert files(tmp_path) == expected


def test_the_ratio_says_how_many_and_nothing_is_drawn_before_the_first_update(tmp_path):
    assert replay(tmp_path).draw(8) == [] and list(tmp_path.iterdir()) == []
    for ratio, new, drawn in ((1.0, 5, 5), (0.5, 5, 2), (1.0, 50, 12)):
        found = numbers_of(filled(tmp_path, 3, ratio=ratio).draw(new))
        assert len(found) == len(set(found)) == drawn


def test_a_resumed_run_draws_what_the_uninterrupted_one_draws(tmp_path):
    alone = filled(tmp_path, 3)
    checkpoint = tmp_path / "global_step_4" / "prm"
    # The step is done and saved a second time.
    alone.save(checkpoint)
    alone.add(batch_of(range(12, 16)))
    alone.save(checkpoint)
    expected = []
    for update in range(4, 8):
        expected.append(numbers_of(alone.draw(4)))
        alone.add(batch_of(range(4 * update, 4 * update + 4)))
    resumed = replay(tmp_path)
    resumed.load(checkpoint)
    for update in range(4, 8):
        assert numbers_of(resumed.draw(4)) == expected[update - 4]
        resumed.add(batch_of(range(4 * update, 4 * update + 4)))
    assert len(files(checkpoint)) == 3
    # By chance some are drawn twice in a row, but no draw is another one's.
    assert len({tuple(sorted(number - 4 * update for number in draw)) for update, draw in enumerate(expected)}) == 4


def test_files_of_updates_after_the_checkpoint_are_removed_by_the_first_update(tmp_path):
    alone = filled(tmp_path, 1)
    alone.save(tmp_path / "checkpoint")
    alone.add(batch_of([90]))
    alone.add(batch_of([91]))
    resumed = replay(tmp_path)
    resumed.load(tmp_path / "checkpoint")
    assert len(files(tmp_path / "prm_replay")) == 3, "a run that only looks changes nothing"
    resumed.add(batch_of([80]))
    assert sorted(numbers_of(resumed.draw(100))) == [0, 1, 2, 3, 80]
    assert files(tmp_path / "prm_replay") == [f"update_{number:09d}.safetensors" for number in (1, 2)]
    # A new run in the same folder.
    fresh = replay(tmp_path)
    fresh.add(batch_of([70]))
    assert numbers_of(fresh.draw(100)) == [70] and len(files(tmp_path / "prm_replay")) == 1


def test_it_outlives_the_checkpoint_that_it_came_from(tmp_path):
    filled(tmp_path, 2).save(tmp_path / "checkpoint")
    resumed, again = replay(tmp_path), replay(tmp_path)
    resumed.load(tmp_path / "checkpoint")
    resumed.save(tmp_path / "next")
    shutil.rmtree(tmp_path / "checkpoint")
    assert sorted(numbers_of(resumed.draw(100))) == list(range(8))
    again.load(tmp_path / "next")
    assert numbers_of(again.draw(5)) == numbers_of(resumed.draw(5))


def test_a_checkpoint_without_replay_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no replayed rollouts at .*saved with prm.replay.batches=0"):
        replay(tmp_path).load(tmp_path / "checkpoint" / "prm_replay")
