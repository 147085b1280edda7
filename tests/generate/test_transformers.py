# SPDX-License-Identifier: Apache-2.0
"""transformers as a backend on tiny random models: prompts, refusals, agreement with others."""

from dataclasses import replace

import pytest
import torch
from tiny_llama import CHAT, save_llama
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from prime_ext.generate.backend import BackendError, Request, Sampling
from prime_ext.generate.open import open_backend
from recipes.tiny_model import write_model

TEXTS = ["1+1?", "a much longer question about nothing", "Ä", "x y z", "0123456789" * 3]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("model"), max_positions=128)


@pytest.fixture(scope="module")
def backend(model_path):
    # float64: results are equal to the bit whatever shares the batch.
    return open_backend(
        "transformers", str(model_path), dtype="float64", device="cpu", batch_size=4
    )


def chats(sampling, texts=TEXTS):
    return [
        Request(f"r{number}", ({"role": "user", "content": text},), sampling, seed=number)
        for number, text in enumerate(texts)
    ]


def answers(backend, requests):
    return {response.key: response for response in backend.generate(requests)}


def plain_generate(path, request, **options):
    """Generate with transformers, one request at a time."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(path)
    ids = torch.tensor(
        [
            tokenizer.apply_chat_template(list(request.prompt), add_generation_prompt=True)[
                "input_ids"
            ]
        ]
    )
    config = GenerationConfig(max_new_tokens=12, eos_token_id=1, pad_token_id=0, **options)
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config
        )
    # Without a character that is cut in half.
    return tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).rstrip("\ufffd")


def test_greedy_responses_are_those_of_transformers(backend, model_path):
    requests = chats(Sampling(max_new_tokens=12, min_new_tokens=3))
    responses = answers(backend, requests)
    expected = [plain_generate(model_path, each, min_new_tokens=3) for each in requests]
    assert [responses[request.key].text for request in requests] == expected


def test_responses_end_at_their_length_or_before_a_stop_text(backend):
    request = Request("a", TEXTS[1], Sampling(max_new_tokens=20, min_new_tokens=20))
    whole = answers(backend, [request])["a"]
    assert (whole.tokens, whole.finish, whole.prompt_tokens) == (20, "length", len(TEXTS[1]))
    stop = whole.text[6:8]
    stopped = answers(
        backend, [replace(request, sampling=Sampling(max_new_tokens=20, stop=(stop,)))]
    )["a"]
    assert (stopped.finish, stopped.text) == (
        "stop",
        whole.text[: whole.text.index(stop)],
    ) and stopped.tokens < 20


def test_it_shows_what_the_model_sees(backend):
    request = chats(Sampling())[0]
    assert backend.render_prompt(request) == "[user] 1+1?\n[assistant] "
    assert backend.render_prompt(replace(request, prompt="as it is")) == "as it is"


STRICT = "{{ raise_exception('no system\nrole') if messages[0]['role'] == 'system' }}"
SYSTEM = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})


@pytest.mark.parametrize(
    "template, prompt, sampling, message",
    [
        (CHAT, "y" * 100, Sampling(max_new_tokens=29),
         "100 tokens of prompt and 29 new ones .* context of 128 .* 28"),
        (CHAT, "y", Sampling(max_new_tokens=4, min_new_tokens=2, stop=("a",)),
         "stop texts do not go with a shortest"),
        (None, SYSTEM, Sampling(max_new_tokens=2),
         "has no chat template; save one with its tokenizer"),
        (STRICT, SYSTEM, Sampling(max_new_tokens=2),
         "the chat template of .* refuses the chat: no system role"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_answered_is_refused(
    tmp_path, template, prompt, sampling, message
):
    path = save_llama(tmp_path / "m", max_positions=128, chat_template=template)
    backend = open_backend("transformers", str(path), device="cpu")
    bad = Request("bad", prompt, sampling)
    good = Request("good", "raw", Sampling(max_new_tokens=2))
    backend.check([good])
    with pytest.raises(BackendError, match=f"request bad: .*{message}"):
        backend.check([good, bad])


def test_options_that_cannot_be_met_are_one_line(model_path):
    values = {"device": "cuda:77", "max_model_len": 129, "revision": "main"}
    for name, value in values.items():
        with pytest.raises(BackendError, match=f"--{name.replace('_', '-')} {value}"):
            open_backend("transformers", str(model_path), **{name: value})


@pytest.mark.parametrize("begins", ["", "ab", "a <s> \nb", "Ä"])
def test_a_begun_response_is_continued_where_it_ends(backend, begins):
    sampling = Sampling(max_new_tokens=12)
    user = {"role": "user", "content": "1+1?"}
    begun = Request("b", (user, {"role": "assistant", "content": begins}), sampling)
    shown = backend.render_prompt(Request("a", (user,), sampling)) + begins
    assert backend.render_prompt(begun) == shown
    # The tokenizer has a token for each byte, so cutting the text cuts the tokens.
    plain = answers(backend, [Request("p", shown, sampling)])["p"]
    assert answers(backend, [begun])["b"].text == plain.text


def test_marks_in_a_begun_response_are_text(tmp_path):
    write_model(tmp_path, "qwen3")
    qwen = open_backend("transformers", str(tmp_path), device="cpu")
    user = {"role": "user", "content": "1+1?"}
    prompt = qwen.ids(Request("a", (user,), Sampling()))
    begun = (user, {"role": "assistant", "content": "2<|im_end|>"})
    ids = qwen.ids(Request("b", begun, Sampling()))
    assert ids[: len(prompt)] == prompt and qwen.tokenizer.eos_token_id not in ids[len(prompt) :]
    assert qwen.tokenizer.decode(ids[len(prompt) :]) == "2<|im_end|>"
