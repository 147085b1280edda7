# SPDX-License-Identifier: Apache-2.0
"""Runs of studies in one process, by an extended trainer of examples/minimal_prime.py.

It adds wrong labels, times, labels of steps and rewards of turns. The task is chains, the game of
:mod:`recipes.studies.game_task`, or a task of reasoning-gym for a pretrained model, whose passes
are those of :mod:`recipes.studies.packed_model`.
"""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from tqdm import trange
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

from examples.minimal_prime import (
    ChainTask,
    Learner,
    PRMOutputs,
    TextTask,
    Trainer,
    build_settings,
    pad_left,
    write_start,
)
from prime_ext.algorithms.estimators import RewardSource
from prime_ext.algorithms.prm_accuracy import count_pairs
from prime_ext.algorithms.process_shaping import ProcessShaping, center_wrong, credit_rewards
from prime_ext.algorithms.reliability_gate import ReliabilityGate
from prime_ext.algorithms.steps import step_spans
from prime_ext.algorithms.turns import turn_boundaries
from prime_ext.config.checks import STRICT, SettingsError, read
from prime_ext.generate.prm_description import versions
from prime_ext.names import Credit
from prime_ext.tasks.gym_problems import generate
from prime_ext.utils.files import read_json, write_atomically, write_json
from prime_ext.utils.rows import SourceError
from prime_ext.utils.run_store import check_identity
from prime_ext.utils.text_tokens import TextEncoder
from prime_ext.verifiers.gym_verifier import GymVerifier, read_problem
from recipes.studies.game_task import GameTask, play
from recipes.studies.packed_model import MixedRollouts, PackedRollouts, sample

CURVE = (
    *("rollouts", "seconds", "accuracy", "step_accuracy", "pair_accuracy", "gate", "step_auc"),
    "kl_from_start",
)
PRECISIONS = {"bfloat16": MixedRollouts, "float32": PackedRollouts}


