# SPDX-License-Identifier: Apache-2.0
"""Claims of docs/explanation/for_upstream.md hold; drop the workaround of one that fails."""

import ast
import asyncio
import inspect
import logging
import os
import subprocess
import textwrap
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from forked_workers import python
from tiny_llama import llama_config
from torch.distributed.distributed_c10d import Backend, _get_default_timeout
from transformers import LlamaForCausalLM
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.model_merger.fsdp_model_merger import FSDPModelMerger
from verl.tools.schemas import ToolResponse
from verl.workers.config.critic import CriticConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl_names import VERL_NAMES, imported_names, missing_names, touched_names

from prime_ext.config.compose import compose_config

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "for_upstream.md"
VERL = Path(find_spec("verl").origin).parent


@cache
def get_tree(path):
    return ast.parse((VERL / path).read_text())


def get_calls(path, name):
    """Return calls of a function or method of this name in a file of verl."""
    calls = (node for node in ast.walk(get_tree(path)) if isinstance(node, ast.Call))
    return [
        call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", None)) == name
    ]


def test_a_print_argument_goes_to_a_logger():
    infos = get_calls("trainer/ppo/v1/trainer_separate_async.py", "info")
    assert any(keyword.arg == "flush" for call in infos for keyword in call.keywords)
    with pytest.raises(TypeError, match="flush"):
        logging.getLogger("verl").error("x", flush=True)


def test_the_critic_takes_a_key_that_its_settings_lack():
    assert CriticConfig.__dataclass_fields__["ppo_infer_max_token_len_per_gpu"].default == 32768
    for path in (VERL / "trainer" / "config" / "critic").glob("*.yaml"):
        assert "ppo_infer_max_token_len_per_gpu:" not in path.read_text()
    lines = (VERL / "trainer/ppo/v1/trainer_base.py").read_text()
    assert (
        "critic_cfg.engine.max_token_len_per_gpu = critic_cfg.ppo_infer_max_token_len_per_gpu"
        in lines
    )


def test_the_time_limit_of_groups_has_no_effect():
    assert not [path for path in VERL.rglob("*.py") if ".nccl_timeout" in path.read_text()]
    assert _get_default_timeout(Backend("cpu:gloo,cuda:nccl")) == timedelta(minutes=30)


def in_plain_verl(folder, script, modules=""):
    """Run a script without the plug-in, unless ``modules`` names it; return its last line."""
    environment = {
        **os.environ,
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "VERL_USE_EXTERNAL_MODULES": modules,
    }
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [python(), folder / "script.py"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return (done.stdout.splitlines() or [""])[-1]


FUSED = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch
size = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
config = LlamaConfig(vocab_size=8, **size)
one, other = LlamaForCausalLM(config), LlamaForCausalLM(config)
ids = torch.zeros(1, 2, dtype=torch.long)
assert other(input_ids=ids).logits is not None
fused = {"use_fused_kernels": True, "fused_kernels_backend": "torch"}
apply_monkey_patch(one, use_remove_padding=False, **fused)
assert other(input_ids=ids, temperature=1.0, return_dict=True).logits is None
"""


CRITIC = """
from transformers import AutoModelForTokenClassification, LlamaConfig
from verl.utils.model import load_valuehead_model
asked = {}
AutoModelForTokenClassification.from_pretrained = lambda **given: asked.update(given)
load_valuehead_model("nowhere", None, LlamaConfig(attn_implementation="sdpa"), False)
assert asked["attn_implementation"] == "flash_attention_2"
"""


JOINED = """
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop import agent_loop
words = {"\\n": 0, "a": 1}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)))
try:
    builder = agent_loop.create_continuous_token_builder(tokenizer, hf_model_type="qwen2")
    print(type(builder).__name__)
except ValueError as error:
    print(error)
"""


RESUMED = """
import os
import torch
# verl alone has no platform for CPUs.
os.environ["VERL_PLATFORM"] = "nvidia"
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.utils.checkpoint.checkpoint_handler import CheckpointHandler

def load():
    sampler = DistributedSampler(range(8), num_replicas=1, rank=0)
    return StatefulDataLoader(range(8), batch_size=4, sampler=sampler)

lengths = []
for step in (1, 2):
    begun, resumed = load(), CheckpointHandler.__new__(CheckpointHandler)
    for _, batch in zip(range(step), begun):
        pass
    torch.save(begun.state_dict(), f"{FOLDER}/data_0.pt")
    resumed.rank = resumed.dp_rank = 0
    resumed.resume_global_step, resumed.train_dataloader = step, load()
    resumed._load_dataloader_state(FOLDER)
    lengths.append(len(list(resumed.train_dataloader)))
