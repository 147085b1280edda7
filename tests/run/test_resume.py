# SPDX-License-Identifier: Apache-2.0
"""A resume names what it would ignore, cannot restore or would silently change."""

from pathlib import Path

import pytest

from prime_ext.config.compose import compose_config
from prime_ext.run.checkpoint import mark_complete
from prime_ext.run.resume import explain_refusal, find_checkpoint, read_identity

OPTIM = "actor_rollout_ref.actor.optim"
LORA = "actor_rollout_ref.model.lora_rank=8"
CRITIC = ["algorithm.adv_estimator=gae", "prime.outcome.estimator=gae"]


@pytest.fixture
def start(tmp_path):
    """Return a function that composes a configuration of a run in this folder."""
    (tmp_path / "train.parquet").write_text("rows")

    def compose(*words, name="prime_trainer_cpu"):
        files = [f"data.train_files={tmp_path}/train.parquet", f"data.val_files={tmp_path}"]
        model = ["actor_rollout_ref.model.path=org/model"]
        folder = [f"trainer.default_local_dir={tmp_path}/run"]
        return compose_config(name, [*files, *model, *folder, *words])

    return compose


def save(config, ranks=1, names=("actor", "prm", "policy_average")):
    """Write what matters here of a checkpoint of step 3."""
    root = Path(config.trainer.default_local_dir) / "global_step_3"
    for name in names:
        (root / name).mkdir(parents=True)
        for kind in ("model", "optim", "extra_state"):
            for rank in range(ranks):
                (root / name / f"{kind}_world_size_{ranks}_rank_{rank}.pt").write_text("x")
    mark_complete(root, {"global_step": 3, **read_identity(config)})
    return root


def ask(config):
    return explain_refusal(config, read_identity(config), find_checkpoint(config))


def named(folder, *words):
    return ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}", *words]


