# SPDX-License-Identifier: Apache-2.0
"""The plan of supervised runs: verl's SFT trainer, and the training of a step reward model."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from prime_ext.config.checks import SettingsError
from prime_ext.config.compose import SFT_CONFIG, compose_config
from prime_ext.plan import supervised
from prime_ext.plan.model_shape import read_classifier_shape
from prime_ext.plan.plan import GIB
from prime_ext.plan.supervised_config import check_sft, check_step_rm, read_sft, read_step_rm

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
        return compose_config(SFT_CONFIG, [*base, *overrides])

    return compose


@pytest.fixture
def step_rm(models):
    def compose(*overrides):
        places = [f"model.path={models[0] / 'bert'}", "data.files=steps.parquet", "trainer.output_dir=out"]
        return compose_config("step_rm", [*places, *overrides])

    return compose


# ---- SFT -----------------------------------------------------------------------------------------------------------


def test_fsdp_shards_weights_gradients_and_states(sft, models):
    weights = models[1]["llama"]
    memory = supervised.make_plan(read_sft(sft()), None).memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (weights / 2, weights / 2, weights)
    # A micro-batch of 8,192 tokens; logits in 16 bit.
    assert memory.logits == 8192 * 1000 * 8


def test_flops_time_and_steps_follow_from_rows_and_their_mean_length(sft, models):
    run = read_sft(sft("data.max_length=512", "trainer.total_epochs=3"))
    plan = supervised.make_plan(run, None, rows=1000, mean_tokens=100)
    products = models[1]["llama"] - 1000 * 64
    # With recomputation: 8 N, and 4 forward passes of attention.
    wanted = 96 * 100 * (8 * products + 2 * 3 * 64 * 100 * 4)
    assert plan.tokens == 9600 and plan.flops == wanted
    # verl leaves out the incomplete batch of every epoch.
    assert plan.steps == 3 * 10
    a100 = plan.hours[0]
    assert a100.step_seconds == pytest.approx(wanted / (8 * 312e12 * 0.25))
    assert a100.device_hours == pytest.approx(8 * 30 * a100.step_seconds / 3600)


def test_without_rows_there_is_a_time_per_step_and_per_million_tokens(sft):
    plan = supervised.make_plan(read_sft(sft()), 80 * GIB)
    assert plan.steps is None and plan.hours[0].run_hours is None
    text = supervised.render(plan)
    assert "rows: unknown" in text and "s per million tokens" in text and "fits:" in text and " h for " not in text


def test_checkpoints_hold_what_is_saved(sft, models):
    weights = models[1]["llama"]
    plan = supervised.make_plan(read_sft(sft("trainer.max_ckpt_to_keep=2")), None)
    assert (plan.checkpoint, plan.kept) == (12 * weights, 3)
    whole = supervised.make_plan(read_sft(sft("checkpoint.save_contents=[model,optimizer,extra,hf_model]")), None)
    assert (whole.checkpoint, whole.kept) == (16 * weights, None)


def test_what_does_not_fit_or_has_no_step_is_said(sft):
    run = read_sft(sft())
    (warning,) = supervised.make_plan(run, 0.1 * GIB).warnings
    assert "a step needs about" in warning and "try " in warning
    assert "50 rows are fewer than the 96 of a step" in supervised.make_plan(run, None, rows=50).warnings[0]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.train_batch_size=100"], "data.train_batch_size=100 is no multiple of the 8 groups of devices"),
        (["engine.ulysses_sequence_parallel_size=3"], "size=3 does not divide the 8 devices"),
        (["data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=5"], "per_gpu=5 does not divide the 12 rows"),
        (["data.max_length=9000"], "is less than data.max_length=9000"),
        (["engine.fsdp_size=3"], "engine.fsdp_size=3 does not divide the 8 devices"),
        (["optim.lr=0"], "optim.lr=0 must be a number > 0"),
        (["optim.lr_warmup_steps_ratio=3"], "optim.lr_warmup_steps_ratio=3 must be a number >= 0 and <= 1"),
        (["optim.lr_scheduler_type=linear"], "optim: verl refuses it"),
        (["+engine.colour=red"], "engine: verl refuses it"),
        (["+data.colour=red"], "unknown key data.colour"),
        (["+trainer.colour=red"], "unknown key trainer.colour"),
        (["+colour=red"], "unknown section colour"),
        (["trainer.total_epochs=0"], "trainer.total_epochs=0 must be a whole number >= 1"),
    ],
)
def test_what_verl_would_refuse_ignore_or_round_off(sft, overrides, said):
    (problem,) = check_sft(sft(*overrides))
    assert said in problem and "\n" not in problem


def test_what_works(sft):
    shared = ["engine.ulysses_sequence_parallel_size=2", "data.max_length=16384"]
    for overrides in ([], shared, ["+data.seed=1", "+model.override_config.attn_implementation=sdpa"]):
        assert check_sft(sft(*overrides)) == []
    with pytest.raises(SettingsError, match="colour"):
        sft("data.colour=red")


# ---- step reward model ---------------------------------------------------------------------------------------------


def test_every_device_holds_the_whole_classifier(step_rm, models):
    weights = models[1]["bert"]
    assert read_classifier_shape("model.path", str(models[0] / "bert"), 3).weights == weights
    config = step_rm("trainer.dtype=bfloat16", "optim.accumulation=4")
    assert check_step_rm(config) == []
    run = read_step_rm(config, devices=2)
    plan = supervised.make_plan(run, None, rows=1000, mean_tokens=50)
    memory = plan.memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * weights, 4 * weights, 8 * weights)
    # The copy in 16 bit, and gradients on their way to the other device.
    assert memory.gathered == 6 * weights
    # 32 rows, 4 passes, 2 devices; transformers keeps the last, incomplete batch.
    assert run.rows_per_step == 256 and plan.steps == 10 * 4
    assert supervised.make_plan(read_step_rm(step_rm(), devices=1), None).memory.gathered == 0
    (problem,) = check_step_rm(step_rm("optim.batch_size=0"))
    assert problem.startswith("optim.batch_size=0")


# ---- data and the command ------------------------------------------------------------------------------------------


def test_rows_are_counted_where_the_files_are_here(sft, step_rm, tmp_path):
    steps = tmp_path / "steps.parquet"
    pq.write_table(pa.table({"split": ["train", "test", "train"]}), steps)
    assert supervised.count_rows(read_step_rm(step_rm(f"data.files={steps}"), 1)) == (2, [])
    assert supervised.count_rows(read_sft(sft(f"data.train_files={steps}"))) == (3, [])
    files = f"data.train_files=[{steps},none.parquet]"
    assert supervised.count_rows(read_sft(sft(files))) == (None, ["none.parquet"])


def test_the_command_says_what_is_wrong_and_what_is_not_here(models, capsys, tmp_path):
    words = ["--config-name", SFT_CONFIG, "--device-memory", "80", f"data.train_files={tmp_path / 'no.parquet'}"]
    assert supervised.main([*words, "--model-configs", str(models[0]), "model.path=hub/llama"]) == 0
    out = capsys.readouterr().out
    assert "fits:" in out and "not here: model.path: hub/llama" in out and "no.parquet does not exist" in out
    assert supervised.main([*words, f"model.path={models[0] / 'llama'}", "data.max_length=0"]) == 1
    assert "prime_ext: data.max_length=0 must be a whole number" in capsys.readouterr().err
    assert supervised.main([*words, "model.path=no/where"]) == 2
    assert "has no config.json" in capsys.readouterr().err
