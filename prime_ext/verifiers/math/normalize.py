# SPDX-License-Identifier: Apache-2.0
"""Purely textual normalization of answers in linear time: docs/reference/verifier_rules.md."""

import re
import unicodedata
from collections.abc import Callable

NAMES = frozenset(
    "arcsin arccos arctan arccot arcsec arccsc arsinh arcosh artanh sinh cosh tanh coth sqrt frac"
    " log ln sin cos tan cot sec csc exp infinity infty binom floor ceil gcd lcm".split()
)
_MEANINGS = {
    **dict.fromkeys(["infinity", "inf", "infty"], r"\infty "),
    **dict.fromkeys(["percent", "percentage", "pct"], "%"),
    **{"pi": r"\pi ", "or": r"\lor ", "and": ",", "&": ","},
}
# Longer ones are always words.
_SHORT_WORDS = frozenset(
    "mm cm km dm ft in yd mg kg lb lbs oz ton ml sec min hr hrs day usd deg rad mph kmh sq "
    "yes no all odd any not is it".split()
)
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = re.compile("[₀-₉]+")
_GREEK = (
    "α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta κ kappa λ lambda μ mu ν nu ξ"
    " xi π pi ρ rho σ sigma τ tau φ phi χ chi ψ psi ω omega Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π"
    " Pi Σ Sigma Φ Phi Ψ Psi Ω Omega"
).split()
_CHARACTERS = str.maketrans(
    {
        # Full-width forms of ASCII.
        **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
        **dict.fromkeys("−–—﹣－‐‑", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\t\n\r", " "),
        **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061", ""),
        **{"€": r"\text{ euros}", "£": "", "¥": "", "₹": "", "¢": r"\text{ cents}"},
        **{
            "、": ",",
            "。": ".",
            "∶": ":",
            "…": r"\ldots ",
            "∖": r"\setminus ",
            "∴": r"\therefore ",
            "✓": "",
        },
        **{letter: rf"\{name} " for letter, name in zip(_GREEK[::2], _GREEK[1::2], strict=True)},
        **dict.fromkeys("×∗⋅·•", r"\cdot "),
        **{
            "÷": "/",
            "∕": "/",
            "⁄": "/",
            "√": r"\sqrt ",
            "∞": r"\infty ",
            **dict.fromkeys("°º˚", r"^{\circ}"),
        },
        **dict.fromkeys("≤⩽≦", r"\le "),
        **dict.fromkeys("≥⩾≧", r"\ge "),
        **{"≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap "},
        **{
            "∈": r"\in ",
            "∅": r"\emptyset ",
            "ℝ": r"\mathbb{R}",
            "ℤ": r"\mathbb{Z}",
            "ℕ": r"\mathbb{N}",
        },
        **{
            sign: rf"\frac{{{unicodedata.normalize('NFKC', sign).replace('⁄', '}{')}}}"
            for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
        },
        **{"⟨": "(", "⟩": ")", "’": "'", "′": "'", "“": "", "”": ""},
    }
)
_LABEL = re.compile(
    r"\A(?:the\s{1,3})?(?:final\s{1,3})?answer\s{0,3}(?:is\b|:)\s{0,3}:?", re.IGNORECASE
)
_SIZE = re.compile(
    r"\\(?:left|right|mleft|mright|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*(?:\.(?!\d))?"
    r"|\\(?:(?:display|text|script)style|(?:no)?limits|bf|rm|it|(?:normal|footnote|script)size|small|tiny|[lL]arge|LARGE"
    r"|[hH]uge|newline|underline|uline|emph|ensuremath|mathstrut|smash|hfill|par|noindent|centering|nonumber|notag|checkmark"
    r"|blacksquare|square|qed|boxed|fbox|framebox)(?![a-zA-Z])|\\[hv]?phantom\s*(?:\{[^{}]*\}|[^\\{}\s])"
    r"|\\(?:(?:text|f)?color(?:box)?|[hv]space|label|tag)\*?\s*(?:\[[a-z]*\])?\{[^{}]*\}|\\[mhv]?(?:kern|skip)\s*-?[\d.]+\s*[a-z]{2}"
    r"|\A\s*\\(?:therefore|implies|Rightarrow|Longrightarrow)(?![a-zA-Z])"
)
_THOUSANDS_SPACE = re.compile(r"(?<=\d)(?:\\[,:;! ]|\{,\}|,\\!|~| )+(?=\d{3}(?!\d))")
_SPACING = re.compile(
    r"\\[,:;> ]|~|\\(?:quad|qquad|thinspace|medspace|thickspace|enspace|space)(?![a-zA-Z])"
)
_WRAPPER = re.compile(r"""\\[()\[\]]|[$`"]""")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_SYNONYMS = {
    **dict.fromkeys(["dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"], r"\frac"),
    **dict.fromkeys(["dbinom", "tbinom"], r"\binom"),
    **dict.fromkeys(["leq", "leqslant", "leqq"], r"\le"),
    **dict.fromkeys(["geq", "geqslant", "geqq"], r"\ge"),
    **dict.fromkeys(["times", "ast", "bullet"], r"\cdot"),
    **dict.fromkeys(["lvert", "rvert", "vert", "mid"], "|"),
    **dict.fromkeys(
        "mathrm mathbf mathit mathsf mathtt mathop mbox hbox bm pmb boldsymbol".split(), r"\text"
    ),
    **dict.fromkeys(
        "textbf textit textrm textsf texttt textup textsc textnormal operatorname".split(), r"\text"
    ),
    "varnothing": r"\emptyset",
    **{
        "neq": r"\ne",
        "lt": "<",
        "gt": ">",
        "div": "/",
        "colon": ":",
        "lbrace": r"\{",
        "rbrace": r"\}",
    },
    **{
        "langle": "(",
        "rangle": ")",
        "lparen": "(",
        "rparen": ")",
        "lbrack": "[",
        "rbrack": "]",
        "R": r"\mathbb{R}",
    },
    **{
        "lor": r"\vee",
        "land": r"\wedge",
        "bigcup": r"\cup",
        "to": r"\rightarrow",
        "degree": r"^{\circ}",
    },
    **{
        "dots": r"\ldots",
        "cdots": r"\ldots",
        "backslash": r"\setminus",
        "varphi": r"\phi",
        "epsilon": r"\varepsilon",
    },
}
_DIGITS = re.compile(r"[0-9A-Fa-f]+")
_BARE_TEXT = re.compile(r"\\text\s+([a-zA-Z])(?![a-zA-Z])")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_CIRC = re.compile(
    r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ|∘)|(?<=\d)\^\s*(?:o(?![a-zA-Z])|\{\s*(?:o|\\text\s*\{\s*o\s*\})\s*\}))"
    r"(?:\s*(?:\\text\s*\{\s*([CF])\s*\}|([CF])(?![a-zA-Z])))?"
)
_ROW_SKIP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|ex|em|mm|cm)\s*\]")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z]{2})")
_PLAIN = re.compile(r"-?(?:0|[1-9]\d{0,39})(?:\.\d{1,40})?")
_ROW = "\ue000"
_STAR = re.compile(r"(\\(?:begin|end)\s*\{[a-z]+)\*\}")
_MONEY = re.compile(r"(-?)\s*(\\\$|€)\s*(\d(?:[\d.,]|\{,\}|\\! ?)*)")
_GROUPED_DIGITS = re.compile(r"(?<![\w.])\d{1,3}(?:_\d{3})+(?!\w)")
_CJK = re.compile(r"(?<=\d)(?![^\d]*[百千万萬亿億])[\u3040-\u30ff\u4e00-\u9fff]+")
_NOT_EQUAL = re.compile(r"=/=|\\not\s*=|(?<=[a-ln-zA-Z])(?<!n)(?<!k)\s*!=(?!=)")
_MERIDIEM = re.compile(
    r"(?<=\d)\s*(?:([AP])M(?![a-zA-Z])|([ap])\.\s?m\.|(?<=:\d\d)\s*([ap])m(?![a-zA-Z]))"
)
_UNION = re.compile(r"(?<=[)\]])\s*(?:\\text\s*\{\s*U\s*\}|U)\s*(?=[(\[\\])")
_RATIO_WORD = re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*to\s*\}|to(?![a-zA-Z]))\s*(?=\d)")
_BLACKBOARD = re.compile(r"\\math(?:bb|ds|bbm)\s*\{?\s*([A-Z])\s*\}?|\\mathbf\s*\{?\s*([RZ])\s*\}?")
_VECTOR = r"\\(?:mathbf|bm|boldsymbol|vec|hat|widehat)\s*"
_IJK = r"\\?([ijk])(?:math)?"
_BASIS = re.compile(
    rf"{_VECTOR}(?:\{{\s*{_VECTOR}\{{\s*{_IJK}\s*\}}\s*\}}|\{{\s*(?:{_VECTOR})?{_IJK}\s*\}}|{_IJK}(?![a-zA-Z]))"
)
_CROSS = re.compile(rf"\\times(?=\s*(?:{_VECTOR}|\\overrightarrow))")
_UNIT_FRACTION = re.compile(
    r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}"
)
_UNIT_PER_UNIT = re.compile(
    r"(?<=\d)(\s*\\text\s*\{[^{}]*)\}\s*/\s*([a-zA-Z]{1,6}(?:\s*\^\s*\{?[23]\}?)?)\Z"
)
_UNIT_LETTERS = frozenset("mgshLlVNJWKCA")
_VALUE_BEFORE = re.compile(r"[\d)}%/]\s*\Z")
_COUNTED = re.compile(
    r"(there (?:are|is) |the answer is )?(-?\d[\d.,]*)(?: ([a-z][a-z ]*))?", re.IGNORECASE
)
_BASE_WORDS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
}
_BASE = re.compile(rf"_\{{\(?({'|'.join(_BASE_WORDS)}|\d+)\)?\}}")
_MODULUS = re.compile(
    r"\(?(?:\\(?:pmod|bmod|mod|text\{modulo\}|text\{mod\})|(?<![a-zA-Z\\])mod)"
    r" ?\{?(\d{1,9}|[a-z])\}?\)?\Z"
)
_REPEATING = re.compile(r"(\.\d*)(?:\((\d+)\)(?![\d(])|\\dot\{?(\d)\}?(?:(\d*)\\dot\{?(\d)\}?)?)")
_POWER_IN_BRACKETS = re.compile(r"\^\s*\(([^(){}]*)\)")
_CHOICES = re.compile(
    r"(?:\{\}|(?<![\w}]))[_^]\{(\w+)\}C_\{(\w+)\}|(?<![a-zA-Z\\])C_\{([^{}]*)\}\^\{([^{}]*)\}"
)
_OPEN_INTERVAL = re.compile(r"([\[\]])([^\[\]()]*[,;][^\[\]()]*)([\[\]])")
_INTEGERS = r"([a-zA-Z])\\in(?:\\mathbb\{Z\}|Z)"
_PARAMETER = re.compile(
    rf"(?<=.)[,;(]*(?:\\text\{{[^{{}}]*\}})?{_INTEGERS}\)?\Z"
    r"|(?<=.),?\\text\{(?:for|where|with)[^{}]*\b(?:integer|constant)[^{}]*\}([a-zA-Z])\Z"
)
_FAMILY = re.compile(rf"\A\\\{{(.+)[|:]{_INTEGERS}\\\}}\Z")
_LETTER = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
_CONNECTIVE = re.compile(r"(?<![a-zA-Z\\{])(or|and)(?![a-zA-Z}])")
_MIXED = re.compile(r"(?<![\d.\}])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d.])")
_WORD = re.compile(r"(?<![a-zA-Z\\{])[a-zA-Z]{2,}(?:[ '-]{1,2}[a-zA-Z]{2,})*(?![a-zA-Z}])")
_COMMA_THOUSANDS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?!\d|,\d)")
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,40}(?:\.\d{3}){0,9})(?:,|\{,\})(\d{1,40})(?![\d,]|\.\d|\{,)"
)
_SPACES = re.compile(r"\s+")
_TIGHT = re.compile(r"(\\[a-zA-Z]+)\s+(?=[a-zA-Z])|(?<=\d)(\s)\s*(?=\d)|\s+")
_SCRIPT = re.compile(r"([\^_])\s*(-?\d+|[a-zA-Z]|\\(?!frac|sqrt|binom|text)[a-zA-Z]+)")
_TEXT_INDEX = re.compile(r"_\s*(?:\\text\s*(?=\{)|(\{)\s*\\text\s*\{([^{}]*)\})")
_PRIME = re.compile(r"\^\s*(?:\{(?:\s*\\prime)+\s*\}|\\prime(?![a-zA-Z]))")
_ARGUMENT = r"(\d|[a-zA-Z]|\\(?!frac|sqrt|binom|text)[a-zA-Z]+)"
_GROUP = r"\{(?>[^{}]|\{(?>[^{}]|\{(?>[^{}]|\{[^{}]*\})*\})*\})*\}"
_PART = (
    rf"((?>(?:\\(?!over(?![a-zA-Z])|choose(?![a-zA-Z]))[a-zA-Z]+|\\[^a-zA-Z]|[^\\{{}}]|{_GROUP})*))"
)
_INFIX = re.compile(rf"\{{{_PART}\\(over|choose)(?![a-zA-Z]){_PART}\}}")
_ROOT = re.compile(rf"\\sqrt(?![a-zA-Z])\s*(\[[^\[\]]*\])?\s*(\d+|\([^()]*\)|{_ARGUMENT})")
_FIRST = re.compile(rf"\\(frac|binom)(?![a-zA-Z])\s*{_ARGUMENT}")
_SECOND = re.compile(rf"(\\(?:frac|binom)\s*{_GROUP})\s*{_ARGUMENT}")
_POWER = re.compile(
    rf"\^\s*(\\(?:frac|binom)\s*{_GROUP}\s*{_GROUP}|\\sqrt(?:\[[^\[\]]*\])?{_GROUP})"
)


