# SPDX-License-Identifier: Apache-2.0
"""Tokens of an answer: one spelling for signs, commands and digits; nothing else is dropped.

Takes linear time. What is unified: docs/reference/verifier_rules.md.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_CHARACTERS = 2400
MAX_NESTED_TEXTS = 8

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


def _read_table(rows: str) -> dict[str, str]:
    """Return the first word of each row, a line or what commas separate, by its other words."""
    table = [row.split() for row in re.split(r",|\n", rows) if row.strip()]
    return {name: row[0] for row in table for name in row[1:]}


_WORD_MEANINGS = _read_table(
    "infty infinity inf, arsinh arcsinh asinh, arcosh arccosh acosh, artanh arctanh atanh,"
    "varepsilon epsilon"
)
# Words between the members of a list.
_CONNECTIVES = _read_table("""
    and and & und et ve en och og и 和 与 と 및 그리고 y
    or or oder ou или 或 または 또는 alternatively
""")
_TEXT_COMMANDS = frozenset(
    "text mathrm mathbf mathit mathsf mathtt mathop mbox hbox bm pmb boldsymbol textbf textit"
    " textrm textsf texttt textup textsc textnormal operatorname emph textsuperscript ce".split()
)
_SYNONYMS = dict.fromkeys(["square", "checkmark", "hfill"], "") | _read_table(r"""
    frac dfrac tfrac cfrac sfrac nicefrac, binom dbinom tbinom, le leq leqslant leqq
    ge geq geqslant geqq, cdot times ast bullet, | lvert rvert vert, ‖ lVert rVert Vert
    vee lor, wedge land, neg lnot, ( lparen, ) rparen, [ lbrack, ] rbrack, \{ lbrace, \} rbrace
    ldots dots cdots dotsc dotsb, setminus smallsetminus backslash
    Rightarrow implies Longrightarrow, Leftrightarrow iff Longleftrightarrow
    to rightarrow longrightarrow, ne neq, < lt, > gt, / div, : colon
    emptyset varnothing, mathbb{R} R, cup bigcup, cap bigcap, phi varphi
    varepsilon epsilon, circ degree, i imath, j jmath, mapsto longmapsto, mid divides, mod bmod
    tan tg, cot ctg, arctan arctg, pm plusmn
""")
_COMMAND_CHARACTERS = dict(zip("αβγδεζηθικλμνξοπρςστυφχψω", _GREEK, strict=True)) | _read_table("""
    Gamma Γ, Delta Δ, Theta Θ, Lambda Λ, Xi Ξ, Pi Π, Sigma Σ, Phi Φ, Psi Ψ, Omega Ω, phi ϕ
    varepsilon ϵ, infty ∞, sqrt √, sqrt[3] ∛, sqrt[4] ∜, ell ℓ, hbar ℏ, aleph ℵ, permil ‰
    le ≤ ⩽ ≦, ge ≥ ⩾ ≧, ne ≠, approx ≈, sim ∼, cong ≅, equiv ≡, propto ∝, pm ±, mp ∓
    cdot × ∗ ⋅ · • ∙, oplus ⊕, otimes ⊗, circ ∘, ldots … ⋯, mid ∣, parallel ∥, perp ⊥
    cup ∪, cap ∩, in ∈, notin ∉, emptyset ∅, subset ⊂, subseteq ⊆, supset ⊃, supseteq ⊇, setminus ∖
    forall ∀, exists ∃, neg ¬, wedge ∧, vee ∨, to →, leftarrow ←, leftrightarrow ↔, mapsto ↦
    Rightarrow ⇒, Leftrightarrow ⇔, triangle △, angle ∠, nabla ∇, partial ∂, sum ∑, prod ∏, int ∫
    lfloor ⌊, rfloor ⌋, lceil ⌈, rceil ⌉
    mathbb{R} ℝ, mathbb{Z} ℤ, mathbb{N} ℕ, mathbb{Q} ℚ, mathbb{C} ℂ, mathbb{P} ℙ
