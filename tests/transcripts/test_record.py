# SPDX-License-Identifier: Apache-2.0
"""Training records the numbers of its batch, dropped prompts, some steps, and resumes."""

import logging
import math

import pytest
import torch
from fake_queue import EASY, GOOD, HARD, UNDECIDED, FakeQueue, FakeRollouts
from page_reader import read_responses
from small_batch import (
    PADDING,
    ROLLOUTS,
    SHAPINGS,
    filled_queue,
    get_batch,
    loaded,
    settings,
)
from transfer_queue import KVBatchMeta

from prime_ext.algorithms.prompt_filter import FAILED, KEPT, AccuracyBand
from prime_ext.methods.settings import VerifierSettings
from prime_ext.methods.step_scorer.scorer import StepRewardModel
from prime_ext.methods.step_scorer.source import build_shaping
from prime_ext.step.rollouts import load_rollouts
from prime_ext.step.step import prime_step
from prime_ext.step_rm.response_cut import ResponseCutter
from prime_ext.transcripts.files import find_steps, read_step
from prime_ext.transcripts.page import render_page
from prime_ext.transcripts.record import TranscriptRecorder
from prime_ext.verl_adapter.prompt_judge import PromptJudge
from prime_ext.verl_adapter.rollout_store import TransferQueueStore
from recipes.quickstart.small_model import build_tokenizer

TEXTS = {key: "3*9=7;"[: len(mask)] for key, (_, mask) in ROLLOUTS.items()}


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def make(tmp_path, tokenizer):
    def build(**changes):
        options = {"every": 10, "prompts": 4, "method": "PRIME, variant paper"} | changes
        return TranscriptRecorder(
            tmp_path / "transcripts", get_tokenizer=lambda: tokenizer, **options
        )

    return build


def encode(tokenizer, text):
    return torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.fixture
def queue(monkeypatch, tokenizer):
    """Fill a queue whose rollouts have prompts and responses, too."""
    queue = filled_queue(monkeypatch)
    for key in (*ROLLOUTS, *PADDING):
        queue.fields["train"][key].update(
            prompts=encode(tokenizer, "3*9?"),
            responses=encode(tokenizer, TEXTS.get(key, "1")),
            reward_model={"style": "rule", "ground_truth": "7"},
        )
    return queue


def record(recorder, case, result, step=10):
    with recorder.record(step, False, {}):
        recorder.add_prime(case.rollouts, result, case.settings)
    return {row["key"]: row for row in read_step(recorder.folder, step)}