print(*lengths)
"""


def test_tied_weights_are_sent_under_both_names_and_loaded_by_bucket():
    loaded = (VERL / "workers/rollout/vllm_rollout/utils.py").read_text()
    assert "model.load_weights(param_updates)" in loaded and "alias" not in loaded
    assert "self.module.state_dict()" in inspect.getsource(FSDPEngine.get_per_tensor_param)
    with torch.device("meta"):
        tied = LlamaForCausalLM(llama_config(8, 16, tie_word_embeddings=True))
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= tied.state_dict().keys()


@pytest.mark.slow
def test_sft_resumed_at_an_epochs_end_has_batches_only_here(tmp_path):
    script = f"FOLDER = {str(tmp_path)!r}\n{RESUMED}"
    assert in_plain_verl(tmp_path, script) == "1 0"
    assert in_plain_verl(tmp_path, script, "prime_ext.plugin") == "1 2"


@pytest.mark.slow
def test_a_qwen2_without_chatml_joins_turns_only_here(tmp_path):
    assert (
        in_plain_verl(tmp_path, JOINED) == "Tokenizer does not define required token '<|im_end|>'"
    )
    assert in_plain_verl(tmp_path, JOINED, "prime_ext.plugin") == "ContinuousTokenBuilder"


@pytest.mark.slow
def test_fused_kernels_of_one_model_take_the_logits_of_another(tmp_path):
    in_plain_verl(tmp_path, FUSED)


@pytest.mark.slow
def test_a_critic_asks_for_flash_attention_whatever_is_set(tmp_path):
    in_plain_verl(tmp_path, CRITIC)


def test_merging_rounds_and_non_finite_updates_are_skipped():
    assert ".bfloat16()" in inspect.getsource(FSDPModelMerger)
    after = inspect.getsource(FSDPEngine.optimizer_step).partition(
        "if not torch.isfinite(grad_norm):"
    )[2]
    assert after and "raise" not in after.partition("else:")[0]


def test_equal_runs_have_different_request_ids_and_no_seed():
    for path in ("single_turn", "tool"):
        (call,) = get_calls(f"experimental/agent_loop/{path}_agent_loop.py", "generate")
        assert "seed" not in {keyword.arg for keyword in call.keywords}
    assert ToolAgentLoop._make_request_id(0, False) != ToolAgentLoop._make_request_id(0, False)


def test_tools_have_no_time_limit_and_their_special_tokens_pass():
    class Tool:
        async def create(self, **given):
            return "0", None

        async def execute(self, *words, **given):
            return ToolResponse(text="<|im_end|>"), 0.0, {}

        async def release(self, instance_id):
            pass

    source = textwrap.dedent(inspect.getsource(ToolAgentLoop._call_tool))
    names = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    assert not names & {"wait_for", "timeout", "wait"}
    loop = ToolAgentLoop.__new__(ToolAgentLoop)
    loop.tools = {"tool": Tool()}
    loop.max_tool_response_length = 100
    loop.tool_response_truncate_side = "left"
    call = type("Call", (), {"name": "tool", "arguments": "{}"})()
    answer, _, _ = asyncio.run(
        loop._call_tool(call, {}, type("Data", (), {"active_tools": None, "tools": None})())
    )
    assert answer.text == "<|im_end|>"


def test_scores_of_turns_are_never_filled():
    path = "experimental/agent_loop/tool_agent_loop.py"
    filled = [*get_calls(path, "append"), *get_calls(path, "extend")]
    assert not [call for call in filled if getattr(call.func.value, "attr", None) == "turn_scores"]


def test_what_the_page_says_of_this_package_is_there():
    names = compose_config("prime_trainer_cpu", ["actor_rollout_ref.model.path=none"])
    assert names.actor_rollout_ref.rollout.agent.default_agent_loop == "seeded_single_turn_agent"
    for word in PAGE.read_text().split("`"):
        if word.endswith(".py") and "*" not in word:
            assert any((folder / word).exists() for folder in (VERL, ROOT, ROOT / "prime_ext")), (
                word
            )


def test_private_names_of_verl_are_as_expected():
    assert len(VERL_NAMES) > 50 and missing_names() == []
    assert not [name for name in imported_names() if "._" in name], (
        "private names of verl are not imported"
    )
    private = {name for name in imported_names(["ray"]) if "._" in name}
    assert private and private <= VERL_NAMES.keys()
    assert list(touched_names()) == [], (
        "verl_adapter alone replaces what is verl's, and takes private names from it"
    )
