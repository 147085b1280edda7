# SPDX-License-Identifier: Apache-2.0
"""The plan's memory of a pass in bf16 against traced tensors of real sizes.

    python tests/benchmarks/plan_memory_16_bit.py

The plan is that of ``python -m prime_ext.doctor --plan``. The trace runs the real model's code and
ours on torch's fake tensors, which have sizes and no values: a model of 7 B takes seconds on any
machine. It counts what is alive at the peak of a pass in addition to the weights; gradients go as
soon as they are there, as FSDP shards them. Attention keeps what FlashAttention keeps: its inputs,
its output, one number for each head and token. Not seen: the allocator's rounding, workspaces of
kernels, FSDP's gathered weights.

Prints and writes plan_memory_16_bit.json next to this file.
"""

import time
from dataclasses import replace
from typing import Any

import harness
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from prime_ext.algorithms import chunked_log_probs
from prime_ext.plan.memory import Engine, pass_memory, read_shape
from prime_ext.verl_adapter.patches.monkey_patch import bind_chunked

GIB = 2**30
ATTENTION = "kept_once"
CONFIGS = harness.ROOT / "recipes" / "model_configs"
# Whether it is a training pass, and whether only the inputs of the blocks are kept.
PASSES = {
    "forward": (False, False),
    "training": (True, True),
    "training, activations kept": (True, False),
}


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        batch, heads, tokens, width = query.shape
        output = query.new_empty(batch, tokens, heads, width)
        ctx.save_for_backward(
            query, key, value, output, query.new_empty(batch, heads, tokens, dtype=torch.float32)
        )
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))


ALL_ATTENTION_FUNCTIONS.register(
    ATTENTION, lambda module, q, k, v, mask, **_: (_Attention.apply(q, k, v), None)
)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, lambda *_, **__: None)
# As on a GPU, where the product of 16-bit factors is written in float32.
chunked_log_probs._logits = lambda hidden_NH, weight_VH, _: hidden_NH.new_empty(
    len(hidden_NH), len(weight_VH), dtype=torch.float32
)


def traced(name: str, tokens: int, training: bool, recompute: bool) -> float:
    """Return the GiB alive in addition to the weights at the peak of a pass over one packed row."""
    config = AutoConfig.from_pretrained(CONFIGS / name, attn_implementation=ATTENTION)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).train()
    weights: dict[torch.Tensor, torch.nn.Parameter] = {}
    with FakeTensorMode():
        for module in model.modules():
            for key, own in module._parameters.items():
                if own is not None:
                    fake = torch.nn.Parameter(torch.empty(own.shape, dtype=torch.bfloat16))
                    module._parameters[key] = weights.setdefault(own, fake)
            for key, own in module._buffers.items():
                module._buffers[key] = torch.empty(own.shape, dtype=own.dtype)
        for weight in weights.values():
            weight.register_post_accumulate_grad_hook(lambda own: setattr(own, "grad", None))
        if recompute:
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        bind_chunked(model)
        ids = torch.zeros((1, tokens), dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker, torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(training):
            log_probs = model(
                input_ids=ids, position_ids=ids, use_cache=False, temperature=1.0
            ).log_probs
            if training:
                log_probs.sum().backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return (peak["Total"] - sum(weight.numel() * 2 for weight in weights.values())) / GIB


def planned(name: str, tokens: int, training: bool, recompute: bool) -> float:
    """Return the GiB of activations and logits in the plan."""
    shape = read_shape("prm.model.path", str(CONFIGS / name))
    engine = Engine(shape, shape.weights, 0, 4, 2, 1, tokens, recompute, "chunked")
    engine = engine if training else replace(engine, trained=0)
    needs = pass_memory(engine)
    return (needs["activations"] + needs["logits"]) / GIB


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["Qwen2.5-0.5B-Instruct", "Qwen2.5-7B"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    options = parser.parse_args()
    results = {}
    for name in options.models:
        for tokens in options.tokens:
            for label, choices in PASSES.items():
                start = time.perf_counter()
                numbers = {
                    "planned": planned(name, tokens, *choices),
                    "traced": traced(name, tokens, *choices),
                }
                numbers["planned over traced"] = numbers["planned"] / numbers["traced"]
                results[f"{name}, {tokens} tokens, {label}"] = {
                    key: round(value, 3) for key, value in numbers.items()
                }
                print(
                    f"{name}, {tokens} tokens, {label}: {numbers}"
                    f" ({time.perf_counter() - start:.0f} s)",
                    flush=True,
                )
    harness.record(options, {"unit": "GiB", "results": results})


if __name__ == "__main__":
    main()
