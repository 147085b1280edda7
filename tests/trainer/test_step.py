# SPDX-License-Identifier: Apache-2.0
"""A step on stored rollouts: what is loaded, advantages, and the PRM's place in every mode."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_batch import (
    GATE,
    NAN,
    PADDING,
    ROLLOUTS,
    filled_queue,
    get_batch,
    loaded,
    scored_as,
    settings,
)

from prime_ext.algorithms.prm_accuracy import PairCount
from prime_ext.methods.store import average_counts
from prime_ext.prm.fields import (
    INPUT_FIELDS,
    LABEL,
    OFFSET,
    PRM_LOG_PROBS,
    REFERENCE_LOG_PROBS,
    ROW,
    WEIGHT,
)
from prime_ext.prm.implicit_prm import (
    FrozenPRM,
    TokenLogProbs,
    TrainedPRM,
    measure,
)
from prime_ext.prm.replay import PRMReplay
from prime_ext.step.rollouts import load_rollouts
from prime_ext.step.step import NotFinite, prime_step
from prime_ext.verl_adapter.rollout_store import TransferQueueStore
from prime_ext.verl_adapter.side_models import share_rows


@pytest.fixture
def queue(monkeypatch):
    return filled_queue(monkeypatch)


def test_groups_labels_and_masks_are_read_by_key(queue):
    rollouts = loaded(queue).rollouts
    assert rollouts.mask_BT.tolist()[:5] == [
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [1, 0, 1, 1],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
    ]
    assert (
        rollouts.label_B.tolist()[:5]
        == rollouts.reward_BT.sum(-1).tolist()[:5]
        == [1.0, 0.0, 0.0, 1.0, 0.5]
    )
    group = rollouts.group_B.tolist()
    assert group[0] == group[1] == group[2] != group[3] == group[4]
    assert rollouts.valid_B.tolist() == [True] * 5 + [False] * 2


def advantages_by_key(queue, keys=(*ROLLOUTS, *PADDING), gate=1.0, **changes):
    result = loaded(queue, keys, **changes).step(gate)
    rows = {
        key: result.advantage_BT[row, : len(ROLLOUTS[key][1])]
        for row, key in enumerate(keys)
        if key in ROLLOUTS
    }
    return rows, result


def test_padding_rows_and_row_order_change_nothing(queue):
    expected, expected_result = advantages_by_key(queue, list(ROLLOUTS))
    keys = [PADDING[0], *reversed(ROLLOUTS), PADDING[1]]
    rows, result = advantages_by_key(queue, keys)
    torch.testing.assert_close(rows, dict(reversed(expected.items())))
    assert result.metrics == pytest.approx(expected_result.metrics)
    for padding in (0, -1):
        assert not result.advantage_BT[padding].any() and not result.return_BT[padding].any()


def test_kl_in_reward_changes_the_outcome_but_not_the_label(queue):
    rollouts = loaded(queue, kl_in_reward=True).rollouts
    assert rollouts.reward_BT[0].tolist() == pytest.approx(
        [-0.25 / 3, -0.25 / 3, 1 - 0.25 / 3, 0.0]
    )
    assert rollouts.reward_BT.sum(-1)[:5].tolist() == pytest.approx(
        [0.75, -0.25, -0.25, 0.75, 0.25]
    )
    assert rollouts.label_B[:5].tolist() == [1.0, 0.0, 0.0, 1.0, 0.5]


def test_the_gate_scales_or_removes_the_process_source(queue):
    shut, result = advantages_by_key(queue, gate=0.0)
    torch.testing.assert_close(shut, advantages_by_key(queue, process__form="none")[0])
    assert "prime/process/return_std" not in result.metrics
    half, measured = advantages_by_key(queue, gate=0.5)
    spread = {name: measured.metrics[f"prime/{name}/return_std"] for name in ("outcome", "process")}
    assert measured.metrics["prime/process/return_std_over_outcome"] == pytest.approx(
        spread["process"] / spread["outcome"]
    )
    torch.testing.assert_close(half, advantages_by_key(queue, process__coefficient=0.5)[0])


def test_only_pair_accuracy_before_the_update_feeds_the_gate(queue):
    rollouts = loaded(queue).rollouts
    reference_BT = torch.full_like(rollouts.mask_BT, -5.0)
    right_BT = reference_BT.clone()
    right_BT[:, 0] += rollouts.label_B
    for when, log_prob_BT, accuracy in (
        ("before", right_BT, 1.0),
        ("after", -10.0 - right_BT, 0.0),
    ):
        pairs, metrics = measure(rollouts, TokenLogProbs(log_prob_BT, reference_BT), when)
        assert metrics[f"prm/pair_accuracy/{when}_update"] == accuracy == pairs.accuracy
    given = scored_as(rollouts, settings(), right_BT, reference_BT)
    seen = []
    gate = SimpleNamespace(update=lambda pairs: seen.append(pairs) or 1.0, average=1.0)
    prime_step(rollouts, SimpleNamespace(score_and_update=lambda _: given), gate, settings())
    assert seen == [given.pairs] and given.pairs.accuracy == 1.0


def test_without_a_scorer_the_outcome_alone_is_paid(queue):
    rollouts = loaded(queue).rollouts
    result = prime_step(rollouts, None, None, settings(process__form="none"))
    assert torch.equal(result.advantage_BT, loaded(queue, process__form="none").step().advantage_BT)


def test_a_rollout_alone_in_its_group_causes_a_warning(queue, caplog):
    keys = ["000000000007_0_0", "000000000007_1_0", "000000000009_0_0", *PADDING]
    with caplog.at_level(logging.WARNING):
        rows, result = advantages_by_key(queue, keys, whitening=False)
    assert (
        result.metrics["prime/rollouts_without_baseline"] == 1
        and "alone in their group" in caplog.text
    )
    assert rows["000000000009_0_0"].tolist() == [0.0]


def test_non_finite_rewards_end_the_run(queue):
    case = loaded(queue)
    case.scored.metrics["prm/loss"] = NAN
    with pytest.raises(
        NotFinite, match=r"not finite because of process \(prm/loss: nan\).*prm.model.path"
    ):
        case.paid(case.scored.reward_BT * NAN).step()


# ---- the order of scoring and updates of the PRM, and what each order knows when -----------------


class Workers:
    """Workers of a PRM that orders pairs wrongly until it is updated; sign 0: of the reference."""

    data_parallel_size = 1
    share_rows = staticmethod(share_rows)

    def __init__(self, queue, sign):
        self.queue = queue
        self.sign = sign
        self.passes = 0

    def row(self, key):
        """Return a value per token; ``sign`` times a row's label is added to the first."""
        fields = self.queue.fields["train"][key]
        values_T = torch.full(fields["response_mask"].shape, -5.0)
        if "extra_fields" in fields:
            values_T[0] += self.sign * fields["extra_fields"]["reward_extra_info"]["acc"]
        return values_T

    def write(self, batch, name):
        self.passes += 1
        for key in batch.keys:
            self.queue.fields["train"][key][name] = self.row(key)

    def score(self, batch):
        self.scored = batch
        self.write(batch, batch.extra_info["prm_output_field"])

    def update(self, batch):
        self.passes += 1
        return self._trained(batch)

    def update_and_score(self, batch):
        self.write(batch, PRM_LOG_PROBS)
        return self._trained(batch)

    def _trained(self, batch):
        self.trained = batch
        self.sign = 1.0
        self.rows_trained_on = {key: dict(self.queue.fields["train"][key]) for key in batch.keys}
        return {"loss": 0.7}


