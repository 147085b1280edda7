# SPDX-License-Identifier: Apache-2.0
"""Brings an answer into one surface form, without understanding it. Linear in the length of the text.

What becomes what: docs/reference/verifier_rules.md.
"""

import re
from collections.abc import Callable

_NAMES = frozenset(
    """
    arcsin arccos arctan arccot arcsec arccsc arsinh arcosh artanh sinh cosh tanh coth sqrt frac log ln sin cos tan cot
    sec csc exp infinity infty binom floor ceil gcd lcm
    """.split()
)
_MEANINGS = {
    **dict.fromkeys(["infinity", "inf", "infty"], r"\infty "),
    **{"pi": r"\pi ", "percent": "%", "percentage": "%", "or": r"\lor ", "and": ",", "&": ","},
}
# Longer ones are always words.
_SHORT_WORDS = frozenset(
    """
    mm cm km dm ft in yd mg kg lb lbs oz ton ml sec min hr hrs day usd deg rad mph kmh sq
    yes no all odd any not is it
    """.split()
)
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("−–—﹣－‐‑", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\t\n\r", " "),
        **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061", ""),
        **dict.fromkeys("€£¥₹", ""),
        **dict.fromkeys("×∗⋅·•", r"\cdot "),
        **{"÷": "/", "∕": "/", "⁄": "/", "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "°": r"^{\circ}", "％": "%"},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap "},
        **{"∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}"},
        **{"½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}"},
        **{"⟨": "(", "⟩": ")", "’": "'", "′": "'", "“": "", "”": "", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta "},
        **{sign: f"^{{{digit}}}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    }
)
_LABEL = re.compile(r"\A(?:the\s{1,3})?(?:final\s{1,3})?answer\s{0,3}(?:is\b|:)\s{0,3}:?", re.IGNORECASE)
_SIZE = re.compile(
    r"\\(?:left|right|mleft|mright|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*(?:\.(?!\d))?"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|bf|rm|it|normalsize|large|Large)(?![a-zA-Z])"
    r"|\\(?:boxed|fbox)(?![a-zA-Z])|\\[hv]?phantom\s*(?:\{[^{}]*\}|[^\\{}\s])"
)
_THOUSANDS_SPACE = re.compile(r"(?<=\d)(?:\\[,:;! ]|\{,\}|,\\!|~| )+(?=\d{3}(?!\d))")
_SPACING = re.compile(r"\\[,:;> ]|~|\\(?:quad|qquad|thinspace|medspace|thickspace|enspace|space)(?![a-zA-Z])")
_WRAPPER = re.compile(r"""\\[()\[\]]|[$`"]""")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_SYNONYMS = {
    **dict.fromkeys(["dfrac", "tfrac", "cfrac"], r"\frac"),
    **dict.fromkeys(["dbinom", "tbinom"], r"\binom"),
    **dict.fromkeys(["leq", "leqslant", "leqq"], r"\le"),
    **dict.fromkeys(["geq", "geqslant", "geqq"], r"\ge"),
    **dict.fromkeys(["times", "ast", "bullet"], r"\cdot"),
    **dict.fromkeys(["lvert", "rvert", "vert", "mid"], "|"),
    **dict.fromkeys(["varnothing"], r"\emptyset"),
    **dict.fromkeys(["mathrm", "mathbf", "mathit", "mathsf", "textbf", "textit", "textrm", "textnormal"], r"\text"),
    **dict.fromkeys(["mbox", "hbox", "textsf", "texttt", "bm", "boldsymbol", "operatorname", "mathop"], r"\text"),
    **{"neq": r"\ne", "lt": "<", "gt": ">", "div": "/", "colon": ":", "lbrace": r"\{", "rbrace": r"\}"},
    **{"langle": "(", "rangle": ")", "lparen": "(", "rparen": ")", "lbrack": "[", "rbrack": "]"},
    **{"vee": r"\lor", "land": ",", "wedge": ",", "to": r"\rightarrow", "degree": r"^{\circ}", "R": r"\mathbb{R}"},
    **{"dots": r"\ldots", "cdots": r"\ldots", "backslash": r"\setminus", "varphi": r"\phi", "epsilon": r"\varepsilon"},
}
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_CIRC = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)(?:\s*(?:\\text\s*\{\s*[CF]\s*\}|[CF](?![a-zA-Z])))?")
_ROW_SKIP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|ex|em|mm|cm)\s*\]")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")
_PLAIN = re.compile(r"-?(?:0|[1-9]\d{0,39})(?:\.\d{1,40})?")
_ROW = "\ue000"
_CONNECTIVE = re.compile(r"(?<![a-zA-Z\\{])(or|and)(?![a-zA-Z}])")
_MIXED = re.compile(r"(?<![\d.\}])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d.])")
_WORD = re.compile(r"(?<![a-zA-Z\\{])[a-zA-Z]{2,}(?:[ '-]{1,2}[a-zA-Z]{2,})*(?![a-zA-Z}])")
_COMMA_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?!\d|,\d)")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d{1,40}(?:\.\d{3}){0,9})(?:,|\{,\})(\d{1,40})(?![\d,]|\.\d|\{,)")
_SPACES = re.compile(r"\s+")
_TIGHT = re.compile(r"(\\[a-zA-Z]+)\s+(?=[a-zA-Z])|(?<=\d)(\s)\s*(?=\d)|\s+")
_SCRIPT = re.compile(r"([\^_])\s*(-?\d+|[a-zA-Z]|\\(?!frac|sqrt|binom|text)[a-zA-Z]+)")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}")
_TEXT_INDEX = re.compile(r"_\s*(?:\\text\s*(?=\{)|(\{)\s*\\text\s*\{([^{}]*)\})")
_PRIME = re.compile(r"\^\s*(?:\{(?:\s*\\prime)+\s*\}|\\prime(?![a-zA-Z]))")
_ARGUMENT = r"(\d|[a-zA-Z]|\\(?!frac|sqrt|binom|text)[a-zA-Z]+)"
_GROUP = r"\{(?>[^{}]|\{(?>[^{}]|\{(?>[^{}]|\{[^{}]*\})*\})*\})*\}"
_ROOT = re.compile(rf"\\sqrt(?![a-zA-Z])\s*(\[[^\[\]]*\])?\s*(\d+|\([^()]*\)|{_ARGUMENT})")
_FIRST = re.compile(rf"\\(frac|binom)(?![a-zA-Z])\s*{_ARGUMENT}")
_SECOND = re.compile(rf"(\\(?:frac|binom)\s*{_GROUP})\s*{_ARGUMENT}")
_POWER = re.compile(rf"\^\s*(\\(?:frac|binom)\s*{_GROUP}\s*{_GROUP}|\\sqrt(?:\[[^\[\]]*\])?{_GROUP})")


