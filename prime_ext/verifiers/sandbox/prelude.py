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


def _namespace() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for module in _STARRED:
        exported = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        names.update({name: getattr(module, name) for name in exported})
    names.update(
        {name: getattr(math, name) for name in ("inf", "gcd", "lcm", "sqrt", "ceil", "floor", "comb", "isqrt")}
    )
    names.update({module.__name__: module for module in _MODULES})
    names.update({node.__name__: node for node in (ListNode, TreeNode)})
    return names


# For solutions.
NAMESPACE = _namespace()
# For tests: what they call without importing it is the solution's, unless it is one of the node classes. Modules cannot
# be called, so that a solution may bear the name of one.
TEST_CLASSES: dict[str, Any] = {"ListNode": ListNode, "TreeNode": TreeNode}
TEST_NAMESPACE: dict[str, Any] = {**{module.__name__: module for module in _MODULES}, **TEST_CLASSES}
