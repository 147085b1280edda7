# SPDX-License-Identifier: Apache-2.0
"""The PRM on the driver: its settings, its mini-batches, and rollouts of earlier updates."""

import random
import shutil
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_module
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tiny_llama import save_llama

from prime_ext.config.checks import SettingsError
from prime_ext.methods.prm_settings import PRMSettings
from prime_ext.methods.settings import PrimeSettings
from prime_ext.prm.implicit_prm import FrozenPRM
from prime_ext.prm.mini_batches import add_replayed_rows, plan_mini_batches
from prime_ext.prm.replay import PRMReplay
from prime_ext.verl_adapter.build_models import build_average, build_prm
from prime_ext.verl_adapter.side_models import share_rows

FUSED = "prm.model.use_fused_kernels=true"


@pytest.mark.parametrize(("reference", "temperature"), [("policy", 0.6), ("frozen", 1.0)])
def test_both_sides_of_the_ratio_have_the_same_temperature(tmp_path, reference, temperature):
    changes = [
        "variant=paper",
        "actor_rollout_ref.rollout.temperature=0.6",
        f"prm.reference={reference}",
    ]
    assert built(tmp_path, "prime_trainer_cpu", changes).prm.temperature == temperature


def test_mini_batches_are_counted_in_prompts(tmp_path):
    overrides = ["prm.mini_batch_size=3", "actor_rollout_ref.rollout.n=4"]
    prm = built(tmp_path, "prime_trainer_cpu", overrides).prm
    assert prm.mini_batch_rows == 12
    keys = [f"{prompt:03d}_{session}_0" for prompt in range(6) for session in range(4)]
    plan = plan_mini_batches(keys, [False] * 24, [5] * 24, prm.mini_batch_rows, 1, share_rows)
    assert {keys[row][:3] for row in plan.order[:12]} == {"000", "001", "002"}


def compose_for(tmp_path, name, overrides):
    save_llama(tmp_path)
    own = [f"actor_rollout_ref.model.path={tmp_path}", "prm.reference=frozen"]
    own.append("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4000")
    with initialize_config_module("prime_ext.config", version_base=None):
        return compose(name, [*own, *overrides])


def built(tmp_path, name, overrides):
    """Build the PRM of a configuration."""
    config = compose_for(tmp_path, name, overrides)
    OmegaConf.resolve(config.prm)
    return build_prm(config, PRMSettings.from_config(config), PrimeSettings.from_config(config))


def worker_configs(tmp_path, name, overrides):
    """Return what the workers of the PRM and of its reference are built from."""
    prm = built(tmp_path, name, overrides)
    return {group: worker.kwargs["config"] for group, worker in prm.worker_classes(object).items()}


@pytest.mark.parametrize(
    ("name", "overrides", "tokens"),
    [
        ("prime_trainer", [FUSED], (4000, 16000)),
        ("prime_trainer", ["prm.infer_max_token_len_per_gpu=9000"], (4000, 9000)),
        ("prime_trainer", [FUSED, "prm.use_dynamic_bsz=false", "prm.micro_batch_size_per_gpu=2"],
         (4000, None)),
        ("prime_trainer_cpu", [FUSED], (4000, 4000)),
    ],
)  # fmt: skip
def test_the_prm_and_its_reference_have_the_same_budgets(tmp_path, name, overrides, tokens):
    """Passes without gradients are packed into more tokens than a training pass has."""
    for worker in worker_configs(tmp_path, name, overrides).values():
        engine = worker.engine_config
        assert (engine.max_token_len_per_gpu, engine.infer_max_token_len_per_gpu) == tokens


def test_the_prm_trains_as_configured_and_its_reference_saves_weights(tmp_path):
    overrides = ["prm.optim.lr=3e-5", "prm.checkpoint.load_contents=[model,optimizer]"]
    prm, reference = worker_configs(tmp_path, "prime_trainer_cpu", overrides).values()
    assert prm.optimizer_config.lr == 3e-5 and prm.checkpoint_config.load_contents == [
        "model",
        "optimizer",
    ]
    assert (
        reference.checkpoint_config.save_contents
        == reference.checkpoint_config.load_contents
        == ["model"]
    )


