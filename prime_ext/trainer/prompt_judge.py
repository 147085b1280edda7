# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the prompt filter: which finished prompts are worth training on, and what to report about them."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from prime_ext.algorithms.prompt_filter import FAILED, KEPT, TOO_EASY, TOO_HARD, TRUNCATED, AccuracyBand
from prime_ext.config.settings import VerifierSettings
from prime_ext.reward.pspo_info import FAILURE
from prime_ext.utils import transfer_queue as transfer
from prime_ext.verifiers import Outcome

logger = logging.getLogger(__name__)

NOT_SCORED = "not_scored"


class VerifierFailed(RuntimeError):
    """The verifier could not judge a rollout, and ``prime.verifier.on_failure`` is ``stop``."""


class _Entry(NamedTuple):
    outcome: str
    failed: bool
    seconds: float
    detail: str


class VerdictLog:
    """Collects verdicts by prompt. Reward functions that return no ``verdict`` leave it empty."""

    def __init__(self, settings: VerifierSettings):
        self._settings = settings
        self._entries: dict[str, list[_Entry]] = {}

    def add(self, uid: str, key: str, info: Mapping[str, Any]) -> bool:
        """Take note of the reward's extra info of rollout ``key``; returns whether the rollout counts.

        Raises:
            VerifierFailed: see the class.
        """
        unscored = bool(info.get(FAILURE))
        if "verdict" not in info and not unscored:
            return True
        failed = unscored or bool(info["grader_failure"])
        detail = str(info["failure_detail"] if unscored else info.get("verifier_detail", ""))
        outcome = NOT_SCORED if unscored else str(info["verdict"])
        entry = _Entry(outcome, failed, float(info.get("verifier_seconds", 0.0)), detail)
        self._entries.setdefault(uid, []).append(entry)
        if failed and self._settings.on_failure == "stop":
            raise VerifierFailed(
                f"the verifier could not judge rollout {key} ({entry.outcome} after {entry.seconds:.1f} s: "
                f"{detail}); prime.verifier.on_failure is stop"
            )
        return not (failed and self._settings.on_failure == "drop")

    def metrics(self, uids: Iterable[str]) -> dict[str, float]:
        """Rates of every outcome and of the verifier's failures over the rollouts of these prompts, and its seconds."""
        uids = list(uids)
        entries = self._of(uids)
        if not entries:
            return {}
        counts = Counter(entry.outcome for entry in entries)
        failure_rate = sum(entry.failed for entry in entries) / len(entries)
        if failure_rate > self._settings.warn_rate:
            logger.warning("%s; prime.verifier.on_failure=%s", self.failures(uids), self._settings.on_failure)
        return {
            **{f"verifier/{outcome}": counts[str(outcome)] / len(entries) for outcome in Outcome},
            **({f"verifier/{NOT_SCORED}": counts[NOT_SCORED] / len(entries)} if counts[NOT_SCORED] else {}),
            "verifier/failure_rate": failure_rate,
            "verifier/seconds/mean": sum(entry.seconds for entry in entries) / len(entries),
            "verifier/seconds/max": max(entry.seconds for entry in entries),
        }

    def failures(self, uids: Iterable[str]) -> str:
        """What the verifier could not judge of these prompts, and why, in one line; empty if it judged everything."""
        entries = self._of(uids)
        failed = [entry for entry in entries if entry.failed]
        if not failed:
            return ""
        kinds = Counter(entry.outcome for entry in failed).most_common()
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds)
        return (
            f"the verifier could not judge {len(failed)} of {len(entries)} rollouts ({counts}), "
            f"the last one because of: {failed[-1].detail}"
        )

    def _of(self, uids: Iterable[str]) -> list[_Entry]:
        return [entry for uid in uids for entry in self._entries.get(uid, ())]

    def forget(self, uid: str) -> None:
        """Drop the verdicts on a prompt."""
        self._entries.pop(uid, None)


class PromptsExhausted(RuntimeError):
    """Too few prompts passed the filter."""


