# SPDX-License-Identifier: Apache-2.0
r"""Multiple choice and natural-language inference: "option 2", ``#### 2``, letters, label words.

A response becomes sentences of tokens. Markers such as "the answer is" begin statements. The last
statement counts if it names exactly one option: docs/reference/verifier_rules.md.
"""

import re
import time
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prime_ext.verifiers.verdict import Outcome, Verdict, correct, grader_failed, no_answer, wrong

_SINGLE_OPTION = re.compile(
    r"(?:(?:option|choice)\s*)?[(\[]?(?:(\d{1,2})|([a-jA-J]))[)\]]?", re.IGNORECASE
)
_WRAPPING = " \t*_`\"'“”‘’$.,:!"

# Signs that stand for the two ends of a box and for the end of the thoughts.
_BOX, _BOX_END, _THOUGHT_END = "\x02\x03\x04"
# Case is ignored, which makes an "i" of a Turkish one.
_CHARACTERS = dict.fromkeys(map(ord, (_BOX, _BOX_END, _THOUGHT_END)), " ") | {
    0x130: "I",
    0x131: "i",
}
_BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,9}\{|[{}]")
_FIELD = r"(?:(?:final[_ ]?)?(?:answer|choice|option|label|response)|final)"
_REPLACEMENTS = [
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"~~[^~\n]{0,200}~~", " "),
        (r"</?(?:b|i|u|em|strong|span|sup|sub)\b[^<>\n]{0,80}>", " "),
        (r"<{1,2}([a-j])>{1,2}", r"(\1)"),
        (rf"<{_FIELD}>", "\nanswer: "),
        (rf"</{_FIELD}>|</?(?:br|p|div)\b[^<>\n]{{0,80}}>|[\"'”’»]\s?,", "\n"),
        (r"</[a-z]\w{0,30}>|◁/\w{1,30}▷", f"\n{_THOUGHT_END}\n"),
        (r"\\(?:text|math)[a-z]{0,8}|\\(?:left|right|quad)\b|\\[()\[\],;! ]", " "),
        (r"(?<=\b[a-z])\}?_(?=[^\W_]|[{\\])|(?<=[})])_(?=\w|[{\\])", " ^ "),  # x_1
        (r"[*`$_~{}\"“”„«»「」\u200b]|(?<!\w)['‘]|['’](?!\w)", " "),
        (r"[‘’]", "'"),
        (r"\b(answer|choice|option)\s?=", r"\1:"),
        (r"\b(can)not\b|n't\b", r"\1 not"),
        (r"[^\S\n]+", " "),
    )
]

