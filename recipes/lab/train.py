# SPDX-License-Identifier: Apache-2.0
"""PRIME in one file that can be stepped through: sample, judge, learn and score, advantages, policy update.

What matters in it are functions of ``prime_ext.algorithms``, which the trainer on verl calls too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from prime_ext.algorithms import distillation
from prime_ext.algorithms.advantage import combine_sources, outcome_source
from prime_ext.algorithms.estimators import RewardSource
from prime_ext.algorithms.implicit_reward import log_ratio, process_rewards
from prime_ext.algorithms.normalization import NORMALIZATIONS
from prime_ext.algorithms.prm_accuracy import count_pairs, pair_accuracy
from prime_ext.algorithms.prm_losses import PRM_LOSSES, logit_of_mean
from prime_ext.algorithms.process_shaping import ProcessShaping
from prime_ext.algorithms.prompt_filter import KEPT, AccuracyBand
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.algorithms.returns import last_token_mask
from prime_ext.prm.frozen_layers import train_last_layers
from recipes.lab.sample import Rollouts, chosen_log_probs, response_logits, sample

HELD_OUT = 1000  # problems of an evaluation
BETAS = (0.9, 0.99)  # of Adam
LARGEST_REWARD = 5.0  # standard deviations, of the rewards of sampled tokens

Ramp = Callable[[int], float]
Targets = list[tuple[float, torch.Tensor]]


class Scores(NamedTuple):
    """What the PRM says."""

    log_ratio_BT: torch.Tensor  # q_t = log phi - log ref
    logits_BTV: torch.Tensor | None  # None where the policy is not measured against them


def warm_up(updates: int) -> Ramp:
    return lambda update: min(1.0, (update + 1) / max(updates, 1))


class Learner:
    """A model with its optimiser, its rate's factor by update and, for a PRM, the loss's bias (0 unless trained)."""

    def __init__(self, model: torch.nn.Module, lr: float, ramp: Ramp, clip=1.0, decay=0.01, betas=BETAS, bias_lr=0.0):
        self.model, self.clip = model, clip
        self.bias = torch.zeros((), device=next(model.parameters()).device, requires_grad=True)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [{"params": trained}, {"params": [self.bias], "lr": bias_lr, "eps": 1e-4}]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, weight_decay=decay)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, [ramp, lambda update: 1.0])

    def minimize(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()


class Lab:
    """One training run of a task with the settings of a method; all models start from the same weights.

    Three generators (problems, sampling, what the PRM draws) depend on the seed, so that all methods get the same
    problems, and a PRM without a say changes nothing.
    """

    def __init__(self, task: Any, settings: dict[str, Any], seed: int, start: str | Path, device: str = "cpu"):
        self.task, self.settings, self.device = task, settings, device
        self.problem_rng, self.prm_rng = (torch.Generator().manual_seed(10 * seed + k) for k in (1, 2))
        self.sample_rng = torch.Generator(device).manual_seed(10 * seed + 3)

        def load(folder: str | Path) -> torch.nn.Module:
            return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)

        self.policy = Learner(load(start), settings["actor.lr"], warm_up(settings["actor.lr_warmup_steps"]))
        if settings["prime.anchor.coefficient"] > 0:
            self.average = load(start)
        self.uses_prm = settings["prime.process.coefficient"] > 0 and settings["prime.process.target"] != "labels"
        if self.uses_prm:
            prm_start = settings["prm.start"] or start
            prm = load(prm_start)
            self.reference = load(prm_start) if settings["prm.reference"] == "frozen" else None
            if settings["prm.trainable_layers"]:
                train_last_layers(prm, settings["prm.trainable_layers"])
            if rank := settings["prm.lora_rank"]:
                prm = get_peft_model(prm, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
            ramp, bias_lr = warm_up(settings["prm.lr_warmup_steps"]), 0.05 if settings["prm.bias"] else 0.0
            self.prm = Learner(prm, settings["prm.lr"], ramp, clip=10.0, decay=0.0, bias_lr=bias_lr)
            self.gate = ReliabilityGate(settings["prime.process.gate_decay"], settings["prime.process.gate_start"])
        self.replay: Rollouts | None = None
        self.examined, self.seconds = 0, 0.0
        self.diagnosis: list[tuple[float | None, ...]] = []  # pairs in order, pairs, gate, AUC of the steps

    def step(self) -> None:
        """One step of training."""
        started = time.perf_counter()
        batch = self.collect()
        if batch is not None:
            with torch.no_grad():
                old_logits_BTV = response_logits(self.policy.model, batch)
            gate, scores = self.learn_and_score(batch, old_logits_BTV) if self.uses_prm else (0.0, None)
            advantage_BT = self.advantages(batch, gate, scores, old_logits_BTV)
            self.update_policy(batch, advantage_BT, self.kl_targets(batch, gate, scores), old_logits_BTV)
        self.seconds += time.perf_counter() - started

    def sample_and_judge(self, n_prompts: int) -> Rollouts:
        """Rollouts of new problems."""
        n = self.settings["rollout.n"]
        problems = [p for p in self.task.draw(n_prompts, self.problem_rng) for _ in range(n)]
        rollouts = self.respond(problems, self.sample_rng)
        outcome_B = self.task.verify(problems, rollouts.response_BT)
        if self.task.flipped > 0:
            flipped_B = torch.rand(len(outcome_B), generator=self.problem_rng) < self.task.flipped
            outcome_B = torch.where(flipped_B, 1 - outcome_B, outcome_B)
        label_BT, is_result_BT = self.task.step_labels(problems, rollouts.response_BT)
        group_B = torch.arange(n_prompts).repeat_interleave(n) + self.examined
        self.examined += len(problems)
        judged = (outcome_B, group_B, label_BT, is_result_BT)
        return Rollouts(*rollouts[:4], *(part.to(self.device) for part in judged))

    def respond(self, problems: Sequence[Any], generator: torch.Generator) -> Rollouts:
        prompt_BP = self.task.prompts(problems).to(self.device)
        return sample(self.policy.model, prompt_BP, self.task.pad, self.task.eos, self.task.limit, generator)

    def collect(self) -> Rollouts | None:
        """The batch of a step; with the filter as many prompts as it takes, None if all that may be tried fail it."""
        settings, wanted = self.settings, self.settings["rollout.prompts"]
        if not settings["prime.filter.enable"]:
            return self.sample_and_judge(wanted)
        band = AccuracyBand(settings["prime.filter.lower"], settings["prime.filter.upper"])
        kept, found, tried = [], 0, 0
        while found < wanted and tried < settings["prime.filter.max_examined"] * wanted:
            batch, tried = self.sample_and_judge(wanted - found), tried + wanted - found
            accuracies = batch.outcome_B.view(wanted - found, -1).tolist()
            keep_G = torch.tensor([band.classify(group, [False] * len(group)) == KEPT for group in accuracies])
            kept.append(batch.rows(keep_G.repeat_interleave(settings["rollout.n"]).to(self.device)))
            found += int(keep_G.sum())
        return Rollouts.joined(kept) if found else None

    def learn_and_score(self, batch: Rollouts, old_logits_BTV: torch.Tensor) -> tuple[float, Scores]:
        """The gate, and the scores that the policy is trained with."""
        with torch.no_grad():
            logits_BTV = old_logits_BTV if self.reference is None else response_logits(self.reference, batch)
        batch = batch._replace(reference_BT=chosen_log_probs(logits_BTV, batch))
        mode = self.settings["prm.update_mode"]
        unseen = scores = self.update_prm(batch) if mode == "interleaved" else self.score(batch)
        if mode in ("before", "after"):
            self.update_prm(batch)
        if mode == "before":
            scores = self.score(batch)
        pairs = count_pairs(unseen.log_ratio_BT.sum(-1), batch.outcome_B, batch.group_B)
        gate = self.gate.update(pairs) if self.settings["prime.process.reliability_gate"] else 1.0
        # The steps' results as one group: the share of right ones that score above wrong ones.
        score_N, label_N = scores.log_ratio_BT[batch.is_result_BT], batch.step_label_BT[batch.is_result_BT]
        step_auc = pair_accuracy(score_N, label_N, torch.zeros_like(label_N, dtype=torch.long))
        self.diagnosis.append((pairs.right, pairs.total, gate, step_auc))
        return gate, scores

    @torch.no_grad()
    def score(self, batch: Rollouts) -> Scores:
        logits_BTV = response_logits(self.prm.model, batch)
        log_prob_BT = chosen_log_probs(logits_BTV, batch)
        return Scores(log_ratio(log_prob_BT, batch.reference_BT, batch.mask_BT), logits_BTV)

    def update_prm(self, batch: Rollouts) -> Scores:
        """Train on the outcomes. Returns q_t before a row was first learned from; the last pass' logits if needed."""
        settings, function = self.settings, PRM_LOSSES["ce"]
        first_BT, seen_B = torch.zeros_like(batch.reference_BT), torch.arange(len(batch.outcome_B))
        last_BTV = None
        if settings["prm.update_mode"] == "interleaved" and settings["prime.process.target"] == "policy":
            last_BTV = batch.reference_BT.new_zeros(*batch.reference_BT.shape, self.policy.model.config.vocab_size)
        if settings["prm.groups"] == "mixed":
            outcome_GN = batch.outcome_B.view(-1, settings["rollout.n"])
            mixed_G = outcome_GN.amin(1) < outcome_GN.amax(1)
            seen_B = mixed_G.repeat_interleave(settings["rollout.n"]).nonzero()[:, 0].cpu()
            batch = batch.rows(seen_B)
        n_rows = len(seen_B)
        if n_rows == 0:
            return Scores(first_BT, last_BTV)
        if settings["prm.bias"] and not self.prm.optimizer.state:  # its first update
            self.prm.bias.data.fill_(logit_of_mean(float(batch.outcome_B.mean())))
        if settings["prm.labels"] == "shuffled":
            batch = batch._replace(outcome_B=batch.outcome_B[torch.randperm(n_rows, generator=self.prm_rng)])
        if settings["prm.replay"]:
            past = batch if self.replay is None else Rollouts.joined([self.replay, batch])
            self.replay = past.rows(torch.arange(len(past.outcome_B))[-settings["prm.replay"] :])
        for epoch in range(settings["prm.epochs"]):
            for new_B in torch.randperm(n_rows, generator=self.prm_rng).split(settings["prm.mini_batch_size"]):
                part = batch.rows(new_B)
                if self.replay is not None:
                    old_B = torch.randint(len(self.replay.outcome_B), (len(new_B),), generator=self.prm_rng)
                    part = Rollouts.joined([part, self.replay.rows(old_B)])
                mask_BT = part.mask_BT
                logits_BTV = response_logits(self.prm.model, part)
                log_ratio_BT = log_ratio(chosen_log_probs(logits_BTV, part), part.reference_BT, mask_BT)
                if epoch == 0:
                    first_BT[seen_B[new_B]] = log_ratio_BT[: len(new_B)].detach()
                if last_BTV is not None:
                    last_BTV[seen_B[new_B]] = logits_BTV[: len(new_B)].detach()
                rows = function.prepare(part.outcome_B, part.group_B, torch.ones_like(part.outcome_B))
                rows = replace(rows, weight_B=rows.weight_B / len(part.outcome_B))
                self.prm.minimize(function.loss(log_ratio_BT, mask_BT, rows, settings["prm.beta"], bias=self.prm.bias))
        return Scores(first_BT, last_BTV)

    def advantages(
        self, batch: Rollouts, gate: float, scores: Scores | None, old_logits_BTV: torch.Tensor
    ) -> torch.Tensor:
        """What each token is worth, ``(B, T)``: by its outcome, and by the PRM or the true labels."""
        settings, mask_BT = self.settings, batch.mask_BT
        process = {key.removeprefix("prime.process."): settings[key] for key in settings if "process" in key}
        form, coefficient, discount = process["form"], process["coefficient"], process["discount"]
        reward_BT = batch.outcome_B[:, None] * last_token_mask(mask_BT)
        sources = {"outcome": outcome_source(reward_BT, mask_BT, settings["prime.outcome.estimator"])}
        if scores is not None and process["target"] == "reference":
            reward_BT = process_rewards(scores.log_ratio_BT, settings["prm.beta"])
            paid_BT, where_BT = ProcessShaping(process["granularity"])(reward_BT, mask_BT)
            paid_BT, _ = NORMALIZATIONS[process["normalization"]](paid_BT, mask_BT, discount)
            sources["process"] = RewardSource(paid_BT, where_BT, coefficient * gate, discount)
        elif scores is not None and form != "kl":
            prm_BT = chosen_log_probs(scores.logits_BTV, batch)
            reward_BT = distillation.policy_relative_rewards(prm_BT, chosen_log_probs(old_logits_BTV, batch), mask_BT)
            paid_BT, _ = NORMALIZATIONS["return_std"](reward_BT, mask_BT, 0.0)
            # Minus what every response has at the position, whatever its prompt.
            mean_T = (paid_BT * mask_BT).sum(0) / mask_BT.sum(0).clamp_min(1)
            paid_BT = (paid_BT - mean_T).clamp(-LARGEST_REWARD, LARGEST_REWARD)
            sources["process"] = RewardSource(paid_BT, mask_BT, coefficient * gate, 0.0, estimator="reinforce")
        advantage_BT, _, _ = combine_sources(sources, mask_BT, batch.group_B)
        if process["target"] == "labels":
            return advantage_BT + coefficient * standardized(batch.step_label_BT, batch.is_result_BT)
        return advantage_BT

    def kl_targets(self, batch: Rollouts, gate: float, scores: Scores | None) -> Targets:
        """Weights and logits of the distributions that the policy is pulled towards."""
        settings, targets = self.settings, []
        if scores and settings["prime.process.target"] == "policy" and settings["prime.process.form"] == "kl":
            targets.append((settings["prime.process.coefficient"] * gate, scores.logits_BTV))
        if settings["prime.anchor.coefficient"] > 0:
            average, current = list(self.average.parameters()), list(self.policy.model.parameters())
            distillation.update_average(average, current, settings["prime.anchor.decay"])
            with torch.no_grad():
                average_BTV = response_logits(self.average, batch)
            targets.append((settings["prime.anchor.coefficient"] * (1 - gate), average_BTV))
        # Left out, not multiplied by zero: a shut gate leaves the same bits as no PRM.
        return [(weight, logits_BTV) for weight, logits_BTV in targets if weight > 0]

    def update_policy(
        self, batch: Rollouts, advantage_BT: torch.Tensor, targets: Targets, old_logits_BTV: torch.Tensor
    ) -> None:
        """One pass over the batch: PPO's clipped loss, and the divergences from the targets; means over tokens."""
        clip, topk = self.settings["actor.clip_ratio"], self.settings["prime.process.top_k"]
        old_BT = chosen_log_probs(old_logits_BTV, batch)
        likely_BTK = old_logits_BTV.topk(topk).indices if topk else None
        order_B = torch.randperm(len(old_BT), generator=self.problem_rng)
        for rows in order_B.chunk(self.settings["actor.mini_batches"]):
            part = batch.rows(rows)
            valid_BT = part.mask_BT
            log_prob_N, divergences = log_probs_and_kl(
                response_logits(self.policy.model, part)[valid_BT],
                part.response_BT[valid_BT],
                [logits_BTV[rows][valid_BT] for _, logits_BTV in targets],
                None if likely_BTK is None else likely_BTK[rows][valid_BT],
            )
            advantage_N, ratio_N = advantage_BT[rows][valid_BT], (log_prob_N - old_BT[rows][valid_BT]).exp()
            loss = torch.max(-advantage_N * ratio_N, -advantage_N * ratio_N.clamp(1 - clip, 1 + clip)).mean()
            for (weight, _), kl_N in zip(targets, divergences, strict=True):
                loss = loss + weight * kl_N.mean()
            self.policy.minimize(loss)

    def point(self) -> dict[str, float | int | None]:
        """Accuracy on held-out problems at temperature 1; of the PRM, means since the last point."""
        problems = self.task.draw(HELD_OUT, torch.Generator().manual_seed(987), held_out=True)
        response_BT = self.respond(problems, torch.Generator(self.device).manual_seed(5)).response_BT
        label_BT, is_result_BT = self.task.step_labels(problems, response_BT)
        right, pairs, gates, aucs = ([row[k] for row in self.diagnosis if row[k] is not None] for k in range(4))
        self.diagnosis = []

        def ratio(total: float, count: float) -> float | None:
            return round(float(total / count), 4) if count else None

        return {
            "rollouts": self.examined,
            "seconds": round(self.seconds, 3),
            "accuracy": round(float(self.task.verify(problems, response_BT).mean()), 4),
            "step_accuracy": ratio(label_BT.sum(), is_result_BT.sum()),
            "pair_accuracy": ratio(sum(right), sum(pairs)),
            "gate": ratio(sum(gates), len(gates)),
            "step_auc": ratio(sum(aucs), len(aucs)),
        }


