# SPDX-License-Identifier: Apache-2.0
"""Responses of a teacher that are good enough to be learnt: asked for until they have the right form and answer."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from data_preprocessing.dialogues import Ask, Dialogue, Messages
from data_preprocessing.grading import Judge
from data_preprocessing.rl_input import Row
from data_preprocessing.stage import Removal
from prime_ext.generate.backend import Response
from prime_ext.verifiers import Verdict

RULES = {
    "truncated": "no response came to an end within --max-new-tokens",
    "wrong_answer": "no response in the right form has the gold answer",
    "ungraded": "the verifier could not grade the response",
}
_EXTRA = {"split": pa.string(), "index": pa.int64(), "response": pa.int32(), "tries": pa.int32()}
_EXTRA["ground_truth"] = pa.string()
# What verl's SFT trainer reads is ``messages``; the rest says where a conversation comes from.
SCHEMA = pa.schema(
    {
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "data_source": pa.string(),
        "ability": pa.string(),
        "extra_info": pa.struct(_EXTRA),
    }
)


def taught(
    row: Row,
    prompt: Messages,
    shown: Messages,
    read: Callable[[str], str | Removal],
    judge: str,
    *,
    responses: int,
    tries: int,
) -> Dialogue[list[Row] | Removal]:
    """Different responses that have the right form and, where there is a gold answer, the right answer.

    The teacher is shown ``prompt``, the student ``shown``; ``read`` gives the response as it is learnt, or what is
    wrong with its form; ``judge`` is the data source that decides for the verifier. A gold answer may be None. Returns
    rows of :data:`SCHEMA`, without repetitions; if there is none, what was wrong with the last answer.
    """
    gold, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    found: dict[int, tuple[str, int]] = {}
    removal = Removal("truncated", "")
    for attempt in range(tries):
        missing = [number for number in range(responses) if number not in found]
        if not missing:
            break
        said: Sequence[Response] = yield [Ask(prompt, sample=number, attempt=attempt) for number in missing]
        good: dict[int, str] = {}
        for number, answer in zip(missing, said, strict=True):
            text = Removal("truncated", answer.text[-200:]) if answer.finish == "length" else read(answer.text)
            if isinstance(text, Removal):
                removal = text
            else:
                good[number] = text
        if gold is None:
            found |= {number: (text, attempt + 1) for number, text in good.items()}
            continue
        verdicts: Sequence[Verdict] = yield [Judge(judge, text, gold, extra) for text in good.values()]
        for (number, text), verdict in zip(good.items(), verdicts, strict=True):
            if verdict.correct:
                found[number] = (text, attempt + 1)
            else:
                rule = "ungraded" if verdict.grader_failure else "wrong_answer"
                removal = Removal(rule, f"{verdict.extracted}: {verdict.detail}")
    unique: dict[str, Row] = {}
    for number, (text, n_tries) in sorted(found.items()):
        source = {"split": extra["split"], "index": extra["index"], "response": number, "tries": n_tries}
        conversation = {
            "messages": [*(dict(message) for message in shown), {"role": "assistant", "content": text}],
            "data_source": row["data_source"],
            "ability": row["ability"],
            "extra_info": {**source, "ground_truth": gold},
        }
        unique.setdefault(text, conversation)
    return list(unique.values()) or removal
