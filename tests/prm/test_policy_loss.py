# SPDX-License-Identifier: Apache-2.0
"""verl's policy loss with a pull towards other models, on verl's engines, against a plain loop over transformers."""

from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks
from launch import write_model
from plain_prm import assert_updates_close, assert_weights_close, mini_batches
from transformers import LlamaForCausalLM

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("policy_loss_rank.py")
VARIANTS = [
    "both",
    "the PRM alone",
    "none",
    "micro-batches of 1",
    "packed",
    "top 3",
    "top 3, packed",
    "all 40 tokens by top_k",
    "packed policy, padded PRM",
    "a PRM with fused kernels, offloaded",
    "a PRM with an adapter",
    "hints",
    "hints, packed",
    "hints, top 3, packed policy",
    "fsdp1",
    "fsdp1, packed, offloaded",
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Policy, PRM and average: three models of one vocabulary."""
    found = []
    for number, name in enumerate(("policy", "prm", "average")):
        path = tmp_path_factory.mktemp(name)
        write_model(path)
        model = LlamaForCausalLM.from_pretrained(path)
        generator = torch.Generator().manual_seed(number)
        for parameter in model.parameters():
            parameter.data.add_(0.05 * number * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(path)
        found.append(path)
    return found


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def results(request, paths, tmp_path_factory):
    return run_ranks(PROGRAM, paths, tmp_path_factory.mktemp(f"ranks{request.param}"), request.param)


def distributions(model, rollout):
    """Log-probabilities ``(T, V)`` at every token of the response."""
    ids = torch.cat((rollout["prompt"], rollout["response"]))
    return model(ids[None]).logits[0, len(rollout["prompt"]) - 1 : -1].log_softmax(-1)


def likeliest(log_pi_TV, target_TV, k):
    """Both at the policy's k likeliest tokens and one bucket for the others; k None or all tokens: as they are."""
    if k in (None, log_pi_TV.shape[1]):
        return log_pi_TV, target_TV
    chosen_TK = log_pi_TV.topk(k, -1).indices
    rest = [v.scatter(1, chosen_TK, -torch.inf).logsumexp(-1, keepdim=True) for v in (log_pi_TV, target_TV)]
    return [torch.cat([v.gather(1, chosen_TK), r], -1) for v, r in zip((log_pi_TV, target_TV), rest, strict=True)]


def two_updates(paths, results, coefficients, top_k, of_prm=()):
    """PPO's loss and the divergences, one rollout at a time, averaged over the tokens of a mini-batch."""
    policy, *others = [LlamaForCausalLM.from_pretrained(path) for path in paths]
    targets = dict(zip(("prm", "average"), others, strict=True))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.0, eps=1e-3)
    old_of = {r["key"]: old for r, old in zip(results["rollouts"], results["old_log_probs"], strict=True)}
    # What a target reads, and whether it has a say.
    own = {
        r["key"]: ({**r, "prompt": prompt}, reads)
        for r, (prompt, reads) in zip(results["rollouts"], of_prm, strict=False)
    }
    updates = []
    for update in range(2):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 + torch.cos(torch.tensor(torch.pi * update / 10)).item()) / 2
        losses, norms, kls = [], [], {name: [] for name in coefficients}
        for batch in mini_batches(results["rollouts"]):
            optimizer.zero_grad()
            tokens = sum(int(r["mask"].sum()) for r in batch)
            total, kl_sums = 0.0, dict.fromkeys(coefficients, 0.0)
            for r in batch:
                log_pi_TV = distributions(policy, r)
                ratio_T = (log_pi_TV.gather(1, r["response"][:, None])[:, 0] - old_of[r["key"]]).exp()
                advantage = r["label"] - 0.5
                token_T = torch.maximum(-advantage * ratio_T, -advantage * ratio_T.clamp(0.8, 1.2))
                if advantage < 0:
                    token_T = torch.minimum(token_T, torch.tensor(-advantage * 3.0))
                for name, coefficient in coefficients.items():
                    read, says = own.get(r["key"], (r, 1.0)) if name == "prm" else (r, 1.0)
                    log_pi_TK, target_TK = likeliest(log_pi_TV, distributions(targets[name], read).detach(), top_k)
                    kl_T = says * (log_pi_TK.exp() * (log_pi_TK - target_TK)).sum(-1)
                    token_T = token_T + coefficient * kl_T
                    kl_sums[name] += float((kl_T * r["mask"]).sum()) / tokens
                loss = (token_T * r["mask"]).sum() / tokens
                loss.backward()
                total += float(loss)
            norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)))
            optimizer.step()
            losses.append(total)
            for name, value in kl_sums.items():
                kls[name].append(value)
        updates.append({"loss": losses, "grad_norm": norms, "kl": kls})
    return updates, dict(policy.named_parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_gradients_and_weights_equal_a_plain_loop(paths, results, variant):
    found = results["variant", variant]
    coefficients = {name: value for name, value in found["coefficients"].items() if value > 0}
    updates, weights = two_updates(paths, results, coefficients, found["top_k"], found["of_prm"])
    assert_updates_close(found["updates"], updates)
    for name in coefficients:
        values = [float(value) for update in found["updates"] for value in update[f"kl_to_{name}"]]
        assert values == pytest.approx([value for update in updates for value in update["kl"][name]], rel=1e-4)
    assert not any(f"kl_to_{name}" in found["updates"][0] for name in {"prm", "average"} - set(coefficients))
    assert_weights_close(found["weights"], weights, tolerance=3e-5)


def test_the_targets_are_not_trained(results):
    first = results["variant", "both"]["prm"]
    for variant in ("micro-batches of 1", "packed policy, padded PRM"):
        for row, other in zip(results["variant", variant]["prm"], first, strict=True):
            torch.testing.assert_close(row, other, atol=1e-5, rtol=0)


def test_the_average_moves_and_is_restored(results):
    before, policy, after = results["average"]
    for name, weight in after.items():
        torch.testing.assert_close(weight, 0.75 * before[name] + 0.25 * policy[name], atol=1e-6, rtol=1e-5)
        assert torch.equal(results["restored average"][name], weight)
