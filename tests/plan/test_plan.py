# SPDX-License-Identifier: Apache-2.0
"""Memory of RL runs, for models that are described by a config.json only."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict
from transformers import LlamaConfig, LlamaForCausalLM

from prime_ext import doctor
from prime_ext.config.checks import SettingsError
from prime_ext.plan.memory import adapter_weights, read_shape
from prime_ext.plan.run import GIB, plan_run
from prime_ext.tasks.rl_rows import MATH_SCHEMA

WIDTH = 64
INTERMEDIATE = 160
LAYERS = 3
HEADS = 4
KEY_VALUE_HEADS = 2
VOCABULARY = 1000
HEAD = WIDTH // HEADS
BLOCK = 2 * WIDTH + WIDTH * (2 * HEADS + 2 * KEY_VALUE_HEADS) * HEAD + 3 * WIDTH * INTERMEDIATE
EMBEDDING = VOCABULARY * WIDTH
FUSED = {"actor_rollout_ref.model.use_fused_kernels": True}
ADAPTER = {"prm.model.lora_rank": 4, "prm.reference": "base"}
OFFLOADED = {"prm.engine.param_offload": True, "prm.engine.optimizer_offload": True}
DISTILLED = {
    "prime.process": {"form": "kl", "coefficient": 1.0, "gate": None},
    "prm.update_mode": "before",
}
AVERAGE = {"prime.anchor": {"coefficient": 1.0, "decay": 0.5, "fallback": False}}


def llama_config(tie):
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KEY_VALUE_HEADS}
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        **heads,
    }
    return LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=tie, **sizes)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return folders with a config.json and nothing else."""
    folders = {}
    for name, tie in (("tied", True), ("untied", False)):
        folders[name] = tmp_path_factory.mktemp(name)
        llama_config(tie).save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("prime_ext.config", version_base=None):
        prime = {
            name: compose(name, ["variant=guarded"])
            for name in ("prime_trainer", "prime_trainer_cpu")
        }
        return prime | {"pspo_trainer": compose("pspo_trainer")}


@pytest.fixture
def resolved(composed, models):
    def resolve(changes=None, name="prime_trainer"):
        config = composed[name].copy()
        base = {
            "actor_rollout_ref.model.path": str(models["untied"]),
            "trainer.n_gpus_per_node": 1,
            "data.train_batch_size": 8,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        }
        with open_dict(config):
            for key, value in {**base, **(changes or {})}.items():
                OmegaConf.update(config, key, value, merge=False, force_add=True)
        OmegaConf.resolve(config)
        return config

    return resolve


@pytest.fixture
def planned(resolved):
    def plan(changes=None, name="prime_trainer"):
        return SimpleNamespace(**plan_run(resolved(changes, name), 80 * GIB))

    return plan


def part(plan, name):
    return SimpleNamespace(**plan.memory[name])


def peak(plan, name):
    return sum(plan.phases[name].values())


def get_tokens(plan):
    return plan.facts["tokens per micro-batch and device"]


@pytest.mark.parametrize("name, embeddings", [("tied", 1), ("untied", 2)])
def test_sizes_are_those_of_the_model(models, name, embeddings):
    shape = read_shape("model", str(models[name]))
    model = LlamaForCausalLM(llama_config(name == "tied"))
    assert shape.weights == sum(parameter.numel() for parameter in model.parameters())
    assert shape.weights == LAYERS * BLOCK + embeddings * EMBEDDING + WIDTH
    assert (shape.block_weights, shape.root_weights) == (BLOCK, embeddings * EMBEDDING + WIDTH)
    assert shape.tied == (name == "tied")
    # A critic is the model without an output layer of its own.
    assert shape.make_critic().weights == LAYERS * BLOCK + EMBEDDING + WIDTH


def test_weights_of_an_adapter_are_those_of_peft(models):
    from peft import LoraConfig, get_peft_model

    for targets in ("all-linear", ["q_proj", "v_proj"], r".*\.0\..*_proj"):
        model = get_peft_model(
            LlamaForCausalLM(llama_config(True)), LoraConfig(r=4, target_modules=targets)
        )
        trained = sum(
            parameter.numel() for parameter in model.parameters() if parameter.requires_grad
        )
        assert adapter_weights(str(models["tied"]), 4, targets) == trained
    with pytest.raises(ValueError, match="nothing"):
        adapter_weights(str(models["tied"]), 4, ["nothing"])


