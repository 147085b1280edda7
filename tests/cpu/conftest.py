# SPDX-License-Identifier: Apache-2.0
"""A tiny model in the llama layout with a character tokenizer, saved to disk as a user's model would be."""

import pytest
from character_llama import build_model, build_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer):
    return build_model(0, len(tokenizer))


@pytest.fixture(scope="session")
def other_model(tokenizer):
    """Same shape, other weights: what the trainer has after an update."""
    return build_model(1, len(tokenizer))


def save_model(model, tokenizer, path):
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def other_model_path(other_model, tokenizer, tmp_path_factory):
    return save_model(other_model, tokenizer, tmp_path_factory.mktemp("other_model"))


@pytest.fixture(scope="session")
def model_path(model, tokenizer, tmp_path_factory):
    return save_model(model, tokenizer, tmp_path_factory.mktemp("model"))


@pytest.fixture
def anyio_backend():
    return "asyncio"