# Words of the first start and of the second, and what is said.
CHANGES = [
    ([], [f"{OPTIM}.lr=1e-4"], f"{OPTIM}.lr 5e-07, now it is 0.0001; the optimizer of the"),
    ([], ["prm.optim.lr=1e-4"], "prm.optim.lr 1e-06, now it is 0.0001"),
    ([], [f"{OPTIM}.lr_scheduler_type=cosine"], "lr_scheduler_type constant, now it is cosine"),
    ([], [f"{OPTIM}.optimizer=SGD"], "optimizer AdamW, now it is SGD"),
    ([], [f"{OPTIM}.lr_warmup_steps=5"], "lr_warmup_steps -1, now it is 5"),
    ([], [f"{OPTIM}.betas=[0.9,0.95]"], "betas [0.9, 0.999], now it is [0.9, 0.95]"),
    ([], ["prm.bias_lr=0.1"], "prm.bias_lr 0.05, now it is 0.1"),
    ([], ["variant=guarded"], "prime.variant distilled, now it is guarded"),
    (["variant=guarded"], [], "prime.variant guarded, now it is distilled"),
    ([], ["prm.beta=0.5"], "prm.beta 1.0, now it is 0.5"),
    (["variant=paper"], ["variant=paper", "prm.loss=nca"], "prm.loss ce, now it is nca"),
    ([], ["actor_rollout_ref.actor.clip_ratio_high=0.3"], "clip_ratio_high 0.2, now it is 0.3"),
    ([], ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo"], "loss_mode vanilla, now it is"),
    ([], ["actor_rollout_ref.rollout.n=8"], "actor_rollout_ref.rollout.n 4, now it is 8"),
    ([], ["algorithm.gamma=0.9"], "algorithm.gamma 1.0, now it is 0.9"),
    ([], ["prime.filter.lower=0.1"], "prime.filter.lower 0.2, now it is 0.1"),
    ([], [LORA], "lora_rank 0, now it is 8; choose another trainer.default_local_dir"),
    ([LORA], [LORA.replace("8", "16")], "lora_rank 8, now it is 16"),
    ([], ["prm.trainable_layers=0.5"], "prm.trainable_layers 0.33, now it is 0.5"),
    ([], ["trainer.n_gpus_per_node=2"], "ranks 1, now it is 2; start with that number"),
    ([], ["prm.model.path=org/other"], "prm.model.path org/model, now it is org/other"),
    ([], ["trainer.total_training_steps=9", "trainer.save_freq=2", "trainer.logger=[file]"], ""),
    ([], ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096"], ""),
    ([], ["prime.filter.oversample=3", "prime.verifier.on_failure=zero"], ""),
]


@pytest.mark.parametrize(("first", "second", "said"), CHANGES)
def test_changes_that_a_resume_would_ignore_are_named(start, first, second, said):
    folder = save(start(*first))
    assert ask(start(*first)) == ""
    line = ask(start(*second))
    assert "\n" not in line
    if said:
        assert line.startswith(f"{folder} was trained with ") and said in line
    else:
        assert line == ""


def test_naming_the_checkpoint_allows_what_the_run_then_follows(start):
    folder = save(start())
    assert ask(start(*named(folder, "prm.beta=0.5"))) == ""
    rate = f"{OPTIM}.lr=1e-4"
    assert "would go on with the old one" in ask(start(*named(folder, rate)))
    begin = "actor_rollout_ref.actor.checkpoint.load_contents=[model]"
    assert begin in ask(start(*named(folder, rate)))
    assert ask(start(*named(folder, rate, begin))) == ""
    for word in (LORA, "trainer.n_gpus_per_node=2"):
        assert "was trained with" in ask(start(*named(folder, word)))


@pytest.mark.parametrize(
    ("words", "names", "said"),
    [
        ([], ["actor", "policy_average"],
         "prm has no model_world_size_1_rank_*.pt, so this run cannot resume"),
        ([], ["prm"], "actor has no model_world_size_1_rank_*.pt"),
        ([], ["actor", "prm"], "policy_average has no model_world_size_1"),
        ([*CRITIC, "variant=guarded"], ["actor", "prm"],
         "critic has no model_world_size_1_rank_*.pt"),
        (["variant=rloo"], ["actor"], ""),
    ],
)  # fmt: skip
def test_checkpoints_without_weights_are_refused(start, words, names, said):
    config = start(*words)
    save(config, names=names)
    assert said in ask(config) if said else ask(config) == ""


@pytest.mark.parametrize("words", [[], ["trainer.val_only=true"]])
def test_shards_of_other_ranks_are_refused_without_recorded_settings(start, words):
    """Checkpoints of version 0.2 have none, and verl loads one for a validation too."""
    config = start("trainer.n_gpus_per_node=8", *words)
    folder = save(config, ranks=16)
    mark_complete(folder, {"global_step": 3})
    line = ask(config)
    assert line.startswith(f"{folder}/actor was saved by 16 ranks, and this run has 8 (trainer.n")
    assert "python -m prime_ext.generate.export" in line and "\n" not in line
    assert ask(start("trainer.n_gpus_per_node=8", "trainer.nnodes=2", *words)) == ""


def test_a_moved_model_is_the_same_and_a_changed_one_is_not(start, tmp_path):
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    save(start(f"prm.model.path={tmp_path}/a"))
    assert ask(start(f"prm.model.path={tmp_path}/b")) == ""
    assert f"prm.model.path {tmp_path}/a, now" in ask(start(f"prm.model.path={tmp_path}/c"))


def test_pspos_settings_are_kept_too(start):
    words = {"name": "pspo_trainer_cpu"}
    save(start("step_scorer.model_path=org/rm", **words), names=("actor", "critic"))
    assert ask(start("step_scorer.model_path=org/rm", **words)) == ""
    assert "critic.optim.lr" in ask(
        start("step_scorer.model_path=org/rm", "critic.optim.lr=1e-3", **words)
    )
    assert "step_scorer.model_path org/rm" in ask(start("step_scorer.model_path=org/x", **words))
    judge = ("step_scorer=judge", "step_scorer.address=http://a", "step_scorer.model=b")
    assert "step_scorer.kind local, now it is judge" in ask(start(*judge, **words))


@pytest.mark.parametrize("change", ["model=other", "judgement=scores"])
def test_a_judge_is_kept_and_may_move(start, change):
    words = {"name": "pspo_trainer_cpu"}
    judge = ("step_scorer=judge", "step_scorer.address=http://a", "step_scorer.model=b")
    save(start(*judge, **words), names=("actor", "critic"))
    moved = start(*judge, "step_scorer.address=http://c", "step_scorer.attempts=9", **words)
    assert ask(moved) == ""
    key = change.partition("=")[0]
    assert f"step_scorer.{key} " in ask(start(*judge, f"step_scorer.{change}", **words))


def test_changed_bytes_are_named_before_a_resume(start):
    config = start()
    folder = save(config)
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_text("y")
    with pytest.raises(ValueError, match="actor/model_world_size_1_rank_0.pt has changed bytes"):
        ask(config)
