# SPDX-License-Identifier: Apache-2.0
"""Names that a solution finds without importing them, as on the judges from which call-based problems come.

Modules under their own names, and the star exports of those that shadow no built-in.
"""

import bisect
import collections
import copy
import datetime
import functools
import heapq
import inspect
import itertools
import json
import math
import operator
import re
import string
import sys
import typing
from typing import Any

from prime_ext.verifiers.sandbox.plain_data import ListNode, TreeNode

_MODULES = (
    bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, re, string, sys,
    typing,
)  # fmt: skip
_STARRED = (typing, collections, itertools, functools, heapq, bisect)
# A module's own name comes after what the stars bring: ``bisect`` is the module.
_IMPORTS = "\n".join(
    (
        *(f"from {module.__name__} import *" for module in _STARRED),
        "from typing import Any",
        "from math import inf, gcd, lcm, sqrt, ceil, floor, comb, isqrt",
        *(f"import {module.__name__}" for module in _MODULES),
    )
)
# For an interpreter that has none of this package.
SOURCE = "\n".join((_IMPORTS, inspect.getsource(ListNode), inspect.getsource(TreeNode)))


def _namespace() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(_IMPORTS, names)
    del names["__builtins__"]
    return {**names, "ListNode": ListNode, "TreeNode": TreeNode}


# For solutions.
NAMESPACE = _namespace()
# For tests: what they call without importing it is the solution's, unless it is one of the node classes. Modules cannot
# be called, so that a solution may bear the name of one.
TEST_CLASSES: dict[str, Any] = {"ListNode": ListNode, "TreeNode": TreeNode}
TEST_NAMESPACE: dict[str, Any] = {**{module.__name__: module for module in _MODULES}, **TEST_CLASSES}