def label_steps(task: Any, rollouts: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return labels at the ends of steps (1: right from the value before) and the mask of ends.

    Both are ``(B, T)``. Chains have a step per result, sums one per line, games one per turn, which
    is right if it came nearer.
    """
    if isinstance(task, SumTask):
        return task.label_lines(rollouts)
    if isinstance(task, GameTask):
        gain_BT = task.turn_rewards("gains", rollouts.mask_BT)
        return (gain_BT > 0).float(), turn_boundaries(rollouts.mask_BT, rollouts.mask_BT)
    operation_BK = rollouts.prompt_BP[:, 2:-1] - task.first_operation
    response_BT = rollouts.response_BT
    before_BK = response_BT[:, 0:-3:2]
    shown_BK = response_BT[:, 1:-2:2]
    after_BK = response_BT[:, 2:-1:2]
    value_BK = (before_BK - task.first_value).clamp(0, task.n_values - 1)
    same_BK = (before_BK == value_BK + task.first_value) & (
        shown_BK == operation_BK + task.first_operation
    )
    right_BK = same_BK & (after_BK == task.right[operation_BK, value_BK] + task.first_value)
    label_BT = torch.zeros(response_BT.shape)
    is_result_BT = torch.zeros(response_BT.shape, dtype=torch.bool)
    is_result_BT[:, 2:-1:2] = after_BK != task.pad
    label_BT[:, 2:-1:2] = right_BK.float()
    return label_BT, is_result_BT


class GymTask(TextTask):
    """Problems of a task of reasoning-gym, with its parameters; the first 256 are held out.

    Responses have at most ``limit`` tokens. A response that the scorer cannot judge counts as
    wrong.
    """

    held_out = 256

    def __init__(self, model: str, reasoning_gym: str, limit: int, train: int = 2000):
        problems = generate(reasoning_gym, self.held_out + train, seed=0)
        rows = [
            ([{"role": "user", "content": problem["question"]}], problem["gold"])
            for problem in problems
        ]
        self.rows = {True: rows[: self.held_out], False: rows[self.held_out :]}
        self.encoder = TextEncoder(AutoTokenizer.from_pretrained(model))
        self.limit = limit
        self.pad = self.eos = self.encoder.tokenizer.eos_token_id
        self.verifier = GymVerifier()


class SumTask(GymTask):
    """Sums of reasoning-gym's ``chain_sum`` as bare terms, such as ``4 - 1 + 7 =``.

    ``sums`` are its parameters. A response has one line per operation and then the boxed result,
    as ``demonstrate`` writes it. ``demonstrations`` are the number of problems for the warm start.
    """

    def __init__(
        self, model: str, sums: str, limit: int, train: int = 4000, demonstrations: int = 512
    ):
        super().__init__(model, f"chain_sum:{sums}", limit, train + demonstrations)
        self.demonstrated = self.rows[False][train:]
        self.rows[False] = self.rows[False][:train]

    def prompts(self, problems: Sequence[tuple[Any, str]]) -> list[list[int]]:
        return [self.encoder.plain(format_prompt(gold)) for _, gold in problems]

    def label_lines(self, rollouts: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return labels of lines at their last tokens, and the mask of these, both ``(B, T)``.

        A line is right if it continues from the result of the line before it, or from the first
        term, with the next term of the problem. Lines after the last term do not count.
        """
        label_BT = torch.zeros(rollouts.response_BT.shape)
        is_end_BT = torch.zeros(rollouts.response_BT.shape, dtype=torch.bool)
        for row, prompt in enumerate(self.encoder.tokenizer.batch_decode(rollouts.prompt_BP)):
            terms = re.findall(r"[+-] \d+|\d+", prompt)
            valid_N = rollouts.response_BT[row][rollouts.mask_BT[row]]
            tokens = self.encoder.tokenizer.batch_decode(valid_N[:, None])
            ends = [t for t, token in enumerate(tokens) if "\n" in token][: len(terms) - 1]
            starts = [0, *(end + 1 for end in ends)]
            before = terms[0]
            for start, end, term in zip(starts, ends, terms[1:], strict=False):
                line = "".join(tokens[start:end])
                label_BT[row, end] = float(line == add_term(before, term))
                is_end_BT[row, end] = True
                before = line.rpartition("= ")[2]
        return label_BT, is_end_BT


def get_terms(gold: str) -> str:
    """Return the terms of a problem, such as ``4 - 1 + 7``."""
    return read_problem(gold)["metadata"]["expression"]


def format_prompt(gold: str) -> str:
    """Return the prompt of a problem, its terms alone."""
    return f"{get_terms(gold)} =\n"


def add_term(before: str, term: str) -> str:
    """Return a line such as ``4 - 1 = 3``, or "" if ``before`` is not a number."""
    if not re.fullmatch(r"-?\d{1,9}", before):
        return ""
    return f"{before} {term} = {int(before) + int(term.replace(' ', ''))}"


def demonstrate(terms: str) -> str:
    """Return a response with one line per operation and the boxed result."""
    before, *others = re.findall(r"[+-] \d+|\d+", terms)
    lines = []
    for term in others:
        lines.append(add_term(before, term))
        before = lines[-1].rpartition("= ")[2]
    return "\n".join([*lines, f"\\boxed{{{before}}}"])


def train_on_demonstrations(
    task: SumTask,
    model: str,
    steps: int,
    lr: float,
    batch_size: int,
    seed: int,
    kind: type[PackedRollouts] = MixedRollouts,
) -> tuple[Any, list[float]]:
    """Return a model that imitates demonstrations, and the loss of each step."""
    generator = torch.Generator().manual_seed(seed)
    learner = Learner(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), lr, 5)
    prompts = task.prompts(task.demonstrated)
    responses = [
        torch.tensor([*task.encoder.plain(demonstrate(get_terms(gold))), task.eos])
        for _, gold in task.demonstrated
    ]
    losses = []
    for _ in trange(steps, desc=f"imitating {len(prompts)} demonstrations"):
        rows = torch.randperm(len(prompts), generator=generator)[:batch_size].tolist()
        chosen = [responses[row] for row in rows]
        response_BT = torch.nn.utils.rnn.pad_sequence(chosen, True, task.pad)
        length_B1 = torch.tensor([[len(response)] for response in chosen])
        mask_BT = torch.arange(response_BT.shape[1]) < length_B1
        prompt_BP, prompt_mask_BP = pad_left([prompts[row] for row in rows], task.pad)
        batch = kind(
            prompt_BP, prompt_mask_BP, response_BT, mask_BT, group_B=torch.arange(len(rows))
        )
        logits_NV = batch.logits(learner.model).float()
        loss = torch.nn.functional.cross_entropy(logits_NV, response_BT[mask_BT])
        learner.minimize(loss)
        losses.append(round(float(loss), 4))
    return learner.model, losses


