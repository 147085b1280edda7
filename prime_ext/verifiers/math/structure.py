# SPDX-License-Identifier: Apache-2.0
"""Readers of answers: lists, sets, intervals, matrices, equations, named values.

All forms and their meanings: docs/reference/verifier_rules.md. What no form fits is a leaf without
a tree, a text that must be equal.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile

from prime_ext.verifiers.math.answer_tree import (
    EMPTY,
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Equation,
    Group,
    Leaf,
    Node,
    Relation,
    find_depths,
    is_name,
    is_sign,
    is_simple_name,
    join,
    make_leaf,
    make_number,
    read_names,
    read_side,
    split,
    split_at,
    strip,
    unwrap,
)
from prime_ext.verifiers.math.expressions import ZERO, read_vector, walk
from prime_ext.verifiers.math.notation import Token, Tokens, spell, tokenize
from prime_ext.verifiers.math.units import OPERATIVE
from prime_ext.verifiers.math.values import MONEY, MONEY_WORDS, join_compound, read_form, read_leaf

MAX_DEPTH = 9
_ORDER = {"<": ("<", False), "le": ("<", True), ">": (">", False), "ge": (">", True)}
# Relations that algebra does not know: their sides must be equal, one by one.
_OPAQUE = frozenset(
    "subset subseteq subsetneq supset supseteq supsetneq prec succ preceq succeq ll gg notin ni"
    " to Rightarrow Leftarrow leftarrow leftrightarrow Leftrightarrow perp parallel cong sim mid"
    " mapsto equiv propto nmid nparallel".split()
)
_RELATIONS = frozenset(["=", "<", ">", "le", "ge", "ne", "in", "approx"]) | _OPAQUE
_SYSTEMS = frozenset("cases aligned align gathered gather split equation array rcases".split())
_CONDITION_WORDS = frozenset("if for when where as ,".split())
_LABEL_WORDS = frozenset(
    "so hence thus therefore the an a there point points interval line curve circle equation value"
    " values we get have about approximately exactly approx roughly numbers number set solution"
    " solutions answer answers is are of".split()
)
_EMPTY_TEXTS = re.compile(r"no(?:real)?solutions?|(?:the)?emptyset")
_REAL_TEXTS = re.compile(
    r"(?:the)?reals|(?:all)?(?:the)?(?:setof(?:all)?(?:the)?)?(?:all)?realnumbers|allreals?"
)
_REALS_EXCEPT = re.compile(r"all?(?:the)?real(?:s|numbers?)(?:except|but|otherthan)")
_HALF_LINE = re.compile(r"\\mathbb R(?:\^|_)\{?([+-])\}?")
_PAREN_LABELS = ("(", "part", "question", "q", "problem")
_ROMAN = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"]
_NAMED_POINT = re.compile(r"[A-Z](?:_\w+|')*")
_LETTER_X = Token("letters", "x")
_MATHEMATICS = re.compile(r"\\(?!emptyset|mathbb|triangle|begin)|[{}^_=+|<>]")
# Patterns of tokens, each with a space after it.
_INTEGER_PARAMETER = re.compile(
    r"(?:(?:[,;(:|]|mid|for|where|with|any|all|some) )*([a-zA-Z]) in"
    r" (?:mathbb \{ Z \}|mathbb Z|Z) (?:\) )?(?:\\\} )?\Z"
)
_ANY_PARAMETER = re.compile(r"(?:for|where|with|any) (?:[^\W\d_]+ )*\Z")
_PARAMETER_KINDS = frozenset("integer integers constant all every each any real".split())


@lru_cache(maxsize=4096)
def read(text: str) -> Node:
    """Read an answer. Its nesting is limited; deeper ones are texts."""
    return read_answer(tokenize(text))


def read_answer(tokens: Tokens, depth: int = 0) -> Node:
    """Read tokens recursively."""
    tokens = strip(tokens)
    if not tokens or depth > MAX_DEPTH:
        return Leaf(spell(tokens))
    special = read_form(tokens) or _read_rows(tokens, depth) or _read_parts(tokens, depth)
    if special is not None:
        return special
    tokens = _drop_parameter(tokens)
    if any(token.text in _RELATIONS or token.text in ("infty", ",") for token in tokens):
        words = {"vee": Token("word", "or"), "wedge": Token("word", "and")}
        tokens = tuple(words.get(token.text, token) for token in tokens)
    for separators in ((";", "\\\\"), ("or",), (",", "&", "and")):
        members = [member for member in split_at(tokens, *separators) if member]
        if len(members) > 1:
            items = _flatten(_read_solution(member, depth + 1) for member in members)
            if separators == ("or",):
                is_union = all(isinstance(item, Group) and item.left for item in items)
                return Group("cup" if is_union else "list", items, name="or" * is_union)
            compound = join_compound(items) if "and" in separators else None
            return compound or _intersect(items) or Group("list", items)
        tokens = members[0] if members else ()
    return _read_single(tokens, depth + 1)


def _read_solution(tokens: Tokens, depth: int) -> Node:
    """Read the solution ``x=1,y=2`` as the pair of its values, in the order of the names."""
    node = read_answer(tokens, depth)
    values = read_names(node)
    ordered = tuple(values[name] for name in sorted(values))
    return Group("tuple", ordered, "(", ")") if values else node


def _read_rows(tokens: Tokens, depth: int) -> Node | None:
    """Read the rows of an environment: a system or a function by cases."""
    braced = is_sign(tokens[0], "\\{")
    left, inside, _ = unwrap(tokens[braced:])
    if left != "begin":
        return None
    name = inside[0].text
    rows = [split_at(row, "&") for row in split_at(inside[1:], "\\\\") if row]
    if name not in _SYSTEMS or (name == "array" and not braced):
        return None
    if (name == "cases" or braced) and all(
        len(row) == 2 and row[1] and row[1][0].text not in _RELATIONS for row in rows
    ):
        pieces = [
            Group("tuple", tuple(read_answer(_strip_condition(cell), depth + 1) for cell in row))
            for row in rows
        ]
        return Group("pieces", tuple(pieces), columns=2)
    joined: Tokens = ()
    for row in rows:
        joined += (*strip(tuple(token for cell in row for token in cell)), Token("sign", ","))
    return read_answer(joined, depth + 1)


def _strip_condition(tokens: Tokens) -> Tokens:
    tokens = strip(tokens)
    while tokens and tokens[0].text.lower() in _CONDITION_WORDS:
        tokens = tokens[1:]
    return tokens


def _read_parts(tokens: Tokens, depth: int) -> Node | None:
    """Read ``(1) 5 (2) 7``, ``(a) 3, (b) 4``, ``1) 5 2) 7``, ``A. 3 B. 8``, ``Part 1: 5; ...``."""
    depths = [0, *find_depths(tokens)]
    names: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for index in range(len(tokens)):
        if depths[index] > 0 or (starts and starts[-1] > index) or len(names) > 9:
            continue
        width = _measure_label(tokens[index : index + 4], len(names))
        name = tokens[index + width - 2].text.lower() if width else ""
        if width and (not names or names[0].isdigit() == name.isdigit()):
            names.append(name)
            ends.append(index)
            starts.append(index + width)
        elif not names:
            return None
    if len(names) == 1 and tokens[0].text == "(" and len(tokens) > 3 and tokens[3].space:
        return read_answer(tokens[3:], depth + 1)
    if len(names) < 2:
        return None
    contents = zip(starts, [*ends[1:], len(tokens)], strict=True)
    items = tuple(read_answer(tokens[start:end], depth + 1) for start, end in contents)
    return Group("parts", items, names=tuple(names))


def _measure_label(tokens: Tokens, count: int) -> int:
    """Return the number of tokens in the label of the part after ``count`` others; 0 for none."""
    labels = (str(count + 1), "abcdefghij"[count], _ROMAN[count])
    texts = [token.text.lower() for token in tokens]
    if texts[1:2] and texts[1] in labels and texts[0] in _PAREN_LABELS:
        return 3 if texts[2:3] == [")" if texts[0] == "(" else ":"] else 0
    if texts[0] not in labels or not texts[1:]:
        return 0
    plain = tokens[0].text in (labels[1].upper(), labels[2]) and len(tokens) > 2
    return 2 if texts[1] == ")" or (texts[1] in (".", ":") and plain) else 0


def _drop_parameter(tokens: Tokens) -> Tokens:
    r"""Drop ``k\in\mathbb{Z}`` and name the integer ``k``: that letter alone means any integer."""
    text = join(tokens)
    if match := _INTEGER_PARAMETER.search(text):
        letter = match[1]
    elif match := _ANY_PARAMETER.search(text):
        words = match.group().split()
        letters = [word for word in words if len(word) == 1 and word != "a"]
        if len(letters) != 1 or not _PARAMETER_KINDS.intersection(words):
            return tokens
        letter = letters[0] if {"integer", "integers"}.intersection(words) else "k"
    else:
        return tokens
    content = tokens[: text.count(" ", 0, match.start())]
    if unwrap(tokens)[0] == "\\{":
        content = content[1:]
    if not content or any("k" in token.text for token in content if token.kind == "letters"):
        return content or tokens
    return tuple(
        token._replace(text=token.text.replace(letter, "k")) if token.kind == "letters" else token
        for token in content
    )


def _flatten(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Put the members of lists, such as ``\\pm3``, in the place of the lists."""
    flat: list[Node] = []
    for node in nodes:
        flat += node.items if isinstance(node, Group) and node.kind == "list" else [node]
    return tuple(flat)