def test_weights_gradients_and_states_are_held_sharded_and_offloaded(planned, models):
    weights = read_shape("model", str(models["untied"])).weights
    plan = planned()
    offloaded = planned(OFFLOADED)
    prm = part(plan, "PRM")
    eight = part(planned({"trainer.n_gpus_per_node": 8}), "PRM")
    moved = part(offloaded, "PRM")
    assert (prm.weights, prm.gradients, prm.optimizer) == (4 * weights, 4 * weights, 8 * weights)
    # Gradients live from the backward pass to the optimizer's step.
    assert prm.idle == 12 * weights
    # What is held is shared, what is gathered is not.
    assert (eight.weights, eight.optimizer, eight.gathered) == (
        prm.weights / 8,
        prm.optimizer / 8,
        prm.gathered,
    )
    hybrid = part(planned({"trainer.n_gpus_per_node": 8, "prm.engine.fsdp_size": 2}), "PRM")
    assert hybrid.weights == prm.weights / 2
    assert moved.idle == 0 and moved.working == prm.working
    # Then the PRM is not in the way of the others.
    assert peak(plan, "policy") - peak(offloaded, "policy") == pytest.approx(prm.idle)


def test_a_reference_lives_on_the_host_of_an_accelerator(planned):
    reference = part(planned(), "PRM reference")
    on_cpu = part(planned(name="prime_trainer_cpu"), "PRM reference")
    assert reference.idle == reference.weights == 0
    assert reference.gradients == reference.optimizer == 0
    assert on_cpu.idle == on_cpu.weights
    for name in ("policy", "kl", "none"):
        plan = planned({"prm.reference": name, "actor_rollout_ref.actor.use_kl_loss": True})
        assert list(plan.memory) == ["policy", "KL reference", "PRM"]


def test_gradients_and_states_have_the_size_of_trained_weights(planned, models):
    plan = planned(ADAPTER)
    adapter = adapter_weights(str(models["untied"]), 4, "all-linear")
    assert (part(plan, "PRM").gradients, part(plan, "PRM").optimizer) == (4 * adapter, 8 * adapter)
    assert list(plan.memory) == ["policy", "PRM"]
    plan = planned({"prm.trainable_layers": 0.3})
    assert (part(plan, "PRM").gradients, part(plan, "PRM").optimizer) == (4 * BLOCK, 8 * BLOCK)
    assert part(plan, "PRM").activations < part(planned(), "PRM").activations


def test_logits_are_what_fused_log_probabilities_spare(planned):
    assert part(planned(), "PRM").logits == 16384 * VOCABULARY * 8
    fused = {"prm.model.use_fused_kernels": True, "prm.infer_max_token_len_per_gpu": 16384}
    # Two copies of a chunk, and the sum of the output layer's gradient (not for an adapter).
    assert part(planned(fused), "PRM").logits == 256 * VOCABULARY * 4 * 2 + VOCABULARY * WIDTH * 4
    assert part(planned(fused | ADAPTER), "PRM").logits == 256 * VOCABULARY * 4 * 2
    rows = {"prm.use_dynamic_bsz": False, "prm.micro_batch_size_per_gpu": 2}
    assert part(planned(rows), "PRM").logits == 2 * 1024 * VOCABULARY * 8
    # The larger of training and scoring counts.
    scoring = part(
        planned({"prm.infer_max_token_len_per_gpu": 4_000_000, "prm.update_mode": "after"}), "PRM"
    )
    assert scoring.logits == 4_000_000 * VOCABULARY * 8


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        # All logits at once: no more than in training.
        ({}, 16384),
        (FUSED, 32768),
        (FUSED | {"prm.max_token_len_per_gpu": 2048}, 8192),
        (FUSED | {"prm.infer_max_token_len_per_gpu": 5000}, 5000),
    ],
)
def test_passes_without_gradients_have_a_budget_of_their_own(planned, changes, tokens):
    assert get_tokens(planned(changes))["PRM reference"] == tokens


