# SPDX-License-Identifier: Apache-2.0
r"""Input of a step reward model as token ids, and the file in its folder that describes it.

docs/reference/step_rm.md has the format. Segment ids (``token_type_ids``) are not used: PSPO's code
drops them as well, and servers do not take them. Special tokens in a step are text: a policy that
writes ``[SEP]`` must not open a step.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from prime_ext.config.checks import STRICT, CountOrZero, Positive, SettingsError, Switch, Text, read
from prime_ext.step_rm.labels import StepRMError, class_order
from prime_ext.step_rm.splitting import marker_end
from prime_ext.utils.files import read_json

FILE = "prime_ext_step_rm.json"


@pydantic_dataclass(frozen=True, config=STRICT)
class PairFormat:
    """The format that a model is trained with.

    The layout ``pair`` is the tokenizer's own for two texts, with the separator where that puts
    nothing between them. ``text`` always has the separator, as the released reward model of PSPO
    (arXiv 2411.11681).
    """

    layout: Literal["pair", "text"] = "pair"
    """pair: the tokenizer's format for two texts. text: the separator as text, as in PSPO."""
    separator: Text = " </s><s>"
    """Text between the steps, for layout text and for tokenizers that put nothing between two
    texts. On the command line \\n, \\t and \\\\ are escapes."""
    previous: CountOrZero = 1
    """Number of earlier steps that are shown; 0 for all of them. PSPO: 1."""
    question: Switch = False
    """Whether the question is shown. PSPO never shows it, so its model cannot check a step against
    it."""
    strip_markers: Switch = False
    """Leave out [1], 1. and "Step 1:" at the start of steps, so that the model cannot learn from
    number and style of the marker."""
    max_length: Annotated[int, Field(strict=True, ge=8)] = 512
    """Maximum number of tokens of an input; the current step is kept, earlier steps lose their
    beginning."""

    def parts(self, question: str, previous: Sequence[str], current: str) -> tuple[str, str, str]:
        """Return question, previous steps and current step as texts; those not shown are empty."""
        shown = previous[-self.previous :] if self.previous else previous
        steps = [self._strip_marker(step) for step in (*shown, current)]
        return (question.strip() if self.question else "", "\n".join(steps[:-1]), steps[-1])

    def _strip_marker(self, step: str) -> str:
        step = step.strip()
        return step[marker_end(step) :].strip() or step if self.strip_markers else step


@dataclass(frozen=True)
class Input:
    """Input of one forward pass: a step with those before it, or a complete response.

    The scores of a response are read at ``ends``. ``context_cut`` and ``step_cut`` are true if the
    context or the step lost tokens. A judge reads ``text``, which its server tokenizes.
    """

    ids: tuple[int, ...]
    ends: tuple[int, ...] = ()
    text: str = ""
    context_cut: bool = field(default=False, compare=False)
    step_cut: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return len(self.ids)


_Frame = tuple[list[int], list[int], list[int]]


