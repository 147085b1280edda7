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
"""Work on parts that other processes can import."""

import os


def work(numbers, part):
    part.with_suffix(".txt").write_text(" ".join(map(str, numbers)))
    return {"sum": sum(numbers)}


def dying(numbers, part):
    if numbers == [3]:
        os._exit(1)
    return work(numbers, part)
