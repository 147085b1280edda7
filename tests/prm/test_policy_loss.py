# SPDX-License-Identifier: Apache-2.0
"""verl's policy loss with a pull to other models, on its engines, against a plain loop."""

import prm_rank as base  # isort: skip

from pathlib import Path
from types import SimpleNamespace

import flash_attention
import pytest
import torch
from fsdp1_on_cpu import allow_fsdp1
from gloo_ranks import finish, run_ranks
from plain_prm import assert_updates_close, assert_weights_close, mini_batches, write_model
from transformers import LlamaForCausalLM
from verl.utils import tensordict_utils as tu

from prime_ext.verl_adapter.policy_loss import COEFFICIENTS, install_targets
from prime_ext.verl_adapter.worker_engines import average_weights, register_engine

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__)

BOTH = {"prm": 0.7, "average": 0.3}
ONE = {"prm.micro_batch_size_per_gpu": 1}
# Coefficients, changes to the policy, changes to the PRM.
VARIANTS = {
    "both": (BOTH, {}, {}),
    "the PRM alone": ({"prm": 0.7, "average": 0.0}, {}, {}),
    "none": ({}, {}, {}),
    "micro-batches of 1": (BOTH, ONE, {}),
    "packed": (BOTH, base.PACKED, base.PACKED),
    "packed policy, padded PRM": (BOTH, base.PACKED, {}),
    "a PRM with fused kernels, offloaded": (BOTH, {}, base.CHUNKED | base.OFFLOAD),
    "a PRM with an adapter": (BOTH, {}, base.LORA),
    "fsdp1": (BOTH, base.FSDP1, base.FSDP1),
    "fsdp1, packed, offloaded": (BOTH, *[base.FSDP1 | base.PACKED | base.OFFLOAD] * 2),
    # The last one: flash-attn's stand-in stays.
    "flash-attn, packed, Ulysses": (BOTH,
     *[flash_attention.FLASH | base.PACKED | base.ULYSSES] * 2),
}  # fmt: skip


# In these the average moves toward the trained policy, and is saved and restored.
MOVED = ("both", "fsdp1, packed, offloaded", "flash-attn, packed, Ulysses")


def policy(model_path, overrides, mini_batch_size=4):
    """Build a worker that is trained as verl trains the policy, with the targets in its loss."""
    trained = base.Prm(model_path, overrides, "policy", mini_batch_size)
    install_targets(SimpleNamespace(actor=trained.worker))
    return trained


def update(policy, rollouts, old_log_probs, coefficients, advantages=None):
    plan = policy.plan(rollouts)
    if advantages is None:
        advantages = [torch.full((len(r["response"]),), r["label"] - 0.5) for r in rollouts]
    fields = {"old_log_probs": old_log_probs, "advantages": advantages}
    options = policy.update_options() | {COEFFICIENTS: coefficients}
    data, _ = policy.batch(rollouts, plan.order, fields, **options)
    if (output := policy.worker.train_mini_batch(data)) is None:
        return None
    metrics = tu.get(output, "metrics")
    kept = {name: value for name, value in metrics.items() if name.startswith("kl_to")}
    return base.get_metrics(metrics) | kept


def main(policy_path, prm_path, average_path, work_dir):
    allow_fsdp1()
    rollouts = base.build_rollouts()
    old_log_probs = base.Prm(policy_path, role="reference").score(rollouts)
    results = {"rollouts": rollouts, "old_log_probs": old_log_probs}
    for name, (coefficients, of_policy, of_prm) in VARIANTS.items():
        if flash_attention.FLASH.items() <= of_policy.items():
            flash_attention.install()
        trained = policy(policy_path, of_policy)
        average = base.Prm(average_path, of_policy, role="average")
        register_engine("average", average.worker.engine)
        base.Prm(prm_path, of_prm)  # registered as the PRM by itself
        updates = [update(trained, rollouts, old_log_probs, coefficients) for _ in range(2)]
        results["variant", name] = {
            "coefficients": coefficients,
            "updates": updates,
            "weights": trained.weights(),
        }
        if name in MOVED:
            before = average.weights()
            average_weights(trained.worker.engine, average.worker.engine, 0.75)
            folder = Path(work_dir) / name
            restored = base.saved_and_restored(
                average, folder, policy_path, of_policy, role="average"
            )
            moved = (before, results["variant", name]["weights"], average.weights())
            results["average", name] = (*moved, restored.weights())
    finish(results, work_dir)


