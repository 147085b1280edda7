# SPDX-License-Identifier: Apache-2.0
"""The loop of PRIME and PRIME-D (the default) in one file: one process, no verl, no prompt filter.

    python -m examples.minimal_prime                                  # PRIME-D on the built-in task
    python -m examples.minimal_prime --method paper actor.lr=3e-4 prm.lr=3e-4          # or guarded, rloo, rloo_ema
    python -m examples.minimal_prime rollout.prompts=4 --model Qwen/Qwen2.5-0.5B-Instruct train.parquet

The equations are imported from ``prime_ext.algorithms``, 900 lines that run on verl too; a test feeds a batch to both.
A run prints the accuracy on 1,000 held-out problems, the PRM's pair accuracy, and the gate: 22.8 % at the start, after
1,600 rollouts, seeds 0 / 1 / 2, ``distilled`` 87.6 / 83.2 / 82.6 %, ``rloo`` (``actor.lr=4e-4``) 70.7 / 69.1 / 70.1 %,
``paper`` (rates as above) 41.4 / 53.2 / 49.3 %; in 100 s on one core, with 75 s for the first start.
Axes: ``B`` rollouts, ``P`` and ``T`` tokens of prompt and response, ``V`` vocabulary, ``K`` operations, ``N`` tokens.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, FiniteFloat
from tqdm import trange
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM, logging

from prime_ext.algorithms import advantage, distillation, implicit_reward, prm_losses
from prime_ext.algorithms.estimators import RewardSource
from prime_ext.algorithms.prm_accuracy import count_pairs
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.algorithms.returns import mark_last_token, normalize_by_batch_max
from prime_ext.config.checks import SettingsError, read
from prime_ext.prm.frozen_layers import train_last_layers
from prime_ext.tasks.last_digit_chain import error_probability
from prime_ext.utils.files import write_atomically
from prime_ext.utils.rows import SourceError, read_rows
from prime_ext.utils.text_tokens import TextEncoder, TextError
from prime_ext.utils.threads import use_one_thread
from prime_ext.verifiers.math import MathVerifier

# ---- settings --------------------------------------------------------------------------------------------------------
DEFAULTS: dict[str, Any] = {
    "rollout.prompts": 20,  # per step
    "rollout.n": 4,  # responses to each
    "actor.lr": 6e-4,
    "actor.lr_warmup_steps": 10,  # updates
    "actor.mini_batches": 5,  # updates per step
    "actor.clip_ratio": 0.2,
    "prime.outcome.estimator": "rloo",  # grpo: over the deviation of a prompt's outcomes; maxrl: over their mean
    "prime.process.coefficient": 0.0,  # weight of the PRM; 0: there is none
    "prime.process.form": "tokens",  # beta * log(phi / ref) rewards sampled tokens; kl: KL(pi || phi) joins the loss
    "prime.process.gate": False,  # times how well the PRM orders responses that it has not seen
    "prime.anchor.coefficient": 0.0,  # KL to a moving average of the policy, times 1 - gate
    "prime.anchor.decay": 0.5,  # weight of the old average, once per step
    "prm.beta": 0.2,  # on verl: 0.05
    "prm.bias": False,  # a trained constant in the PRM's loss
    "prm.lr": 1e-3,
    "prm.lr_warmup_steps": 20,  # updates
    "prm.mini_batch_size": 16,  # rollouts
    "prm.reference": "frozen",  # a model of its own; policy: the policy before its update, which costs nothing
    "prm.trainable_layers": 0.0,  # share of the layers, the last ones; 0: the whole model
}
CHOICES = {"prime.process.form": ("tokens", "kl"), "prm.reference": ("frozen", "policy")}
CHOICES["prime.outcome.estimator"] = ("rloo", "grpo", "maxrl")
METHODS: dict[str, dict[str, Any]] = {
    "rloo": {},  # the outcome only
    "rloo_ema": {"prime.anchor.coefficient": 1.0},  # outcome plus KL to the average, without a PRM
    "paper": {"prime.process.coefficient": 1.0},  # PRIME (arXiv 2502.01456)
    "guarded": {"prime.process.coefficient": 1.0, "prime.process.gate": True},
    "distilled": {  # PRIME-D: KL to the PRM has the weight g (the gate), KL to the average 1 - g
        **{"prime.process.coefficient": 1.0, "prime.process.form": "kl", "prime.process.gate": True},
        **{"prime.anchor.coefficient": 1.0, "prm.beta": 1.0, "prm.bias": True, "prm.lr": 2e-3},
        **{"prm.reference": "policy", "prm.trainable_layers": 0.33},
    },
}


def build_settings(method: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a method with changes, which may be text. ``SettingsError``: one of them cannot work."""
    settings = DEFAULTS | METHODS[read(Literal[tuple(METHODS)], method, "method")]
    kinds = {int: Annotated[int, Field(ge=1)], float: Annotated[FiniteFloat, Field(ge=0)], bool: bool}
    for key, value in changes.items():
        read(Literal[tuple(DEFAULTS)], key, "key")
        settings[key] = read(Literal[CHOICES[key]] if key in CHOICES else kinds[type(DEFAULTS[key])], value, key)
    return settings


