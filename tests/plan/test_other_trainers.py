# SPDX-License-Identifier: Apache-2.0
"""The plan of runs without rollouts: offline PRMs, verl's SFT trainer, and step reward models."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from prime_ext import doctor
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.plan.model_shape import read_shape
from prime_ext.plan.plan import Known, make_plan
from prime_ext.plan.supervised import count_rows, read_sft, read_step_rm
from prime_ext.preflight.sft import check_sft

# ---- offline PRMs --------------------------------------------------------------------------------------------------

MODELS = Path(__file__).resolve().parents[2] / "recipes" / "model_configs"
OFFLINE = ("--plan", "--config-name", "offline_prm", "--model-configs", str(MODELS), "data.train_files=no.parquet")


@pytest.fixture
def planned(capsys):
    def plan(*words):
        status = doctor.main([*OFFLINE, "model.path=Qwen/Qwen2.5-0.5B-Instruct", "--json", *words])
        return status, json.loads(capsys.readouterr().out)

    return plan


@pytest.mark.parametrize(
    ("loss", "passes"),
    [
        ("ce", {"reference": 2, "update": 8}),
        ("step_ce", {"reference": 2, "update": 8}),
        # Log-ratios of both models before the update.
        ("dpo", {"reference": 4, "scores before the update": 2, "update": 8}),
        ("kto", {"reference": 4, "scores before the update": 2, "update": 8}),
    ],
)
def test_a_loss_takes_its_passes(planned, loss, passes):
    _, plan = planned(f"prm.loss={loss}")
    assert {work["name"]: work["flops_per_token_and_weight"] for work in plan["work"]} == passes


def test_steps_follow_from_the_prompts_that_are_not_held_out_and_hours_from_the_mean_length(planned):
    words = ("--prompts=1000", "trainer.epochs=2", "data.prompts_per_step=8", "data.val_fraction=0.02")
    plan, half = planned(*words)[1], planned(*words, "--mean-tokens=4096")[1]
    assert plan["facts"]["steps"] == plan["steps"] == 2 * (980 // 8)
    assert half["hours"][0]["run_hours"] == pytest.approx(plan["hours"][0]["run_hours"] / 2)
    _, plan = planned()
    assert plan["facts"]["steps"] == "unknown; give --prompts"
    assert all(hours["run_hours"] is None and hours["step_seconds"] > 0 for hours in plan["hours"])


def test_what_does_not_fit_is_said_with_a_lever(planned):
    status, plan = planned("--device-memory=12")
    assert status == 1 and len(plan["warnings"]) == 1 and "try model.use_fused_kernels=true" in plan["warnings"][0]
    status, plan = planned("--device-memory=80")
    assert status == 0 and plan["warnings"] == [] and plan["not_here"] == ["no.parquet"]


# ---- supervised runs -----------------------------------------------------------------------------------------------

LLAMA = LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4)
BERT = BertConfig(
    vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_labels=3
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with a config.json and nothing else, and the number of weights."""
    folder = tmp_path_factory.mktemp("models")
    LLAMA.save_pretrained(folder / "llama")
    BERT.save_pretrained(folder / "bert")
    counts = {"llama": LlamaForCausalLM(LLAMA), "bert": BertForSequenceClassification(BERT)}
    return folder, {name: sum(weight.numel() for weight in model.parameters()) for name, model in counts.items()}


@pytest.fixture
def sft(models):
    def compose(*overrides):
        base = [f"model.path={models[0] / 'llama'}", "data.train_batch_size=96", "trainer.n_gpus_per_node=8"]
        return compose_config(SFT_CONFIG, [*base, "data.train_files=no.parquet", *overrides])

    return compose


@pytest.fixture
def step_rm(models):
    def plan(*overrides, **known):
        places = [f"model.path={models[0] / 'bert'}", "data.files=steps.parquet", "trainer.output_dir=out"]
        return make_plan(read_step_rm(compose_config("step_rm", [*places, *overrides]), Known(**known)))

    return plan


def test_memory_is_sharded_and_flops_time_and_steps_follow_from_rows_and_their_mean_length(sft, models):
    config = sft("data.max_length=512", "trainer.total_epochs=3")
    plan = make_plan(read_sft(config, Known(rows=1000, mean_tokens=100)))
    (memory,), weights = plan.memory, models[1]["llama"]
    assert (memory.weights, memory.gradients, memory.optimizer) == (weights / 2, weights / 2, weights)
    # A micro-batch of 8,192 tokens; logits in 16 bit.
    assert memory.logits == 8192 * 1000 * 8
    products = weights - 1000 * 64
    # With recomputation: 8 N, and 4 forward passes of attention.
    wanted = 96 * 100 * (8 * products + 2 * 3 * 64 * 100 * 4)
    assert plan.run.tokens == 9600 and plan.flops == wanted
    # verl leaves out the incomplete batch of every epoch.
    assert plan.run.steps == 3 * 10
    a100 = plan.hours[0]
    assert a100.step_seconds == pytest.approx(wanted / (8 * 312e12 * 0.25))
    assert a100.device_hours == pytest.approx(8 * 30 * a100.step_seconds / 3600)
    unknown = make_plan(read_sft(sft(), Known()))
    assert unknown.run.steps is None and unknown.hours[0].run_hours is None