CASES = {
    "tokens": {},
    "without process rewards": {"process__form": "none"},
    "steps": {"process__form": "steps", "steps": {"delimiters": ["="]}},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_record_and_page_have_the_numbers_of_the_batch(queue, make, tokenizer, changes):
    case = loaded(queue, **changes)
    if case.settings.needs.steps:
        cutter = ResponseCutter(case.settings.steps, tokenizer)
        case = loaded(queue, cutter=cutter, **changes)
    bare = case.settings.process is None
    result = prime_step(case.rollouts, None, None, case.settings) if bare else case.step(0.5)
    rows = record(make(), case, result)
    assert list(rows) == list(ROLLOUTS)
    shown = read_responses(render_page(list(rows.values()), "run", [10]))
    assert len(shown) == len(rows)
    for place, (key, (_, mask)) in enumerate(ROLLOUTS.items()):
        row = rows[key]
        n_tokens = len(mask)
        assert row["mask"] == mask and "".join(row["tokens"]) == TEXTS[key] == shown[place].text
        assert row["gold"] == "7" and row["prompt"] == "3*9?" and row["filter"] == KEPT
        expected = {"advantage": result.advantage_BT, "return": result.return_BT}
        assert ("process" in row) is not bare
        if not bare:
            expected["process reward"] = result.scored.reward_BT
        for name, value_BT in expected.items():
            values = value_BT[place, :n_tokens].tolist()
            assert row["process" if "process" in name else name] == pytest.approx(values, rel=1e-5)
            own = [f"{value:+.4g}" for value, use in zip(values, mask, strict=True) if use]
            assert [one for one in shown[place].numbers(name) if one] == own
        if case.settings.needs.steps:
            spans = result.scored.steps.spans
            ends = spans.end_BS[place, : spans.count_B[place]].tolist()
            assert row["step_ends"] == ends
            sums = [0.0] * len(ends)
            for token, step in enumerate(spans.step_BT[place, :n_tokens].tolist()):
                if step >= 0:
                    sums[step] += float(result.scored.reward_BT[place, token])
            labels = [f"step {at} of {len(ends)}, sum {one:+.4g}" for at, one in enumerate(sums, 1)]
            assert set(shown[place].notes_with("step ")) == set(labels)


def test_turns_have_their_rewards_and_the_sums_of_their_tokens(queue, make):
    key = "000000000007_2_0"
    for one, (_, mask) in (*ROLLOUTS.items(), *((padding, (0, [0])) for padding in PADDING)):
        fields = queue.fields["train"][one]
        fields["loss_mask"] = torch.tensor(mask)
        fields["extra_fields"]["tool_rewards"] = [0.5, -1.0] if one == key else [0.25]
    case = loaded(
        queue,
        process__form="steps",
        process__granularity="turn",
        turns__coefficient=0.5,
        process__estimator="turn_rloo",
    )
    result = case.step()
    row = record(make(), case, result)[key]
    assert row["mask"] == [1, 0, 1, 1] and row["step_ends"] == row["turn_ends"] == [0, 3]
    assert row["unit"] == "turn" and row["turn_rewards"] == [0.5, -1.0]
    (shown,) = read_responses(render_page([row], "run", [10]))
    reward_T = result.scored.reward_BT[list(ROLLOUTS).index(key)]
    sums = [f"{float(reward_T[0]):+.4g}", f"{float(reward_T[2:4].sum()):+.4g}"]
    expected = [f"turn {at} of 2, sum {one}" for at, one in enumerate(sums, 1)]
    assert list(dict.fromkeys(shown.notes_with("turn "))) == expected
    assert shown.numbers("reward of the turn") == ["+0.5", "", "", "-1"]
    assert shown.classes[1] == "other"


def test_only_some_prompts_of_some_steps_are_recorded(queue, make):
    case = loaded(queue)
    result = case.step()
    recorder = make(prompts=1)
    for step, last in ((1, False), (2, False), (10, False), (13, True)):
        with recorder.record(step, last, {}):
            # As in asynchronous modes, which update several times in a step.
            recorder.add_prime(case.rollouts, result, case.settings)
            recorder.add_prime(case.rollouts, result, case.settings)
    assert find_steps(recorder.folder) == [1, 10, 13]
    assert {row["uid"] for row in read_step(recorder.folder)} == {"000000000007"}
    off = make(every=0)
    with off.record(20, True, {}):
        off.add_prime(case.rollouts, result, case.settings)
    assert 20 not in find_steps(off.folder)


def test_resuming_keeps_old_steps_and_a_new_run_starts_anew(queue, make):
    case = loaded(queue)
    result = case.step()
    recorder = make()
    for step in (1, 10, 20):
        record(recorder, case, result, step)
    before = {step: read_step(recorder.folder, step) for step in (1, 10)}
    again = make()
    # The checkpoint of step 15: step 20 is made again, perhaps as another.
    again.resume(15)
    assert find_steps(again.folder) == [1, 10]
    record(again, case, result, 20)
    assert {step: read_step(again.folder, step) for step in (1, 10)} == before
    make().resume(0)
    assert find_steps(again.folder) == []
    assert find_steps(again.folder.with_name("transcripts.old0")) == [1, 10, 20]


def test_a_step_that_fails_still_shows_what_was_dropped(monkeypatch, make, tokenizer):
    rollouts = FakeRollouts(FakeQueue().install(monkeypatch), [HARD, EASY, GOOD, [UNDECIDED, 1.0]])
    recorder = make(prompts=1)
    judge = PromptJudge(
        AccuracyBand(0.2, 0.8), "acc", VerifierSettings("drop"), watch=recorder.add_removed
    )
    for uid in ("0000", "0001", "0002", "0003"):
        rollouts.queue.put(uid, {})
        rollouts._finish(uid)
    for fields in rollouts.queue.fields["train"].values():
        fields["prompts"] = encode(tokenizer, "3*9?")
    partition = {key: tag for key, tag in rollouts.queue.tags["train"].items() if "_" in key}
    with pytest.raises(RuntimeError, match="too few"), recorder.record(10, False, {}):
        judge.judge(["0000", "0001", "0002", "0003"], "train", partition)
        raise RuntimeError("too few")
    rows = read_step(recorder.folder)
    assert [(row["key"], row["filter"]) for row in rows] == [
        ("0000_0_0", "too_hard"),
        ("0000_1_0", "too_hard"),
    ]
    assert "advantage" not in rows[0] and "mean accuracy 0;" in render_page(rows, "run", [10])


def test_ungraded_rollouts_of_a_kept_prompt_are_shown(queue, make, tokenizer):
    case = loaded(queue)
    result = case.step()
    recorder = make()
    key = "000000000009_1_0"
    info = {"acc": 0.0, "verdict": "timeout", "grader_failure": 1.0, "verifier_detail": "stuck"}
    queue.put(
        key,
        {"response_len": 1, "seq_len": 5},
        prompts=encode(tokenizer, "3*9?"),
        responses=encode(tokenizer, "8"),
        extra_fields={"reward_extra_info": info},
    )
    with recorder.record(1, False, {}):
        store = TransferQueueStore(KVBatchMeta([key], [queue.tags["train"][key]], "train"))
        recorder.add_removed(store, [KEPT])
        recorder.add_prime(case.rollouts, result, case.settings)
    rows = read_step(recorder.folder)
    assert [row["key"] for row in rows] == [*list(ROLLOUTS)[:4], key, list(ROLLOUTS)[4]]
    page = render_page(rows, "run", [1])
    assert page.count("left its group") == 1 and "⚠ not graded: timeout" in page
    assert "<dt>reason</dt><dd>stuck</dd>" in page


def test_a_full_disk_is_a_warning(queue, make, caplog):
    case = loaded(queue)
    recorder = make()
    recorder.folder.write_text("not a folder")
    with caplog.at_level(logging.WARNING), recorder.record(10, False, {}):
        recorder.add_prime(case.rollouts, case.step(), case.settings)
    assert "no transcripts of step 10" in caplog.text


def test_scored_steps_are_shown_with_what_is_paid(queue, make, tokenizer):
    """A record of PSPO-WRS, and of a response that could not be scored."""
    key, lost = "000000000007_0_0", "000000000007_1_0"
    scored = {"n_tokens": 3, "step_ends": "[0, 2]", "step_scores": "[0.9, 0.125]"}
    failed = {"acc": 0.0, "reward_failure": 1.0, "failure_detail": "HTTP 500"}
    for name in ROLLOUTS:
        info = queue.fields["train"][name]["extra_fields"]["reward_extra_info"]
        n_tokens = len(ROLLOUTS[name][1])
        info |= {"n_tokens": n_tokens, "step_ends": "[]", "step_scores": "[]"}
        info |= {"steps_timed_out": 0.0} | (scored if name == key else {})
    queue.fields["train"][lost]["extra_fields"] = {"reward_extra_info": failed}
    options = settings(
        outcome__coefficient=0.0,
        filter__enable=False,
        process__form="step_scorer",
        process__credit="sum",
        process__gate=None,
        process__shaping=SHAPINGS["pspo_wrs"],
        process__accumulation__reward_position="step_ends",
    )
    keys = [name for name in ROLLOUTS if name != lost]
    rollouts = load_rollouts(TransferQueueStore(get_batch(queue, keys)), options)
    scorer = StepRewardModel(build_shaping(options.process))
    result = prime_step(rollouts, scorer, None, options)
    recorder = make(method="PSPO-WRS")
    with recorder.record(1, False, {}):
        recorder.add_removed(TransferQueueStore(get_batch(queue, [lost])), [FAILED])
        recorder.add_prime(rollouts, result, options)
    rows = {row["key"]: row for row in read_step(recorder.folder)}
    kept = rows[key]
    assert kept["step_scores"] == [0.9, 0.125] and kept["step_ends"] == [0, 2]
    factor = 10.735 * 1.5 / 8 * (2 / 8) ** 0.5 * math.exp(-((2 / 8) ** 1.5))
    share = math.sqrt(0.9 * 0.125) * factor / 2
    assert kept["paid_here"] == pytest.approx([share, 0.0, share], rel=1e-5)
    assert rows[lost]["filter"] == FAILED
    page = render_page([kept, rows[lost]], "run", [1])
    first, second = read_responses(page)
    assert set(first.notes_with("step ")) == {"step 1 of 2, score 0.9", "step 2 of 2, score 0.125"}
    assert first.numbers("reward paid here")[2] == f"{share:+.4g}"
    assert "\u26a0 not scored" in page and "HTTP 500" in page and second.text == TEXTS[lost]