_GOOD = "correct|right|best|true|final|only|chosen|selected|valid|appropriate|required|my|our"
_TOKENS = rf"""
    (?P<box>{_BOX}) | (?P<close>{_BOX_END}) | (?P<hash>\#{{4,}}) | (?P<newline>\n\s*)
  | (?P<name>NAMES)
  | (?P<word_0>\b(?:[dm]rs?|prof)\.)
  | (?P<word>\b(?:part|question|problem|exercise|step|case|figure|table)
        \s\(?(?:[a-j]|\d{{1,3}})\b\)?)
  | (?P<sure>(?:\b(?:option|choice|alternative)s?\s?(?:(?:no\.|number|\#)\s?)?
        (?:[(\[]\s?(?:[a-j]|\d{{1,2}})\s?[)\]] | \d{{1,2}}(?![.,]?\d) | (?-i:[A-J])
          | [a-j](?=\s?(?:[.,;:!?]|$|is\b)))
      | \b(?:statement|letter)s?\s(?:[(\[][a-j][)\]] | (?-i:[A-HJ]))
      | (?<!\w)(?:\#|no\.\s?|number\s)\d{{1,2}}(?![.,]?\d)
      | (?<!\w)[(\[]\s?[a-j]\s?[)\]]
      | (?<![^\s:])(?-i:[A-J])\))(?![a-z0-9]))
  | (?P<item>(?<!\w)(?:[(\[]\s?\d{{1,2}}\s?[)\]] | \d{{1,2}}\) | [a-j]\))(?!\w))
  | (?P<choose>\b(?:I|we|let's|let\sme|let\sus)(?:'\w+)?(?:\s[\w']{{1,20}}){{0,3}}?\s
        (?:choose|chose|pick|select|go(?:ing)?\swith|opt\sfor|vote\sfor|settle\s(?:on|for))\b
      | \bleav(?:es|ing)(?:\sus\swith)?\b)
  | (?P<match>\b(?:corresponds?\sto|match(?:es)?|gives|yields|leads\sto|points\sto|agrees\swith)\b)
  | (?P<turn>\b(?:(?:which|that|this|it)\s(?:is|was)|it's|that's|namely|it|but|however
        |rather(?!\sthan)|instead(?!\sof))\b|\bi\.e\.)
  | (?P<answer>\b(?:(?:the|{_GOOD})\s){{0,3}}(?:answer\b|ans\b\.?)(?:\s(?:choice|option|letter)\b)?
      | \b(?:{_GOOD})\s(?:option|choice|statement|one|label|letter|response|selection|alternative
        |pick|class|relation)\b
      | (?<!each\s)\b(?:option|choice|label|selection|verdict|prediction|conclusion|final|solution
        |result|response|correct)(?=\s?:)
      | 答案 | 选择?(?=[\s:]?[A-J](?![a-z])))
  | (?P<word_1>(?-i:[A-J])-[a-z]{{2,}})
  | (?P<letter>(?<![a-z0-9'^])(?-i:[A-HJ])(?![a-z0-9'\#+]))
  | (?P<or_1>\(?\d{{1,3}}\s?%\)?|;)
  | (?P<number>(?<![\w.,+\-−^])\d{{1,2}}(?![\w%°]|[.,]\d))
  | (?P<lone>(?<![a-z0-9'^])[a-j](?![a-z0-9'\#+]))
  | (?P<retract>\bno(?=\s?[,;:!–—-]|[.!]?\s(?:wait|sorry)\b)
      | \b(?:wait|sorry|actually|correction|oops|I\smean)\b)
  | (?P<join>\b(?:and|nor|not\s(?:only|just))\b)
  | (?P<not>\b(?:not|no|none|never|neither|nothing|without|except|unlike|rather\sthan|instead\sof
        |any\w*\s(?:but|other\sthan)|all|any|every|unknown|unclear)\b)
  | (?P<or>\b(?:or|either|maybe|perhaps|possibly|might|could|may|alternatively|else|although|though
        |also|otherwise|unless|then)\b)
  | (?P<both>\b(?:both|only)\b)
  | (?P<so>\b(?:so|thus|hence|therefore)\b|[⇒∴])
  | (?P<reason>\b(?:because|since|as|for|due|given|by|while|whereas|if|when|where|with|from
        |after)\b)
  | (?P<wrong>\b(?:wrong|incorrect|false|impossible|invalid|excluded|eliminated)\b)
  | (?P<right>\b(?:correct|right|best|true|valid|accurate)\b)
  | (?P<link>\b(?:is|are|was|were|be|equals|becomes|remains|seems)\b|[是为:→➜⟶]|[-=]>)
  | (?P<small>\b(?:the|this|that|these|an|of|to|in|on|one|ones|option|choice|letter|number|can|will
        |would|should|must|has|have|we|my|our|think|believe|say|choose|pick|go|final|most|very|just|there
        |here|follows|out|\w{{2,20}}ly)\b)
  | (?P<end>[.](?=\s+(?-i:[^a-z\s])|\s*$|\s*[{_BOX_END}{_THOUGHT_END}\n)\]])|[!?。])
  | (?P<operator>[=+^<>×·÷≤≥%°]|\\(?:cdot|times)\b)
  | (?P<word_2>[^\W_]+(?:['.,-]\w+)*|\\[a-z]+|{_THOUGHT_END})
  | (?P<mark>\S)
"""
_OPTIONS = frozenset("name sure item letter number lone".split())
_MARKERS = frozenset("box hash answer choose so match turn name sure letter".split())
# Before these, "a" is an option and not an article.
_AFTER_LONE = frozenset("end newline mark close join or reason".split())
# May stand between "the answer" and "is".
_ABOUT_QUESTION = frozenset("word small mark not right number lone reason so or turn".split())
_GLUE = frozenset(
    "start close mark retract join not or both so wrong right link turn small".split()
)