def _intersect(items: Sequence[Node]) -> Node | None:
    """Join ``x>1,x\\le3`` to an interval; of ``x\\in\\mathbb{R},x\\ne2`` return the second part."""
    sets = [item for item in items if item != REALS]
    if len(sets) == 1 and len(items) > 1 and isinstance(sets[0], Relation | Group):
        return sets[0]
    bounds = [item for item in sets if isinstance(item, Group) and item.kind == "interval"]
    if len(bounds) != len(sets) or len(bounds) != 2 or bounds[0].name != bounds[1].name:
        return None
    low, high = bounds if bounds[0].items[1] == INFINITY else bounds[::-1]
    if low.items[1] != INFINITY or high.items[0] != MINUS_INFINITY:
        return None
    return Group("interval", (low.items[0], high.items[1]), low.left, high.right, name=low.name)


def _read_single(tokens: Tokens, depth: int) -> Node:
    """Read what is not a list."""
    tokens = _strip_label(strip(tokens))
    if not tokens:
        return Leaf("")
    for reader in (
        _read_named_set,
        _read_operation,
        _read_congruence,
        _read_cycles,
        _read_brackets,
        _read_signs,
        _read_relation,
        _read_labeled,
        _read_rows,
        _read_vector,
        _read_ratio,
    ):
        if (node := reader(tokens, depth)) is not None:
            return node
    return read_form(tokens) or read_leaf(tokens)


