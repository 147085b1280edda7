# SPDX-License-Identifier: Apache-2.0
"""What ``prime_ext.algorithms.chunked_log_probs`` computes, with the logits of all tokens at once: the definition."""

import torch


def plain_log_probs(hidden_NH, weight_VH, target_N, temperature=1.0):
    """log softmax(hidden @ weight^T / temperature) at the targets, ``(N,)``, float32 or better."""
    wide = torch.promote_types(hidden_NH.dtype, torch.float32)
    log_prob_NV = (hidden_NH.to(wide) @ weight_VH.to(wide).T / temperature).log_softmax(-1)
    return log_prob_NV.gather(1, target_N[:, None])[:, 0]
