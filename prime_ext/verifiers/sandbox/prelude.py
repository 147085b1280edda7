# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401, F403, I001
"""Names that solutions use without import, as on the judges that call-based problems come from.

Modules under their own names, and the star exports of those that shadow no built-in.
"""

from typing import *
from collections import *
from itertools import *
from functools import *
from heapq import *
from bisect import *
from typing import Any
from math import inf, gcd, lcm, sqrt, ceil, floor, comb, isqrt

# A module's own name comes after what the stars bring: ``bisect`` is the module.
import bisect  # type: ignore[assignment]
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


class ListNode:
    def __init__(self, val: Any = 0, next: "ListNode | None" = None) -> None:
        self.val = val
        self.next = next


class TreeNode:
    def __init__(
        self, val: Any = 0, left: "TreeNode | None" = None, right: "TreeNode | None" = None
    ) -> None:
        self.val = val
        self.left = left
        self.right = right