def _strip_label(tokens: Tokens) -> Tokens:
    """Drop words before an answer that only announce it: "so the answer is about"."""
    start = 0
    for token in tokens:
        is_word = token.text.lower() in _LABEL_WORDS and token.roman
        if not (is_word or (start and is_sign(token, ",", ":"))):
            break
        start += 1
    rest = tokens[start:]
    if re.match(r"all (?:real|reals) ", join(rest[:2]).lower()):
        words = len(list(takewhile(lambda token: token.kind == "word", rest)))
        if rest[words + 1 :] and rest[words + 1].text in _RELATIONS - {"=", "in"}:
            rest = rest[words:]
    return rest if any(token.kind != "word" for token in rest) else tokens


def _read_named_set(tokens: Tokens, depth: int) -> Node | None:
    """Read the real numbers, without some or of one sign, and the empty set."""
    text = spell(tokens)
    is_words = all(token.kind == "word" or token.text in ("a", "-") for token in tokens)
    words = re.sub(r"\W", "", text.lower()) if is_words else ""
    if _REAL_TEXTS.fullmatch(words) or text == "\\mathbb R":
        return REALS
    if _EMPTY_TEXTS.fullmatch(words) or text in ("\\emptyset", "\\{\\}"):
        return EMPTY
    if _REALS_EXCEPT.match(text.replace(" ", "")):
        rest = split_at(tuple(token for token in tokens if token.kind != "word"), "=")[-1]
        return read_answer((_LETTER_X, Token("command", "ne"), *rest), depth) if rest else None
    if half := _HALF_LINE.fullmatch(text):
        zero = make_leaf("0", ZERO)
        ends = (zero, INFINITY) if half[1] == "+" else (MINUS_INFINITY, zero)
        return Group("tuple", ends, "(", ")")
    return None