class _Token(NamedTuple):
    kind: str
    text: str = ""
    option: int = 0

    def is_number(self) -> bool:
        """Return whether it names an option by its number, or is a value."""
        return self.kind != "name" and self.text.rstrip(")] ")[-1:].isdigit()

    def is_value(self) -> bool:
        """Return whether it is a number that may be a value, where a letter names the option."""
        return self.kind in ("number", "item") and self.is_number()


_END = _Token("end")
# Starts of statements that are not named by the words of their marker.
_WORDLESS = frozenset("box hash judgment".split())


class _Sentence(NamedTuple):
    """Tokens of a sentence, and whether it is the first of its line."""

    tokens: list[_Token]
    in_new_line: bool

    def find_start(self) -> int | None:
        """Return where its first statement starts."""
        return next((n for n, token in enumerate(self.tokens) if token.kind == "start"), None)

    def has_only_options(self) -> bool:
        """Return whether it has options, and otherwise small words alone."""
        kinds = {token.kind for token in self.tokens}
        return bool(kinds & _OPTIONS) and kinds <= _OPTIONS | _GLUE

    def names_option(self) -> bool:
        """Return whether it names an option by its letter, and is not a heading."""
        return self.tokens[-1].text != ":" and any(
            token.kind in _OPTIONS - {"name"} and not token.is_value() for token in self.tokens
        )

    def begins_with_label(self) -> bool:
        """Return whether it begins as "(B) 42", "B: 42", "B. 42" or "B because"."""
        label, *others = self.tokens
        return label.kind == "sure" or (
            label.kind == "letter"
            and (not others or others[0].text == ":" or others[0].kind in ("mark", "reason"))
        )


