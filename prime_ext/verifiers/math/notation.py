# SPDX-License-Identifier: Apache-2.0
"""Tokens of an answer: one spelling for signs, commands and digits; nothing else is dropped.

Takes linear time. What is unified: docs/reference/verifier_rules.md.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_CHARACTERS = 2400

# Functions and names that may be written without a backslash.
FUNCTIONS = frozenset(
    "arcsin arccos arctan arccot arcsec arccsc arsinh arcosh artanh arcsinh arccosh arctanh sinh"
    " cosh tanh coth sech csch sin cos tan cot sec csc log ln lg exp sqrt gcd lcm max min floor"
    " ceil abs sgn det cis Re Im".split()
)
_GREEK = (
    "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho"
    " varsigma sigma tau upsilon phi chi psi omega".split()
)
_BARE_COMMANDS = (
    FUNCTIONS | frozenset(_GREEK) - {"nu", "xi", "mu", "eta", "chi", "psi"} | {"infty", "binom"}
)
_WORD_MEANINGS = {
    **dict.fromkeys(["infinity", "inf"], "infty"),
    **dict.fromkeys(["arcsinh", "asinh"], "arsinh"),
    **dict.fromkeys(["arccosh", "acosh"], "arcosh"),
    **dict.fromkeys(["arctanh", "atanh"], "artanh"),
    "epsilon": "varepsilon",
}
# Words between the members of a list. Single letters only where they are the whole text.
CONNECTIVES = {
    **dict.fromkeys("and & und et ve en och og и 和 与 と 및 그리고 y".split(), "and"),
    **dict.fromkeys("or oder ou или 或 または 또는 alternatively".split(), "or"),
}
_TEXT_COMMANDS = frozenset(
    "text mathrm mathbf mathit mathsf mathtt mathop mbox hbox bm pmb boldsymbol textbf textit"
    " textrm textsf texttt textup textsc textnormal operatorname emph textsuperscript ce".split()
)
_SYNONYMS = {
    **dict.fromkeys(["dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"], "frac"),
    **dict.fromkeys(["dbinom", "tbinom"], "binom"),
    **dict.fromkeys(["leq", "leqslant", "leqq"], "le"),
    **dict.fromkeys(["geq", "geqslant", "geqq"], "ge"),
    **dict.fromkeys(["times", "ast", "bullet"], "cdot"),
    **dict.fromkeys(["lvert", "rvert", "vert"], "|"),
    **dict.fromkeys(["lVert", "rVert", "Vert"], "‖"),
    **dict.fromkeys(["lor"], "vee"),
    **dict.fromkeys(["land"], "wedge"),
    **dict.fromkeys(["lnot"], "neg"),
    **{"lparen": "(", "rparen": ")"},
    **dict.fromkeys(["lbrack"], "["),
    **dict.fromkeys(["rbrack"], "]"),
    **dict.fromkeys(["dots", "cdots", "dotsc", "dotsb"], "ldots"),
    **dict.fromkeys(["smallsetminus", "backslash"], "setminus"),
    **dict.fromkeys(["implies", "Longrightarrow"], "Rightarrow"),
    **dict.fromkeys(["iff", "Longleftrightarrow"], "Leftrightarrow"),
    **dict.fromkeys(["rightarrow", "longrightarrow"], "to"),
    **{"neq": "ne", "lt": "<", "gt": ">", "div": "/", "colon": ":", "lbrace": "{", "rbrace": "}"},
    **{"varnothing": "emptyset", "R": "mathbb{R}", "bigcup": "cup", "bigcap": "cap"},
    **{"varphi": "phi", "epsilon": "varepsilon", "degree": "circ", "imath": "i", "jmath": "j"},
    **{"longmapsto": "mapsto", "divides": "mid", "bmod": "mod", "tg": "tan", "ctg": "cot"},
    **{"arctg": "arctan", "plusmn": "pm", "square": "", "checkmark": "", "hfill": ""},
}
_COMMAND_CHARACTERS = {
    **dict(zip("αβγδεζηθικλμνξοπρςστυφχψω", _GREEK, strict=True)),
    **{"Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi"},
    **{"Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega", "ϕ": "phi", "ϵ": "varepsilon"},
    **{"∞": "infty", "√": "sqrt", "∛": "sqrt[3]", "∜": "sqrt[4]", "ℓ": "ell", "ℏ": "hbar"},
    **{"≤": "le", "⩽": "le", "≦": "le", "≥": "ge", "⩾": "ge", "≧": "ge", "≠": "ne", "≈": "approx"},
    **{"±": "pm", "∓": "mp", "∪": "cup", "∩": "cap", "∈": "in", "∉": "notin", "∅": "emptyset"},
    **{"⊂": "subset", "⊆": "subseteq", "⊃": "supset", "⊇": "supseteq", "∖": "setminus"},
    **{
        "∀": "forall",
        "∃": "exists",
        "¬": "neg",
        "∧": "wedge",
        "∨": "vee",
        "→": "to",
        "↦": "mapsto",
    },
    **{"⇒": "Rightarrow", "⇔": "Leftrightarrow", "∥": "parallel", "⊥": "perp", "∼": "sim"},
    **{"≅": "cong", "≡": "equiv", "∣": "mid", "△": "triangle", "∠": "angle", "∇": "nabla"},
    **{"∂": "partial", "∑": "sum", "∏": "prod", "∫": "int", "⌊": "lfloor", "⌋": "rfloor"},
    **{"⌈": "lceil", "⌉": "rceil", "⊕": "oplus", "⊗": "otimes", "∘": "circ", "…": "ldots"},
    **{"ℵ": "aleph", "‰": "permil", "∝": "propto", "×": "cdot", "∗": "cdot", "⋅": "cdot"},
    **{"·": "cdot", "•": "cdot", "∙": "cdot", "←": "leftarrow", "↔": "leftrightarrow"},
    **{letter: f"mathbb{{{name}}}" for letter, name in zip("ℝℤℕℚℂℙ", "RZNQCP", strict=True)},
}
_CHARACTERS = {
    **{letter: f"\\{name} " for letter, name in _COMMAND_CHARACTERS.items()},
    **dict.fromkeys("−–—﹣－‐‑‒", "-"),
    **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061\u2062\u200e\u200f\u202a\u202c\ufe0f∎■□✓✔", ""),
    **dict.fromkeys("°º˚", r"^{\circ}"),
    **{"÷": "/", "∕": "/", "⁄": "/", "∶": ":", "、": ",", "。": ".", "，": ",", "；": ";"},
    **{"⟨": "(", "⟩": ")", "〈": "(", "〉": ")", "’": "'", "‘": "'", "′": "'", "″": "''"},
    **dict.fromkeys("“”„«»", '"'),
    **{"¢": r"\text{ cents}", "٫": ".", "٬": "", "†": "^*", "⋯": r"\ldots "},
}
CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "YEN", "₹": "INR", "₽": "RUB", "₩": "KRW"}
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+")
_SUBSCRIPTS = re.compile("[₀-₉₊₋₌₍₎ₐₑₒₓₕₖₗₘₙₚₛₜᵢⱼ]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_SQUARED = re.compile("[\u3300-\u33ff]")
_MATHEMATICAL = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff\u2160-\u217f]+")

_SIZE = re.compile(
    r"\\(?:left|right|mleft|mright|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*(?:\.(?!\d))?"
    r"|\\(?:(?:display|text|script)style|(?:no)?limits|bf|rm|it|(?:normal|footnote|script)size|small"
    r"|tiny|[lL]arge|LARGE|[hH]uge|newline|underline|uline|ensuremath|mathstrut|smash|par|noindent"
    r"|centering|nonumber|notag|blacksquare|qed|boxed|fbox|framebox)(?![a-zA-Z])"
    r"|\\[hv]?phantom\s*(?:\{[^{}]*\}|[^\\{}\s])"
    r"|\\(?:(?:text|f)?color(?:box)?|[hv]space|label|tag)\*?\s*(?:\[[a-z]*\])?\{[^{}]*\}"
    r"|\\[mhv]?(?:kern|skip)\s*-?[\d.]+\s*[a-z]{2}|\\!"
    r"|\A\s*\\(?:therefore|implies|Rightarrow|Longrightarrow)(?![a-zA-Z])|<br ?/?>|<\|[a-z_]+\|>"
    r"|(?<!\\)\\[()\[\]]|`|∴"
)
_SPACING = re.compile(
    r"(?<!\\)\\[,:;> ]|~|\\(?:quad|qquad|thinspace|medspace|thickspace|enspace|space)(?![a-zA-Z])|&nbsp;"
)
_TAGS = re.compile(r"</?[a-zA-Z]{1,9}>")
_STAR = re.compile(r"(\\(?:begin|end)\s*\{[a-z]+)\*\}")
_ROW_SKIP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|ex|em|mm|cm)\s*\]")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z]{2})")
_EMPHASIS = re.compile(r"\A\s*(\*{1,3}|_{1,2})(?=\S)(.*?\S)\1\s*\Z|\*{2,3}(?=\s|\Z)|\A\*{2,3}")
_LABEL = re.compile(
    r"\A[\s*#]*(?:the\s{1,3})?(?:final\s{1,3})?answer\**\s{0,3}(?:is\b|:|=)\s{0,3}[:*]*", re.I
)
_NOT_EQUAL = re.compile(r"=/=|\\not\s*=|(?<=[a-zA-Z])(?<!n)(?<!k)\s*!=(?!=)|(?<=\s)!=(?!=)")
_MONEY_SIGN = re.compile(r"(?:US|A|C)?\\?\$(?=\s*-?[\d.])|\\\$")
_DEGREE_LETTER = re.compile(
    r"(?<=\d)\s*\^\s*(?:\{\s*(?:\\text\s*\{\s*o\s*\}|o)\s*\}|o(?![a-zA-Z]))"
)
_FIRST_DIGIT = re.compile(r"\\[dtc]?frac(?:\s*(\d)|\s+([a-zA-Z]))")
_SECOND_DIGIT = re.compile(r"(\\[dtc]?frac\s*\{[^{}]*\})\s*([\da-zA-Z])")
_DOTTED_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.])")
_BASE_IN_WORDS = re.compile(r"(?<=[\dA-F])\s*\(?(?:\\text\s*\{)?\s*(?:in )?base[ -](\w+)[)}]*\Z")
_BLACKBOARD = re.compile(r"\\math(?:bb|ds|bbm)\s*\{?\s*([A-Z])\s*\}?|\\mathbf\s*\{?\s*([RZ])\s*\}?")
_CROSS = re.compile(
    r"(?<![a-zA-Z\\])(?<=[A-Z])\s*\\times(?=\s*[A-Z](?![a-zA-Z]))|(?<=\s[A-Z])\s*\\times(?=\s*[A-Z](?![a-zA-Z]))"
    r"|\\times(?=\s*\\(?:mathbf|bm|boldsymbol|vec|hat|widehat|overrightarrow))|(?<=\\nabla)\s*\\times"
)
_ANGLE_BRACKETS = re.compile(r"\\langle((?:(?!\\langle).)*?,.*?)\\rangle")
_OPEN_INTERVAL = re.compile(r"([\[\]])([^\[\]()]*[,;][^\[\]()]*)([\[\]])")
_THOUSANDS = [
    # 1{,}000, 1\,000, 1 000, 1'000 and 1_000.
    re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,:;! ]|\{,\}|,\\!|~| ){1,2}\d{3})+(?!\d)"),
    re.compile(r"(?<![\w.,'])\d{1,3}(?:['_]\d{3})+(?![\w'])"),
]
COMMA_THOUSANDS = re.compile(
    r"(?<![\d.,])([1-9]\d{0,2}(?:,\d{3})+|[1-9]\d?(?:,\d{2})+,\d{3})(?!\d|,\d)"
)
DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,40}|\d{1,3}(?:\.\d{3}){1,9})(?:,|\{,\})(\d{1,40})(?![\d,]|\.\d|\{,)"
)
_TOKEN = re.compile(
    r"\s+|\\(?P<command>[a-zA-Z]+)\*?|(?P<escaped>\\.)"
    r"|(?P<number>\d+(?:\.\d+)*(?:\.(?=\s|\Z))?|\.\d+)|(?P<letters>[^\W\d_]+(?:-(?=[^\W\d_]{3}))?)+"
    r"|(?P<other>.)",
    re.DOTALL,
)
_SHORT_WORDS = frozenset(
    "yes no all odd any not the for if per due red dog cat hot old new big low men boy out mod day"
    " sum set row".split()
)
_GLUED = re.compile(r"(sin|cos|tan|cot|sec|csc|ln|log)([a-zA-Z])")


class Token(NamedTuple):
    """One token.

    ``kind`` is number, letters (a run of letters in mathematics), word, command or sign;
    ``roman`` says that it stands in ``\\text{}`` or the like, ``space`` that white space precedes.
    """

    kind: str
    text: str
    space: bool = False
    roman: bool = False


Tokens = tuple[Token, ...]


def _fold_characters(text: str) -> str:
    text = unicodedata.normalize("NFC", text)
    text = _MATHEMATICAL.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)
    text = _SUPERSCRIPTS.sub(lambda match: f"^{{{_compatible(match.group())}}}", text)
    text = _SUBSCRIPTS.sub(lambda match: f"_{{{_compatible(match.group())}}}", text)
    text = _VULGAR.sub(
        lambda match: r"\frac{{{}}}{{{}}}".format(*_compatible(match.group()).split("⁄")), text
    )
    text = _SQUARED.sub(
        lambda match: re.sub(
            r"([a-zA-Z]+)(\d?)",
            lambda unit: rf" \text{{{unit[1]}}}" + (f"^{unit[2]}" if unit[2] else ""),
            _compatible(match.group()),
        ),
        text,
    )
    text = text.replace("℃", r"^{\circ}\text{C}").replace("℉", r"^{\circ}\text{F}")
    text = text.replace("µ", "μ")
    runs = re.split(r"([^\W\d_]{2,})", text)
    for index, run in enumerate(runs):
        # Greek letters are signs, unless they spell a word.
        if index % 2 and not all(one in _COMMAND_CHARACTERS or one.isascii() for one in run):
            continue
        runs[index] = "".join(map(_fold_character, run))
    return "".join(runs)


def _compatible(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("−", "-")


def _fold_character(character: str) -> str:
    if character.isascii():
        return character
    if (folded := _CHARACTERS.get(character)) is not None:
        return folded
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category in ("Zs", "Cc"):
        return " "
    return "" if category in ("So", "Cf", "Sk") and character not in CURRENCIES else character


def fold(text: str) -> str:
    """Return a text with one spelling of its signs, without commands for size and space."""
    text = text.strip()
    if not text.isascii():
        text = _fold_characters(text)
    text = text.rstrip("\\ ")
    while match := _EMPHASIS.search(text):
        text = (match.group(2) or "") if match.group(1) else text.replace(match.group(), " ")
    text = _LABEL.sub("", text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text.count(text[0]) == 2:
        text = text[1:-1]
    text = _TAGS.sub("", text) if "</" in text else text
    for pattern in _THOUSANDS:
        text = pattern.sub(lambda match: re.sub(r"\D", "", match.group()), text)
    text = text[:-2] if text.startswith("\\$") and text.endswith("\\$") else text
    signs = text.count("$") - text.count("\\$")
    if signs > 1 or (signs and not _MONEY_SIGN.search(text)):
        text = re.sub(r"(?<!\\)\$", " ", text)
    text = _MONEY_SIGN.sub(r"\\USD ", text)
    text = _NOT_EQUAL.sub(r"\\ne ", text).replace("<=", r"\le ").replace(">=", r"\ge ")
    text = _DEGREE_LETTER.sub(r"^{\\circ}", text.replace("...", r"\ldots "))
    text = _SECOND_DIGIT.sub(r"\1{\2}", _FIRST_DIGIT.sub(r"\\frac{\1\2}", text))
    text = _DOTTED_THOUSANDS.sub(lambda match: match.group().replace(".", ""), text)
    text = _BASE_IN_WORDS.sub(r"_{\1}", text)
    if "\\math" in text or "\\times" in text or "\\langle" in text:
        text = _CROSS.sub(r"\\otimes ", _BLACKBOARD.sub(r"\\mathbb{\1\2}", text))
        text = _ANGLE_BRACKETS.sub(r"(\1)", text)
    if "[" in text or "]" in text:
        # ]1,3[ is (1,3).
        text = _OPEN_INTERVAL.sub(
            lambda m: {"]": "("}.get(m[1], m[1]) + m[2] + {"[": ")"}.get(m[3], m[3]), text
        )
    if "\\\\" in text:
        text = _ROW_SKIP.sub(r"\\\\", text)
        if "\\begin" not in text:
            text = _DOUBLED.sub(r"\\", text)
    return _SPACING.sub(" ", _SIZE.sub(" ", _STAR.sub(r"\1}", text))).replace("**", "^")


def _find_close(text: str, start: int) -> int:
    """Return where the brace before ``start`` closes; -1 if it does not."""
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:]):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return start + match.start()
    return -1


def scan(text: str, roman: bool = False) -> Iterator[Token]:
    """Yield the tokens of a folded text; ``roman``: it is the content of ``\\text{}``."""
    position = 0
    space = False
    script = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        position = match.end()
        piece = match.group()
        if piece.isspace():
            space = True
            continue
        if (command := match["command"]) is not None:
            opening = re.compile(r"\s*(?:\{|([a-zA-Z])(?![a-zA-Z]))").match(text, position)
            if command in _TEXT_COMMANDS and opening:
                close = _find_close(text, opening.end()) if not opening[1] else -1
                if opening[1] or close >= 0:
                    content = opening[1] or text[opening.end() : close]
                    position = opening.end() if opening[1] else close + 1
                    inner = list(_scan_text(content, space, command != "operatorname"))
                    yield from (
                        inner if not script else [Token("sign", "{"), *inner, Token("sign", "}")]
                    )
                    space = content.endswith(" ")
                    script = False
                    continue
            yield from _scan_command(command, space)
        elif (number := match["number"]) is not None:
            yield Token("number", number.rstrip("."), space, roman)
        elif match["letters"] is not None:
            yield from _scan_letters(piece, space, roman)
        elif match["escaped"] is not None:
            sign = piece if piece in ("\\{", "\\}", "\\\\") else piece[1]
            yield Token("sign", "‖" if piece == "\\|" else sign, space, roman)
        elif piece in CURRENCIES and piece != "$":
            yield Token("command", CURRENCIES[piece], space)
        elif piece == "*":
            yield Token("command", "cdot", space)
        elif not (piece in '"' and not roman):
            yield Token("sign", piece, space, roman)
        script = piece in "^_"
        space = False


def _scan_command(command: str, space: bool) -> Iterator[Token]:
    synonym = _SYNONYMS.get(command, command)
    if synonym.startswith("mathbb{"):
        yield Token("command", "mathbb", space)
        yield from (Token("sign", "{"), Token("letters", synonym[7]), Token("sign", "}"))
    elif synonym in ("i", "j"):
        yield Token("letters", synonym, space)
    elif synonym in ("{", "}"):
        yield Token("sign", "\\" + synonym, space)
    elif synonym and not synonym[0].isalpha():
        yield Token("sign", synonym, space)
    elif synonym:
        yield Token("command", synonym, space)


def _scan_text(content: str, space: bool, roman: bool) -> Iterator[Token]:
    """Yield the tokens of ``\\text{content}``."""
    if content.strip() in ("e", "o", "y") and content != content.strip():
        yield Token("word", "and", True, True)
        return
    for index, token in enumerate(scan(content, roman)):
        yield token._replace(space=token.space or space) if index == 0 else token


def _scan_letters(run: str, space: bool, roman: bool) -> Iterator[Token]:
    lower = run.lower()
    if (connective := CONNECTIVES.get(lower)) and (len(run) > 1 or not run.isascii()):
        yield Token("word", connective, space, True)
    elif not run.isascii():
        yield Token("word", run, space, True)
    elif len(run) == 1:
        yield Token("letters", run, space, roman)
    elif not (roman and run == "min") and (
        run in FUNCTIONS or lower in _BARE_COMMANDS or lower in _WORD_MEANINGS
    ):
        name = _WORD_MEANINGS.get(lower, run if run in FUNCTIONS else lower)
        yield Token("command", name, space)
    elif roman:
        yield Token("word", run, space, True)
    elif glued := _GLUED.fullmatch(run):
        yield Token("command", glued[1], space)
        yield Token("letters", glued[2])
    elif lower in _SHORT_WORDS or (len(run) > 3 and not run.isupper()):
        yield Token("word", run, space, True)
    else:
        yield Token("letters", run, space)


def tokenize(text: str) -> Tokens:
    """Return the tokens of an answer, without the punctuation at its ends."""
    tokens = list(scan(fold(text)))
    while (
        tokens
        and tokens[-1].text in (".", ",", ";", ":", "?", "\\\\")
        and (tokens[-1].kind == "sign")
    ):
        tokens.pop()
    while tokens and tokens[0].text in (":", ".", ",", "\\\\") and tokens[0].kind == "sign":
        tokens.pop(0)
    return tuple(tokens)


def spell(tokens: Sequence[Token]) -> str:
    """Return a text that two answers share if they have the same tokens.

    Case of words, white space, and braces around one token do not count.
    """
    pieces: list[str] = []
    last = ""
    for index, (kind, text, _, roman) in enumerate(tokens):
        alone = (
            text == "{"
            and index + 2 < len(tokens)
            and tokens[index + 2].text == "}"
            or text == "}"
            and index > 1
            and tokens[index - 2].text == "{"
        )
        if kind == "sign" and alone:
            continue
        if kind == "word" or (kind == "letters" and len(text) > 1 and text.lower() != text.upper()):
            text = text.casefold() if kind == "word" or len(text) > 2 else text
            text = text.replace("-", "")
        elif kind == "command":
            text = f"\\{text} "
        if last == kind == "number":
            pieces.append(" ")
        pieces.append(text)
        last = kind
    return "".join(pieces).strip()


def normalize(text: str) -> str:
    """Return the spelling that answers of the same tokens share; ``1,000`` is 1000."""
    return spell(tokenize(_join_thousands(text)))


def list_spellings(gold: str, answer: str) -> list[tuple[str, str]]:
    """Return both answers once for each meaning that their commas may have, the likeliest first.

    ``1,000`` is 1000, or a list. ``1,5`` is a list, or 1.5 if the other answer has no comma; both
    are decimal commas where semicolons separate members.
    """
    pairs = [(_join_thousands(gold), _join_thousands(answer))]
    if pairs[0] != (gold, answer):
        pairs.append((gold, answer))
    decimal = DECIMAL_COMMA.sub(_decimal_point, gold), DECIMAL_COMMA.sub(_decimal_point, answer)
    if decimal != (gold, answer) and "," not in decimal[0] + decimal[1]:
        pairs.append(decimal)
    return pairs


def _join_thousands(text: str) -> str:
    return COMMA_THOUSANDS.sub(
        lambda match: match.group() if _is_pair(match) else match.group().replace(",", ""), text
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