@pytest.mark.parametrize(
    "changes", [{}, DISTILLED, {"prm.infer_max_token_len_per_gpu": 4_000_000}, OFFLOADED]
)
def test_the_parts_of_the_table_add_up_to_its_totals(planned, changes):
    plan = planned(changes)
    for row in plan.memory.values():
        *parts, working, _ = row.values()
        assert list(row)[-2:] == ["working", "idle"] and working == pytest.approx(sum(parts))
    assert plan.peak["bytes"] == max(sum(parts.values()) for parts in plan.phases.values())


def test_a_critic_has_values_in_place_of_logits(planned):
    gae = {"algorithm.adv_estimator": "gae", "prime.outcome.estimator": "gae"}
    plan = planned(gae)
    critic = part(plan, "critic")
    policy = part(plan, "policy")
    assert policy.weights - critic.weights == pytest.approx(4 * EMBEDDING)
    assert critic.logits < policy.logits / 100
    for key in ("critic.ppo_max_token_len_per_gpu", "critic.ppo_infer_max_token_len_per_gpu"):
        assert get_tokens(planned(gae | {key: 2048}))["critic"] == 2048


def test_the_rollout_engine_takes_its_share_and_sleeps_afterwards(planned):
    plan = planned({"actor_rollout_ref.rollout.gpu_memory_utilization": 0.4})
    assert sum(plan.rollout.values()) == pytest.approx(0.4 * 80 * GIB)
    awake = planned({"actor_rollout_ref.rollout.free_cache_engine": False})
    assert peak(awake, "PRM") - peak(planned(), "PRM") == pytest.approx(sum(awake.rollout.values()))


def test_servers_with_their_own_devices_leave_no_rollout_engine(planned, monkeypatch):
    key = "trainer.v1.separate_async.hybrid_rollout.enable_switch"
    separate = {"trainer.v1.trainer_mode": "prime_separate_async", key: False}
    separate |= {
        "actor_rollout_ref.rollout.nnodes": 1,
        "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    }
    assert "rollout" in planned(separate).phases
    assert "rollout" not in planned(separate | {"actor_rollout_ref.hybrid_engine": False}).phases
    # The verl after 0.9.1 puts servers on the trainer's devices only to switch to them.
    monkeypatch.setattr("prime_ext.config.asynchronous.version", lambda name: "0.9.2")
    assert (
        "rollout" not in planned(separate).phases
        and "rollout" in planned(separate | {key: True}).phases
    )


def test_the_policys_average_is_in_checkpoints_and_on_the_device(planned, models):
    weights = read_shape("model", str(models["untied"])).weights
    average = AVERAGE | {"prm.reference": "policy"}
    plain = planned(average | {"prime.anchor": None})
    averaged = planned(average)
    # Policy and PRM with Adam's states, and the average.
    sizes = [plan.facts["GiB of a checkpoint"] * GIB for plan in (plain, averaged)]
    assert sizes == pytest.approx([2 * 3 * weights * 4, (2 * 3 + 1) * weights * 4], abs=GIB / 1000)
    narrow = planned(average | {"actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16"})
    for plan in (averaged, narrow):
        assert (
            part(plan, "policy average").idle == part(plan, "policy average").weights == weights * 4
        )


def test_models_that_only_score_are_on_the_host_unless_the_policy_needs_them(planned, models):
    weights = read_shape("model", str(models["untied"])).weights
    frozen = {"prm.update_mode": "none"}
    frozen |= {"prm.reference": "policy"}
    plan = planned(frozen)
    assert part(plan, "PRM").idle == part(plan, "PRM").weights == 0
    teacher = planned(frozen | {"prime.process": DISTILLED["prime.process"]})
    assert part(teacher, "PRM").idle == 4 * weights


def test_targets_of_the_policy_loss_stay_on_the_device(planned):
    plain = planned({"prm.update_mode": "before"})
    both = planned(DISTILLED | AVERAGE)
    added = peak(both, "policy") - peak(plain, "policy")
    assert added > 2 * get_tokens(both)["policy"] * VOCABULARY * 2
    offload = {"actor_rollout_ref.actor.fsdp_config.param_offload": True}
    assert part(planned(DISTILLED | AVERAGE | offload), "policy average").idle == 0
    inside = [
        planned(DISTILLED | changes).phases["policy"]["targets of its loss"]
        for changes in ({}, OFFLOADED)
    ]
    assert inside[1] - inside[0] == part(both, "PRM").weights


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prm.max_token_len_per_gpu": 10_000_000, "prm.reference": "policy"},
         "the part 'PRM' needs about"),
        ({"actor_rollout_ref.rollout.gpu_memory_utilization": 0.99}, "the part 'rollout' needs"),
        ({"actor_rollout_ref.rollout.gpu_memory_utilization": 0.000001},
         "gpu_memory_utilization=1e-06 leaves"),
    ],
)  # fmt: skip
def test_a_warning_names_the_part_that_does_not_fit(planned, changes, said):
    (warning,) = planned(changes).warnings
    assert said in warning and "\n" not in warning
    assert planned().warnings == []