""")
_CHARACTERS = {
    **{letter: f"\\{name} " for letter, name in _COMMAND_CHARACTERS.items()},
    **_read_table("- − – — ﹣ － ‐ ‑ ‒ \n / ÷ ∕ ⁄ \n : ∶ \n . 。 ٫ \n ; ； \n ( ⟨ 〈 \n ) ⟩ 〉"),
    **_read_table("' ’ ‘ ′ \n '' ″ \n \" “ ” „ « » \n ^{\\circ} ° º ˚ \n ^* †"),
    **{"、": ",", "，": ",", "¢": r"\text{ cents}", "℃": r"^{\circ}\text{C}"},
    **{"℉": r"^{\circ}\text{F}", "٬": ""},
    **dict.fromkeys("\u200b\u200c\u200d\ufeff\u2061\u2062\u200e\u200f\u202a\u202c\ufe0f∎■□✓✔", ""),
}
CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "YEN", "₹": "INR", "₽": "RUB", "₩": "KRW"}
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ]+")
_SUBSCRIPTS = re.compile("[₀-₉₊₋₌₍₎ₐₑₒₓₕₖₗₘₙₚₛₜᵢⱼ]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_SQUARED = re.compile("[\u3300-\u33ff]")
_MATHEMATICAL = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff\u2160-\u217f]+")
_EMPHASIS = re.compile(r"\A\s*(\*{1,3}|_{1,2})(?=\S)(.*?\S)\1\s*\Z|\*{2,3}(?=\s|\Z)|\A\*{2,3}")
_LABEL = re.compile(
    r"\A[\s*#]*(?:the\s{1,3})?(?:final\s{1,3})?answer\**\s{0,3}(?:is\b|:|=)\s{0,3}[:*]*", re.I
)
_QUOTES = re.compile(r"""\A(["'])((?:(?!\1).)*)\1\Z""", re.DOTALL)
_MONEY_SIGN = re.compile(r"(?:US|A|C)?\\?\$(?=\s*-?[\d.])|\\\$")
# 1{,}000, 1\,000, 1 000, 1'000, 1_000 and 1.000.000.
_THOUSANDS = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?:\\[,:;! ]|\{,\}|,\\!|~| ){1,2}\d{3})+(?!\d)"
    r"|(?<![\w.,'])\d{1,3}(?:['_]\d{3})+(?![\w'])|(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.])"
)
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
    r"|(?<!\\)\\[,:;> ]|~|\\(?:quad|qquad|thinspace|medspace|thickspace|enspace|space)(?![a-zA-Z])"
    r"|&nbsp;"
)
_VECTOR = r"\\(?:mathbf|bm|boldsymbol|vec|hat|widehat|overrightarrow)"
# What may be written in several ways: a text that occurs in it, a pattern, and its replacement.
_REWRITES = [
    (trigger, re.compile(pattern, re.DOTALL), replacement)
    for trigger, pattern, replacement in (
        ("=", r"=/=|\\not\s*=|(?<=[a-zA-Z])(?<!n)(?<!k)\s*!=(?!=)|(?<=\s)!=(?!=)", r"\\ne "),
        # In x=5 y=3 a name after white space begins an equation.
        (
            "=",
            r"((?<!\{\w)=[^=]*[\d)}])(?:\s|\\(?:q?quad|[,;: ]))+(?=[a-zA-Z]\s*=)",
            r"\1, ",
        ),
        ("<=", "<=", r"\\le "),
        (">=", ">=", r"\\ge "),
        ("...", r"\.\.\.", r"\\ldots "),
        (
            "^",
            r"(?<=\d)\s*\^\s*(?:\{\s*(?:\\text\s*\{\s*o\s*\}|o)\s*\}|o(?![a-zA-Z]))",
            r"^{\\circ}",
        ),
        ("frac", r"\\[dtc]?frac(?:\s*(\d)|\s+([a-zA-Z]))", r"\\frac{\1\2}"),
        ("frac", r"(\\[dtc]?frac\s*\{[^{}]*\})\s*([\da-zA-Z])", r"\1{\2}"),
        (
            "base",
            r"(?<=[\dA-F])\s{0,9}\(?(?:\\text\s*\{)?\s*(?:in )?base[ -](\w+)[)}]*\Z",
            r"_{\1}",
        ),
        ("log", r"(log\s*_\s*)(?!10)(\d)(?=\d)", r"\1{\2}"),
        ("{}_", r"\{\}_(\w|\{\w+\})\s*([CP])\s*_(\w|\{\w+\})", r"n\2r(\1,\3)"),
        ("\\math", r"\\math(?:bb|ds|bbm)\s*\{?\s*([A-Z])\s*\}?", r"\\mathbb{\1}"),
        ("\\mathbf", r"\\mathbf\s*\{?\s*([RZ])\s*\}?", r"\\mathbb{\1}"),
        (
            "\\times",
            r"(?<![a-zA-Z\\][A-Z])(?<=[A-Z])\s*\\times(?=\s*[A-Z](?![a-zA-Z]))"
            rf"|\\times(?=\s*{_VECTOR})|(?<=\\nabla)\s*\\times",
            r"\\otimes ",
        ),
        ("\\langle", r"\\langle((?:(?!\\[lr]angle)[^,])*,(?:(?!\\[lr]angle).)*)\\rangle", r"(\1)"),
        # ]1,3[ is (1,3).
        (
            "",
            r"([\[\]])([^\[\](),;]*[,;][^\[\]()]*)([\[\]])",
            lambda match: match[1].replace("]", "(") + match[2] + match[3].replace("[", ")"),
        ),
        ("\\\\", r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|ex|em|mm|cm)\s*\]", r"\\\\"),
        ("*}", r"(\\(?:begin|end)\s*\{[a-z]+)\*\}", r"\1}"),
    )
]
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z]{2})")
_COMMA_THOUSANDS = re.compile(
    r"(?<![\d.,])([1-9]\d{0,2}(?:,\d{3})+|[1-9]\d?(?:,\d{2})+,\d{3})(?!\d|,\d)"
)
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,40}|\d{1,3}(?:\.\d{3}){1,9})(?:,|\{,\})(\d{1,40})(?![\d,]|\.\d|\{,)"
)
_TOKEN = re.compile(
    r"(?P<space>\s+)|\\begin\s*\{(?P<environment>[a-zA-Z]+)\}(?:(?<=array\})\s*\{[^{}]*\})?"
    r"|(?P<end>\\end\s*\{[a-zA-Z]+\})|\\(?P<command>[a-zA-Z]+)\*?|(?P<escaped>\\.)"
    r"|(?P<number>\d+(?:\.\d+)*(?:\.(?=\s|\Z))?|\.\d+)"
    r"|(?P<letters>(?:[^\W\d_]+(?:-(?=[^\W\d_]{3}))?)+)|(?P<other>.)",
    re.DOTALL,
)
_OPENING = re.compile(r"\s*(?:\{|([a-zA-Z])(?![a-zA-Z]))")
_BRACE = re.compile(r"\\.|[{}]")
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
_CASELESS_PAIRS = frozenset("no ok am pm if up on it is or my we he us".split())


