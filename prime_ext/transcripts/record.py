# SPDX-License-Identifier: Apache-2.0
"""Recorder of some rollouts of training: one file of JSON lines for each recorded step.

A line is a rollout, with its prompt, tokens, verdict and, if the policy is trained on it, the
rewards and advantages of its tokens. docs/how_to/transcripts.md has the fields.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from prime_ext.algorithms.prompt_filter import KEPT
from prime_ext.methods.rollouts import Rollouts
from prime_ext.methods.settings import PrimeSettings
from prime_ext.methods.store import RolloutStore, group_uid, reward_info
from prime_ext.run.metrics_file import put_aside
from prime_ext.step.step import StepResult
from prime_ext.step_rm.response_cut import TokenText
from prime_ext.transcripts.files import FOLDER, find_steps, step_file
from prime_ext.utils.files import write_json_lines
from prime_ext.utils.timing import add_seconds

logger = logging.getLogger(__name__)

Row = dict[str, Any]
# Characters of a text of the reward manager, and of a gold answer, which may be a file of tests.
_LONGEST = 2000
# Metrics of a step that its page explains.
_OF_STEP = ("prime/gate/", "prime/kl/", "prime/process/normalizer", "prm/pair_accuracy/before")


@dataclass
class TranscriptRecorder:
    """Writer of the transcripts of a run, into ``folder``.

    It records the first step, every ``every``-th and the last; of each ``prompts`` that are trained
    on, with all their rollouts, and as many that the filter dropped. ``method`` is for readers.
    verl has a tokenizer only after the replay buffer, which refers to the recorder.
    """

    folder: Path
    every: int
    prompts: int
    method: str
    get_tokenizer: Callable[[], Any]
    _step: int = 0
    _recording: bool = False
    # By key: rollouts that are trained on, that the filter dropped, and that left a kept prompt.
    _trained: dict[str, Row] = field(default_factory=dict)
    _dropped: dict[str, Row] = field(default_factory=dict)
    _removed: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def from_config(
        cls, config: DictConfig, method: str, get_tokenizer: Callable[[], Any]
    ) -> "TranscriptRecorder":
        """Build the recorder of a run's configuration."""
        settings = config.transcripts
        folder = Path(config.trainer.default_local_dir) / FOLDER
        return cls(folder, settings.every, settings.prompts, method, get_tokenizer)

    @cached_property
    def _text(self) -> TokenText:
        return TokenText(self.get_tokenizer())

    @cached_property
    def _special(self) -> dict[int, str]:
        tokenizer = self.get_tokenizer()
        ids = tokenizer.all_special_ids
        return dict(zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True))

    # ---- the run ---------------------------------------------------------------------------------

    def resume(self, step: int) -> None:
        """Delete the files of later steps, which are made again; at step 0 put all aside."""
        if self.every <= 0:
            return
        if step == 0:
            put_aside(self.folder)
        for later in find_steps(self.folder):
            if later > step:
                step_file(self.folder, later).unlink()

    @contextmanager
    def record(self, step: int, is_last: bool, seconds: dict[str, float]) -> Iterator[None]:
        """Record in this context; write the file at its end, also where an error ends the step.

        ``seconds`` gets the time of writing. A full disk must not end the run: it gets a warning.
        """
        self._step = step
        self._recording = self.every > 0 and (step == 1 or step % self.every == 0 or is_last)
        try:
            yield
        finally:
            self._recording = False
            with add_seconds("transcripts", seconds):
                rows = self._collect()
                for recorded in (self._trained, self._dropped, self._removed):
                    recorded.clear()
                if rows:
                    try:
                        write_json_lines(step_file(self.folder, step), rows)
                    except OSError as error:
                        logger.warning("no transcripts of step %d: %s", step, error)

    def _collect(self) -> list[Row]:
        kept = {row["uid"] for row in self._trained.values()}
        left = {key: row for key, row in self._removed.items() if row["uid"] in kept}
        rows = {**self._dropped, **left, **self._trained}
        dropped = {row["uid"] for row in self._dropped.values()}

        def order(key: str) -> tuple[bool, str, list[int]]:
            """Put prompts that are trained on first, and rollouts in the order of their numbers."""
            uid, *numbers = key.split("_")
            return uid in dropped, uid, [int(number) for number in numbers]

        return [rows[key] for key in sorted(rows, key=order)]

    # ---- rollouts --------------------------------------------------------------------------------

    def add_removed(self, store: RolloutStore, decisions: Sequence[str]) -> None:
        """Record rollouts before they leave the store, with the filter's decisions on prompts.

        Of a prompt that is kept these are the rollouts that could not be graded.
        """
        if not self._recording:
            return
        uids = dict.fromkeys(row["uid"] for row in self._dropped.values())
        positions = []
        for position, (key, decision) in enumerate(zip(store.keys, decisions, strict=True)):
            uid = group_uid(key)
            if decision != KEPT and uid not in uids:
                if len(uids) >= self.prompts:
                    continue
                uids[uid] = None
            positions.append(position)
        rows = self._describe(store.select(positions)) if positions else []
        for position, row in zip(positions, rows, strict=True):
            row["filter"] = decisions[position]
            recorded = self._removed if decisions[position] == KEPT else self._dropped
            recorded[store.keys[position]] = row

    def _choose(self, store: RolloutStore) -> list[int]:
        """Return the rows of the prompts that are recorded, at most ``prompts`` in a step."""
        uids = {row["uid"] for row in self._trained.values()}
        new = sorted({group_uid(key) for key, pad in _rows(store) if not pad} - uids)
        chosen = {*new[: self.prompts - len(uids)]}
        return [row for row, (key, pad) in enumerate(_rows(store)) if group_uid(key) in chosen]

    def add_prime(self, rollouts: Rollouts, result: StepResult, settings: PrimeSettings) -> None:
        """Record rollouts that are trained on, with the rewards and advantages of PRIME's step."""
        positions = self._choose(rollouts.store) if self._recording else []
        if not positions:
            return
        scored = result.scored
        steps = scored.steps
        metrics = {
            name: value for name, value in result.metrics.items() if name.startswith(_OF_STEP)
        }
        scale = getattr(settings.process, "coefficient", None)
        unit = settings.granularity if settings.paid_process is not None else "token"
        for position, row in zip(
            positions, self._describe(rollouts.store.select(positions)), strict=True
        ):
            n_tokens = len(row["tokens"])
            row |= {
                "filter": KEPT,
                "mask": rollouts.mask_BT[position, :n_tokens].int().tolist(),
                "outcome": _round(rollouts.reward_BT[position].sum()),
                "advantage": _round(result.advantage_BT[position, :n_tokens]),
                "return": _round(result.return_BT[position, :n_tokens]),
                "paid_here": _round(result.reward_BT[position, :n_tokens]),
                "metrics": metrics,
                "coefficient": scale,
                "paid": settings.paid_process is not None,
            }
            if steps is not None:
                count = int(steps.spans.count_B[position])
                end_S = steps.spans.end_BS[position, :count]
                row |= {"step_ends": end_S.tolist(), "unit": unit}
            if scored.reward_BT is not None:
                reward_T = scored.reward_BT[position, :n_tokens]
                if scored.score_BS is not None:
                    row["step_scores"] = _round(scored.score_BS[position, : len(row["step_ends"])])
                else:
                    row["process"] = _round(reward_T)
            turns = rollouts.turns
            if turns is not None and turns.reward_BT is not None:
                end_N = (turns.end_BT[position] & rollouts.mask_BT[position].bool()).nonzero()[:, 0]
                row["turn_ends"] = end_N.tolist()
                row["turn_rewards"] = _round(turns.reward_BT[position, end_N])
            self._trained[rollouts.store.keys[position]] = row

    def _describe(self, store: RolloutStore) -> list[Row]:
        """Return the fields that trained and dropped rollouts have in common."""
        ids = store.fetch_rows("prompts", "responses")
        # A user's reward manager may need no gold answers.
        data = store.fetch_present("extra_fields", "reward_model")
        golds = data.get("reward_model", [None] * len(store))
        rows = []
        for position, key in enumerate(store.keys):
            tokens = ids["responses"][position].tolist()
            pieces = self._text.pieces(tokens)
            info = reward_info(key, data["extra_fields"][position])
            model = golds[position]
            gold = model.get("ground_truth") if isinstance(model, Mapping) else None
            prompt = self.get_tokenizer().decode(ids["prompts"][position].tolist())
            rows.append(
                {
                    "step": self._step,
                    "uid": group_uid(key),
                    "key": key,
                    "method": self.method,
                    "prompt": prompt,
                    "gold": None if gold is None else _cut(gold),
                    "tokens": [
                        self._special.get(token, piece)
                        for token, piece in zip(tokens, pieces, strict=True)
                    ],
                    "info": {str(name): _make_plain(value) for name, value in info.items()},
                }
            )
        return rows


def _rows(store: RolloutStore) -> Iterable[tuple[str, bool]]:
    return zip(store.keys, store.padding, strict=True)


def _round(value: torch.Tensor) -> Any:
    """Return numbers with six digits, as a list or alone."""
    values = value.tolist()
    if isinstance(values, list):
        return [float(f"{number:.6g}") for number in values]
    return float(f"{values:.6g}")


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _make_plain(value: Any) -> Any:
    """Return a number as it is, and all else as a text."""
    value = getattr(value, "item", lambda: value)() if getattr(value, "ndim", None) == 0 else value
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _cut(value) if value is not None else None