def _read_operation(tokens: Tokens, depth: int) -> Node | None:
    """Read unions, intersections and differences of sets."""
    if tokens[-1].text in (")", "]"):
        union = Token("command", "cup")
        tokens = tuple(union if token[:2] == ("letters", "U") else token for token in tokens)
    for command in ("cup", "cap", "setminus", "oplus"):
        members = split_at(tokens, command)
        if len(members) > 1 and all(members):
            items = tuple(read_answer(member, depth) for member in members)
            return (command == "cap" and _intersect(items)) or Group(command, items)
    return None


def _read_congruence(tokens: Tokens, depth: int) -> Group | None:
    """Read ``x\\equiv10\\pmod7`` as the residue and the modulus."""
    match = re.search(r" (\( )?(?:pmod|mod|modulo) [({ ]*(\d+|[a-z]) [)} ]*\Z", join(tokens))
    if not match:
        return None
    residue = split_at(tokens[: match.string.count(" ", 0, match.start() + 1)], "equiv", "=")[-1]
    if not residue:
        return None
    leaf = read_leaf(residue)
    modulus = match[2]
    if leaf.number and modulus.isdigit() and int(modulus) and leaf.number.value.denominator == 1:
        leaf = make_number(leaf.number.value % int(modulus))
    return Group("congruence", (leaf, Leaf(modulus)))


def _read_relation(tokens: Tokens, depth: int) -> Node | None:
    """Read equations, inequalities and other relations."""
    sides, signs = split(tokens, *_RELATIONS)
    operators = [sign.text for sign in signs]
    if not operators:
        return None
    first = read_side(sides[0])
    named = not sides[0] or is_simple_name(first)
    if "approx" in operators:
        exact = split_at(tokens, "approx")
        if operators[0] != "approx":
            return _read_single(exact[0], depth)
        return read_answer(exact[named], depth)
    if (operators == ["in"] and named) or (operators == ["="] and not sides[0]):
        return read_answer(sides[1], depth)
    is_number = first.tree is not None and first.tree[0] == "number"
    if operators == ["="] and is_number and is_simple_name(read_side(sides[1])):
        sides = sides[::-1]
    relation = Relation(tuple(map(read_side, sides)), tuple(operators))
    if set(operators) == {"="} and all(sides):
        return Equation(relation.sides, read_answer(sides[-1], depth))
    if _ORDER.keys() >= set(operators) and (interval := _read_interval(sides, relation, depth)):
        return interval
    if len(sides) == 2 and not sides[0] and operators[0] in (*_ORDER, "ne"):
        return _read_single((_LETTER_X, *tokens), depth)
    if {"in", "notin"}.intersection(operators) or not all(sides):
        return Leaf(spell(tokens))
    return relation


def _read_interval(sides: list[Tokens], relation: Relation, depth: int) -> Group | None:
    """Read inequalities with one name alone between, above or below the bounds."""
    ways, closed = zip(*(_ORDER[operator] for operator in relation.operators), strict=True)
    rising = slice(None, None, -1 if ways[0] == ">" else 1)
    sides, names, closed = sides[rising], relation.sides[rising], closed[rising]
    places = [
        index
        for index, side in enumerate(names)
        if is_simple_name(side) or (side.tree and side.tree[0] == "call" and is_name(side))
    ]
    if len(set(ways)) > 1 or not all(sides) or len(sides) > 3:
        return None
    if places not in ([1], [len(sides) - 2]):
        return None
    (position,) = places
    low = read_answer(sides[position - 1], depth) if position else MINUS_INFINITY
    high = read_answer(sides[position + 1], depth) if sides[position + 1 :] else INFINITY
    name = names[position].text
    if not all(
        isinstance(bound, Leaf) and bound.tree and ("symbol", name) not in walk(bound.tree)
        for bound in (low, high)
    ):
        return None
    left = "[" if position and closed[position - 1] else "("
    right = "]" if closed[position:] == (True,) else ")"
    return Group("interval", (low, high), left, right, name=name, relation=relation)


