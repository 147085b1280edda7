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