def build(queue, monkeypatch, mode, rows=7, replay=None, reference="frozen", **changes):
    """Build a PRM whose workers are these, with mini-batches of that many rows."""
    prm = {"beta": 0.05, "loss": "ce", "update_mode": mode, "epochs": 1, "bias_lr": None}
    own = SimpleNamespace(**prm, reference=reference, replay=0)
    kind = FrozenPRM if mode == "none" else TrainedPRM
    monkeypatch.setattr(FrozenPRM, "noise", 0.0)
    scorer = kind(own, settings(**changes), rows, end_token=2)
    scorer.workers = Workers(queue, -1.0)
    scorer.reference_workers = Workers(queue, 0.0)
    if replay is not None:
        scorer.replay = replay
    return scorer


def run(queue, prm, number=1, **changes):
    """Run the PRM's part of one step; return what it scored, and the rollouts."""
    batch = get_batch(queue, [*ROLLOUTS, *PADDING])
    rollouts = load_rollouts(TransferQueueStore(batch), settings(**changes), number)
    scored = prm.score_and_update(rollouts)
    assert rollouts.store.keys == batch.keys and set(queue.tags["train"]) == set(batch.keys), (
        "nothing else is left"
    )
    return scored, rollouts


DISTILS = {"process__form": "kl"}


