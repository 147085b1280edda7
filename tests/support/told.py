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
"""Dialogues of model stages, carried on by hand: the model is a function, the verifiers are the real ones."""

from data_preprocessing.dialogues import Ask, Judges
from prime_ext.inference.backend import Response

JUDGES = Judges()


def conversed(dialogue, says):
    """Carry a dialogue on to its end.

    Args:
        says: from an :class:`Ask` the text of the answer, or a :class:`Response`.

    Returns:
        Its result, and what it asked.
    """
    asked, given = [], None
    while True:
        try:
            effects = dialogue.send(given)
        except StopIteration as stop:
            return stop.value, asked
        judged = iter(JUDGES.verdicts([effect for effect in effects if not isinstance(effect, Ask)]))
        given = []
        for effect in effects:
            if not isinstance(effect, Ask):
                given.append(next(judged))
                continue
            asked.append(effect)
            said = says(effect)
            given.append(said if isinstance(said, Response) else Response("", said, 1, 1, "stop"))


def rl_row(problem, gold="7", source="numina_cn_k12", index=0, suffix="", **extra):
    """A math row as ``rl_data`` writes it."""
    return {
        "data_source": source,
        "prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": problem + suffix}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"split": "train", "index": index, **extra},
    }
