# SPDX-License-Identifier: Apache-2.0
"""Tables between the markers of a page, for the scripts of this folder."""

import re


def replace(page: str, name: str, text: str) -> str:
    """The page with a new table between the markers of that name.

    Raises:
        ValueError: the markers are not there once.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    pattern = f"({re.escape(begin)}).*?({re.escape(end)})"
    page, count = re.subn(pattern, lambda match: match[1] + text + match[2], page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{name}: the page has {count} pairs of markers")
    return page
