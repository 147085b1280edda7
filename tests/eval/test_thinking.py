# SPDX-License-Identifier: Apache-2.0
"""Chat templates that read ``enable_thinking``: training and evaluation show the same prompts."""

import pytest
from transformers import AutoTokenizer
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from eval.run import main
from prime_ext.generate.backend import BackendError, Request, Sampling
from prime_ext.generate.open import open_backend
from prime_ext.tasks.rl_rows import count_tokens
from prime_ext.utils.text_tokens import TextEncoder
from prime_ext.verifiers.code.program_extraction import extract_program
from prime_ext.verifiers.math.answer_extraction import extract_answer
from recipes.tiny_model import qwen_tokenizer, write_model

CHAT = [{"role": "user", "content": "1 + 1?"}]
BEGUN = "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
NO_THOUGHTS = "<think>\n\n</think>\n\n"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "qwen3"
    write_model(folder, "qwen3")
    return folder


def build_prompt(model_path, **options):
    """Return what verl's rollouts begin with, of which the policy, PRM and reference get tokens."""
    builder = create_continuous_token_builder(
        AutoTokenizer.from_pretrained(model_path),
        hf_model_type="qwen3",
        chat_template_kwargs=options,
    )
    return builder.build_initial_tokens(CHAT)


def open_tiny(model_path, **options):
    return open_backend("transformers", str(model_path), device="cpu", chat_template_kwargs=options)


@pytest.mark.parametrize(
    ("options", "end"),
    [({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, NO_THOUGHTS)],
)
def test_rollouts_checks_and_evaluation_share_the_prompt(model_path, options, end):
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    ids = build_prompt(model_path, **options)
    assert tokenizer.decode(ids) == BEGUN + end
    # Each mark is a token, so that a model can end its thoughts with one.
    assert len(ids) == 25 + 6 * bool(end)
    assert count_tokens(tokenizer, CHAT, **options) == len(ids)
    backend = open_tiny(model_path, **options)
    request = Request("a", tuple(CHAT), Sampling(max_new_tokens=4))
    assert backend.ids(request) == ids and backend.render_prompt(request) == BEGUN + end
    assert backend.description().get("chat_template_kwargs", {}) == options


def test_a_variable_that_no_template_reads_is_refused(model_path):
    with pytest.raises(BackendError, match="does not read 'enable_thinkin'; correct the name"):
        open_tiny(model_path, enable_thinkin=False)


def test_evaluation_takes_the_variables_as_json(model_path, tasks, capsys):
    words = ["--model", model_path, "--backend", "transformers", "--device", "cpu"]
    words = [*map(str, [*tasks, *words]), "--show-prompt", "--chat-template-kwargs"]
    assert main([*words, '{"enable_thinking": false}']) == 0
    assert NO_THOUGHTS in capsys.readouterr().out
    for more, message in (
        (["enable_thinking=false"], "'enable_thinking=false' must be a JSON object"),
        (["[1]"], "'[1]' must be a JSON object"),
        (['{"enable_thinking": false}', "--raw"], "has no effect with --raw"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err


def test_a_line_before_the_template_chooses_for_every_program(model_path, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    tokenizer.chat_template = "{%- set enable_thinking = false -%}" + tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path)
    chosen = AutoTokenizer.from_pretrained(tmp_path)
    # Offline PRMs and eval.prm have no other way to choose.
    assert chosen.decode(TextEncoder(chosen).prompt(CHAT)) == BEGUN + NO_THOUGHTS
    assert build_prompt(tmp_path) == build_prompt(model_path, enable_thinking=False)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>\n\\boxed{3}?\n</think>\n\nIt is \\boxed{2}.", "2"),
        # Without thoughts the marks are in the prompt.
        ("It is \\boxed{2}.", "2"),
        # Cut off within the thoughts, or nothing after them: their last box is the answer.
        ("<think>\n\\boxed{3}? Or \\boxed{4}", "4"),
        ("<think>\n\\boxed{3}\n</think>\n", "3"),
        ("<think>\n\\boxed{3}\n</think>\nThe answer is 2.", None),
    ],
)
def test_the_answer_follows_the_thoughts(response, answer):
    tokenizer = qwen_tokenizer("qwen3")
    ids = [*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_id]
    # As reward managers and backends decode: the marks of thoughts stay, those of turns do not.
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert text == response and extract_answer(text) == answer


def test_the_program_is_the_last_fence_wherever_it_is():
    first, second = ("```python\nprint(1)\n```", "```python\nprint(2)\n```")
    assert extract_program(f"<think>{first}</think>\n{second}") == "print(2)\n"
    assert extract_program(f"<think>\n{first}\n</think>\nSee above.") == "print(1)\n"