def list_readings(gold: str, answer: str) -> list[tuple[str, str]]:
    """Normalize both answers once for each meaning that their commas may have, the likeliest first.

    ``1,000`` is 1000, or a list. ``1,5`` is a list, or 1.5 if the other answer has no comma; both
    are decimal commas where semicolons separate members.
    """
    pairs = [(normalize(gold), normalize(answer))]
    if _COMMA_THOUSANDS.search(gold) or _COMMA_THOUSANDS.search(answer):
        pairs.append((normalize(gold, thousands=False), normalize(answer, thousands=False)))
    decimal = _DECIMAL_COMMA.sub(_decimal_point, gold), _DECIMAL_COMMA.sub(_decimal_point, answer)
    if decimal != (gold, answer) and ("," not in decimal[0] + decimal[1]):
        pairs.append((normalize(decimal[0]), normalize(decimal[1])))
    return pairs


def _text(match: re.Match[str]) -> str:
    content = _SPACES.sub(" ", match.group(1)).strip()
    lower = content.lower().strip(" ,")
    if lower in _MEANINGS:
        return _MEANINGS[lower]
    if (counted := _COUNTED.fullmatch(content)) and (counted.group(1) or counted.group(3)):
        return counted.group(2) + rf"\text{{{counted.group(3) or ''}}}".replace(r"\text{}", "")
    if _DIGITS.fullmatch(content) and match.string[match.end() :].lstrip().startswith("_"):
        return content
    if len(content) == 3 and content[0] == "(" and content[2] == ")":
        content = content[1]
    if len(content) == 1 and content.isascii() and content.isalpha():
        before = match.string[: match.start()]
        unit = (
            content in _UNIT_LETTERS
            and _VALUE_BEFORE.search(before)
            or before.rstrip().endswith(r"{degrees}")
        )
        return rf"\text{{{content}}}" if unit else f" {content} "
    if not any(character.isalpha() for character in content) or lower in NAMES:
        return f" {content} "
    return rf"\text{{{content}}}"


