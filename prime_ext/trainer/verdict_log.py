# SPDX-License-Identifier: Apache-2.0
"""What the verifier said about the rollouts of one step: which count, and the metrics of the verifier itself.

With the reward manager ``pspo_wrs``, a rollout without a reward (its step scorer failed) is treated as one that the
verifier could not judge, and has an outcome of its own.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prime_ext.config.settings import VerifierSettings
from prime_ext.reward.pspo_info import FAILURE
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
