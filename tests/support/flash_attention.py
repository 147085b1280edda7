# SPDX-License-Identifier: Apache-2.0
"""Stand-in for flash-attn in plain PyTorch, called on a CPU as on GPUs.

It covers packed sequences, Ulysses, and the cross-entropy that writes its gradient over the logits,
in the way that transformers and verl call them.
"""

import sys
from collections import Counter
from itertools import pairwise
from types import ModuleType
from unittest import mock

import torch
import torch.distributed as dist
from packaging.version import Version
from torch.nn.functional import scaled_dot_product_attention
from transformers.utils import import_utils

CALLS: Counter[str] = Counter()
FLASH = {"prm.model.override_config.attn_implementation": "flash_attention_2"}


def flash_attn_func(q_BTHD, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    parts = [value.transpose(1, 2) for value in (q_BTHD, k, v)]
    options = {"is_causal": causal, "scale": softmax_scale, "enable_gqa": True}
    return scaled_dot_product_attention(*parts, dropout_p=dropout_p, **options).transpose(1, 2)


def flash_attn_varlen_func(
    q_NHD,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
):
    assert cu_seqlens_q.tolist() == cu_seqlens_k.tolist() and cu_seqlens_q[-1] == len(q_NHD) == len(
        k
    )
    CALLS[f"packed, {q_NHD.shape[1]} heads"] += 1
    limits = list(pairwise(cu_seqlens_q.tolist()))
    assert max(end - begin for begin, end in limits) <= max_seqlen_q == max_seqlen_k
    rows = [[value[None, begin:end] for value in (q_NHD, k, v)] for begin, end in limits]
    return torch.cat([flash_attn_func(*row, dropout_p, softmax_scale, causal)[0] for row in rows])


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_NV, label_N, inplace_backward):
        log_p_NV = logits_NV.float().log_softmax(-1)
        ctx.save_for_backward(logits_NV, label_N)
        ctx.inplace_backward = inplace_backward
        loss_N = -log_p_NV.gather(1, label_N[:, None])[:, 0]
        ctx.mark_non_differentiable(zero_N := torch.zeros_like(loss_N))
        return loss_N, zero_N

    @staticmethod
    def backward(ctx, grad_N, _):
        logits_NV, label_N = ctx.saved_tensors
        slope_NV = logits_NV.float().softmax(-1)
        slope_NV.scatter_add_(1, label_N[:, None], -torch.ones_like(slope_NV[:, :1])).mul_(
            grad_N[:, None]
        )
        CALLS["gradient in place"] += ctx.inplace_backward
        return (logits_NV.copy_(slope_NV) if ctx.inplace_backward else slope_NV), None, None


def cross_entropy_loss(logits, labels, inplace_backward=False):
    return _CrossEntropy.apply(logits, labels, inplace_backward)


def all_to_all(outputs, inputs, group=None, async_op=False):
    gathered = [torch.stack(inputs) for _ in outputs]
    dist.all_gather(gathered, torch.stack(inputs), group)
    for output, parts in zip(outputs, gathered, strict=True):
        output.copy_(parts[dist.get_rank(group)])


def install() -> None:
    """Let transformers and verl find flash-attn in this process, and gloo an exchange of heads."""
    if Version(torch.__version__) < Version("2.12"):
        dist.all_to_all = all_to_all
    from verl.utils import attention_utils, torch_functional

    names = ("flash_attn", "flash_attn.bert_padding", "flash_attn.ops.triton.cross_entropy")
    package, padding, _ = modules = [ModuleType(name) for name in names]
    package.flash_attn_func = flash_attn_func
    package.flash_attn_varlen_func = flash_attn_varlen_func
    package.flash_attn_with_kvcache = None
    for name in ("index_first_axis", "pad_input", "rearrange", "unpad_input"):
        setattr(padding, name, getattr(attention_utils, f"_fallback_{name}"))
    sys.modules.update(zip(names, modules, strict=True))
    torch_functional.cross_entropy_loss = cross_entropy_loss
    torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE = True
    import_utils.is_flash_attn_2_available.cache_clear()
    installed = {"_is_package_available": lambda name, **_: (name == "flash_attn", "2.8.3")}
    with mock.patch.multiple(import_utils, **installed, is_torch_cuda_available=lambda: True):
        import_utils.PACKAGE_DISTRIBUTION_MAPPING["flash_attn"] = ["flash-attn"]
        assert import_utils.is_flash_attn_2_available()  # kept by its cache