# ---- data: what the trainer needs of a task is what these two have ---------------------------------------------------
@dataclass
class ChainTask:
    """The built-in task: prompts ``v op1 .. opk ?`` and responses ``v op1 r1 .. opk rk <eos>``, as token ids.

    Each operation permutes the values at random, so that no later step hides an error: ``r_i = f[op_i, r_{i-1}]``. The
    start imitates demonstrators, who get each fact wrong with its own probability, always in the same way.
    """

    length: int = 8
    mean_error: float = 0.2
    seed: int = 5
    layers: int = 2
    n_values, n_operations, held_out = 20, 10, 1000
    pad, bos, eos, question, first_value = range(5)
    first_operation = first_value + n_values

    def __post_init__(self) -> None:
        """Draw, per (operation, value), the result, the demonstrators' wrong one, and how often they take that."""
        rng = torch.Generator().manual_seed(self.seed)
        draws = random.Random(self.seed)
        self.right = torch.rand(self.n_operations, self.n_values, generator=rng).argsort(-1)
        self.wrong = (self.right + torch.randint(1, self.n_values, self.right.shape, generator=rng)) % self.n_values
        self.error_rate = torch.zeros(self.right.shape).apply_(lambda _: error_probability(self.mean_error, draws))
        self.limit = 2 * self.length + 2  # tokens of a response

    def draw(self, count: int, generator: torch.Generator, held_out: bool = False) -> list[list[int]]:
        """Draw problems: the first value and the operations."""
        start_B1 = torch.randint(self.n_values, (count, 1), generator=generator)
        operation_BK = torch.randint(self.n_operations, (count, self.length), generator=generator)
        return torch.cat([start_B1, operation_BK], 1).tolist()

    def prompts(self, problems: Sequence[list[int]]) -> list[list[int]]:
        op = self.first_operation
        return [[self.bos, v + self.first_value, *(k + op for k in chain), self.question] for v, *chain in problems]

    def demonstrate(self, problems: Sequence[list[int]], error: float, generator: torch.Generator) -> torch.Tensor:
        """Return responses ``(B, T)`` of demonstrators with ``error`` times the task's error rates; 0 solves."""
        value_B, *operations = torch.tensor(problems).unbind(1)
        parts = [value_B + self.first_value]
        for operation_B in operations:
            fact = (operation_B, value_B)
            errs_B = torch.rand(len(value_B), generator=generator) < error * self.error_rate[fact]
            value_B = torch.where(errs_B, self.wrong[fact], self.right[fact])
            parts += [operation_B + self.first_operation, value_B + self.first_value]
        return torch.stack([*parts, torch.full_like(value_B, self.eos)], 1)

    def verify(self, problems: Sequence[list[int]], response_BT: torch.Tensor) -> torch.Tensor:
        """Return outcomes ``(B,)``: 1 for a right final answer, whatever the steps before it, else 0."""
        return (response_BT == self.demonstrate(problems, 0.0, torch.Generator()))[:, -2:].all(1).float()


