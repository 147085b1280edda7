# SPDX-License-Identifier: Apache-2.0
"""Answers that hung, crashed, fooled or ran code in some grader, and generators of more."""

import random

MARKER = "prime_ext_was_here"

# One a word: towers; factorials, binomials, sums; undefined values; text that parsers misread.
SHORT = r"""
    9^{9^{9^9}} 9^{9^{9^{9^{9}}}} ((9^9)^{9999})^{9999} ((9**9)**9999)**9999 10^{1000000}
    2^{2^{2^{2^{99}}}}
    (((2^{99})^{99})^{99})^{99} 9^{999999999} \left(9^{9^9}\right)^{-1} e^{e^{e^{e^{9}}}}
    10^{10^{10}} \sqrt{9^{9^9}}
    x^{99999999} (x+1)^{2000} (x+y+z+w)^{60} 1e999999999 1e-999999999 9^{-9^{9}}

    (10!)! 1000000! ((3!)!)! 9!!!!!!!!!!!! (9^9)! \binom{1000000}{500000} \binom{\binom{99}{9}}{9}
    \sum_{n=1}^{10^{9}}n \sum_{n=1}^{1000000000}\frac{1}{n} \prod_{k=1}^{99999}k
    \prod_{k=1}^{999}k^{999}
    \int_0^1x^{x^{x^{x}}}dx \lim_{x\to0}\frac{\sin(\tan{x})-\tan(\sin{x})}{x^7}
    \sum_{a=1}^{999}\sum_{b=1}^{999}\sum_{c=1}^{999}a^bc

    1/0 \frac{1}{0} \frac{0}{0} \infty-\infty 0^{0^{0}} \log{0} \tan\frac{\pi}{2} 0^{-1}

    \variable{os.system} \operatorname{zeros}(9999,9999) |x^{99}|<\sin{x}<|x|^{x^{2}}<5
    ((((((((1))))))))
    {((((((({x})))))))} \log_{2^5}\log_{2^5}\log_{2^5}\log_{2^5}\log_{2^5}2 \pm1\pm1\pm1\pm1\pm1\pm1
""".split()

# Other scripts and control characters.
CHARACTERS = "１２３ ٣ ① Ⅷ ²³ ½½".split() + ["\x00", "\ud800", "1\u202e2"]

# For graders that evaluate; MARKER is the file that would come to exist.
PAYLOADS = r"""
__import__('os').system('touch MARKER')
(open('MARKER','w'))
[open('MARKER','w')]
{open('MARKER','w')}
x=open('MARKER','w')
__import__('pathlib').Path('MARKER').touch()
\text{__import__('os').system('touch MARKER')}
\operatorname{__import__('os').system('touch MARKER')}
exec("open('MARKER','w')")
eval(compile("open('MARKER','w')",'x','exec'))
sympify("open('MARKER','w')")
Function('open')('MARKER','w')
lambda: open('MARKER','w')
$(touch MARKER)
`touch MARKER`
'; touch MARKER; '
\input{/etc/passwd}
\write18{touch MARKER}
().__class__.__bases__[0].__subclasses__()
"""

# Each many times over, against graders' regular expressions, ours included.
REPEATED = (
    r"""
    ( { [ | - x \boxed{ \text{ \frac \frac1 \sqrt( ^ _{ \left \left. \begin{pmatrix} \overline{ \pm
    \approx \in \\
    = < : ; % 1% 1: 1, x= ' f( #### ** ~ \, a_{ \sin aa- \text{or} 5\text{a}
""".split()
    + ["1 ", "a b ", "1 1/", "answer ", "answer is ", "or ", " ", "\ue000"]
)

# An opening, its content and a closing, repeated this often.
NESTED = [
    ("(", "1", ")", 5000), ("{", "1", "}", 5000), ("(", "x", ")", 300), ("[", "", "]", 40),
    (r"\sqrt{", "2", "}", 1000),
    (r"\frac{1}{", "2", "}", 300), (r"\boxed{", "1", "}", 2000), ("|", "x", "|", 200),
    ("(-", "1", ")", 200),
    ("a_{", "1", "}", 200), (r"\text{a", "", "}", 3000), ("f(", "x", ")", 3000),
]  # fmt: skip


def _matrix(kind: str, cell: str) -> str:
    rows = (
        "&".join(cell.format(i=i, j=j, product=i * j + 7) for j in range(40)) for i in range(40)
    )
    return rf"\begin{{{kind}}}" + r"\\".join(rows) + rf"\end{{{kind}}}"


def _large() -> list[str]:
    return [
        _matrix("pmatrix", "x_{{{i}{j}}}"),
        _matrix("vmatrix", "{product}"),
        "1" * 10**6,
        "9" * 999,
        "9" * 60 + "," + "9" * 60,
        "0." + "3" * 10**5,
        "0." + r"\overline{3}" * 2000,
        "1," * 20000 + "1",
        "a:" * 50 + "b",
        "x=" * 20000 + "5",
        "+".join(["x"] * 3000),
        r"\text{" + "a, " * 150 + "}",
        r"\cup".join(f"({i},{i + 1})" for i in range(60)),
        r"\{" + ",".join(map(str, range(300))) + r"\}",
        r"\frac{" + "1" * 4000 + "}{" + "7" * 4000 + "}",
        "1/" + "9" * 5000,
        r"\log_{2^5}" * 60 + "2",
        "e\u0301" * 300,
    ]


def hostile_answers(marker: str = MARKER) -> list[str]:
    """Return fixed hostile answers; a payload that is executed creates the file ``marker``."""
    payloads = [line.replace("MARKER", marker) for line in PAYLOADS.strip().splitlines()]
    repeated = [piece * (60_000 // len(piece)) for piece in REPEATED]
    nested = [opened * times + inside + closed * times for opened, inside, closed, times in NESTED]
    return [*SHORT, *CHARACTERS, *payloads, *repeated, *nested, *_large()]


def random_hostile_answer(generator: random.Random) -> str:
    """Return a random answer for computer algebra, all different."""
    n = generator.randrange(2, 99)
    m = generator.randrange(10**3, 10**9)
    characters = (
        generator.choice(r"0123456789+-*/^_{}()[]\xyzabcfracsqrtpi,;:|!%=<> ") for _ in range(n)
    )
    kinds = [
        r"\sqrt{" * (n % 12) + f"x+{m}" + "}" * (n % 12),
        rf"\frac{{x^{{{n}}}+{m}}}{{\sqrt{{x}}-{n}}}",
        rf"(x+{m}y-\sqrt{{{n}}})^{{{n}}}",
        rf"\sin^{{{n}}}({m}x)+\cos({n}y)\ln({m}+x^2)",
        rf"\begin{{pmatrix}}{m}&x\\y&\sqrt{{{n}}}\end{{pmatrix}}",
        rf"x^{{{n}}}+{m}x^{{{n // 2}}}-\pi={m}",
        rf"({m},\sqrt{{{n}}}]\cup[{m + 1},\infty)",
        rf"\log_{{{n}}}\log_{{{m}}}(x+{n})",
        "".join(characters),
    ]
    return generator.choice(kinds)