@dataclass(frozen=True, config=STRICT)
class NoisyScorer:
    """A step scorer for chains that knows the labels of steps and misjudges some (``scorer.*``)."""

    accuracy: Annotated[float, Field(ge=0, le=1)]
    """Probability that a step gets its label, 0 or 1, as its score; else it gets the other."""
    repeats: bool = False
    """Misjudge a step by its value, operation and result, as drawn for the run: always in the same
    way; false: each step by chance."""
    center_wrong: bool = False
    """The same as prime.process.center_wrong."""
    credit: Credit = "sum"
    """The same as prime.process.credit."""
    discount: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The same as prime.process.discount."""
    estimator: Literal["rloo", "rloo_per_token"] = "rloo"
    """The same as prime.process.estimator."""

    def score(
        self, task: ChainTask, rollouts: Any, generator: torch.Generator, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores at the ends of steps, and the mask of ends, ``(B, T)`` both."""
        label_BT, is_end_BT = label_steps(task, rollouts)
        if self.repeats:
            size = 3 * [task.first_operation + task.n_operations]
            draw_VVV = torch.rand(size, generator=torch.Generator().manual_seed(seed))
            ids_BT = rollouts.response_BT
            draw_BT = torch.zeros(ids_BT.shape)
            draw_BT[:, 2:] = draw_VVV[ids_BT[:, :-2], ids_BT[:, 1:-1], ids_BT[:, 2:]]
        else:
            draw_BT = torch.rand(label_BT.shape, generator=generator)
        return torch.where(draw_BT < self.accuracy, label_BT, 1 - label_BT) * is_end_BT, is_end_BT