def _read_labeled(tokens: Tokens, depth: int) -> Node | None:
    """Read a value after words that name it: "area 12", "Alice: 3", ``\\text{center }(1,2)``."""
    count = 0
    for token, following in zip(tokens, tokens[1:], strict=False):
        long = len(token.text) > 2 and is_sign(following, ":")
        if token.kind != "word" and not (
            token.kind == "letters" and (long or token.roman and count)
        ):
            break
        count += 1
    words = [token.text.lower() for token in tokens[:count]]
    if not 0 < count < 5 or words[0] in MONEY_WORDS or not OPERATIVE.isdisjoint(words):
        return None
    rest = tokens[count:]
    if is_sign(rest[0], ":"):
        rest = rest[1:]
    elif rest[0].text in ("(", "["):
        if not isinstance(_read_brackets(rest, depth), Group):
            return None
    elif rest[0].kind != "number" and rest[0].text not in ("frac", "sqrt", "-", *MONEY):
        return None
    if not rest:
        return None
    name = " ".join(word for word in words if word not in ("the", "is", "a"))
    return Equation((Leaf(name), read_side(rest)), read_answer(rest, depth))


def _read_cycles(tokens: Tokens, depth: int) -> Leaf | None:
    """Read a permutation ``(1\\;4)(2\\;3)``: each cycle begins with its least member."""
    text = join(tokens)
    cycles = [cycle.split() for cycle in re.findall(r"\(([^)]*)\)", text)]
    members = [member for cycle in cycles for member in cycle]
    if not re.fullmatch(r"(?:\( (?:\d+ )+\) )+", text) or len(members) == len(cycles):
        return None
    starts = [cycle.index(min(cycle)) for cycle in cycles]
    turned = [cycle[at:] + cycle[:at] for cycle, at in zip(cycles, starts, strict=True)]
    texts = [" ".join(cycle) for cycle in turned]
    is_disjoint = len(set(members)) == len(members)
    return Leaf("cycles " + "; ".join(sorted(texts) if is_disjoint else texts))


def _read_vector(tokens: Tokens, depth: int) -> Group | Leaf | None:
    """Read ``\\frac13(1,2,2)``, ``(1,2)+t(3,4)``, ``2\\mathbf{i}-3\\mathbf{j}``, ``A(1,2)``."""
    start = next((index for index, token in enumerate(tokens) if is_sign(token, "(", "[")), 0)
    if start and _NAMED_POINT.fullmatch(spell(tokens[:start])):
        point = _read_brackets(tokens[start:], depth)
        if isinstance(point, Group) and point.kind == "tuple":
            return replace(point, name=spell(tokens[:start]))
    if unwrap(tokens)[0] not in ("", "begin") or not any(
        is_sign(token, ",", ";", "begin", "hat", "vec", "widehat", "overrightarrow")
        or (token.roman and token.text in ("i", "j", "k"))
        for token in tokens
    ):
        return None
    vector = read_vector(tokens)
    if vector is None:
        return None
    (left, right, columns), components = vector
    items = tuple(make_leaf(str(component), component) for component in components)
    if columns and len(items) == 1:
        return items[0]
    return Group("matrix" if columns else "tuple", items, left, right, columns)


