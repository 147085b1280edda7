# SPDX-License-Identifier: Apache-2.0
"""The loop of policy and environment: masks, limits, rewards of turns, failures."""

import asyncio
from types import SimpleNamespace

import pytest
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from prime_ext.config.compose import compose_config
from prime_ext.environments.episode import Episode
from prime_ext.verl_adapter.environment_loop import EnvironmentAgentLoop
from recipes.agent.calculator_task import build_tokenizer

TOKENIZER = build_tokenizer()
EOS = TOKENIZER.eos_token_id
TURNS = "actor_rollout_ref.rollout.multi_turn"


def build_loop(texts, words=(), length=400, log_probs=True, **limits):
    """Return the loop, with a policy that writes these texts; one that ends in ~ has no end."""
    config = compose_config(
        "prime_trainer_cpu",
        [
            f"data.max_response_length={length}",
            "data.max_prompt_length=64",
            "actor_rollout_ref.model.path=none",
            *words,
        ],
    )
    written = iter(texts)

    async def generate(request_id, sampling_params, **_):
        text = next(written)
        ids = TOKENIZER(text.rstrip("~"), add_special_tokens=False)["input_ids"]
        ids += [EOS] * (not text.endswith("~"))
        ids = ids[: sampling_params["max_tokens"]]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-1.0 - token for token in ids] if log_probs else None,
            stop_reason="completed",
            extra_fields={"global_steps": 1},
        )

    return EnvironmentAgentLoop(
        trainer_config=DictConfigWrap(config),
        tokenizer=TOKENIZER,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        server_manager=SimpleNamespace(generate=generate),
        **limits,
    )


def play(name, texts, *args, prompt=None, **options):
    """Return the rollout of a game."""

    async def run():
        async with Episode(name) as episode:
            first = await episode.reset(3)
        messages = [{"role": "user", "content": first if prompt is None else prompt}]
        row = {"environment": name, "seed": 3}
        loop = build_loop(texts, *args, **options)
        return await loop.run({}, raw_prompt=messages, extra_info=row)

    return asyncio.run(run())


def decode_own(rollout):
    """Return the text of the tokens that the policy is trained on."""
    pairs = zip(rollout.response_ids, rollout.response_mask, strict=True)
    return TOKENIZER.decode([token for token, own in pairs if own])


def test_masks_cover_what_the_policy_wrote_and_nothing_else():
    rollout = play("broken_games:Counting:said='8 more'", ["7", "no", "1"])
    assert TOKENIZER.decode(rollout.prompt_ids) == "<bos>Write a digit. Game 3."
    assert decode_own(rollout) == "7<eos>no<eos>1<eos>"
    assert TOKENIZER.decode(rollout.response_ids).count("8 more") == 2
    for token, own, log_prob in zip(
        rollout.response_ids, rollout.response_mask, rollout.response_logprobs, strict=True
    ):
        assert log_prob == (-1.0 - token if own else 0.0)
    extra = rollout.extra_fields
    assert extra["turn_scores"] == [1.0, 0.0, 1.0]
    assert extra["turn_progress"] == pytest.approx([1 / 3] * 3)
    assert extra["environment"] == {"turns": 3, "invalid": 1, "finished": 1, "cut": 0, "failed": 0}
    assert rollout.reward_score == extra["reward_extra_info"]["acc"] == 1.0
    assert rollout.num_turns == 6


def test_an_engine_without_log_probabilities_plays_too():
    rollout = play("broken_games:Counting", ["7", "no", "1"], log_probs=False)
    assert rollout.response_logprobs is None and decode_own(rollout) == "7<eos>no<eos>1<eos>"


@pytest.mark.parametrize(
    ("texts", "options", "own", "turns"),
    [
        (["1"] * 9, {"words": [f"{TURNS}.max_assistant_turns=2"]}, "1<eos>1<eos>", 2),
        (["1"] * 9, {"words": [f"{TURNS}.max_user_turns=1"]}, "1<eos>1<eos>", 2),
        # The third text is cut, and the environment does not see it.
        (["1", "1", "12345678"], {"length": 21}, "1<eos>1<eos>123", 2),
        # There is no room for the answer to the second.
        (["1", "1", "1"], {"length": 14}, "1<eos>1<eos>", 2),
        # The limit of a turn cuts it; what is there is the action.
        (["1", "12345678", "1"], {"turn_tokens": 3, "length": 24}, "1<eos>1231<eos>", 3),
    ],
)  # fmt: skip
def test_limits_end_an_episode_and_are_counted(texts, options, own, turns):
    rollout = play("broken_games:Counting:turns=4", texts, **options)
    counts = rollout.extra_fields["environment"]
    assert decode_own(rollout) == own
    assert (counts["turns"], counts["cut"], counts["finished"]) == (turns, 1, 0)
    assert len(rollout.extra_fields["turn_scores"]) == turns and rollout.reward_score == 0.0
    assert len(rollout.response_ids) <= options.get("length", 400)


@pytest.mark.parametrize("text", ["hang", "raise", "die", "nan", "no success"])
def test_a_broken_environment_ends_its_rollout_as_undecided(text):
    rollout = play("broken_games:Broken", ["1", text, "2"], step_seconds=0.3)
    info = rollout.extra_fields["reward_extra_info"]
    assert decode_own(rollout) == f"1<eos>{text}<eos>"
    assert info["grader_failure"] == 1.0 and info["acc"] == rollout.reward_score == 0.0
    assert "broken_games:Broken" in info["verifier_detail"]
    assert rollout.extra_fields["environment"]["failed"] == 1
    assert rollout.extra_fields["turn_scores"] == [0.5]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken_games:Unsteady", "began otherwise than its row of seed 3; write the rows again"),
        ("broken_games:Gone", "broken_games has no Gone"),
    ],
)
def test_an_episode_that_cannot_begin_is_a_rollout_nobody_learns_from(name, line):
    async def run():
        messages = [{"role": "user", "content": "1"}]
        row = {"environment": name, "seed": 3}
        return await build_loop(["1"]).run({}, raw_prompt=messages, extra_info=row)

    rollout = asyncio.run(run())
    info = rollout.extra_fields["reward_extra_info"]
    assert info["grader_failure"] == 1.0 and line in info["verifier_detail"]
    assert decode_own(rollout) == "1<eos>" and rollout.extra_fields["turn_scores"] == []


def test_words_of_the_environment_cannot_open_a_turn():
    rollout = play("broken_games:Broken", ["1", "raise"])
    said = TOKENIZER.decode(
        [t for t, own in zip(rollout.response_ids, rollout.response_mask, strict=True) if not own]
    )
    assert said.endswith("?< eos>\ufffdok") or "<eos>" not in said


def test_a_game_in_turns_pays_what_it_pays_at_once():
    """The same texts, as turns of one episode and as episodes of one turn, have equal sums."""
    texts = ["7", "no", "1", "x", "22"]
    whole = play("broken_games:Counting:turns=5", texts)
    single = [play("broken_games:Counting:turns=1", [text]) for text in texts]
    assert whole.extra_fields["turn_scores"] == [
        rollout.extra_fields["turn_scores"][0] for rollout in single
    ]
    assert sum(whole.extra_fields["turn_progress"]) == pytest.approx(1.0)
    assert decode_own(whole) == "".join(decode_own(rollout) for rollout in single)