def test_checkpoints_hold_what_is_saved(sft, models):
    weights = models[1]["llama"]
    run = read_sft(sft("trainer.max_ckpt_to_keep=2"), Known())
    assert (run.checkpoint, run.kept) == ({"model": 12 * weights}, 3)
    run = read_sft(sft("checkpoint.save_contents=[model,optimizer,extra,hf_model]"), Known())
    assert (run.checkpoint, run.kept) == ({"model": 16 * weights}, None)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.train_batch_size=100"], "data.train_batch_size=100 is no multiple of the 8 groups of devices"),
        (["engine.ulysses_sequence_parallel_size=3"], "size=3 does not divide the 8 devices"),
        (["data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=5"], "per_gpu=5 does not divide the 12 rows"),
        (["data.max_length=9000"], "is less than data.max_length=9000"),
        (["engine.fsdp_size=3"], "engine.fsdp_size=3 does not divide the 8 devices"),
        (["optim.lr=0"], "optim.lr=0 must be a number > 0"),
        (["optim.lr_scheduler_type=linear"], "optim: verl refuses it"),
        (["+engine.colour=red"], "engine: verl refuses it"),
        (["+data.colour=red"], "unknown key data.colour"),
        (["+colour=red"], "unknown section colour"),
        (["engine.ulysses_sequence_parallel_size=2", "data.max_length=16384"], ""),
        (["+data.seed=1", "+model.override_config.attn_implementation=sdpa"], ""),
        (["trainer.total_epochs=0"], "trainer.total_epochs=0 must be a whole number >= 1"),
    ],
)
def test_what_verls_sft_trainer_would_refuse_ignore_or_round_off(sft, overrides, said):
    problems = check_sft(sft(*overrides))
    assert len(problems) == bool(said) and all(said in problem and "\n" not in problem for problem in problems)


def test_every_device_holds_the_whole_step_reward_model(step_rm, models):
    weights = models[1]["bert"]
    assert read_shape("model.path", str(models[0] / "bert"), classes=3).weights == weights
    two = step_rm("trainer.dtype=bfloat16", "optim.accumulation=4", devices=2, rows=1000, mean_tokens=50)
    (memory,) = two.memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * weights, 4 * weights, 8 * weights)
    # The copy in 16 bit, and gradients on their way to the other device.
    assert memory.gathered == 6 * weights
    assert memory.working == 22 * weights + memory.activations + memory.logits
    # 32 rows, 4 passes, 2 devices; transformers keeps the last, incomplete batch.
    assert two.run.sequences == 256 and two.run.steps == 10 * 4
    assert step_rm().memory[0].gathered == 0


def test_rows_are_counted_where_the_files_are_here(tmp_path):
    steps = tmp_path / "steps.parquet"
    pq.write_table(pa.table({"split": ["train", "test", "train"]}), steps)
    assert count_rows(str(steps), split="train") == (2, [])
    assert count_rows([str(steps), "none.parquet"]) == (None, ["none.parquet"])


SFT = ["--config-name", SFT_CONFIG, "--device-memory", "80", "data.train_files=no.parquet"]
STEP_RM = ["--config-name", "step_rm", "data.files=no.parquet", "trainer.output_dir=out"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([*SFT, "model.path=hub/llama", "--model-configs", "FOLDER"], 0, "not here: model.path: hub/llama"),
        ([*SFT, "model.path=FOLDER/llama"], 0, "no.parquet does not exist"),
        ([*SFT, "model.path=FOLDER/llama", "--rows", "50"], 1, "50 rows are fewer than the"),
        ([*SFT, "model.path=FOLDER/llama", "--device-memory", "0.1"], 1, "a step needs about"),
        ([*SFT, "model.path=FOLDER/llama", "data.max_length=0"], 1, "prime_ext: data.max_length=0 must be"),
        ([*SFT, "model.path=no/where"], 2, "has no config.json"),
        ([*STEP_RM, "model.path=FOLDER/bert", "optim.batch_size=0"], 1, "prime_ext: optim.batch_size=0"),
        ([*OFFLINE[1:], "model.path=m", "prm.loss=mse"], 2, "prime_ext: prm.loss='mse' is not one of"),
    ],
)
def test_the_command_says_what_is_wrong_and_what_is_not_here(models, capsys, words, status, said):
    assert doctor.main(["--plan", *(word.replace("FOLDER", str(models[0])) for word in words)]) == status
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