def _read_brackets(tokens: Tokens, depth: int) -> Node | None:
    """Read sets, tuples, intervals, and brackets around one answer."""
    left, inside, right = unwrap(tokens)
    if left + right not in ("()", "(]", "[)", "[]", "\\{\\}"):
        return None
    kind = "set" if left == "\\{" else "tuple"
    if kind == "set" and (built := _read_set_builder(inside, depth)) is not None:
        return built
    members = split_at(inside, ",", ";")
    if left == "[" and re.fullmatch(r"\d[\d.]* (?:\d[\d.]* )+", join(inside)):
        members = [(token,) for token in inside]
    if len(members) > 1:
        items = [read_answer(member, depth) for member in members]
        rows = [item.items for item in items if isinstance(item, Group) and item.left == "["]
        if left == "[" and len(rows) == len(items) and len({len(row) for row in rows}) == 1:
            cells = tuple(cell for row in rows for cell in row)
            return Group("matrix", cells, columns=len(rows[0]))
        members_of_set = _flatten(items) if kind == "set" else tuple(items)
        return Group(kind, members_of_set, left, right) if all(members) else None
    if left + right in ("(]", "[)") or not inside:
        return None
    inner = read_answer(inside, depth)
    if kind == "set":
        return Group(kind, _flatten([inner]), left, right)
    # Brackets around one value say nothing, but those of (x+1)(x-1) are read with it.
    return inner if not isinstance(inner, Leaf) or inner.tree or left == "(" else None


def _read_set_builder(inside: Tokens, depth: int) -> Node | None:
    """Read ``\\{x\\in\\mathbb{R}:x>2\\}`` as its only condition, ``\\{x:x=3\\}`` as its value."""
    name, *conditions = split_at(inside, ":", "|", "mid")
    if not conditions or not name or not all(conditions) or len(name) > 6:
        return None
    variable, *domain = split_at(name, "in")
    if domain and spell(domain[0]) not in ("\\mathbb R", "R"):
        return None
    if not is_simple_name(read_side(variable)):
        return None
    condition = read_answer(inside[len(name) + 1 :], depth)
    if isinstance(condition, Equation):
        return condition.value
    return condition if not isinstance(condition, Leaf) else None


def _read_signs(tokens: Tokens, depth: int) -> Node | None:
    """Read both signs of the first ``\\pm``, and with it those of ``\\mp``."""
    places = [index for index, token in enumerate(tokens) if is_sign(token, "pm", "mp")]
    signs = {tokens[index].text for index in places}
    if "pm" not in signs or len(places) > 2:
        return None
    variants = []
    for positive in ("pm", "mp"):
        chosen = list(tokens)
        for index in places if "mp" in signs else places[:1]:
            chosen[index] = Token("sign", "+" if tokens[index].text == positive else "-")
        variants.append(read_answer(tuple(chosen[chosen[0].text == "+" :]), depth + 1))
    return Group("list", _flatten(variants), name="\\pm")


def _read_ratio(tokens: Tokens, depth: int) -> Node | None:
    """Divide by the last term: proportional ratios become equal, those of two terms fractions."""
    colon = Token("sign", ":")
    members = split_at(tuple(colon if token.text == "to" else token for token in tokens), ":")
    if len(members) < 2 or not all(members):
        return None
    leaves = [read_leaf(member) for member in members]
    trees = [leaf.tree for leaf in leaves if leaf.tree and not leaf.unit]
    if len(trees) < len(leaves):
        return None
    last = leaves[-1]
    if last.number and not last.number.value:
        return Group("ratio", tuple(leaves))
    quotients = tuple(
        make_leaf(f"{leaf.text}:{last.text}", ("divide", tree, trees[-1]))
        for leaf, tree in zip(leaves, trees, strict=True)
    )
    return quotients[0] if len(quotients) == 2 else Group("ratio", quotients)


def find_unread(node: Node) -> str | None:
    """Return the first text with signs of mathematics in an answer, which nothing understands."""
    if isinstance(node, Leaf):
        return node.text if node.tree is None and _MATHEMATICS.search(node.text) else None
    if isinstance(node, Group):
        return next(filter(None, map(find_unread, node.items)), None)
    if isinstance(node, Equation):
        return find_unread(node.value)
    unread = (side.text for side in node.sides if side.tree is None)
    return next((text for text in unread if _MATHEMATICS.search(text)), None)