@pytest.mark.parametrize(
    ("mode", "gated", "passes", "rewards_of_the_updated", "changes"),
    [
        ("interleaved", True, 1, False, {}),
        ("after", True, 2, False, {}),
        ("before", True, 2, True, {}),
        ("before", False, 2, True, {}),
        ("none", True, 1, False, {}),
        # Without process rewards the training passes are enough.
        ("before", True, 1, False, DISTILS),
        ("before", False, 1, False, DISTILS),
    ],
)
def test_the_gate_judges_the_prm_before_its_update(
    monkeypatch, mode, gated, passes, rewards_of_the_updated, changes
):
    queue = filled_queue(monkeypatch)
    options = {**changes, "process__gate": GATE if gated else None}
    prm = build(queue, monkeypatch, mode, **options)
    scored, rollouts = run(queue, prm, **options)
    assert prm.workers.passes == passes
    # A score at a tool's answer is not a reward.
    assert not scored.reward_BT[~rollouts.mask_BT.bool()].any()
    # Untrained it orders every pair wrongly, updated every pair rightly.
    assert scored.pairs.accuracy == (
        None if (mode, gated, changes) == ("before", False, {}) else 0.0
    )
    right = scored.reward_BT.sum(-1)[rollouts.label_B == 1.0].mean()
    wrong = scored.reward_BT.sum(-1)[rollouts.label_B == 0.0].mean()
    assert bool(right > wrong) is rewards_of_the_updated


@pytest.mark.parametrize(
    ("reference", "field"), [("frozen", REFERENCE_LOG_PROBS), ("policy", "old_log_probs")]
)
def test_workers_fetch_only_what_the_prm_reads(monkeypatch, reference, field):
    queue = filled_queue(monkeypatch)
    with_old_log_probs(queue)
    prm = build(queue, monkeypatch, "after", reference=reference)
    scored, rollouts = run(queue, prm)
    workers = prm.workers
    assert workers.scored.fields == list(INPUT_FIELDS)
    assert workers.trained.fields == [*INPUT_FIELDS, field, LABEL, WEIGHT, OFFSET, ROW]
    assert prm.reference_workers.passes == (reference == "frozen")
    reference_BT = rollouts.store.fetch(field)[field]
    expected_BT = (
        0.05
        * (rollouts.store.fetch(PRM_LOG_PROBS)[PRM_LOG_PROBS] - reference_BT)
        * rollouts.mask_BT
    )
    torch.testing.assert_close(scored.reward_BT, expected_BT)


