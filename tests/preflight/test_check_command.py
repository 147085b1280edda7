# SPDX-License-Identifier: Apache-2.0
"""``--check`` refuses, in a line, what teaches nothing, loses state or dies later."""

import json
import shutil
import subprocess
import sys

import fake_gpus
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import save_llama

from prime_ext import train
from prime_ext.config.compose import compose_defaults
from prime_ext.config.verl_keys import walk_items
from prime_ext.train import prepare_start

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
GAE = ["variant=guarded", "algorithm.adv_estimator=gae", "prime.outcome.estimator=gae"]
LORA = [f"{MODEL}.lora_rank=4", f"{MODEL}.lora.merge=true"]
PRM_LORA = ["prm.model.lora_rank=4", "prm.trainable_layers=null"]
SAVE = ["trainer.save_freq=1"]
FUNCTION = "reward.custom_reward_function"


def write_rows(path, n_rows=8, **columns):
    row = {
        "prompt": [{"role": "user", "content": "x"}],
        "data_source": "gsm8k",
        "reward_model": {"ground_truth": "1"},
        **columns,
    }
    table = pyarrow.table({name: [value] * n_rows for name, value in row.items()})
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Write a model with tied embeddings, one with NaN, and data."""
    root = tmp_path_factory.mktemp("check")
    save_llama(root / "model")
    config = json.loads((root / "model" / "config.json").read_text())
    (root / "model" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    shutil.copytree(root / "model", root / "broken")
    weights = load_file(root / "broken" / "model.safetensors")
    name = next(name for name in weights if name.endswith("norm.weight"))
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, root / "broken" / "model.safetensors", {"format": "pt"})
    write_rows(root / "train.parquet")
    write_rows(root / "text_info.parquet", extra_info="{}")
    write_rows(root / "images.parquet", images=["a.png"])
    write_rows(root / "agents.parquet", agent_name="tool_agnt")
    (root / "keys.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': 1.0, 'acc': 1.0, 3: 4}\n"
    )
    (root / "agents.yaml").write_text("- {name: mine, _target_: nowhere.Mine}\n")
    return root


@pytest.fixture
def check(root, monkeypatch, capsys):
    """Return a function that runs the checks on words, and returns the lines that it prints."""
    for name in ("RAY_ADDRESS", "WANDB_API_KEY", "WANDB_MODE", "SWANLAB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "")
    monkeypatch.setenv("NETRC", str(root / "no_netrc"))
    monkeypatch.setattr("prime_ext.run.ray_cluster.check_cluster", lambda config: ())

    def run(*words, name="prime_trainer_cpu"):
        good = [
            f"data.train_files={root}/train.parquet",
            f"data.val_files={root}/train.parquet",
            f"{MODEL}.path={root}/model",
            "data.train_batch_size=4",
            f"{ACTOR}.ppo_mini_batch_size=4",
            f"trainer.default_local_dir={root}/run",
            "trainer.logger=[console]",
        ]
        capsys.readouterr()
        try:
            prepare_start(
                name, [*good, *(word.replace("{root}", str(root)) for word in words)], True
            )
        except SystemExit as ended:
            assert ended.code == 2
        text = capsys.readouterr().err
        assert "Traceback" not in text
        return [line for line in text.splitlines() if line.startswith("prime_ext: ")]

    return run


FINE = [
    [],
    GAE,
    LORA,
    PRM_LORA,
    SAVE,
    [*SAVE, "trainer.resume_mode=disable", f"{ACTOR}.checkpoint.save_contents=[hf_model]"],
    [f"{ACTOR}.checkpoint.save_contents=[hf_model]"],
    ["trainer.critic_warmup=2"],
    [f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.lr=0.1"],
    [f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.3"],
    [f"{ROLLOUT}.top_k=20", f"{ROLLOUT}.top_p=0.9", f"{ROLLOUT}.temperature=0.7"],
    [*LORA, f"{MODEL}.target_modules=[q_proj,v_proj]"],
]

# Words, and a part of the line; None: the line begins with the key of the last word.
REFUSED = [
    # learning rates, clips and the like, of each model
    ([f"{ACTOR}.optim.lr=0"], None),
    ([f"{ACTOR}.optim.lr=-1e-6"], None),
    ([f"{ACTOR}.optim.lr=.nan"], None),
    ([f"{ACTOR}.optim.lr=.inf"], None),
    (["prm.optim.lr=0"], None),
    ([*GAE, "critic.optim.lr=0"], None),
    ([f"{ACTOR}.optim.betas=[0.9,1.0]"], f"{ACTOR}.optim.betas"),
    ([f"{ACTOR}.optim.betas=[0.9]"], f"{ACTOR}.optim.betas"),
    (["prm.optim.betas=[-0.1,0.9]"], "prm.optim.betas"),
    ([f"{ACTOR}.optim.clip_grad=0"], None),
    (["prm.optim.clip_grad=0"], None),
    ([f"{ACTOR}.optim.weight_decay=-0.1"], None),
    ([f"{ACTOR}.optim.lr_warmup_steps_ratio=1.5"], None),
    (["prm.optim.lr_warmup_steps_ratio=-0.1"], None),
    ([f"{ACTOR}.optim.min_lr_ratio=2"], None),
    ([f"{ACTOR}.optim.lr_scheduler_type=linear"], None),
    ([f"{ACTOR}.optim.total_training_steps=0"], None),
    ([f"{ACTOR}.optim.optimizer=Adamw"], "optim.optimizer=Adamw cannot be imported"),
    ([f"{ACTOR}.optim.override_optimizer_config={{lr:0}}"],
     "override_optimizer_config.lr replaces"),
    ([f"{ACTOR}.grad_clip=0.5"],
     f"nothing reads {ACTOR}.grad_clip=0.5; set {ACTOR}.optim.clip_grad"),
    (["critic.grad_clip=0.5"], "set critic.optim.clip_grad"),
    ([f"{ACTOR}.clip_ratio=0"], None),
    ([f"{ACTOR}.clip_ratio=0.3"], "clip_ratio=0.3 is not read"),
    ([f"{ACTOR}.clip_ratio_high=0"], None),
    ([f"{ACTOR}.clip_ratio_low=-0.2"], None),
    ([f"{ACTOR}.clip_ratio_c=1"], None),
    ([*GAE, "critic.cliprange_value=0"], None),
    ([f"{ACTOR}.ppo_epochs=0"], None),
    ([*GAE, "critic.ppo_epochs=0"], None),
    (["prm.epochs=0"], None),
    ([f"{ACTOR}.loss_agg_mode=mean"], None),
    ([f"{ACTOR}.loss_scale_factor=0"], None),
    ([f"{ACTOR}.entropy_coeff=.nan"], None),
    (["algorithm.gamma=1.5"], None),
    (["algorithm.lam=-0.5"], None),
    (["prm.beta=0"], None),
    (["prm.trainable_layers=1.5"], None),
    (["prime.filter.lower=0", "prime.filter.upper=0"], "whose rollouts are all alike"),
    (["prime.process.coefficient=0"], None),
    (["prime.process.gate=null", "prime/anchor=none", "prime.outcome.coefficient=0"], "nothing to"),
    # rollouts that are all alike
    ([f"{ROLLOUT}.temperature=0"], None),
    ([f"{ROLLOUT}.top_p=0"], None),
    ([f"{ROLLOUT}.top_k=1"], None),
    ([f"{ROLLOUT}.do_sample=false"], "nothing reads"),
    # weights
    ([f"{ACTOR}.fsdp_config.model_dtype=bf16"], f"{ACTOR}.fsdp_config.model_dtype=bf16 rounds"),
    ([*GAE, "critic.fsdp.model_dtype=bfloat16"], "critic.fsdp.model_dtype=bfloat16 rounds"),
    ([f"{ACTOR}.fsdp_config.forward_only=true"], "forward_only=true builds no optimizer"),
    ([f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp8"],
     "mixed_precision.param_dtype must be"),
    # adapters
    ([*LORA, f"{MODEL}.lora_alpha=0"], None),
    ([*PRM_LORA, "prm.model.lora_alpha=-16"], None),
    ([f"{MODEL}.lora_rank=-1"], None),
    ([*LORA, f"{MODEL}.target_modules=[]"], None),
    ([*LORA, f"{MODEL}.target_modules=[q_project]"], "names no module of"),
    ([*LORA, f"{MODEL}.target_modules=[q_proj,lm_head]"], "an adapter on lm_head of"),
    ([*PRM_LORA, "prm.model.target_modules=[embed_tokens]"],
     "prm.model.target_modules: an adapter"),
    ([*LORA, f"{MODEL}.target_modules='.*(q_proj|lm_head)'"], "an adapter on lm_head of"),
    # checkpoints
    ([*SAVE, f"{ACTOR}.checkpoint.save_contents=[hf_model]"], "lacks model, optimizer, extra"),
    ([*SAVE, f"{ACTOR}.checkpoint.save_contents=[]"], "save_contents=[] lacks model"),
    ([*SAVE, f"{ACTOR}.checkpoint.save_contents=[optimizer]"], "lacks model, extra"),
    ([*SAVE, "prm.checkpoint.save_contents=[model]"],
     "prm.checkpoint.save_contents=['model'] lacks"),
    ([*GAE, *SAVE, "critic.checkpoint.save_contents=[model,extra]"], "critic.checkpoint"),
    ([f"{ACTOR}.checkpoint.save_contents=[modell,optimizer,extra]"], "got 'modell'"),
    (["prm.checkpoint.load_contents=[model,optim]"], "got 'optim'; did you mean optimizer?"),
    ([f"{ACTOR}.checkpoint.load_contents=[optimizer,extra]"],
     "load_contents=['optimizer', 'extra']"),
    (["trainer.max_actor_ckpt_to_keep=0"], None),
    (["trainer.save_freq=-5"], None),
    # lengths of a run
    (["trainer.total_training_steps=0"], None),
    (["trainer.total_epochs=0"], None),
    (["variant=rloo", "trainer.critic_warmup=1"], "neither a critic nor a PRM is trained"),
    (["trainer.total_training_steps=2", "trainer.critic_warmup=3"],
     "holds the policy for all 2 steps of the run"),
    # numbers that are not counts
    ([f"{ROLLOUT}.n=4.0"], None),
    (["data.train_batch_size=4.0"], None),
    (["trainer.nnodes=1.0"], None),
    (["trainer.save_freq=true"], None),
    # what dies later
    (["trainer.logger=[console,wandb]"], "trainer.logger has wandb"),
    ([f"{MODEL}.path={{root}}/broken"], "norm.weight in"),
    (["prm.model.path={root}/broken"], "has NaN or infinity"),
    (["data.train_files={root}/text_info.parquet"], "extra_info must be a valid dictionary"),
    (["data.train_files={root}/images.parquet"], "it has images, and the model of"),
    (["data.train_files={root}/agents.parquet"], "did you mean tool_agent?"),
    ([f"{ROLLOUT}.agent.default_agent_loop=single_turn"], None),
    ([f"{ROLLOUT}.agent.agent_loop_config_path={{root}}/agents.yaml"],
     "a _target_ cannot be imported"),
    ([f"{ROLLOUT}.agent.agent_loop_config_path={{root}}/none.yaml"], "cannot be read"),
    ([f"{FUNCTION}.path={{root}}/keys.py"],
     "it returned a dict with the key 3; keys must be texts"),
    ([f"+{FUNCTION}.reward_kwargs.sources.gsm8kk=math"],
     "gsm8kk matches no data_source of the data"),
    (["modules=[./mine.py]"], "modules: ./mine.py is a path, and a module's name is needed: mine"),
    (["modules=[mine.py]"], "in PYTHONPATH"),
    (["prime.process.shaping.name=weibull"],
     "choose prime/process=steps or step_scorer, and chain@"),
]  # fmt: skip


@pytest.mark.parametrize("words", FINE, ids=lambda words: " ".join(words)[-60:])
def test_what_can_work_is_accepted(check, words):
    assert check(*words) == []


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=lambda value: str(value)[-60:])
def test_what_teaches_nothing_or_dies_later_is_a_line(check, words, said):
    lines = check(*words)
    key = words[-1].partition("=")[0]
    assert any(
        said in line if said else line.startswith((f"prime_ext: {key} ", f"prime_ext: {key}="))
        for line in lines
    ), lines


KEYS = {
    name: [key for key, _ in walk_items(compose_defaults(name, ())[0])]
    for name in ("prime_trainer_cpu", "pspo_trainer_cpu")
}
# All sections of the top, all of ours, and every 25th of the rest.
TAKEN = [
    (name, key)
    for name, keys in KEYS.items()
    for number, key in enumerate(keys)
    if "." not in key
    or (key.count(".") == 1 and key.startswith(("prime.", "prm.")))
    or number % 25 == 0
]


@pytest.mark.parametrize(("name", "key"), TAKEN)
def test_a_key_that_is_taken_away_is_a_line(check, name, key):
    assert check(f"~{key}", name=name)


@pytest.mark.parametrize("flags", [["--check"], []])
def test_sweeps_are_refused_in_a_line(monkeypatch, flags):
    monkeypatch.setattr("sys.argv", ["train", *flags, "--multirun", "prm.beta=1,2"])
    with pytest.raises(SystemExit, match="--multirun is not for training"):
        train.main()


def test_values_for_a_sweep_without_its_flag_are_a_line(check):
    (line, *_) = check("prm.beta=1,2")
    assert "prm.beta" in line


@pytest.mark.parametrize("address", [None, "127.0.0.1:1"])
def test_a_gpu_run_needs_flash_attention_and_a_compiler(check, monkeypatch, tmp_path, address):
    monkeypatch.delenv("VERL_PLATFORM")
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("prime_ext.preflight.file_checks.has_flash_attention", lambda: False)
    fake_gpus.install(monkeypatch, tmp_path)
    (tmp_path / "gcc").unlink()
    compiler = "prime_ext: Triton's kernels are compiled when a run starts, and a C compiler"
    missing = f"prime_ext: {MODEL}: flash-attn is not installed"
    sdpa = "override_config.attn_implementation"
    of_prm = "prime_ext: prm.model: flash-attn is not installed"
    for words, begin in (
        ([], missing),
        ([f"+{MODEL}.{sdpa}=sdpa"], None),
        (
            [
                f"+{MODEL}.{sdpa}=sdpa",
                "prm.model.override_config={attn_implementation:flash_attention_2}",
            ],
            of_prm,
        ),
    ):
        lines = check(*words, name="prime_trainer")
        assert [line for line in lines if line.startswith(compiler)]
        found = [line for line in lines if "flash-attn is not installed" in line]
        assert len(found) == (begin is not None) and all(line.startswith(begin) for line in found)


def test_a_wrong_value_is_refused_before_torch_is_imported():
    program = (
        "import sys; from prime_ext.train import main; sys.argv[1:] = ['--check',"
        " 'prime.filter.lower=2']\ntry: main()\nexcept SystemExit as end:"
        " print(end.code, sorted({'torch', 'verl', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "2 []", done.stderr
    assert "prime.filter.lower" in done.stderr