def _word(match: re.Match[str]) -> str:
    word = match.group()
    lower = word.lower()
    if lower in _MEANINGS:
        return _MEANINGS[lower]
    if lower in NAMES:
        return "\\" + lower
    words = re.split(r"[ '-]+", lower)
    if any(len(part) > 3 for part in words) or _SHORT_WORDS.issuperset(words):
        return rf"\text{{{word}}}"
    return word


def _choices(match: re.Match[str]) -> str:
    """Rewrite ``{}_8C_3`` and ``C_{n+1}^2``; not ``C_1^2``, the square of a constant."""
    upper, lower, of, chosen = match.groups()
    if (
        of
        and of.isdigit()
        and (not chosen.isdigit() or int(of) < int(chosen) or len(of + chosen) > 9)
    ):
        return match.group()
    return rf"\binom{{{upper or of}}}{{{lower or chosen}}}"


def _drop_parameter(text: str) -> str:
    r"""Drop ``k\in\mathbb{Z}`` and name the integer ``k``: that letter alone means any integer."""
    match = _FAMILY.match(text) or _PARAMETER.search(text)
    if match is None:
        return text
    letter = next(group for group in match.groups()[::-1] if group)
    text = match.group(1) if match.re is _FAMILY else text[: match.start()]
    if "k" in _LETTER.findall(text) or "constant" in match.group():
        return text
    return _LETTER.sub(lambda token: "k" if token.group() == letter else token.group(), text)


