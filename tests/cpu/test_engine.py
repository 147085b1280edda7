# SPDX-License-Identifier: Apache-2.0
"""What verl's FSDP2 engines cannot do on the CPU; tests/prm and tests/e2e run language and value models on them."""

from types import SimpleNamespace

import pytest

from prime_ext.cpu.engine import CPUEngineWithLMHead, CPUEngineWithValueHead


@pytest.mark.parametrize("engine", [CPUEngineWithLMHead, CPUEngineWithValueHead])
@pytest.mark.parametrize(
    ("strategy", "offload_policy", "advice"),
    [("fsdp", False, "set strategy=fsdp2"), ("fsdp2", True, "offload_policy=False")],
)
def test_what_the_cpu_cannot_do_is_refused_with_advice(engine, strategy, offload_policy, advice):
    with pytest.raises(ValueError, match=advice):
        engine(None, SimpleNamespace(strategy=strategy, offload_policy=offload_policy))