class TextTask:
    """Questions for any causal language model, as a chat where its tokenizer has a template, else as plain text.

    Rows have verl's schema, and answers for the math verifier. The first 200, at most half, are held out.
    """

    def __init__(self, model: str, data: str, limit: int):
        rows = [(row["prompt"], row["reward_model"]["ground_truth"]) for row in read_rows(Path(data))]
        self.held_out = min(200, len(rows) // 2)
        self.limit = limit
        self.rows = {True: rows[: self.held_out], False: rows[self.held_out :]}
        self.encoder = TextEncoder(AutoTokenizer.from_pretrained(model))
        self.verifier = MathVerifier()
        self.pad = self.eos = self.encoder.tokenizer.eos_token_id

    def draw(self, count: int, generator: torch.Generator, held_out: bool = False) -> list[tuple[Any, str]]:
        return [self.rows[held_out][k] for k in torch.randperm(len(self.rows[held_out]), generator=generator)[:count]]

    def prompts(self, problems: Sequence[tuple[Any, str]]) -> list[list[int]]:
        has_template = bool(self.encoder.tokenizer.chat_template)
        return [self.encoder.prompt(chat if has_template else chat[-1]["content"]) for chat, _ in problems]

    def verify(self, problems: Sequence[tuple[Any, str]], response_BT: torch.Tensor) -> torch.Tensor:
        texts = self.encoder.tokenizer.batch_decode(response_BT, skip_special_tokens=True)
        pairs = [(text, gold) for text, (_, gold) in zip(texts, problems, strict=True)]
        return torch.tensor([verdict.score or 0.0 for verdict in self.verifier.verify_batch(pairs)])


# ---- rollouts --------------------------------------------------------------------------------------------------------
class Rollouts(NamedTuple):
    """Prompts, left-padded, and responses, right-padded; the first ``<eos>`` of a response is its last valid token."""

    prompt_BP: torch.Tensor
    prompt_mask_BP: torch.Tensor
    response_BT: torch.Tensor
    mask_BT: torch.Tensor
    outcome_B: torch.Tensor | None = None  # from here on: once they are judged
    group_B: torch.Tensor | None = None
    old_BT: torch.Tensor | None = None  # log-probabilities under the policy, before its update
    reference_BT: torch.Tensor | None = None  # and under the PRM's reference

    def rows(self, index_B: torch.Tensor) -> "Rollouts":
        return self._make(None if tensor is None else tensor[index_B] for tensor in self)

    def model_inputs(self, start: int = 0, stop: int | None = None) -> dict[str, torch.Tensor]:
        """Return the token ids of the positions ``[start, stop)``, and what a model must know about left padding."""
        ids_BL = torch.cat([self.prompt_BP, self.response_BT], 1)[:, start:stop]
        if self.prompt_mask_BP.all():
            return {"input_ids": ids_BL}
        # Right padding needs no mask: no valid token comes after it.
        seen_BL = torch.cat([self.prompt_mask_BP, torch.ones_like(self.mask_BT)], 1)[:, :stop].long()
        position_BL = (seen_BL.cumsum(1) - 1).clamp_min(0)[:, start:]
        return {"input_ids": ids_BL, "attention_mask": seen_BL, "position_ids": position_BL}

    def logits(self, model: Any) -> torch.Tensor:
        """Return the logits ``(N, V)`` from which the valid tokens of the responses were drawn, in one pass."""
        inputs = self.model_inputs(stop=-1)
        return model(**inputs, use_cache=False, logits_to_keep=self.response_BT.shape[1]).logits[self.mask_BT]

    def log_probs(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Return log pi(y_t | x, y_<t) of the response tokens, ``(B, T)`` float32, 0 outside the mask."""
        log_prob_N1 = logits_NV.float().log_softmax(-1).gather(1, self.response_BT[self.mask_BT][:, None])
        return torch.zeros(self.mask_BT.shape, device=logits_NV.device).masked_scatter(self.mask_BT, log_prob_N1)


def pad_left(rows: list[list[int]], pad: int, device: Any = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids of the same width and the mask of tokens, ``(B, P)`` both."""
    ids_BP = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, pad, "left")
    mask_BP = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)).bool() for row in rows], True, False, "left")
    return ids_BP.to(device), mask_BP.to(device)


@torch.no_grad()
def sample(model: torch.nn.Module, task: Any, problems: Sequence[Any], generator: torch.Generator) -> Rollouts:
    """Sample a response to each problem at temperature 1, padded to the task's limit."""
    prompt_BP, prompt_mask_BP = pad_left(task.prompts(problems), task.pad, model.device)
    response_BT = prompt_BP.new_full((len(prompt_BP), task.limit), task.pad)
    rollouts = Rollouts(prompt_BP, prompt_mask_BP, response_BT, torch.zeros_like(response_BT, dtype=torch.bool))
    cache = DynamicCache(config=model.config)
    running_B = torch.ones_like(prompt_BP[:, 0], dtype=torch.bool)
    for t in range(task.limit):
        inputs = rollouts.model_inputs(t and prompt_BP.shape[1] + t - 1, prompt_BP.shape[1] + t)
        logits_BV = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        token_B = torch.multinomial(logits_BV.float().softmax(-1), 1, generator=generator)[:, 0]
        rollouts.response_BT[:, t] = torch.where(running_B, token_B, task.pad)
        rollouts.mask_BT[:, t] = running_B
        running_B = running_B & (token_B != task.eos)
        if not running_B.any():
            break
    return rollouts


