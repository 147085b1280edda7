# Copyright 2026 The prime_ext Authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Answers that hung, crashed, fooled or executed code in some grader, and programs that write endless more of them."""

import random

MARKER = "prime_ext_was_here"


def hostile_answers(marker: str = MARKER) -> list[str]:
    """Return fixed hostile answers; executing one of the payloads would create the file ``marker``."""
    matrix = r"\begin{pmatrix}" + r"\\".join("&".join(f"x_{{{i}{j}}}" for j in range(40)) for i in range(40))
    numbers = r"\begin{vmatrix}" + r"\\".join("&".join(str(i * j + 7) for j in range(40)) for i in range(40))
    return [
        # towers, plain and folded
        "9^{9^{9^9}}",
        "9^{9^{9^{9^{9}}}}",
        "((9^9)^{9999})^{9999}",
        "((9**9)**9999)**9999",
        "10^{1000000}",
        "2^{2^{2^{2^{99}}}}",
        "(((2^{99})^{99})^{99})^{99}",
        "9^{999999999}",
        r"\left(9^{9^9}\right)^{-1}",
        r"e^{e^{e^{e^{9}}}}",
        "10^{10^{10}}",
        r"\sqrt{9^{9^9}}",
        "x^{99999999}",
        "(x+1)^{2000}",
        "(x+y+z+w)^{60}",
        "1e999999999",
        "1e-999999999",
        "9^{-9^{9}}",
        # factorials, binomials, sums
        "(10!)!",
        "1000000!",
        "((3!)!)!",
        "9!!!!!!!!!!!!",
        "(9^9)!",
        r"\binom{1000000}{500000}",
        r"\binom{\binom{99}{9}}{9}",
        r"\sum_{n=1}^{10^{9}} n",
        r"\sum_{n=1}^{1000000000} \frac{1}{n}",
        r"\prod_{k=1}^{99999} k",
        r"\int_0^1 x^{x^{x^{x}}} dx",
        r"\lim_{x\to0}\frac{\sin(\tan x)-\tan(\sin x)}{x^7}",
        r"\sum_{a=1}^{999}\sum_{b=1}^{999}\sum_{c=1}^{999} a^bc",
        # division by zero, infinities
        "1/0",
        r"\frac{1}{0}",
        r"\frac{0}{0}",
        r"\infty-\infty",
        r"0^{0^{0}}",
        r"\log 0",
        r"\tan\frac{\pi}{2}",
        r"0^{-1}",
        # what the grammar or sympy would make of names, sums and inequalities
        r"\variable{os.system}",
        r"\operatorname{zeros}(9999,9999)",
        r"\prod_{k=1}^{999}k^{999}",
        r"|x^{99}|<\sin x<|x|^{x^{2}}<5",
        "a:" * 50 + "b",
        "9" * 60 + "," + "9" * 60,
        r"\text{" + "a, " * 150 + "}",
        # nesting
        "(" * 5000 + "1" + ")" * 5000,
        "{" * 5000 + "1" + "}" * 5000,
        "{" * 5000,
        "(" * 300 + "x" + ")" * 300,
        "[" * 40 + "]" * 40,
        r"\sqrt{" * 1000 + "2" + "}" * 1000,
        r"\frac{1}{" * 300 + "2" + "}" * 300,
        r"\boxed{" * 5000,
        r"\boxed{" * 2000 + "1" + "}" * 2000,
        "((((((((1))))))))",
        "{((((((({x})))))))}",
        "|" * 200 + "x" + "|" * 200,
        "-" * 3000 + "1",
        "(-" * 200 + "1" + ")" * 200,
        # size
        matrix + r"\end{pmatrix}",
        numbers + r"\end{vmatrix}",
        "1" * 10**5,
        "1" * 10**6,
        "0." + "3" * 10**5,
        "9" * 999,
        "1," * 20000 + "1",
        r"\cup".join(f"({i},{i + 1})" for i in range(60)),
        "+".join(["x"] * 3000),
        "x" * 100000,
        " " * 10**6,
        r"\{" + ",".join(map(str, range(300))) + r"\}",
        r"\frac{" + "1" * 4000 + "}{" + "7" * 4000 + "}",
        "1/" + "9" * 5000,
        r"\log_{2^5}" * 60 + "2",
        r"\log_{2^5}\log_{2^5}\log_{2^5}\log_{2^5}\log_{2^5} 2",
        r"\sin" * 300 + "x",
        "a_{" * 200 + "1" + "}" * 200,
        # other scripts and control characters
        "１２３",
        "٣",
        "५",
        "①",
        "Ⅷ",
        "\x00",
        "\ud800",
        "1\u202e2",
        "\ue000" * 50,
        "𝟓",
        "²³",
        "½½",
        "e\u0301" * 300,
        # payloads for graders that evaluate
        f"__import__('os').system('touch {marker}')",
        f"(open('{marker}','w'))",
        f"[open('{marker}','w')]",
        f"__import__('pathlib').Path('{marker}').touch()",
        rf"\text{{__import__('os').system('touch {marker}')}}",
        f"exec(\"open('{marker}','w')\")",
        f"eval(compile(\"open('{marker}','w')\",'x','exec'))",
        f"Function('open')('{marker}','w')",
        f"{{open('{marker}','w')}}",
        f"lambda: open('{marker}','w')",
        f"\\operatorname{{__import__('os').system('touch {marker}')}}",
        f"x=open('{marker}','w')",
        f"$(touch {marker})",
        f"`touch {marker}`",
        f"'; touch {marker}; '",
        r"\input{/etc/passwd}",
        r"\write18{touch " + marker + "}",
        f"sympify(\"open('{marker}','w')\")",
        "().__class__.__bases__[0].__subclasses__()",
        # against our own regular expressions
        r"\text{" * 3000,
        r"\text{a" * 3000 + "}" * 3000,
        "1," * 5000 + "x",
        "1 " * 50000,
        "~" * 50000,
        r"\," * 30000,
        "a b " * 20000,
        "aa-" * 20000,
        "1 1/" * 20000,
        r"\frac" * 10000,
        r"\frac1" * 10000,
        r"\sqrt(" * 10000,
        "^" * 50000,
        "_{" * 20000,
        r"\left" * 20000,
        r"\left." * 20000,
        r"5\text{a}" * 3000,
        "answer " * 20000,
        "answer is " * 20000,
        "#### " * 20000,
        "\\" * 99999,
        "=" * 9000,
        "<" * 9000,
        ":" * 9000,
        ";" * 9000,
        r"\pm" * 2000,
        r"\pm1\pm1\pm1\pm1\pm1\pm1",
        "**" * 30000,
        r"\begin{pmatrix}" * 2000,
        "%" * 5000,
        "1%" * 5000,
        r"\overline{" * 3000,
        "0." + r"\overline{3}" * 2000,
        r"\text{or}" * 5000,
        "or " * 30000,
        "x=" * 20000 + "5",
        "1:" * 9000 + "1",
        r"\approx" * 3000,
        r"\in" * 3000,
        "'" * 9000,
        "f(" * 3000 + "x" + ")" * 3000,
    ]