def test_pspo_has_no_prm_and_the_plan_names_its_gaps(planned):
    plan = planned(name="pspo_trainer")
    assert set(plan.memory) == {"policy", "critic", "KL reference"}
    assert plan.facts["not in the plan"] == "the step reward model"
    assert "not in the plan" not in planned().facts
    with pytest.raises(
        SettingsError, match="knows the strategies fsdp and fsdp2, not megatron of prm.model"
    ):
        planned({"prm.engine.strategy": "megatron"})


FITS = ["--device-memory", "80"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([*FITS, "--config-name=prime_trainer_cpu", "PATH"], 0,
         ["policy average", "MiB per device", "fits:"]),
        (["--device-memory", "0.5", "PATH"], 1, ["warning: the part"]),
        ([*FITS, "PATH", "prime.filter.lower=0.9"], 1, ["warning: prime.filter"]),
        ([*FITS, "PATH", "prm.no_such_key=1"], 2, ["no_such_key"]),
        ([*FITS, "NOT_HERE"], 2, ["has no config.json here; --model-configs DIR reads DIR/"]),
        ([*FITS, "PATH", "EMPTY"], 1,
         ["warning: data.train_files: ", "has no rows", "not here: data.val_files"]),
        ([*FITS, "NOT_HERE", "--model-configs", "FOLDER"], 0,
         ["fits:", "not here: data.train_files"]),
    ],
)  # fmt: skip
def test_the_command_reports_what_does_not_fit_or_is_missing(models, capsys, words, status, said):
    folder = models["tied"]
    paths = {
        "PATH": f"actor_rollout_ref.model.path={folder}",
        "NOT_HERE": f"actor_rollout_ref.model.path=somebody/{folder.name}",
        "FOLDER": str(folder.parent),
        "EMPTY": f"data.train_files={folder / 'empty.parquet'}",
    }
    pq.write_table(pa.Table.from_pylist([], MATH_SCHEMA), folder / "empty.parquet")
    assert doctor.main(["--plan", *(paths.get(word, word) for word in words)]) == status
    printed = capsys.readouterr()
    assert all(text in printed.out + printed.err for text in said)


BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPT = """
from plan_memory_16_bit import planned, traced
for choices in ((False, False), (True, True), (True, False)):
    print(planned("MODEL", 4096, *choices) / traced("MODEL", 4096, *choices))
"""


@pytest.mark.slow
def test_activations_are_right_to_one_percent_or_too_large(tmp_path):
    """Run in its own process, as the benchmark changes transformers; a third of the layers."""
    config = (
        BENCHMARKS.parents[1] / "recipes/model_configs/Qwen2.5-0.5B-Instruct/config.json"
    ).read_text()
    (tmp_path / "config.json").write_text(
        config.replace('"num_hidden_layers": 24', '"num_hidden_layers": 8')
    )
    script = SCRIPT.replace("MODEL", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=BENCHMARKS, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    forward, recomputed, kept = map(float, done.stdout.split())
    assert kept == pytest.approx(1, abs=0.01)
    assert forward > 1 and recomputed > 1