class StudyTrainer(Trainer):
    """A trainer that inverts the share ``flipped`` of the outcomes, but not in evaluation.

    With ``filters`` prompts whose responses have equal outcomes are left out and not replaced.
    A ``scorer`` rewards steps next to the outcome. With ``shuffled`` the PRM learns from the
    outcomes of other responses, a control. ``seconds`` are those of the processor, so that other
    work on the machine does not count. ``origin`` is the model before training, if the divergence
    from it is measured. In games ``turns`` says which rewards of turns count besides the
    outcome, and ``by_turn`` pays the PRM's rewards at their ends.
    """

    flipped = 0.0
    filters = False
    seconds = 0.0
    shuffled = False
    origin: Any = None
    turns: Literal["none", "rewards", "gains"] = "none"
    by_turn = False
    scorer: NoisyScorer | None = None
    seed = 0

    def step(self) -> None:
        started = time.process_time()
        super().step()
        self.seconds += time.process_time() - started

    def get_stateful(self) -> dict[str, Any]:
        """Return by name what has a ``state_dict`` that training changes."""
        stateful = {} if self.average is None else {"average": self.average}
        for name, learner in (("policy", self.policy), ("prm", self.prm)):
            if learner is not None:
                stateful[name] = learner.model
                stateful[f"{name}_optimizer"] = learner.optimizer
                stateful[f"{name}_schedule"] = learner.schedule
        return stateful

    def save_state(self) -> dict[str, Any]:
        """Return all that training changes."""
        state = {name: owner.state_dict() for name, owner in self.get_stateful().items()}
        state["bias"] = self.prm and self.prm.bias
        state["random"] = [getattr(self, name).get_state() for name in GENERATORS]
        return state | {
            "gate": vars(self.gate),
            "rollouts": self.rollouts,
            "seconds": self.seconds,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which then belongs to the trainer."""
        for name, owner in self.get_stateful().items():
            owner.load_state_dict(state[name])
        if self.prm is not None:
            self.prm.bias.data.copy_(state["bias"])
        for name, random in zip(GENERATORS, state["random"], strict=True):
            getattr(self, name).set_state(random)
        self.gate = ReliabilityGate(**state["gate"])
        self.rollouts = state["rollouts"]
        self.seconds = state["seconds"]

    def collect(self) -> Any:
        batch = super().collect()
        if self.filters:
            batch = keep_mixed(batch)
        if self.flipped == 0:
            return batch
        flipped_B = torch.rand(len(batch.outcome_B), generator=self.problem_rng) < self.flipped
        return batch._replace(
            outcome_B=torch.where(flipped_B, 1 - batch.outcome_B, batch.outcome_B)
        )

    def learn_and_score(self, batch: Any) -> tuple[float, PRMOutputs]:
        if self.shuffled:
            order_B = torch.randperm(len(batch.outcome_B), generator=self.prm_rng)
            batch = batch._replace(outcome_B=batch.outcome_B[order_B])
        if isinstance(batch, PackedRollouts) and self.settings["prm.trainable_layers"]:
            batch = batch.keep_frozen_layers(self.prm.model)
        gate, scores = super().learn_and_score(batch)
        if not isinstance(self.task, LABELED):
            return gate, scores
        label_BT, is_end_BT = label_steps(self.task, batch)
        score_N = (
            scores[0][is_end_BT]
            if isinstance(self.task, ChainTask)
            else sum_steps(scores[0], is_end_BT)
        )
        label_N = label_BT[is_end_BT]
        # All steps as one group: the share of right ones that score above wrong ones.
        auc = count_pairs(score_N, label_N, torch.zeros_like(label_N, dtype=torch.long)).accuracy
        if auc is not None:
            self.shares["step_auc"].append((auc, 1.0))
        return gate, scores

    def reward_sources(
        self, batch: Any, gate: float, scores: PRMOutputs | None
    ) -> dict[str, RewardSource]:
        sources = super().reward_sources(batch, gate, scores)
        if isinstance(self.task, GameTask):
            return sources | self.turn_sources(batch, sources)
        if self.scorer is None:
            return sources
        scorer = self.scorer
        score_BT, is_end_BT = scorer.score(self.task, batch, self.prm_rng, self.seed)
        # The steps of chains end at every second token.
        score_BT[:, 2::2] = credit_rewards(scorer.credit, score_BT[:, 2::2], is_end_BT[:, 2::2])
        pairs = count_pairs(score_BT.sum(1), batch.outcome_B, batch.group_B)
        gate = self.gate.update(pairs) if self.settings["prime.process.gate"] else 1.0
        self.shares["pair_accuracy"].append(pairs)
        self.shares["gate"].append((gate, 1.0))
        if scorer.center_wrong:
            score_BT = center_wrong(score_BT, is_end_BT, batch.outcome_B, batch.group_B)
        fields = {"discount": scorer.discount, "estimator": scorer.estimator}
        return sources | {"process": RewardSource(score_BT, is_end_BT, gate, **fields)}

    def turn_sources(
        self, batch: Any, sources: Mapping[str, RewardSource]
    ) -> dict[str, RewardSource]:
        """Return the game's rewards of turns, and the PRM's paid by turn, where they count."""
        end_BT = turn_boundaries(batch.mask_BT, batch.mask_BT)
        by_turn: dict[str, Any] = {"mask_BT": end_BT, "turn_end_BT": end_BT}
        by_turn["estimator"] = "turn_rloo"
        made = {}
        if self.turns != "none":
            reward_BT = self.task.turn_rewards(self.turns, batch.mask_BT)
            made["turns"] = RewardSource(reward_BT, **by_turn)
        if self.by_turn:
            spans = step_spans(end_BT, batch.mask_BT)
            pay_turns = ProcessShaping("turn")
            sum_BT, _ = pay_turns(sources["process"].reward_BT, batch.mask_BT, spans)
            made["process"] = replace(sources["process"], reward_BT=sum_BT, **by_turn)
        return made

    @torch.no_grad()
    def evaluate(self) -> dict[str, float | int]:
        point = super().evaluate() | {"seconds": round(self.seconds, 3)}
        if self.origin is not None:
            batch = self.held_out.rows(torch.arange(64))
            ratio_BT = batch.old_BT - batch.log_probs(batch.logits(self.origin))
            point["kl_from_start"] = round(float(ratio_BT.sum(1).mean()), 4)
        if not isinstance(self.task, LABELED):
            return point
        label_BT, is_end_BT = label_steps(self.task, self.held_out)
        return point | {"step_accuracy": round(float(label_BT.sum() / is_end_BT.sum()), 4)}


LABELED = (ChainTask, SumTask, GameTask)
GENERATORS = ("problem_rng", "prm_rng", "sample_rng")


def keep_mixed(batch: Any) -> Any:
    """Return the rollouts of prompts with right and wrong responses; all if there are none."""
    right_B, total_B = (
        torch.zeros_like(batch.outcome_B).index_add(0, batch.group_B, values_B)[batch.group_B]
        for values_B in (batch.outcome_B, torch.ones_like(batch.outcome_B))
    )
    is_mixed_B = (right_B > 0) & (right_B < total_B)
    return batch.rows(is_mixed_B) if is_mixed_B.any() else batch


def sum_steps(score_BT: torch.Tensor, is_end_BT: torch.Tensor) -> torch.Tensor:
    """Return the sum of scores ``(N,)`` of each step, from the end of the one before it."""
    total_N = score_BT.cumsum(1)[is_end_BT]
    is_first_N = (is_end_BT.cumsum(1) == 1)[is_end_BT]
    return total_N - total_N.roll(1).masked_fill(is_first_N, 0.0)


def make_task(study: Mapping[str, Any], folder: Path) -> tuple[Any, Path]:
    """Return the task of a study, and the folder of the model that all runs start from.

    For chains, and where the study has a ``warm_start``, that model is trained if it is missing.
    ``SettingsError``: a field of the task is unknown or wrong, or a pretrained model is missing.
    """
    fields = dict(study["task"])
    model = Path(study.get("model", folder / "start"))
    fields.pop("flipped", None)
    if "model" in study and not (model / "config.json").exists():
        fetch = f"python -m recipes.pretrained.fetch --output-dir {model}"
        raise SettingsError(f"model: there is no model in {model}; {fetch} gets one")
    try:
        if "model" in study:
            task = (SumTask if "sums" in fields else GymTask)(str(model), **fields)
        else:
            task = (GameTask if "distance" in fields else ChainTask)(**fields)
        warm_start = dict(study.get("warm_start", {}))
        start = Path(warm_start.pop("folder", model))
        if not start.exists():
            print(f"{start}: training the start", flush=True)
            if warm_start:
                trained, _ = train_on_demonstrations(task, str(model), **warm_start)
                with write_atomically(start) as temporary:
                    task.encoder.tokenizer.save_pretrained(temporary)
                    trained.save_pretrained(temporary)
            elif isinstance(task, GameTask):
                task.write_start(start)
            else:
                write_start(task, start)
    except (TypeError, SourceError) as error:
        raise SettingsError(f"task: {error}") from error
    return task, start


def run(
    study: Mapping[str, Any], name: str, words: Sequence[str], seed: int, output: Path
) -> dict[str, list[float | None]]:
    """Return the curve of a run, lists by name, from its file in the study's folder.

    A run without a file is trained first; one that was interrupted continues from its last
    evaluation. A word is ``key=value`` or, where ``name`` is not one, a method of
    examples/minimal_prime.py. ``SettingsError``: a name, key or value cannot work. ``RunError``:
    the run is there with other settings.
    """
    method = next((word for word in words if "=" not in word), name)
    changes = dict(word.split("=", 1) for word in [*study.get("words", []), *words] if "=" in word)
    shuffled = changes.pop("shuffled", "false") == "true"
    filters = read(bool, changes.pop("filter", "false"), "filter")
    precision = changes.pop("precision", "bfloat16")
    of_scorer = {key: changes.pop(key) for key in list(changes) if key.startswith("scorer.")}
    read(Literal[tuple(PRECISIONS)], precision, "precision")
    turns = read(Literal["none", "rewards", "gains"], changes.pop("turns", "none"), "turns")
    by_turn = read(bool, changes.pop("by_turn", "false"), "by_turn")
    is_game = "distance" in study["task"]
    if (turns != "none" or by_turn) and not is_game:
        raise SettingsError(f"turns={turns}, by_turn={by_turn}: only games have turns")
    scorer = None
    if of_scorer:
        fields = {key.removeprefix("scorer."): value for key, value in of_scorer.items()}
        scorer = read(NoisyScorer, fields, "scorer")
        if "model" in study or is_game:
            raise SettingsError("scorer: only chains have one; leave it out")
    settings = build_settings(method, changes)
    plan = {"task": study["task"], "budget": study["rollouts"], "seed": seed, "settings": settings}
    plan |= {"shuffled": True} if shuffled else {}
    plan |= {"filter": True} if filters else {}
    plan |= {"scorer": of_scorer} if of_scorer else {}
    plan |= {"turns": turns, "by_turn": by_turn} if is_game else {}
    if "model" in study:
        plan |= {"warm_start": study.get("warm_start"), "precision": precision}
    folder = output / study["name"]
    path = (
        folder
        / f"{','.join([name, *sorted(word for word in words if '=' in word)])}_seed{seed}.json"
    )
    if path.exists():
        known = read_json(path)
        check_identity(path, {key: known.get(key) for key in plan}, plan)
        return known["curve"]
    logging.disable_progress_bar()
    if "model" not in study:
        torch.set_num_threads(1)
    task, start = make_task(study, folder)
    trainer = StudyTrainer(task, settings, seed, start)
    trainer.flipped = study["task"].get("flipped", 0.0)
    trainer.shuffled = shuffled
    trainer.filters = filters
    trainer.turns, trainer.by_turn = turns, by_turn
    if is_game:
        trainer.sample = play
    trainer.scorer = scorer
    trainer.seed = seed
    every = 160
    record = {}
    if "model" in study:
        every = study["every"] * settings["rollout.prompts"] * settings["rollout.n"]
        trainer.sample = partial(sample, kind=PRECISIONS[precision])
        trainer.origin = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
        digest = hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()
        record = {"start": digest, "versions": versions()}
    points = []
    unfinished = path.with_suffix(".unfinished.pt")
    if unfinished.exists():
        saved = torch.load(unfinished)
        check_identity(unfinished, saved["run"], plan | record, "remove it to start again")
        trainer.load_state(saved["state"])
        points = saved["points"]
        del saved
        print(f"{path.stem}: continues after {points[-1]}", flush=True)
    for point in trainer.train(study["rollouts"], every):
        if points and point["rollouts"] == points[-1]["rollouts"]:
            # The evaluation that a run begins with.
            continue
        points.append(point)
        if "model" in study:
            print(f"{path.stem}: {point}", flush=True)
        if 0 < trainer.rollouts < study["rollouts"]:
            state = {"run": plan | record, "points": points, "state": trainer.save_state()}
            with write_atomically(unfinished) as temporary:
                torch.save(state, temporary)
    print(f"{path}: {points[-1]['accuracy']:.1%}", flush=True)
    curve = {key: [point.get(key) for point in points] for key in CURVE}
    curve = {key: values for key, values in curve.items() if set(values) != {None}}
    write_json(path, plan | record | {"curve": curve})
    unfinished.unlink(missing_ok=True)
    return read_json(path)["curve"]