def readings(gold: str, answer: str) -> list[tuple[str, str]]:
    """Both answers normalised, once for each meaning that their commas may have; the likeliest comes first.

    ``1,000`` is 1000, or a list. ``1,5`` is a list, or 1.5 if the other answer has no comma; both are decimal commas
    where semicolons separate members.
    """
    found = [(normalize(gold), normalize(answer))]
    if _COMMA_THOUSANDS.search(gold) or _COMMA_THOUSANDS.search(answer):
        found.append((normalize(gold, thousands=False), normalize(answer, thousands=False)))
    decimal = _DECIMAL_COMMA.sub(_decimal_point, gold), _DECIMAL_COMMA.sub(_decimal_point, answer)
    if decimal != (gold, answer) and ("," not in decimal[0] + decimal[1]):
        found.append((normalize(decimal[0]), normalize(decimal[1])))
    return found


def _text(match: re.Match[str]) -> str:
    content = _SPACES.sub(" ", match.group(1)).strip()
    lower = content.lower().strip(" ,")
    if lower in _MEANINGS:
        return _MEANINGS[lower]
    if len(content) == 3 and content[0] == "(" and content[2] == ")":
        content = content[1]
    if not any(character.isalpha() for character in content) or lower in _NAMES:
        return f" {content} "
    return rf"\text{{{content}}}"


def _word(match: re.Match[str]) -> str:
    word = match.group()
    lower = word.lower()
    if lower in _MEANINGS:
        return _MEANINGS[lower]
    if lower in _NAMES:
        return "\\" + lower
    words = re.split(r"[ '-]+", lower)
    if any(len(part) > 3 for part in words) or _SHORT_WORDS.issuperset(words):
        return rf"\text{{{word}}}"
    return word


