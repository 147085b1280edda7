# SPDX-License-Identifier: Apache-2.0
"""Real vLLM servers give the scores of the model in this process."""

import asyncio

import pytest
import torch
from safetensors.torch import save_file
from tiny_llama import byte_tokenizer, save_llama
from tiny_step_rm import described, save_bert, scored, scorer_settings
from transformers import Qwen2Config, Qwen2Model
from vllm_server import vllm_server

from prime_ext.step_rm.scorers.build import build_scorer, check_server
from prime_ext.step_rm.scorers.protocol import Chain
from prime_ext.step_rm.scorers.token_classifier import TokenReader

pytestmark = pytest.mark.vllm

RESPONSES = [
    Chain(("two é", "plus \U0001f642 two", "four"), "2+2?"),
    Chain((), "nothing"),
    Chain(("x",), "\u6f22\u5b57?"),
]
# Also with special tokens in the steps, a temperature, and steps that are too long.
STEPS = [Chain(tuple(f"Step {k}: we add {k % 10} [SEP] good." for k in range(1, n))) for n in (1, 2, 5, 9)]
STEPS.append(Chain(("we add 3 " * 60, "so 7.")))
PRM = {"architecture": "token_classification"}
CONVERTED = [
    "--convert", "classify", "--pooler-config.task", "token_classify", "--hf-overrides",
    '{"classifier_from_token": ["+", "-"], "method": "no_post_processing"}',
]  # fmt: skip
CASES = {
    "classifier of steps": (lambda path: described(save_bert(path, size=64), temperature=1.7), STEPS, {}, []),
    "token classifier": (lambda path: save_llama(path, 3, classes=2, size=64), RESPONSES, PRM, []),
    "answers": (
        lambda path: save_llama(path, 4, size=64),
        RESPONSES,
        {**PRM, "separator": " #", "answer_tokens": ["+", "-"]},
        CONVERTED,
    ),
}


def ask(path, address, chains, **keys):
    options = {"kind": "server", "address": address, "timeout_seconds": 60.0, "attempts": 3}
    settings = scorer_settings(model_path=str(path), **options, **keys)
    check_server(settings)
    return asyncio.run(scored(build_scorer(settings), chains))


@pytest.mark.parametrize("case", CASES)
def test_a_vllm_server_gives_the_scores_of_the_model_in_this_process(tmp_path, case):
    save, chains, keys, words = CASES[case]
    path = save(tmp_path / "model")
    with vllm_server(path, tmp_path, "--runner", "pooling", *words) as address:
        outcomes = ask(path, address, chains, **keys)
    local = build_scorer(scorer_settings(model_path=str(path), device="cpu", **keys)).score_now(chains)
    for outcome, expected in zip(outcomes, local, strict=True):
        assert (outcome.contexts_cut, outcome.steps_cut) == (expected.contexts_cut, expected.steps_cut)
        for row, other in zip(outcome.probabilities, expected.probabilities, strict=True):
            assert row == pytest.approx(other, abs=1e-5)


def save_qwen_prm(path):
    """A random model of the form of Qwen2.5-Math-PRM, whose own code is not here; returns its probabilities of ids."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.2}
    config = Qwen2Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=128, **sizes, **special
    )
    model = Qwen2Model(config).eval()
    head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    config.architectures, config.auto_map = ["Qwen2ForProcessRewardModel"], {"AutoModel": "modeling.None"}
    config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    weights |= {f"score.{name}": value for name, value in head.state_dict().items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})

    def right(ids):
        with torch.no_grad():
            return head(model(torch.tensor([ids])).last_hidden_state[0]).softmax(-1)[:, 1]

    return right


def test_a_vllm_server_of_qwens_form_gives_the_values_at_its_separator(tmp_path):
    path, keys = tmp_path / "model", {"separator": "<pad>", "layout": "chat"}
    right = save_qwen_prm(path)
    with vllm_server(path, tmp_path, "--runner", "pooling", "--pooler-config.step_tag_id", "0") as address:
        outcomes = ask(path, address, RESPONSES, **PRM, **keys)
    reader = TokenReader(str(path), **keys)
    for chain, outcome in zip(RESPONSES, outcomes, strict=True):
        tokens = reader.tokens(chain.question, chain.steps)
        expected = right(tokens.ids)[list(tokens.ends)].tolist() if chain.steps else []
        assert outcome.scores == pytest.approx(expected, abs=1e-5)