class _Statement:
    """Tokens of sentences that state an answer; ``marker``: the last one that begins it."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self.tokens: list[_Token] = []
        self.marker = ""
        self.add(tokens)

    def add(self, tokens: Sequence[_Token]) -> None:
        self.tokens += [*tokens, _END]
        self.marker = next((t.text for t in reversed(tokens) if t.kind == "start"), self.marker)

    def continues_in(self, sentence: _Sentence) -> bool:
        """Return whether the next sentence belongs to it.

        It does if it has nothing but options, or begins a statement without any new word: guesses,
        or the same answer once more.
        """
        start = sentence.find_start()
        words = (t for t in reversed(self.tokens) if t.kind not in ("end", "mark", "small", "link"))
        if next(words, _END).kind == "start":  # the option comes after its marker's line
            first = next((t for t in sentence.tokens if t.kind not in ("mark", "small")), _END)
            return first.kind in _OPTIONS or first.kind == "start"
        if start is None:
            return sentence.has_only_options()
        marker = sentence.tokens[start].text
        return (
            all(token.kind in ("mark", "or") for token in sentence.tokens[:start])
            and {*marker.split()} <= _WORDLESS | {*self.marker.split()}
            and (marker == self.marker or not sentence.in_new_line)
        )

    def read(self) -> tuple[set[int], set[int], bool]:
        """Return the options that it names, those that it denies, and whether it says "not"."""
        named: list[_Token] = []
        denied: set[int] = set()
        chain: set[int] = set()  # options since the last other word
        # What counts: all options; explicit ones in an option's text; none in a consequence or
        # a reason.
        mode = "open"
        is_linked = denying = correcting = says_not = False
        for before, token in zip([_END, *self.tokens], self.tokens, strict=False):
            kind = token.kind
            if kind in _OPTIONS:
                if mode == "open" or (mode == "text" and kind in ("name", "sure")):
                    if denying:
                        denied.add(token.option)
                        continue
                    if correcting:
                        named.clear()
                    named.append(token)
                    chain.add(token.option)
                    is_linked = correcting = False
            elif chain and (kind == "wrong" or (kind == "not" and is_linked)):
                denied |= chain
            elif kind == "not":
                says_not = denying = True
            elif kind == "retract":
                correcting = True
            elif kind == "or" and (mode == "text" or token.text.lower() in ("else", "otherwise")):
                mode = "open"
            elif kind == "link":
                is_linked = token.text != ":"
            elif kind not in ("right", "small", "join", "or", "close", "mark"):
                if kind == "start" and token.text == "judgment" and mode == "reason":
                    continue
                denying = is_linked = False
                chain = set()
                if kind in ("start", "end"):
                    mode = "open"
                    corrects = before.kind == "turn" and token.text != "judgment"
                    correcting |= kind == "start" and corrects
                elif named and kind in ("so", "reason"):
                    mode = kind
                elif mode == "open" and (
                    kind in ("word", "operator") or (named and kind == "both")
                ):
                    mode = "text"
        if not all(token.is_number() for token in named):
            named = [token for token in named if not token.is_value()]
        return {token.option for token in named}, denied, says_not or bool(denied)


def _clean(text: str) -> str:
    """Return a text without fonts and quotes; signs replace both ends of each complete box."""
    text = unicodedata.normalize("NFKC", text).translate(_CHARACTERS)
    pieces: list[str] = []
    open_braces: list[tuple[int, bool]] = []
    end = 0
    for brace in _BRACES.finditer(text):
        pieces.append(text[end : brace.start()])
        end = brace.end()
        is_box = len(brace[0]) > 1
        if brace[0] != "}":
            open_braces.append((len(pieces), is_box))
            pieces.append(brace[0])
        else:
            start, is_box = open_braces.pop() if open_braces else (0, False)
            pieces.append(_BOX_END if is_box else "}")
            if is_box:
                pieces[start] = _BOX
    text = "".join([*pieces, text[end:]])
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text


def _lex(tokens: re.Pattern[str], names: Mapping[str, int], text: str) -> list[_Token]:
    """Split a clean text into tokens."""
    read = [
        _Token(str(match.lastgroup).partition("_")[0], match[0]) for match in tokens.finditer(text)
    ]
    surroundings = zip([_END, *read], read, [*read[1:], _END], strict=False)
    return [
        token if token.kind not in _OPTIONS else _read_option(before, token, after, names)
        for before, token, after in surroundings
    ]


def _read_option(before: _Token, token: _Token, after: _Token, names: Mapping[str, int]) -> _Token:
    """Return a token with its option, or as a word if it is an article, a value or a variable."""
    kind, text, _ = token
    if kind == "lone" and after.kind not in _AFTER_LONE:
        return _Token("small", text)
    article_before = {"word", "answer", "right", "wrong"}
    if (
        (text == "A" and after.kind in article_before and after.text.islower())
        or (kind == "letter" and before.kind == "number")
        or (kind in ("letter", "number") and "operator" in (before.kind, after.kind))
        or (kind == "number" and after.kind in ("word", "letter", "lone"))
        or (kind == "name" and text.lower() not in names)  # a rare letter whose case is ignored
    ):
        return _Token("word", text)
    if kind == "name":
        return token._replace(option=names[text.lower()])
    value = re.findall(r"\d+|[a-j](?![a-z])", text.lower())[-1]
    return token._replace(option=int(value) if value.isdigit() else ord(value) - ord("a") + 1)


def _mark_statements(tokens: Sequence[_Token]) -> list[_Token]:
    """Put starts of statements into the place of their markers, with "not" where they deny."""
    marked: list[_Token] = []
    n = judged = 0
    while n < len(tokens):
        before, token = tokens[n - 1] if n else _END, tokens[n]
        kind, text, _ = token
        n += 1
        if kind not in _MARKERS:
            marked.append(token)
            continue
        rest = tokens[n : n + 15]
        first, second, *_ = [
            *(t.kind for t in rest if t.kind not in ("mark", "small", "link")),
            "end",
            "end",
        ]
        names_option = first in ("name", "sure", "letter")
        if kind in ("box", "hash"):
            marked.append(_Token("start", kind))
        elif kind == "answer":
            link = _find_link(rest)
            next_kind = next((t.kind for t in rest if t.kind not in ("mark", "newline")), "end")
            is_marker = link or next_kind in _OPTIONS
            marked.append(_Token("start" if is_marker else "right", text.lower()))
            marked += [t for t in rest[:link] if t.kind == "not"]
            n += link
        elif kind == "choose" and names_option:
            marked.append(_Token("start", text.lower()))
            marked += [_Token("not")] if re.search(r"\b(?:not|never)\b", text) else []
        elif kind == "so" and names_option and second in ("end", "newline"):
            marked.append(_Token("start", kind))
        elif kind in ("match", "turn") and first == "sure":
            marked.append(_Token("start", "judgment"))
        elif kind in ("choose", "match"):
            marked.append(_Token("word", text))
        elif kind in ("so", "turn") or n <= judged:
            marked.append(token)
        else:
            length, is_judgment = _find_predicate(token, rest)
            is_apart = before.kind in ("mark", "join") or before.text in (":", ";")
            if is_judgment and (kind != "letter" or before.kind != "word"):
                judged = n + length
                at = len(marked)
                while at and marked[at - 1].kind in ("not", "or", "both", "small"):
                    at -= 1
                marked.insert(at, _Token("start", "judgment"))
            elif length and is_apart and marked[-1].kind != "start":
                # The subject of another clause: "The answer is B; A and C are too small."
                n += length
                token = _Token("word")
            marked.append(token)
    return marked


def _find_link(rest: Sequence[_Token]) -> int:
    """Return where "is" or a colon ends after "the answer" and words on the question, or 0."""
    for n, token in enumerate(rest):
        if token.kind == "link" or (n == 0 and token.text in ("-", "–", "—", "|")):
            return n + 1
        if token.kind not in _ABOUT_QUESTION:
            break
    return 0


def _find_predicate(option: _Token, rest: Sequence[_Token]) -> tuple[int, bool]:
    """Return where a predicate of options ends, or 0; and whether it is "correct" or "wrong"."""
    is_linked = False
    for n, token in enumerate(rest):
        if is_linked and token.kind in ("right", "answer", "wrong"):
            return n + 1, True
        if token.kind == "link" and token.text != ":":
            is_linked = True
        elif (
            token.kind not in ("not", "small", "or", "both", "mark", "join", "turn")
            and (is_linked or token.kind not in _OPTIONS)
            and (is_linked or token.kind != "word" or option.kind == "letter")
        ):
            return n * is_linked, False
    return 0, False


def _split(tokens: Sequence[_Token]) -> list[_Sentence]:
    """Split tokens into sentences."""
    sentences: list[_Sentence] = []
    current: list[_Token] = []
    in_new_line = True
    for token in [*tokens, _Token("newline")]:
        if token.kind not in ("end", "newline"):
            current.append(token)
            continue
        if current:
            sentences.append(_Sentence(current, in_new_line))
            current, in_new_line = [], False
        in_new_line |= token.kind == "newline"
    return sentences


def _find_statements(sentences: Sequence[_Sentence]) -> list[_Statement]:
    """Return the statements of a text, in their order."""
    statements: list[_Statement] = []
    is_open = False
    last_line = max((n for n, sentence in enumerate(sentences) if sentence.in_new_line), default=0)
    alone = len(sentences)  # where the sentences begin that only options follow
    while alone and sentences[alone - 1].has_only_options():
        alone -= 1
    for n, sentence in enumerate(sentences):
        start = sentence.find_start()
        if is_open and statements[-1].continues_in(sentence):
            statements[-1].add(sentence.tokens)
            continue
        is_first = n == 0 or sentences[n - 1].tokens[-1].text == _THOUGHT_END
        is_open = start is not None or (
            sentence.names_option()
            and (
                n >= alone
                or (is_first and n == last_line and sentence.begins_with_label())
                or (is_first and n < last_line and len(sentence.tokens) == 1)
            )
        )
        if is_open:
            statements.append(_Statement(sentence.tokens[start or 0 :]))
    return statements


class MultipleChoiceVerifier:
    """Verifier of responses to problems with numbered options.

    ``names`` of the options are in order, e.g. ``("entailment", "neutral")``; ``n_options``, their
    number, may be given alone. Without either, any number up to 99 is an option.
    """

    def __init__(self, names: Sequence[str] = (), n_options: int | None = None):
        self._names = {name.strip().lower(): number for number, name in enumerate(names, start=1)}
        self._n_options = len(names) if names else n_options
        self._read_names = {
            _clean(name).strip().lower(): number for name, number in self._names.items()
        }
        alternatives = "|".join(
            re.escape(name) for name in sorted(self._read_names, key=len, reverse=True) if name
        )
        named = rf"(?<![\w.])(?:{alternatives})(?!\w|[.,]\d)" if alternatives else "(?!)"
        self._tokens = re.compile(_TOKENS.replace("NAMES", named), re.IGNORECASE | re.VERBOSE)

    def read_option(self, text: str | int) -> int | None:
        """Return the number of the option that ``text`` is, even out of range; otherwise None."""
        stripped = str(text).strip(_WRAPPING)
        number = self._names.get(stripped.lower())
        if number is not None:
            return number
        match = _SINGLE_OPTION.fullmatch(stripped)
        if match is None:
            return None
        return int(match[1]) if match[1] else ord(match[2].lower()) - ord("a") + 1

    def gold_option(self, gold: str | int) -> int:
        """Return a gold answer's option (number, letter, name, sentence). Raises ``ValueError``."""
        number = self.read_option(gold)
        if number is None:
            number, _ = self._find_stated_option(str(gold))
        if number is None or not self._exists(number):
            known = f"the names {list(self._names)} or a number" if self._names else "a number"
            limit = f" up to {self._n_options}" if self._n_options else ""
            raise ValueError(
                f"gold answer {gold!r} names no option; it must be {known} from 1{limit}, or a"
                " letter"
            )
        return number

    def verify(self, response: str, gold: str | int) -> Verdict:
        """Compare the option that ``response`` states with :meth:`gold_option`."""
        start = time.perf_counter()
        expected = self.gold_option(gold)
        number, reason = self._find_stated_option(response)
        seconds = time.perf_counter() - start
        if number is None:
            return no_answer(seconds, reason)
        if not self._exists(number):
            return wrong(str(number), seconds, f"there is no option {number}")
        return (correct if number == expected else wrong)(str(number), seconds, reason)

    def _exists(self, number: int) -> bool:
        return number >= 1 and (self._n_options is None or number <= self._n_options)

    def _find_stated_option(self, text: str) -> tuple[int | None, str]:
        """Return the option that a text states as its answer, or None; and where, or why not."""
        tokens = _mark_statements(_lex(self._tokens, self._read_names, _clean(text)))
        denied_later: set[int] = set()
        for statement in reversed(_find_statements(_split(tokens))):
            named, denied, says_not = statement.read()
            if named - denied:
                left = named - denied - denied_later
                if len(left) == 1:
                    return left.pop(), statement.marker or "alone"
                return None, "the last statement names more than one option or denies its own"
            if says_not and not denied:
                return None, "the last statement denies that there is an answer"
            denied_later |= denied
        return None, "no answer stated"


class ChoiceTask:
    """Multiple choice as a task of :mod:`prime_ext.verifiers.sources`; options may vary by row."""

    async def averify(
        self,
        response: str,
        gold: str | int,
        *,
        names: Sequence[str] = (),
        n_options: int | None = None,
    ) -> Verdict:
        """Judge a response; a gold answer that is not an option is a failure of the grader."""
        try:
            return MultipleChoiceVerifier(tuple(names), n_options).verify(response, gold)
        except ValueError as error:
            return grader_failed(Outcome.ERROR, None, 0.0, str(error))