class PairEncoder:
    """Tokenize inputs of at most ``max_length`` tokens.

    The previous steps lose their beginning first, then the question its end, and a step that is too
    long on its own its end. Raises ``StepRMError`` if the tokenizer's format leaves no room.
    """

    def __init__(self, tokenizer: Any, pair_format: PairFormat):
        self.tokenizer = tokenizer
        self.format = pair_format
        begin, end = self._find_surroundings(None)
        # The tokens before, between and after context and step; and around a step alone.
        self._single: _Frame = (begin, [], end)
        pair_begin, between, pair_end = (
            self._single if pair_format.layout == "text" else self._pair_frame()
        )
        self._line_break = self._ids("\n")
        separator = list(tokenizer(pair_format.separator, add_special_tokens=False)["input_ids"])
        self._pair: _Frame = (pair_begin, between or separator, pair_end)
        if not self._pair[1]:
            raise StepRMError(
                f"separator={pair_format.separator!r} has no tokens in this tokenizer; steps would"
                " run on"
            )
        overhead = len(pair_begin) + len(between) + len(pair_end) + len(separator)
        if overhead >= pair_format.max_length:
            raise StepRMError(
                f"max_length={pair_format.max_length} leaves no room after {overhead} special"
                " tokens"
            )

    def _ids(self, text: str) -> list[int]:
        return list(
            self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        )

    def _find_surroundings(self, second: str | None) -> tuple[list[int], list[int]]:
        """Return the tokens that the tokenizer puts before the first text, and all that follow."""
        probe = self._ids("a")
        framed = list(self.tokenizer("a", second)["input_ids"])
        start = _find(probe, framed)
        if not probe or start is None:
            raise StepRMError(
                "the tokenizer does not encode the letter 'a' the same with and without special"
                " tokens"
            )
        return framed[:start], framed[start + len(probe) :]

    def _pair_frame(self) -> _Frame:
        """Return the tokenizer's frame of two texts; that of one if it puts nothing between."""
        probe = self._ids("a")
        begin, rest = self._find_surroundings("a")
        at = _find(probe, rest) or 0
        between = rest[:at]
        end = rest[at + len(probe) :]
        # <s> a <s> b: a second beginning does not separate the texts.
        return (begin, between, end) if between and between != begin else self._single

    def encode_all(self, inputs: Sequence[tuple[str, Sequence[str], str]]) -> list[Input]:
        """Encode (question, previous steps, current step) inputs; tokenize every text once."""
        parts = [self.format.parts(*item) for item in inputs]
        texts = list(dict.fromkeys(text for item in parts for text in item if text))
        known: dict[str, list[int]] = {"": []}
        if texts:
            encoded = self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True)[
                "input_ids"
            ]
            known.update(zip(texts, encoded, strict=True))
        return [
            self._build_input(known[question], known[before], known[step])
            for question, before, step in parts
        ]

    def _build_input(self, question: list[int], before: list[int], step: list[int]) -> Input:
        if question and before:
            question = [*question, *self._line_break]
        begin, between, end = self._pair if question or before else self._single
        room = self.format.max_length - len(begin) - len(between) - len(end)
        kept = step[:room]
        kept_question = question[: room - len(kept)]
        kept_before = before[max(0, len(before) - (room - len(kept) - len(kept_question))) :]
        cut = len(kept_question) < len(question) or len(kept_before) < len(before)
        ids = (*begin, *kept_question, *kept_before, *between, *kept, *end)
        return Input(ids, context_cut=cut, step_cut=len(kept) < len(step))

    def encode_chains(self, chains: Sequence[tuple[str, Sequence[str]]]) -> list[list[Input]]:
        """Encode every step of responses, given as question and steps."""
        inputs = iter(
            self.encode_all(
                [
                    (question, steps[:at], step)
                    for question, steps in chains
                    for at, step in enumerate(steps)
                ]
            )
        )
        return [list(itertools.islice(inputs, len(steps))) for _, steps in chains]


def _find(piece: list[int], ids: list[int]) -> int | None:
    """Return where the tokens of a part begin, None for nowhere."""
    return next((at for at in range(len(ids)) if ids[at : at + len(piece)] == piece), None)


@pydantic_dataclass(frozen=True)
class Description:
    """Description of a model: format, temperature, label of each class, and its training."""

    pair_format: PairFormat
    temperature: Positive
    labels: tuple[int, int, int]
    training: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def read_description(path: str | Path, pair_format: PairFormat | None = None) -> Description:
    """Read the description of a model in a folder. ``pair_format`` is for a model without one.

    Raises ``StepRMError``: no such model, no three classes with a label map, a broken description,
    or a contradiction.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise StepRMError(f"{path} is not a model folder: it has no config.json")
    described = (folder / FILE).is_file()
    try:
        config = read_json(folder / "config.json")
        record = read_json(folder / FILE) if described else {}
    except ValueError as error:
        raise StepRMError(f"config.json or {FILE} in {path} is not JSON: {error}") from error
    labels = class_order(config.get("id2label"), str(path))
    if not described:
        if pair_format is None:
            raise StepRMError(
                f"{path} has no {FILE}, which says what the model reads; give the format"
                " (layout=text for PSPO's)"
            )
        return Description(pair_format, 1.0, labels)
    try:
        description = read(Description, record, FILE)
    except SettingsError as error:
        raise StepRMError(f"{path} is broken: {error}") from error
    if labels != description.labels:
        raise StepRMError(
            f"{path}: config.json has the labels {labels}, {FILE} {description.labels}"
        )
    if pair_format not in (None, description.pair_format):
        raise StepRMError(
            f"{path} was trained with {description.pair_format}, not {pair_format}; leave the"
            " format to the model"
        )
    return description