def _fold_characters(text: str) -> str:
    text = unicodedata.normalize("NFC", text)
    text = _MATHEMATICAL.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)
    text = _SUPERSCRIPTS.sub(lambda match: f"^{{{_fold_compatible(match)}}}", text)
    text = _SUBSCRIPTS.sub(lambda match: f"_{{{_fold_compatible(match)}}}", text)
    text = _VULGAR.sub(
        lambda match: r"\frac{{{}}}{{{}}}".format(*_fold_compatible(match).split("⁄")), text
    )
    text = _SQUARED.sub(
        lambda match: re.sub(r"(\d)", r"^\1", rf" \text{{{_fold_compatible(match)}}}"), text
    )
    runs = re.split(r"([^\W\d_]{2,})", text.replace("µ", "μ"))
    for index, run in enumerate(runs):
        # Greek letters are signs, unless they spell a word.
        if index % 2 == 0 or all(sign in _COMMAND_CHARACTERS or sign.isascii() for sign in run):
            runs[index] = "".join(map(_fold_character, run))
    return "".join(runs)


def _fold_compatible(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", match.group()).replace("−", "-")


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
    text = _QUOTES.sub(r"\2", _LABEL.sub("", text))
    text = re.sub(r"</?[a-zA-Z]{1,9}>", "", text) if "</" in text else text
    text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match.group()), text)
    text = text[:-2] if text.startswith("\\$") and text.endswith("\\$") else text
    signs = text.count("$") - text.count("\\$")
    if signs > 1 or (signs and not _MONEY_SIGN.search(text)):
        text = re.sub(r"(?<!\\)\$", " ", text)
    text = _MONEY_SIGN.sub(r"\\USD ", text)
    for trigger, pattern, replacement in _REWRITES:
        if trigger in text:
            text = pattern.sub(replacement, text)
    if "\\\\" in text and "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    return _SIZE.sub(" ", text).replace("**", "^")