def _synonym(match: re.Match[str]) -> str:
    synonym = _SYNONYMS.get(match.group(1), match.group())
    # "\\leqx" is one command; "\\leq x" must not become one.
    return (
        synonym + " "
        if synonym != match.group() and synonym[0] == "\\" and synonym[-1].isalpha()
        else synonym
    )


def _change_outside_text(change: Callable[[str], str], text: str) -> str:
    """Apply ``change`` to what is not inside ``\\text{}``."""
    parts = _TEXT.split(text)
    return "".join(
        change(part) if index % 2 == 0 else rf"\text{{{part}}}" for index, part in enumerate(parts)
    )


def _is_pair(match: re.Match[str]) -> bool:
    """Return whether brackets make a pair of it: "(1,200)", like "[1,200)"."""
    before = match.string[: match.start()].rstrip(" -")
    after = match.string[match.end() :].lstrip()
    return before.endswith(("(", "[", "\\{")) and after.startswith((")", "]", "\\}"))


def _decimal_point(match: re.Match[str]) -> str:
    whole, places = match.groups()
    if _is_pair(match) or (len(places) == 3 and whole != "0") or not places.strip("0"):
        return match.group()
    return f"{whole.replace('.', '')}.{places}"


def _tighten(part: str) -> str:
    """Brace scripts; drop spaces but those between command and letter or between two numbers."""
    part = _SCRIPT.sub(r"\1{\2}", _POWER_IN_BRACKETS.sub(r"^{\1}", part))
    return _TIGHT.sub(
        lambda match: f"{match.group(1) or ''} " if match.group(1) or match.group(2) else "", part
    )