class PromptJudge:
    """Judges each prompt once, when all its rollouts have ended, and remembers the verdict until told to forget it.

    Args:
        band: the filter.
        label_key: key of the reward's extra info that holds the accuracy of a rollout.
        verifier: what to do with rollouts that the verifier could not judge.
        max_response_length: tokens at which a response is cut off; 0 for no limit.
        end_tokens: gives the tokens that end a response. One of that length that ends with such a token is whole.
    """

    def __init__(
        self,
        band: AccuracyBand,
        label_key: str,
        verifier: VerifierSettings,
        max_response_length: int = 0,
        end_tokens: Callable[[], Collection[int]] = tuple,
    ):
        self.band = band
        self.max_response_length = max_response_length
        self.end_tokens = end_tokens
        self.label_key = label_key
        self.verdicts: dict[str, str] = {}
        self._accuracy: dict[str, list[float]] = {}
        self._log = VerdictLog(verifier)

    def judge(self, uids: Collection[str], partition_id: str, partition: dict[str, dict]) -> None:
        """Judge prompts from their rollouts; those that the verifier could not judge leave the store and ``partition``.

        Args:
            uids: prompts all of whose rollouts have ended and that have no verdict yet.
            partition_id: where their rollouts are in the store.
            partition: tags of the rollouts by key.

        Raises:
            VerifierFailed: the verifier could not judge a rollout and ``on_failure`` is ``stop``.
        """
        truncated: dict[str, list[bool]] = {uid: [] for uid in uids}
        accuracies: dict[str, list[float]] = {uid: [] for uid in uids}
        keys = [key for key in partition if transfer.group_uid(key) in accuracies]
        cut_off = self._cut_off(keys, partition_id, partition)
        undecided = []
        for key, info in zip(keys, transfer.fetch_reward_infos(keys, partition_id), strict=True):
            uid = transfer.group_uid(key)
            if self._log.add(uid, key, info):
                accuracies[uid].append(transfer.label_of(key, info, self.label_key))
                truncated[uid].append(key in cut_off)
            else:
                undecided.append(key)
        if undecided:
            transfer.clear(undecided, partition_id)
            for key in undecided:
                del partition[key]
        for uid in uids:
            self.verdicts[uid] = self.band.classify(accuracies[uid], truncated[uid])
            self._accuracy[uid] = accuracies[uid]

    def _cut_off(self, keys: Collection[str], partition_id: str, partition: dict[str, dict]) -> set[str]:
        """Only if the filter asks."""
        if not self.band.drop_truncated or not self.max_response_length:
            return set()
        tags = {key: partition[key] for key in keys}
        return transfer.find_cut_off(partition_id, tags, self.max_response_length, self.end_tokens())

    def keeps(self, uid: str) -> bool:
        """Whether the prompt was judged and may be trained on."""
        return self.verdicts.get(uid) == KEPT

    def forget(self, uids: Iterable[str]) -> None:
        """Drop what is known of these prompts."""
        for uid in list(uids):
            self.verdicts.pop(uid, None)
            self._accuracy.pop(uid, None)
            self._log.forget(uid)

    def metrics(self, uids: Collection[str]) -> dict[str, float]:
        """Counts of the verdicts, accuracies before and after the filter, and the verifier's rates."""
        counts = Counter(self.verdicts[uid] for uid in uids)
        accuracy_all = [value for uid in uids for value in self._accuracy[uid]]
        accuracy_kept = [value for uid in uids if self.keeps(uid) for value in self._accuracy[uid]]
        return {
            "prime/filter/examined": len(uids),
            "prime/filter/too_hard": counts[TOO_HARD],
            "prime/filter/too_easy": counts[TOO_EASY],
            "prime/filter/truncated": counts[TRUNCATED],
            "prime/filter/failed": counts[FAILED],
            "prime/filter/kept_fraction": counts[KEPT] / max(1, len(uids)),
            "prime/accuracy/before_filter": sum(accuracy_all) / max(1, len(accuracy_all)),
            "prime/accuracy/after_filter": sum(accuracy_kept) / max(1, len(accuracy_kept)),
            **self._log.metrics(uids),
        }

    def shortage(self, uids: Collection[str], kept: int, wanted: int, partial: bool) -> str:
        """One line that says why only ``kept`` of ``wanted`` prompts were found among these, and what would help.

        Args:
            uids: the prompts that were examined.
            kept: those of them that passed.
            wanted: prompts of a batch.
            partial: whether the run takes a smaller batch.
        """
        counts = Counter(self.verdicts[uid] for uid in uids)
        message = (
            f"only {kept} of {wanted} prompts passed the filter among {len(uids)} examined "
            f"({counts[TOO_HARD]} too hard, {counts[TOO_EASY]} too easy, {counts[TRUNCATED]} truncated, "
            f"{counts[FAILED]} failed) with {self.band.lower} <= accuracy <= {self.band.upper}"
        )
        undecided = self._log.failures(uids)
        if counts[FAILED] and not undecided:
            message += "; the rollouts that failed ended with an error, which the log has after 'Error in _run_prompt'"
        if counts[FAILED] < len(uids):
            message += (
                "; use data of another difficulty, widen prime.filter.lower/upper, or raise prime.filter.max_examined"
            )
            if kept and not partial:
                message += ", or set prime.filter.on_exhausted=partial to train on fewer"
        return f"{undecided}; {message}" if undecided else message