# ---- what the ranks found ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Return policy, PRM and average: three models of one vocabulary."""
    folders = []
    for number, name in enumerate(("policy", "prm", "average")):
        path = tmp_path_factory.mktemp(name)
        write_model(path)
        model = LlamaForCausalLM.from_pretrained(path)
        generator = torch.Generator().manual_seed(number)
        for parameter in model.parameters():
            parameter.data.add_(0.05 * number * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(path)
        folders.append(path)
    return folders


@pytest.fixture(scope="module")
def by_ranks(paths, tmp_path_factory):
    return run_ranks(PROGRAM, paths, {n: tmp_path_factory.mktemp(f"ranks{n}") for n in (1, 2)})


@pytest.fixture(params=[1, 2], ids=["1 rank", "2 ranks"])
def results(request, by_ranks):
    return by_ranks[request.param]


def distributions(model, rollout):
    """Return log-probabilities ``(T, V)`` at every token of the response."""
    ids = torch.cat((rollout["prompt"], rollout["response"]))
    return model(ids[None]).logits[0, len(rollout["prompt"]) - 1 : -1].log_softmax(-1)


def two_updates(paths, results, coefficients):
    """Make two updates one rollout at a time; return losses, norms, divergences, and the weights.

    Losses (PPO's and the pull) and divergences are averaged over the tokens of a mini-batch.
    """
    policy, *others = [LlamaForCausalLM.from_pretrained(path) for path in paths]
    targets = dict(zip(("prm", "average"), others, strict=True))
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=1e-2, betas=(0.9, 0.999), weight_decay=0.0, eps=1e-3
    )
    old_of = {
        r["key"]: old for r, old in zip(results["rollouts"], results["old_log_probs"], strict=True)
    }
    updates = []
    for update in range(2):
        optimizer.param_groups[0]["lr"] = (
            1e-2 * (1 + torch.cos(torch.tensor(torch.pi * update / 10)).item()) / 2
        )
        losses = []
        norms = []
        kls = {name: [] for name in coefficients}
        for batch in mini_batches(results["rollouts"]):
            optimizer.zero_grad()
            tokens = sum(int(r["mask"].sum()) for r in batch)
            total = 0.0
            kl_sums = dict.fromkeys(coefficients, 0.0)
            for r in batch:
                log_pi_TV = distributions(policy, r)
                ratio_T = (
                    log_pi_TV.gather(1, r["response"][:, None])[:, 0] - old_of[r["key"]]
                ).exp()
                advantage = r["label"] - 0.5
                token_T = torch.maximum(-advantage * ratio_T, -advantage * ratio_T.clamp(0.8, 1.2))
                if advantage < 0:
                    token_T = torch.minimum(token_T, torch.tensor(-advantage * 3.0))
                for name, coefficient in coefficients.items():
                    target_TV = distributions(targets[name], r).detach()
                    kl_T = (log_pi_TV.exp() * (log_pi_TV - target_TV)).sum(-1)
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
    result = results["variant", variant]
    coefficients = {name: value for name, value in result["coefficients"].items() if value > 0}
    updates, weights = two_updates(paths, results, coefficients)
    assert_updates_close(result["updates"], updates)
    for name in coefficients:
        values = [float(value) for update in result["updates"] for value in update[f"kl_to_{name}"]]
        assert values == pytest.approx(
            [value for update in updates for value in update["kl"][name]], rel=1e-4
        )
    assert not any(
        f"kl_to_{name}" in result["updates"][0] for name in {"prm", "average"} - set(coefficients)
    )
    assert_weights_close(result["weights"], weights, tolerance=3e-5)


@pytest.mark.parametrize("variant", MOVED)
def test_the_average_moves_and_is_restored(results, variant):
    before, policy, after, restored = results["average", variant]
    for name, weight in after.items():
        torch.testing.assert_close(
            weight, 0.75 * before[name] + 0.25 * policy[name], atol=1e-6, rtol=1e-5
        )
        assert torch.equal(restored[name], weight)