def scan(text: str, roman: bool = False, depth: int = 0) -> Iterator[Token]:
    """Yield the tokens of a folded text; ``roman``: it is the content of ``\\text{}``."""
    position = 0
    space = script = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        position = match.end()
        piece = match.group()
        command = match["command"]
        if match["space"]:
            space = True
            continue
        if command in _TEXT_COMMANDS and (content := _find_content(text, position, depth)):
            start, end, position = content
            tokens = list(_scan_text(text[start:end], space, command != "operatorname", depth + 1))
            yield from [Token("sign", "{"), *tokens, Token("sign", "}")] if script else tokens
            space = text[end - 1] == " "
            script = False
            continue
        if command:
            yield from _scan_command(command, space)
        elif match["end"]:
            yield Token("command", "end", space)
        elif environment := match["environment"]:
            yield from (Token("command", "begin", space), Token("word", environment))
        elif number := match["number"]:
            yield Token("number", number.rstrip("."), space, roman)
        elif match["letters"]:
            yield from _scan_letters(piece, space, roman)
        elif match["escaped"]:
            sign = piece if piece in ("\\{", "\\}", "\\\\") else piece[1]
            yield Token("sign", "‖" if piece == "\\|" else sign, space, roman)
        elif piece in CURRENCIES and piece != "$":
            yield Token("command", CURRENCIES[piece], space)
        elif piece == "*":
            yield Token("command", "cdot", space)
        elif piece != '"' or roman:
            yield Token("sign", piece, space, roman)
        script = piece in "^_"
        space = False


def _find_content(text: str, position: int, depth: int) -> tuple[int, int, int] | None:
    """Return start and end of a text command's argument, and where the text after it starts."""
    opening = _OPENING.match(text, position)
    if opening is None or depth >= MAX_NESTED_TEXTS:
        return None
    if opening[1]:
        return opening.start(1), opening.end(), opening.end()
    level = 1
    for brace in _BRACE.finditer(text, opening.end()):
        level += {"{": 1, "}": -1}.get(brace.group(), 0)
        if level == 0:
            return opening.end(), brace.start(), brace.end()
    return None


def _scan_command(command: str, space: bool) -> Iterator[Token]:
    name = _SYNONYMS.get(command, command)
    if name.startswith("mathbb{"):
        yield Token("command", "mathbb", space)
        yield from (Token("sign", "{"), Token("letters", name[7]), Token("sign", "}"))
    elif name in ("i", "j"):
        yield Token("letters", name, space)
    elif name:
        yield Token("command" if name[0].isalpha() else "sign", name, space)


def _scan_text(content: str, space: bool, roman: bool, depth: int) -> Iterator[Token]:
    """Yield the tokens of ``\\text{content}``."""
    if content.strip() in ("e", "o", "y") and content != content.strip():
        yield Token("word", "and", True, True)
        return
    for index, token in enumerate(scan(content, roman, depth)):
        yield token._replace(space=token.space or space) if index == 0 else token


def _scan_letters(run: str, space: bool, roman: bool) -> Iterator[Token]:
    lower = run.lower()
    if (connective := _CONNECTIVES.get(lower)) and (len(run) > 1 or not run.isascii()):
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
    elif glued := None if roman else _GLUED.fullmatch(run):
        yield Token("command", glued[1], space)
        yield Token("letters", glued[2])
    elif roman or lower in _SHORT_WORDS or (len(run) > 3 and not run.isupper()):
        yield Token("word", run, space, True)
    else:
        yield Token("letters", run, space)


def tokenize(text: str) -> Tokens:
    """Return the tokens of an answer, without the punctuation at its ends."""
    tokens = list(scan(fold(text)))
    while tokens and tokens[-1].text in (".", ",", ";", ":", "?", "\\\\"):
        tokens.pop()
    while tokens and tokens[0].text in (":", ".", ",", "\\\\"):
        tokens.pop(0)
    return tuple(tokens)


def fold_case(text: str) -> str:
    """Return a word without its case; two letters can be an element or a symbol, as Co and CO."""
    keeps = len(text) == 2 and text.isascii() and text.lower() not in _CASELESS_PAIRS
    return text if keeps else text.casefold()


def spell(tokens: Sequence[Token]) -> str:
    """Return a text that two answers share if they have the same tokens.

    Case of words, white space, and braces around one token do not count.
    """
    pieces: list[str] = []
    last = ""
    for index, (kind, text, _, _) in enumerate(tokens):
        if kind == "sign" and text in "{}":
            other = index + 2 if text == "{" else index - 2
            if 0 <= other < len(tokens) and {text, tokens[other].text} == {"{", "}"}:
                continue
        elif kind == "word" or (kind == "letters" and len(text) > 2):
            text = fold_case(text).replace("-", "")
        elif kind == "command":
            text = f"\\{text} "
        elif last == kind == "number":
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
    decimal = _DECIMAL_COMMA.sub(_decimal_point, gold), _DECIMAL_COMMA.sub(_decimal_point, answer)
    if decimal != (gold, answer) and "," not in decimal[0] + decimal[1]:
        pairs.append(decimal)
    return pairs


def _join_thousands(text: str) -> str:
    return _COMMA_THOUSANDS.sub(
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