def random_hostile_answer(generator: random.Random) -> str:
    """Return a random answer of the same kinds, all different."""
    n = generator.randrange(2, 99)
    m = generator.randrange(10**3, 10**9)
    kinds = [
        lambda: f"{n}^{{{m}}}",
        lambda: f"({n}^{{{n}}})^{{{m}}}",
        lambda: f"{m}!",
        lambda: "(" * n + str(m) + ")" * n,
        lambda: r"\sqrt{" * (n % 12) + f"x+{m}" + "}" * (n % 12),
        lambda: rf"\frac{{x^{{{n}}}+{m}}}{{\sqrt{{x}}-{n}}}",
        lambda: rf"\sum_{{k=1}}^{{{m}}}\frac{{1}}{{k^{{{n}}}}}",
        lambda: rf"\binom{{{m}}}{{{n}}}",
        lambda: rf"(x+{m}y-\sqrt{{{n}}})^{{{n}}}",
        lambda: rf"\sin^{{{n}}}({m}x)+\cos({n}y)\ln({m}+x^2)",
        lambda: rf"\begin{{pmatrix}}{m}&x\\y&\sqrt{{{n}}}\end{{pmatrix}}",
        lambda: rf"x^{{{n}}}+{m}x^{{{n // 2}}}-\pi={m}",
        lambda: rf"({m},\sqrt{{{n}}}]\cup[{m + 1},\infty)",
        lambda: "".join(generator.choice(r"0123456789+-*/^_{}()[]\xyzabcfracsqrtpi,;:|!%=<> ") for _ in range(n)),
        lambda: rf"\log_{{{n}}}\log_{{{m}}}(x+{n})",
        lambda: str(m) * n,
        lambda: rf"{n}\pm\sqrt{{{m}}}",
        lambda: rf"\text{{{m}}}\frac{{{m}}}{{0}}",
    ]
    return generator.choice(kinds)()
