# SPDX-License-Identifier: Apache-2.0
"""Responses of a teacher that are good enough to be learnt: asked for until they have the right form and answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
# What verl's SFT trainer reads is ``messages``; the rest says where a conversation comes from.
SCHEMA = pa.schema(
    {
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "data_source": pa.string(),
        "ability": pa.string(),
        "extra_info": pa.struct(
            {
                "split": pa.string(),
                "index": pa.int64(),
                "response": pa.int32(),
                "tries": pa.int32(),
                "ground_truth": pa.string(),
            }
        ),
    }
)


@dataclass(frozen=True)
class Taught:
    """A response to be learnt.

    Attributes:
        text: as it is learnt.
        response: which of those to the same problem, from 0.
        tries: how many it took.
    """

    text: str
    response: int
    tries: int


@dataclass(frozen=True)
class Wanted:
    """What is asked of a teacher.

    Attributes:
        prompt: that it is shown.
        responses: how many are wanted.
        tries: answers per response at most.
        read: the response as it is learnt, or what is wrong with its form.
        judge: the question to the verifier about a response; None where there is no gold answer.
    """

    prompt: Messages
    responses: int
    tries: int
    read: Callable[[str], str | Removal]
    judge: Callable[[str], Judge] | None


def taught(wanted: Wanted) -> Dialogue[list[Taught] | Removal]:
    """Different responses that have the right form and, where there is a gold answer, the right answer.

    Returns:
        At most ``wanted.responses``, without repetitions; if there is none, what was wrong with the last answer.
    """
    found: dict[int, Taught] = {}
    removal = Removal("truncated", "")
    for attempt in range(wanted.tries):
        missing = [number for number in range(wanted.responses) if number not in found]
        if not missing:
            break
        said: Sequence[Response] = yield [Ask(wanted.prompt, sample=number, attempt=attempt) for number in missing]
        good: dict[int, str] = {}
        for number, response in zip(missing, said, strict=True):
            read = _read(response, wanted)
            if isinstance(read, Removal):
                removal = read
            else:
                good[number] = read
        verdicts: Sequence[Verdict] = yield [wanted.judge(text) for text in good.values()] if wanted.judge else []
        judged = zip(good.items(), verdicts if wanted.judge else [None] * len(good), strict=True)
        for (number, text), verdict in judged:
            if verdict is None or verdict.correct:
                found[number] = Taught(text, number, attempt + 1)
            else:
                rule = "ungraded" if verdict.grader_failure else "wrong_answer"
                removal = Removal(rule, f"{verdict.extracted}: {verdict.detail}")
    unique: dict[str, Taught] = {}
    for number in sorted(found):
        unique.setdefault(found[number].text, found[number])
    return list(unique.values()) if found else removal


def _read(response: Response, wanted: Wanted) -> str | Removal:
    if response.finish == "length":
        return Removal("truncated", response.text[-200:])
    return wanted.read(response.text)


def conversation(messages: Messages, row: Row, response: Taught) -> Row:
    """A row of :data:`SCHEMA` from the row of the problem; the last message is the response."""
    extra = {"split": row["extra_info"]["split"], "index": row["extra_info"]["index"]}
    extra |= {"response": response.response, "tries": response.tries}
    return {
        "messages": [*(dict(message) for message in messages), {"role": "assistant", "content": response.text}],
        "data_source": row["data_source"],
        "ability": row["ability"],
        "extra_info": {**extra, "ground_truth": row["reward_model"]["ground_truth"]},
    }
