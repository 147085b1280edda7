# SPDX-License-Identifier: Apache-2.0
"""A tiny llama model with a character tokenizer, saved to disk as a user's model would be."""

import pytest
from character_llama import build_model, build_tokenizer


@pytest.fixture(scope="session")
def model():
    return build_model(0, len(build_tokenizer()))


@pytest.fixture(scope="session")
def other_model():
    """Return a model of the same shape with other weights: what the trainer has after an update."""
    return build_model(1, len(build_tokenizer()))


@pytest.fixture(scope="session")
def model_path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def anyio_backend():
    return "asyncio"