# ---- models ----------------------------------------------------------------------------------------------------------
class Learner:
    """A model with its optimizer and, for a PRM, the loss's bias. The rate rises, and falls until ``end``."""

    def __init__(self, model: Any, lr: float, warm_up: int, end=None, clip=1.0, decay=0.01, beta2=0.99, bias_lr=0.0):
        self.model = model
        self.clip = clip
        self.bias = torch.zeros((), device=model.device, requires_grad=True)
        groups = [{"params": model.parameters()}, {"params": [self.bias], "lr": bias_lr, "eps": 1e-4}]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), weight_decay=decay)
        ramp = [lambda t: min(1.0, (t + 1) / warm_up) * (max(0.03, 1 - t / end) if end else 1.0), lambda t: 1.0]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, ramp)

    def minimize(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)  # before it is clipped
        self.optimizer.step()
        self.schedule.step()


def write_start(task: ChainTask, folder: Path, steps: int = 1500, batch_size: int = 64) -> None:
    """Train the Llama of 101,000 parameters that all methods start from: it imitates the demonstrators."""
    torch.manual_seed(task.seed)
    generator = torch.Generator().manual_seed(task.seed)
    size = {"hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 4, "tie_word_embeddings": True}
    size |= {"vocab_size": task.first_operation + task.n_operations, "max_position_embeddings": 3 * task.length + 5}
    special = {"pad_token_id": task.pad, "bos_token_id": task.bos, "eos_token_id": task.eos}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=task.layers, initializer_range=0.08, **size, **special))
    learner = Learner(model, 3e-3, warm_up=50, end=steps, beta2=0.98)
    for _ in trange(steps, desc=f"training {folder}"):
        problems = task.draw(batch_size, generator)
        response_BT = task.demonstrate(problems, 1.0, generator)
        rollouts = Rollouts(*pad_left(task.prompts(problems), task.pad), response_BT, response_BT != task.pad)
        learner.minimize(-rollouts.log_probs(rollouts.logits(model)).mean())
    with write_atomically(folder) as temporary:
        model.save_pretrained(temporary)


# ---- training --------------------------------------------------------------------------------------------------------
PRMOutputs = tuple[torch.Tensor, torch.Tensor | None]  # q_t = log phi - log ref, (B, T); the PRM's logits, if needed
Targets = list[tuple[float, torch.Tensor]]  # weights and logits (N, V) of what the policy is pulled towards


