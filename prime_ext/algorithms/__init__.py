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
"""Pure torch functions of PRIME: process rewards, PRM losses, advantages. No verl, no Ray, no I/O.

Axes in tensor names: ``B`` rollouts, ``T`` response tokens, ``S`` steps of a response, ``C`` cuts of a response, ``G``
prompt groups, ``N`` members of a group or a list of entries, ``H`` hidden width, ``V`` vocabulary, ``1`` one column.
"""
