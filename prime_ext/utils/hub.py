# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face hub where it does not answer."""

import os
from pathlib import Path

import httpx
from huggingface_hub import constants
from huggingface_hub.utils import get_session

_SECONDS = 5.0


def use_cache_without_hub(name: str) -> None:
    """Let the hub's libraries read their cache only, if the hub does not answer.

    A ``name`` that is a path here needs no hub. The libraries would try again for a minute before
    they report that a file is missing.
    """
    if constants.HF_HUB_OFFLINE or Path(name).expanduser().exists():
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS)
    except httpx.HTTPError:
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"