@pytest.mark.parametrize(
    ("variant", "streamed"), [("distilled", False), ("on_policy_distillation", True)]
)
def test_targets_of_the_policy_loss_stay_on_the_device(tmp_path, variant, streamed):
    overrides = [f"variant={variant}", "prm=frozen", "prm.reference=policy"]
    (teacher,) = worker_configs(tmp_path, "prime_trainer", overrides).values()
    assert (
        teacher.engine_config.forward_only == streamed
        and teacher.checkpoint_config.save_contents == ["model"]
    )
    config = compose_for(tmp_path, "prime_trainer", overrides)
    (average,) = build_average(config.actor_rollout_ref, decay=0.5).models.values()
    assert not average.engine_config.forward_only and average.engine_config.model_dtype == "fp32"


@pytest.mark.parametrize(
    ("reference", "asked", "options"),
    [("frozen", "reference", {}), ("base", "prm", {"no_lora_adapter": True}), ("policy", None, {})],
)
def test_each_reference_asks_its_workers(prm_settings, reference, asked, options):
    """The PRM's base weights are its own workers', with the adapter off."""
    calls = []

    def build_workers(name):
        def score(request):
            calls.append((name, request))

        return SimpleNamespace(score=score)

    store = SimpleNamespace(build_request=lambda fields, **options: options)
    batch = SimpleNamespace(rows=store, seconds={}, inputs=(), mini_batch_rows=4)
    prm = FrozenPRM(prm_settings(reference=reference), SimpleNamespace(), 4)
    prm.workers = build_workers("prm")
    prm.reference_workers = build_workers("reference")
    prm.write_reference(batch)
    assert [name for name, _ in calls] == ([] if asked is None else [asked])
    for _, request in calls:
        found = {key: request[key] for key in ("no_lora_adapter",) if key in request}
        assert found == options and request["calculate_entropy"] is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "prm.epochs must be"),
        ({"replay": 2, "reference": "policy"}, "prm.replay=2 .* prm.reference "),
        ({"replay": 2, "loss": "nca"}, "prm.replay=2 .* prm.loss=nca"),
        ({"loss": "dpo", "update_mode": "interleaved"},
         "prm.loss=dpo needs scores before the update: prm.update_mode=after or before"),
        ({"bias": 0.05}, "unknown key prm.bias; did you mean bias_lr"),
        ({"bias_lr": 0.05, "loss": "dpo", "update_mode": "after"},
         "prm.bias_lr=0.05 .* prm.loss=dpo"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_in_one_line(prm_settings, changes, message):
    with pytest.raises(SettingsError, match=f"^{message}[^\n]*$"):
        prm_settings(**changes)


# ---- mini-batches: the same for any number of ranks and any order of the rows --------------------


@st.composite
def planned_rows(draw):
    """Return rows of complete and incomplete groups, padded to whole mini-batches for 4 ranks."""
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    mini_batch_size = draw(st.sampled_from([4, 8, 12]))
    keys = []
    for prompt in range(draw(st.integers(1, 8))):
        sessions = range(draw(st.integers(1, 4)))
        keys += [f"{prompt:012d}_{session}_0" for session in sessions]
    n_valid = len(keys)
    extra = draw(st.integers(0, 1)) * mini_batch_size
    keys += [f"pad{number}_0_0" for number in range(-n_valid % mini_batch_size + extra)]
    padding = [key.startswith("pad") for key in keys]
    lengths = [rng.randint(1, 400) for _ in keys]
    return keys, padding, lengths, mini_batch_size


def mini_batches(plan, keys, mini_batch_size, n_ranks):
    """Return the keys of each mini-batch, collected from the rows of every rank."""
    n_rows = len(keys)
    share = n_rows // n_ranks
    step = mini_batch_size // n_ranks
    result = []
    for number in range(n_rows // mini_batch_size):
        rows = []
        for rank in range(n_ranks):
            start = rank * share + number * step
            rows += plan.order[start : start + step]
        result.append({keys[row] for row in rows})
    return result


@given(planned_rows(), st.one_of(st.just(0), st.integers(1, 40)), st.integers(0, 1000))
def test_ranks_and_row_order_do_not_change_the_mini_batches(data, n_old, seed):
    """New and replayed rows are spread evenly and weigh the same in a batch; padding 0."""
    keys, padding, lengths, size = data
    count = len(keys) // size
    whole = -(-(size + -(-n_old // count)) // 4) * 4
    every = keys + [f"replay{row:06d}_0_0" for row in range(n_old)]
    every += [f"padmore{row}_0_0" for row in range(count * whole - len(every))]
    columns = (
        every,
        [key.startswith("pad") for key in every],
        [*lengths, *[7] * (len(every) - len(keys))],
    )
    plans = []
    for n_ranks in (1, 2, 4):
        order = random.Random(seed + n_ranks).sample(range(len(every)), len(every))
        shuffled = [[values[row] for row in order] for values in columns]
        old = [key.startswith("replay") for key in shuffled[0]]
        plan = plan_mini_batches(*shuffled, whole, n_ranks, share_rows, old if n_old else None)
        assert sorted(plan.order) == list(range(len(every)))
        weight, number = (
            dict(zip(shuffled[0], values.tolist(), strict=True))
            for values in (plan.weight_B, plan.mini_batch_B)
        )
        plans.append((mini_batches(plan, shuffled[0], whole, n_ranks), weight, number))
    assert plans[0] == plans[1] == plans[2]
    batches, weight, number = plans[0]
    # The new rows are where they are without the others.
    plain = mini_batches(
        plan_mini_batches(keys, padding, lengths, size, 1, share_rows), keys, size, 1
    )
    n_valid = len(keys) - sum(padding)
    for at, (batch, alone) in enumerate(zip(batches, plain, strict=True)):
        replayed = {key for key in batch if key.startswith("replay")}
        new = {key for key in batch - replayed if not key.startswith("pad")}
        assert new == {key for key in alone if not key.startswith("pad")}
        assert abs(len(new) - n_valid / count) < 1 and abs(len(replayed) - n_old / count) < 1
        for key in batch:
            counts = key in new or key in replayed
            assert number[key] == at and weight[key] == pytest.approx(
                1 / len(new | replayed) if counts else 0.0
            )


@pytest.mark.parametrize("rows, size, ranks", [(6, 4, 1), (8, 4, 3)])
def test_sizes_that_do_not_divide_are_refused(rows, size, ranks):
    with pytest.raises(
        ValueError,
        match=f"{rows} rows do not divide into mini-batches of {size} over {ranks} ranks",
    ):
        plan_mini_batches(
            [str(row) for row in range(rows)], [False] * rows, [1] * rows, size, ranks, share_rows
        )


# ---- replay: bounded, and the same after a resume ------------------------------------------------


def rollout(number):
    """Make a rollout whose tokens, lengths and label follow from its number."""
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


def get_batch(numbers):
    rows = [rollout(number) for number in numbers]
    return {name: [row[name] for row in rows] for name in rows[0]}


def get_numbers(drawn):
    return [int(row["responses"][0]) // 1000 for row in drawn]


def replay(folder, batches=3):
    return PRMReplay(batches, folder / "prm_replay")


def filled(folder, updates, **options):
    """Return a replay with four rollouts per update."""
    buffer = replay(folder, **options)
    for update in range(updates):
        buffer.add(get_batch(range(4 * update, 4 * update + 4)))
    return buffer


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("n_batches", "replayed", "ranks", "rows"),
    [(4, 8, 2, 10), (4, 9, 2, 12), (4, 10, 1, 11), (2, 1, 3, 9), (3, 0, 4, 8)],
)
def test_a_mini_batch_has_its_share_of_replayed_rows_and_fills_the_ranks(
    n_batches, replayed, ranks, rows
):
    assert add_replayed_rows(8, n_batches, replayed, ranks) == rows


def test_what_is_drawn_is_what_was_added(tmp_path):
    drawn = filled(tmp_path, 1).draw(4)
    assert sorted(get_numbers(drawn)) == [0, 1, 2, 3]
    for number, row in zip(get_numbers(drawn), drawn, strict=True):
        expected = rollout(number)
        for name, value in expected.items():
            assert torch.equal(row[name], value), name
            assert row[name].dtype == value.dtype
        assert torch.equal(
            row["input_ids"], torch.cat((expected["prompts"], expected["responses"]))
        )


def test_only_the_last_batches_are_remembered(tmp_path):
    drawn = filled(tmp_path, 5).draw(100)
    assert sorted(get_numbers(drawn)) == list(range(8, 20))
    expected = [f"update_{number:09d}.safetensors" for number in (3, 4, 5)]
    assert files(tmp_path) == expected


def test_replay_draws_at_most_as_many_as_are_new(tmp_path):
    assert replay(tmp_path).draw(8) == [] and list(tmp_path.iterdir()) == []
    for new, drawn in ((5, 5), (50, 12)):
        numbers = get_numbers(filled(tmp_path, 3).draw(new))
        assert len(numbers) == len(set(numbers)) == drawn


def test_a_resumed_run_draws_what_the_uninterrupted_one_draws(tmp_path):
    alone = filled(tmp_path, 3)
    checkpoint = tmp_path / "global_step_4" / "prm"
    # The step is done and saved a second time.
    alone.save(checkpoint)
    alone.add(get_batch(range(12, 16)))
    alone.save(checkpoint)
    expected = []
    for update in range(4, 8):
        expected.append(get_numbers(alone.draw(4)))
        alone.add(get_batch(range(4 * update, 4 * update + 4)))
    resumed = replay(tmp_path)
    resumed.load(checkpoint)
    for update in range(4, 8):
        assert get_numbers(resumed.draw(4)) == expected[update - 4]
        resumed.add(get_batch(range(4 * update, 4 * update + 4)))
    assert len(files(checkpoint)) == 3
    # By chance some are drawn twice in a row, but no draw is another one's.
    assert (
        len(
            {
                tuple(sorted(number - 4 * update for number in draw))
                for update, draw in enumerate(expected)
            }
        )
        == 4
    )


def test_the_first_update_removes_files_after_the_checkpoint(tmp_path):
    alone = filled(tmp_path, 1)
    alone.save(tmp_path / "checkpoint")
    alone.add(get_batch([90]))
    alone.add(get_batch([91]))
    resumed = replay(tmp_path)
    resumed.load(tmp_path / "checkpoint")
    assert len(files(tmp_path / "prm_replay")) == 3, "a run that only looks changes nothing"
    resumed.add(get_batch([80]))
    assert sorted(get_numbers(resumed.draw(100))) == [0, 1, 2, 3, 80]
    assert files(tmp_path / "prm_replay") == [
        f"update_{number:09d}.safetensors" for number in (1, 2)
    ]
    # A new run in the same folder.
    fresh = replay(tmp_path)
    fresh.add(get_batch([70]))
    assert get_numbers(fresh.draw(100)) == [70] and len(files(tmp_path / "prm_replay")) == 1


def test_it_outlives_the_checkpoint_that_it_came_from(tmp_path):
    filled(tmp_path, 2).save(tmp_path / "checkpoint")
    resumed = replay(tmp_path)
    again = replay(tmp_path)
    resumed.load(tmp_path / "checkpoint")
    resumed.save(tmp_path / "next")
    shutil.rmtree(tmp_path / "checkpoint")
    assert sorted(get_numbers(resumed.draw(100))) == list(range(8))
    again.load(tmp_path / "next")
    assert get_numbers(again.draw(5)) == get_numbers(resumed.draw(5))


def test_a_checkpoint_without_replay_is_refused(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="has no replayed rollouts at .*saved with prm.replay=0"
    ):
        replay(tmp_path).load(tmp_path / "checkpoint" / "prm_replay")