@pytest.mark.parametrize("mode", ["interleaved", "before"])
def test_pairs_over_two_mini_batches_do_not_open_the_gate(monkeypatch, mode):
    """The second was scored by a PRM trained on the first, which answers the same prompt."""
    queue = filled_queue(monkeypatch)
    prm = build(queue, monkeypatch, mode, process__gate=GATE)
    mini_batch_B = torch.tensor([0, 0, 1, 1, 1, 0, 0])
    plan = prm.plan
    monkeypatch.setattr(prm, "plan", lambda batch: replace(plan(batch), mini_batch_B=mini_batch_B))
    scored, _ = run(queue, prm, process__gate=GATE)
    # One of the first prompt's two pairs (1 and 0) is left, and the second's only one (1 and 0.5).
    assert scored.pairs == PairCount(0.0, 1.5)


def with_tokens(queue):
    """Add what else the rollout engine writes, of other lengths for each rollout."""
    for place, fields in enumerate(queue.fields["train"].values()):
        prompt = torch.arange(2 + place) + 10
        response = torch.arange(len(fields["response_mask"])) + 50
        position_ids = torch.arange(len(prompt) + len(response))
        fields.update(prompts=prompt, responses=response, position_ids=position_ids)
        fields["input_ids"] = torch.cat((prompt, response))


def with_old_log_probs(queue):
    for fields in queue.fields["train"].values():
        fields["old_log_probs"] = torch.full(fields["response_mask"].shape, -4.0)


@pytest.mark.parametrize("mode", ["interleaved", "after", "before"])
def test_the_prm_alone_is_trained_on_rollouts_of_earlier_steps(monkeypatch, tmp_path, mode):
    replay = PRMReplay(1, tmp_path / "replay")
    accuracies = [accuracy for accuracy, _ in ROLLOUTS.values()]
    # The labels that could be drawn for each step, and how many are: as many as the 5 new ones.
    for number, (pool, replayed) in enumerate([([], 0), (accuracies, 5), (accuracies, 5)], start=1):
        results = []
        for drawn in (None, replay):
            queue = filled_queue(monkeypatch)
            with_tokens(queue)
            prm = build(queue, monkeypatch, mode, replay=drawn)
            results.append((prm.workers, run(queue, prm, number)[0]))
        (_, plain), (workers, scored) = results
        # The policy and the gate see what they would have seen; nothing of it is left in the store.
        torch.testing.assert_close(scored.reward_BT, plain.reward_BT, rtol=0, atol=0)
        assert scored.pairs == plain.pairs
        assert scored.metrics["prm/replayed_rollouts"] == replayed
        rows = workers.rows_trained_on
        # One mini-batch of 7 rows, and two replayed ones on top.
        assert workers.trained.extra_info["mini_batch_size"] == len(rows) == 7 + replayed
        assert sum(float(row[WEIGHT]) > 0 for row in rows.values()) == 5 + replayed
        again = {key: row for key, row in rows.items() if key.startswith("replay")}
        assert len(again) == replayed and {float(row[LABEL]) for row in again.values()} <= set(pool)
        assert ("multi_modal_inputs" in workers.trained.fields) is not bool(replayed)
        for key, fields in rows.items():
            # This holds for padding, too, which verl copies from a rollout of another length.
            assert (
                len(fields[REFERENCE_LOG_PROBS])
                == len(fields["responses"])
                == len(fields["response_mask"])
            )
            if key in again:
                assert (fields[REFERENCE_LOG_PROBS] == -5.0).all()
                assert torch.equal(
                    fields["input_ids"], torch.cat((fields["prompts"], fields["responses"]))
                )
                assert torch.equal(fields["loss_mask"], fields["response_mask"])
    # Nothing is left of an update that fails, either.
    monkeypatch.setattr(Workers, "_trained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prm.score_and_update(load_rollouts(TransferQueueStore(get_batch(queue)), settings(), 4))
    assert set(queue.tags["train"]) == {*ROLLOUTS, *PADDING}


def test_counts_of_agent_loops_are_averaged_over_all_rollouts():
    extras = [{"calls": {"failed": 3, "name": "x"}, "reward_extra_info": {"acc": 1.0}}, {}, None]
    assert average_counts(extras) == {"calls/failed": 1.0}