def standardized(reward_BT: torch.Tensor, where_BT: torch.Tensor) -> torch.Tensor:
    """Rewards minus the mean over the batch at that position, in standard deviations, clipped; 0 elsewhere."""
    kept_BT = torch.where(where_BT, reward_BT, reward_BT.new_zeros(()))
    mean_T = kept_BT.sum(0) / where_BT.sum(0).clamp_min(1)
    centred_BT = torch.where(where_BT, kept_BT - mean_T, reward_BT.new_zeros(()))
    deviation = (centred_BT.square().sum() / where_BT.sum().clamp_min(1)).sqrt()
    return (centred_BT / (deviation + 1e-6)).clamp(-LARGEST_REWARD, LARGEST_REWARD)


def log_probs_and_kl(
    logits_NV: torch.Tensor, token_N: torch.Tensor, targets: list[torch.Tensor], likely_NK: torch.Tensor | None
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """Log-probabilities of the tokens, and KL(pi || target) for each target, over likely tokens if they are given."""
    if targets and likely_NK is None:
        log_prob_N, divergence_NJ = distillation.log_probs_and_reverse_kl(logits_NV, token_N, targets)
        return log_prob_N, divergence_NJ.unbind(1)
    log_prob_NV = logits_NV.float().log_softmax(-1)
    log_prob_N = log_prob_NV.gather(1, token_N[:, None])[:, 0]
    others = [target_NV.float().log_softmax(-1).gather(1, likely_NK) for target_NV in targets]
    return log_prob_N, [distillation.topk_reverse_kl(log_prob_NV.gather(1, likely_NK), other_NK) for other_NK in others]