def _signs(text: str) -> str:
    if text.isascii():
        return text
    text = _SUPERSCRIPTS.sub(
        lambda match: f"^{{{unicodedata.normalize('NFKC', match.group())}}}", text
    )
    text = _SUBSCRIPTS.sub(
        lambda match: f"_{{{unicodedata.normalize('NFKC', match.group())}}}", text
    )
    return _CJK.sub(r"\\text{\g<0>}", text).translate(_CHARACTERS)


def unify_notation(text: str) -> str:
    """Unify signs and synonyms in any text, also a prompt; drop commands for space and size."""
    text = _SIZE.sub(" ", _SPACING.sub(" ", _STAR.sub(r"\1}", _signs(text))))
    if "\\math" in text or "\\vec" in text or "\\hat" in text:
        text = _BASIS.sub(r"\\vec{\1\2\3}", _BLACKBOARD.sub(r"\\mathbb{\1\2}", text))
        text = _CROSS.sub(r"\\otimes ", text)
    text = _COMMAND.sub(_synonym, text.replace("**", "^").replace("*", r"\cdot "))
    return _BARE_TEXT.sub(r"\\text{\1}", text)


def add_braces(text: str) -> str:
    """Put braces around the arguments of ``\\frac``, ``\\binom`` and ``\\sqrt`` that have none."""
    if "\\frac" not in text and "\\binom" not in text and "\\sqrt" not in text:
        return text
    text = _ROOT.sub(lambda match: rf"\sqrt{match.group(1) or ''}{{{match.group(2)}}}", text)
    text = _SECOND.sub(r"\1{\2}", _FIRST.sub(r"\\\1{\2}", text))
    return _POWER.sub(r"^{\1}", text)


