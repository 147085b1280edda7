# SPDX-License-Identifier: Apache-2.0
"""The prompt filter's verdicts: which finished prompts are worth training on, and their metrics."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transfer_queue import KVBatchMeta

from prime_ext.algorithms.prompt_filter import (
    FAILED,
    KEPT,
    TOO_EASY,
    TOO_HARD,
    TRUNCATED,
    AccuracyBand,
)
from prime_ext.methods.settings import VerifierSettings
from prime_ext.methods.step_scorer.scorer import FAILURE
from prime_ext.methods.store import RolloutStore, group_uid, read_label
from prime_ext.verifiers import Outcome
from prime_ext.verl_adapter import rollout_store as transfer
from prime_ext.verl_adapter.rollout_losses import WARN_RATE

logger = logging.getLogger(__name__)

NOT_SCORED = "not_scored"


class VerifierFailed(RuntimeError):
    """The verifier could not judge a rollout, and ``prime.verifier.on_failure`` is ``stop``."""


class PromptsExhausted(RuntimeError):
    """Too few prompts passed the filter."""


class _Rollout(NamedTuple):
    """A rollout's reward: no outcome without a ``verdict``.

    The accuracy is None if the rollout does not count, NaN if nobody has judged it.
    """

    accuracy: float | None
    cut_off: bool
    outcome: str | None = None
    failed: bool = False
    seconds: float = 0.0
    detail: str = ""


@dataclass
class PromptJudge:
    """Judge of prompts whose rollouts have all ended; it keeps verdicts until :meth:`forget`.

    Attributes:
        band: the filter.
        label_key: key of the reward's extra info that holds the accuracy of a rollout.
        needs_labels: a rollout without an accuracy does not count.
        verifier: what to do with rollouts that the verifier could not judge.
        max_response_length: tokens at which a response is cut off, unless the last one ends it; 0
            for no limit.
        longest: tokens of prompt and response together at which it is cut off, too.
        end_tokens: returns the tokens that end a response.
        watch: receives the rollouts that leave the store, and the verdicts on their prompts.
        verdicts: by prompt.
    """

    band: AccuracyBand
    label_key: str
    verifier: VerifierSettings
    max_response_length: int = 0
    longest: float = math.inf
    end_tokens: Callable[[], Collection[int]] = tuple
    needs_labels: bool = True
    watch: Callable[[RolloutStore, Sequence[str]], None] | None = None
    verdicts: dict[str, str] = field(default_factory=dict)
    _rollouts: dict[str, list[_Rollout]] = field(default_factory=dict)

    def judge(
        self,
        uids: Collection[str],
        partition_id: str,
        partition: dict[str, dict],
        incomplete: Collection[str] = (),
    ) -> None:
        """Judge prompts whose rollouts have all ended.

        Prompts in ``incomplete``, which have rollouts that ended with an error, fail. Rollouts
        without an accuracy leave the store and ``partition``, which has the tags of the rollouts by
        key. May raise VerifierFailed.
        """
        rollouts_by_uid: dict[str, list[_Rollout]] = {uid: [] for uid in uids}
        keys = [key for key in partition if group_uid(key) in rollouts_by_uid]
        cut_off: set[str] = set()
        if self.band.drop_truncated and self.max_response_length:
            tags = {key: partition[key] for key in keys}
            limits = self.max_response_length, self.longest
            cut_off = transfer.find_cut_off(partition_id, tags, *limits, self.end_tokens())
        undecided = []
        for key, info in zip(keys, transfer.fetch_reward_infos(keys, partition_id), strict=True):
            rollout = self._read(key, info, key in cut_off)
            rollouts_by_uid[group_uid(key)].append(rollout)
            if rollout.accuracy is None:
                undecided.append(key)
        self._rollouts.update(rollouts_by_uid)
        for uid, rollouts in rollouts_by_uid.items():
            truncated = [rollout.cut_off for rollout in rollouts if rollout.accuracy is not None]
            verdict = self.band.classify(self._accuracies(uid), truncated)
            self.verdicts[uid] = FAILED if uid in incomplete else verdict
        verdicts = {key: self.verdicts[group_uid(key)] for key in keys}
        leaving = [key for key in keys if verdicts[key] != KEPT or key in undecided]
        if leaving and self.watch is not None:
            rows = KVBatchMeta(leaving, [partition[key] for key in leaving], partition_id)
            self.watch(transfer.TransferQueueStore(rows), [verdicts[key] for key in leaving])
        if undecided:
            transfer.clear(undecided, partition_id)
            for key in undecided:
                del partition[key]

    def _read(self, key: str, info: Mapping[str, Any], cut_off: bool) -> _Rollout:
        unscored = bool(info.get(FAILURE))
        if "verdict" not in info and not unscored:
            return _Rollout(read_label(key, info, self.label_key, self.needs_labels), cut_off)
        ungraded = bool(info.get("grader_failure"))
        failed = unscored or (ungraded and self.needs_labels)
        detail = str(info["failure_detail"] if unscored else info.get("verifier_detail", ""))
        outcome = NOT_SCORED if unscored else str(info["verdict"])
        seconds = float(info.get("verifier_seconds", 0.0))
        if failed and self.verifier.on_failure == "stop":
            raise VerifierFailed(
                f"the verifier could not judge rollout {key} ({outcome} after {seconds:.1f} s:"
                f" {detail}); prime.verifier.on_failure is stop"
            )
        counts = not failed or self.verifier.on_failure == "zero"
        label = read_label(key, info, self.label_key, self.needs_labels) if counts else None
        if ungraded and not self.needs_labels:
            label = math.nan
        return _Rollout(label, cut_off, outcome, failed, seconds, detail)

    def _accuracies(self, uid: str) -> list[float]:
        return [rollout.accuracy for rollout in self._rollouts[uid] if rollout.accuracy is not None]

    def _find_judged(self, uids: Iterable[str]) -> list[_Rollout]:
        """Return the rollouts of these prompts that have an outcome of the verifier."""
        return [
            rollout
            for uid in uids
            for rollout in self._rollouts[uid]
            if rollout.outcome is not None
        ]

    def keeps(self, uid: str) -> bool:
        """Return whether the prompt was judged and may be trained on."""
        return self.verdicts.get(uid) == KEPT

    def forget(self, uids: Iterable[str]) -> None:
        """Drop the verdicts and rollouts of these prompts."""
        for uid in list(uids):
            self.verdicts.pop(uid, None)
            self._rollouts.pop(uid, None)

    def metrics(self, uids: Collection[str]) -> dict[str, float]:
        """Return verdict counts, accuracies before and after the filter, and verifier metrics."""
        counts = Counter(self.verdicts[uid] for uid in uids)
        kept = [uid for uid in uids if self.keeps(uid)]
        metrics = {
            "prime/filter/examined": len(uids),
            "prime/filter/too_hard": counts[TOO_HARD],
            "prime/filter/too_easy": counts[TOO_EASY],
            "prime/filter/truncated": counts[TRUNCATED],
            "prime/filter/failed": counts[FAILED],
            "prime/filter/kept_fraction": counts[KEPT] / max(1, len(uids)),
        }
        for name, prompts in (("before", uids), ("after", kept)):
            accuracies = [value for uid in prompts for value in self._accuracies(uid)]
            judged_accuracies = [value for value in accuracies if not math.isnan(value)]
            if judged_accuracies or self.needs_labels:
                mean = sum(judged_accuracies) / max(1, len(judged_accuracies))
                metrics[f"prime/accuracy/{name}_filter"] = mean
        judged = self._find_judged(uids)
        if not judged:
            return metrics
        outcomes = Counter(rollout.outcome for rollout in judged)
        failure_rate = sum(rollout.failed for rollout in judged) / len(judged)
        if failure_rate > WARN_RATE:
            logger.warning(
                "%s; prime.verifier.on_failure=%s", self._failures(uids), self.verifier.on_failure
            )
        metrics.update(
            {f"verifier/{outcome}": outcomes[str(outcome)] / len(judged) for outcome in Outcome}
        )
        if outcomes[NOT_SCORED]:
            metrics[f"verifier/{NOT_SCORED}"] = outcomes[NOT_SCORED] / len(judged)
        metrics["verifier/failure_rate"] = failure_rate
        metrics["verifier/seconds/mean"] = sum(rollout.seconds for rollout in judged) / len(judged)
        metrics["verifier/seconds/max"] = max(rollout.seconds for rollout in judged)
        return metrics

    def _failures(self, uids: Iterable[str]) -> str:
        """Describe in a line which rollouts the verifier could not judge, and why; else empty."""
        judged = self._find_judged(uids)
        failed = [rollout for rollout in judged if rollout.failed]
        if not failed:
            return ""
        kinds = Counter(rollout.outcome for rollout in failed).most_common()
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds)
        return (
            f"the verifier could not judge {len(failed)} of {len(judged)} rollouts ({counts}), "
            f"the last one because of: {failed[-1].detail}"
        )

    def describe_shortage(
        self, uids: Collection[str], kept: int, batch_size: int, partial: bool
    ) -> str:
        """Describe in one line why only ``kept`` prompts passed, and what may help."""
        counts = Counter(self.verdicts[uid] for uid in uids)
        message = (
            f"only {kept} of {batch_size} prompts passed the filter among {len(uids)} examined"
            f" ({counts[TOO_HARD]} too hard, {counts[TOO_EASY]} too easy, {counts[TRUNCATED]}"
            f" truncated, {counts[FAILED]} failed) with {self.band.lower} <= accuracy <="
            f" {self.band.upper}"
        )
        undecided = self._failures(uids)
        if counts[FAILED] and not undecided:
            message += (
                "; the rollouts that failed ended with an error, which the log has after 'Error in"
                " _run_prompt'"
            )
        if counts[FAILED] < len(uids):
            message += (
                "; use data of another difficulty, widen prime.filter.lower/upper, or raise"
                " prime.filter.max_examined"
            )
            if kept and not partial:
                message += ", or set prime.filter.on_exhausted=partial to train on fewer"
        return f"{undecided}; {message}" if undecided else message