def _synonym(match: re.Match[str]) -> str:
    synonym = _SYNONYMS.get(match.group(1), match.group())
    # "\\leqx" is one command; "\\leq x" must not become one.
    return synonym + " " if synonym != match.group() and synonym[0] == "\\" and synonym[-1].isalpha() else synonym


def _outside_text(change: Callable[[str], str], text: str) -> str:
    """Apply ``change`` to what is not inside ``\\text{}``."""
    parts = _TEXT.split(text)
    return "".join(change(part) if index % 2 == 0 else rf"\text{{{part}}}" for index, part in enumerate(parts))


def _a_pair(match: re.Match[str]) -> bool:
    """Whether brackets make a pair of it: "(1,200)", like "[1,200)"."""
    before, after = match.string[: match.start()].rstrip(" -"), match.string[match.end() :].lstrip()
    return before.endswith(("(", "[", "\\{")) and after.startswith((")", "]", "\\}"))


def _without_commas(match: re.Match[str]) -> str:
    return match.group() if _a_pair(match) else match.group().replace(",", "")


def _decimal_point(match: re.Match[str]) -> str:
    whole, places = match.groups()
    if _a_pair(match) or (len(places) == 3 and whole != "0"):
        return match.group()
    return f"{whole.replace('.', '')}.{places}"


def _tight(part: str) -> str:
    """Brace scripts and drop spaces, except between a command and a letter and between two numbers."""
    part = _SCRIPT.sub(r"\1{\2}", part)
    return _TIGHT.sub(lambda match: f"{match.group(1) or ''} " if match.group(1) or match.group(2) else "", part)


def uniform(text: str) -> str:
    """Any text, also a prompt, with signs and synonyms in one form, without commands for space and size."""
    text = _SIZE.sub(" ", _SPACING.sub(" ", text.translate(_CHARACTERS))).replace("**", "^").replace("*", r"\cdot ")
    return _COMMAND.sub(_synonym, text)


def braced(text: str) -> str:
    """Put braces around the arguments of ``\\frac``, ``\\binom`` and ``\\sqrt`` that have none."""
    if "\\frac" not in text and "\\binom" not in text and "\\sqrt" not in text:
        return text
    text = _ROOT.sub(lambda match: rf"\sqrt{match.group(1) or ''}{{{match.group(2)}}}", text)
    text = _SECOND.sub(r"\1{\2}", _FIRST.sub(r"\\\1{\2}", text))
    return _POWER.sub(r"^{\1}", text)


def normalize(text: str, *, thousands: bool = True) -> str:
    """Return the surface form of an answer by the rules above.

    Args:
        text: an answer, not a whole response.
        thousands: whether ``1,000`` is a number (else a list).
    """

    def words_and_numbers(part: str) -> str:
        part = _CONNECTIVE.sub(lambda match: _MEANINGS[match.group()], part)
        part = _MIXED.sub(r"\1\\frac{\2}{\3}", part)
        return _WORD.sub(_word, _COMMA_THOUSANDS.sub(_without_commas, part) if thousands else part)

    text = text.strip()
    if _PLAIN.fullmatch(text):
        return text
    text = text.translate(_CHARACTERS)
    text = text.replace("\\$", "").replace("\\!", "").replace("\\%", "%").replace("\\&", "&")
    if "\\\\" in text:
        text = _ROW_SKIP.sub(r"\\\\", text)
        if "\\begin" not in text:
            text = _DOUBLED.sub(r"\\", text)
        text = text.replace("\\\\", _ROW)
    text = _THOUSANDS_SPACE.sub("", _LABEL.sub("", text.strip()))
    text = _WRAPPER.sub(" ", text).strip()
    if text.startswith("**") or text.endswith("**"):
        text = text.strip("*")
    text = _TEXT_INDEX.sub(r"_\1\2", uniform(text))
    text = _PRIME.sub(lambda match: "'" * match.group().count("prime"), text)
    text = _TEXT.sub(_text, _CIRC.sub(r"\\text{degrees}", text))
    text = braced(_CHOOSE.sub(r"\\binom{\1}{\2}", _outside_text(words_and_numbers, text)))
    return _outside_text(_tight, text).replace(_ROW, "\\\\").strip().rstrip(".,;:? ").lstrip(" :")