class Trainer:
    """One run. Its three random generators depend on the seed alone, so that all methods get the same problems."""

    def __init__(self, task: Any, settings: Mapping[str, Any], seed: int, start: str | Path, device: str = "cpu"):
        self.task = task
        self.sample = sample
        self.settings = settings
        self.device = device
        self.problem_rng, self.prm_rng = (torch.Generator().manual_seed(10 * seed + k) for k in (1, 2))
        self.sample_rng = torch.Generator(device).manual_seed(10 * seed + 3)
        load = partial(AutoModelForCausalLM.from_pretrained, start, dtype=torch.float32)
        self.policy = Learner(load().to(device), settings["actor.lr"], settings["actor.lr_warmup_steps"])
        self.average = load().to(device) if settings["prime.anchor.coefficient"] > 0 else None
        self.prm = self.reference = None
        if settings["prime.process.coefficient"] > 0:
            prm = load().to(device)
            if settings["prm.trainable_layers"]:
                train_last_layers(prm, settings["prm.trainable_layers"])
            rates = {"lr": settings["prm.lr"], "warm_up": settings["prm.lr_warmup_steps"]}
            self.prm = Learner(prm, **rates, clip=10.0, decay=0.0, bias_lr=0.05 * settings["prm.bias"])
            self.reference = load().to(device) if settings["prm.reference"] == "frozen" else None
        self.gate = ReliabilityGate()
        self.rollouts = 0
        self.shares: dict[str, list[tuple[float, float]]] = defaultdict(list)  # numerators and denominators, by name

    def step(self) -> None:
        """One step of training (Algorithm 1 of the paper)."""
        batch = self.collect()
        gate, scores = self.learn_and_score(batch) if self.prm else (0.0, None)
        estimates = advantage.combine_sources(self.reward_sources(batch, gate, scores), batch.mask_BT, batch.group_B)
        self.update_policy(batch, estimates.advantage_BT, self.kl_targets(batch, gate, scores))

    @torch.no_grad()
    def collect(self) -> Rollouts:
        """Return judged rollouts of new problems."""
        n = self.settings["rollout.n"]
        problems = [p for p in self.task.draw(self.settings["rollout.prompts"], self.problem_rng) for _ in range(n)]
        batch = self.sample(self.policy.model, self.task, problems, self.sample_rng)
        outcome_B = self.task.verify(problems, batch.response_BT.cpu()).to(self.device)
        batch = batch._replace(outcome_B=outcome_B, group_B=torch.arange(len(problems), device=self.device) // n)
        self.rollouts += len(problems)
        old_BT = batch.log_probs(batch.logits(self.policy.model)) if batch.old_BT is None else batch.old_BT
        reference_BT = batch.log_probs(batch.logits(self.reference)) if self.reference else old_BT
        return batch._replace(old_BT=old_BT, reference_BT=reference_BT)

    @torch.no_grad()
    def learn_and_score(self, batch: Rollouts) -> tuple[float, PRMOutputs]:
        """Train the PRM on the outcomes; return the gate, and the scores that the policy is trained with."""
        if self.settings["prime.process.form"] == "kl":  # PRIME-D: learn first, then read the distribution
            unseen = self.score(batch)
            self.update_prm(batch)
            scores = self.score(batch)
        else:  # PRIME: each mini-batch is scored by the pass that learns from it
            unseen = scores = (self.update_prm(batch), None)
        pairs = count_pairs(unseen[0].sum(-1), batch.outcome_B, batch.group_B)
        gate = self.gate.update(pairs) if self.settings["prime.process.gate"] else 1.0
        self.shares["pair_accuracy"].append(pairs)
        self.shares["gate"].append((gate, 1.0))
        return gate, scores

    def score(self, batch: Rollouts) -> PRMOutputs:
        logits_NV = batch.logits(self.prm.model)
        return implicit_reward.log_ratio(batch.log_probs(logits_NV), batch.reference_BT, batch.mask_BT), logits_NV

    @torch.enable_grad()
    def update_prm(self, batch: Rollouts) -> torch.Tensor:
        """Minimize the cross-entropy of the outcomes; return q_t of each row before it was first learned from."""
        ce = prm_losses.PRM_LOSSES["ce"]
        first_BT = torch.zeros_like(batch.reference_BT)
        if self.settings["prm.bias"] and not self.prm.optimizer.state:  # its first update
            self.prm.bias.data.fill_(prm_losses.compute_logit(float(batch.outcome_B.mean())))
        for rows in torch.randperm(len(first_BT), generator=self.prm_rng).split(self.settings["prm.mini_batch_size"]):
            mini_batch = batch.rows(rows)
            q_BT, _ = self.score(mini_batch)
            first_BT[rows] = q_BT.detach()
            fields = ce.prepare(mini_batch.outcome_B, mini_batch.group_B, torch.ones_like(mini_batch.outcome_B))
            fields = replace(fields, weight_B=fields.weight_B / len(rows))
            self.prm.minimize(ce.loss(q_BT, mini_batch.mask_BT, fields, self.settings["prm.beta"], bias=self.prm.bias))
        return first_BT

    def reward_sources(self, batch: Rollouts, gate: float, scores: PRMOutputs | None) -> dict[str, RewardSource]:
        """Return the rewards by source: the outcome at the last token and, in PRIME, the PRM's at all tokens."""
        reward_BT = batch.outcome_B[:, None] * mark_last_token(batch.mask_BT)
        estimator = self.settings["prime.outcome.estimator"]
        sources = {"outcome": advantage.outcome_source(reward_BT, batch.mask_BT, estimator)}
        if scores and self.settings["prime.process.form"] == "tokens":
            weight = self.settings["prime.process.coefficient"] * gate
            reward_BT = implicit_reward.process_rewards(scores[0], self.settings["prm.beta"])
            reward_BT, _ = normalize_by_batch_max(reward_BT, batch.mask_BT, discount=1.0)
            sources["process"] = RewardSource(reward_BT, batch.mask_BT, weight)
        return sources

    @torch.no_grad()
    def kl_targets(self, batch: Rollouts, gate: float, scores: PRMOutputs | None) -> Targets:
        """Return the distributions that the policy is pulled towards: the PRM's, and that of its moving average."""
        targets = []
        if scores and self.settings["prime.process.form"] == "kl":
            targets.append((self.settings["prime.process.coefficient"] * gate, scores[1]))
        if self.average:
            weights = (list(model.parameters()) for model in (self.average, self.policy.model))
            distillation.update_average(*weights, self.settings["prime.anchor.decay"])
            targets.append((self.settings["prime.anchor.coefficient"] * (1 - gate), batch.logits(self.average)))
        # Left out, not multiplied by zero: a shut gate leaves the same bits as no PRM.
        return [(weight, logits_NV) for weight, logits_NV in targets if weight > 0]

    def update_policy(self, batch: Rollouts, advantage_BT: torch.Tensor, targets: Targets) -> None:
        """One pass over the batch: PPO's clipped loss, and the divergences from the targets; means over tokens."""
        clip, mini_batches = (self.settings[f"actor.{name}"] for name in ("clip_ratio", "mini_batches"))
        number_BT = (batch.mask_BT.flatten().cumsum(0) - 1).view_as(batch.mask_BT)  # of each valid token
        for rows in torch.randperm(len(batch.mask_BT), generator=self.problem_rng).chunk(mini_batches):
            mini_batch = batch.rows(rows)
            logits_NV = mini_batch.logits(self.policy.model)
            token_N = mini_batch.response_BT[mini_batch.mask_BT]
            if targets:
                pulls = [target_NV[number_BT[rows][mini_batch.mask_BT]] for _, target_NV in targets]
                log_prob_N, kl_NJ = distillation.log_probs_and_reverse_kl(logits_NV, token_N, pulls)
            else:
                log_prob_N = mini_batch.log_probs(logits_NV)[mini_batch.mask_BT]
            advantage_N = advantage_BT[rows][mini_batch.mask_BT]
            ratio_N = (log_prob_N - mini_batch.old_BT[mini_batch.mask_BT]).exp()
            loss = torch.max(-advantage_N * ratio_N, -advantage_N * ratio_N.clamp(1 - clip, 1 + clip)).mean()
            self.policy.minimize(loss + sum(weight * kl_NJ[:, j].mean() for j, (weight, _) in enumerate(targets)))

    def evaluate(self) -> dict[str, float | int]:
        """Return the accuracy on held-out problems at temperature 1; of the PRM, means since the last evaluation."""
        problems = self.task.draw(self.task.held_out, torch.Generator().manual_seed(987), held_out=True)
        self.held_out = self.sample(self.policy.model, self.task, problems, torch.Generator(self.device).manual_seed(5))
        accuracy = float(self.task.verify(problems, self.held_out.response_BT.cpu()).mean())
        point = {"rollouts": self.rollouts, "accuracy": round(accuracy, 4)}
        for name, shares in self.shares.items():
            above, below = (float(sum(parts)) for parts in zip(*shares, strict=True))
            point |= {name: round(above / below, 4)} if below else {}
        self.shares = defaultdict(list)
        return point

    def train(self, budget: int, every: int = 160) -> Iterator[dict[str, float | int]]:
        """Train until ``budget`` rollouts were sampled; yield an evaluation before, at the end and every few."""
        yield self.evaluate()
        while self.rollouts < budget:
            before = self.rollouts // every
            self.step()
            if self.rollouts // every > before or self.rollouts >= budget:
                yield self.evaluate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help=", ".join(DEFAULTS))
    parser.add_argument("--method", default="distilled", help=", ".join(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rollouts", type=int, default=1600)
    parser.add_argument("--model", nargs=2, metavar=("MODEL", "DATA"), help="in place of the built-in task")
    parser.add_argument("--max-response-length", type=int, default=256, help="tokens, for --model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda: not tried")
    parser.add_argument("--output", type=Path, default=Path("outputs/minimal_prime"), help="folder of the start")
    options = parser.parse_intermixed_args()
    logging.disable_progress_bar()
    start = options.model[0] if options.model else options.output / "start"
    try:
        settings = build_settings(options.method, dict(change.partition("=")[::2] for change in options.changes))
        task = TextTask(*options.model, options.max_response_length) if options.model else ChainTask()
    except (SettingsError, SourceError, TextError, OSError) as error:
        raise SystemExit(f"error: {str(error).splitlines()[0]}") from None
    if not options.model:
        use_one_thread()
    if not options.model and not start.exists():
        write_start(task, start)
    for point in Trainer(task, settings, options.seed, start, options.device).train(options.rollouts):
        print("  ".join(f"{name} {value}" for name, value in point.items()), flush=True)


if __name__ == "__main__":
    main()