def _rewrite_rare(text: str) -> str:
    """Rewrite notations that only a few characters introduce."""
    if "." in text:
        text = _REPEATING.sub(r"\1\\overline{\2\3\4\5}", text)
    if "_" in text or "^" in text:
        text = _BASE.sub(
            lambda match: f"_{{{_BASE_WORDS.get(match.group(1), match.group(1))}}}", text
        )
        text = _CHOICES.sub(_choices, text)
    if "mod" in text:
        text = _MODULUS.sub(r"\\pmod{\1}", text)
    if "\\in" in text or "\\text" in text:
        text = _drop_parameter(text.replace(r"\in R", r"\in\mathbb{R}"))
    if "[" in text or "]" in text:
        # ]1,3[ is (1,3).
        text = _OPEN_INTERVAL.sub(
            lambda m: {"]": "("}.get(m[1], m[1]) + m[2] + {"[": ")"}.get(m[3], m[3]), text
        )
    return text


def normalize(text: str, *, thousands: bool = True) -> str:
    """Normalize an extracted answer; ``thousands``: ``1,000`` is a number, not a list."""

    def words_and_numbers(part: str) -> str:
        part = _CONNECTIVE.sub(lambda match: _MEANINGS[match.group()], part)
        part = _MIXED.sub(r"\1\\frac{\2}{\3}", part)
        if thousands:
            part = _COMMA_THOUSANDS.sub(
                lambda m: m.group() if _is_pair(m) else m.group().replace(",", ""), part
            )
        return _WORD.sub(_word, part)

    text = text.strip().rstrip("\\ ")
    if _PLAIN.fullmatch(text):
        return text
    if money := _MONEY.fullmatch(text.rstrip(".")):
        text = (
            f"{money.group(1)}{money.group(3)}\\text{{"
            f" {'euros' if money.group(2) == '€' else 'dollars'}}}"
        )
    text = (
        _signs(text).replace("\\$", "").replace("\\!", "").replace("\\%", "%").replace("\\&", "&")
    )
    text = _NOT_EQUAL.sub(
        r"\\ne ", _GROUPED_DIGITS.sub(lambda match: match.group().replace("_", ""), text)
    )
    text = _MERIDIEM.sub(
        lambda match: rf"\text{{ {''.join(filter(None, match.groups())).lower()}m}}", text
    )
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ")
    if "\\\\" in text:
        text = _ROW_SKIP.sub(r"\\\\", text)
        if "\\begin" not in text:
            text = _DOUBLED.sub(r"\\", text)
        text = text.replace("\\\\", _ROW).strip(_ROW + " ")
    text = _THOUSANDS_SPACE.sub("", _LABEL.sub("", text.strip()))
    text = _WRAPPER.sub(" ", text).strip()
    if text.startswith("*") or text.endswith("**"):
        text = text.strip("*")
    text = _TEXT_INDEX.sub(r"_\1\2", unify_notation(text))
    text = _PRIME.sub(lambda match: "'" * match.group().count("prime"), text)
    text = _UNIT_FRACTION.sub(
        r"\\text{\1 per \2}", _RATIO_WORD.sub(":", _UNION.sub(r"\\cup ", text))
    )
    text = _CIRC.sub(r"\\text{degrees \1\2}", text).replace("degrees }", "degrees}")
    text = _UNIT_PER_UNIT.sub(
        r"\1/\2}", _change_outside_text(words_and_numbers, _TEXT.sub(_text, text))
    )
    if "\\over" in text or "\\choose" in text:
        whole = _INFIX.fullmatch(f"{{{text}}}")
        text = whole.group() if whole else text
        text = _INFIX.sub(
            lambda m: rf"\{'frac' if m[2] == 'over' else 'binom'}{{{m[1]}}}{{{m[3]}}}", text
        )
    text = _change_outside_text(_tighten, add_braces(text)).strip().rstrip(".,;:? ").lstrip(" :")
    return _rewrite_rare(text).replace(_ROW, "\\\\")
