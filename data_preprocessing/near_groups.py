# SPDX-License-Identifier: Apache-2.0
"""Groups of problems that stay on one side of a split: near-duplicates, shared premises, and what these connect."""

from collections.abc import Iterator, Sequence

from data_preprocessing.contamination_index import named_parts
from data_preprocessing.text_similarity import Settings, SimilarityIndex, connected
from prime_ext.step_rm.question_split import group_of


def near_groups(problems: Sequence[Sequence[str]], settings: Settings | None = None) -> list[str]:
    """The name of the group of each problem.

    Two problems are linked if the contamination report, with the same settings, would call one of them a hit of the
    other; a group is whatever links connect. Its name is the least of the names that its members would have alone, so
    it depends neither on the order of the problems nor on those of other groups.

    Args:
        problems: the texts of each problem: premise and hypothesis, or a question.
        settings: what near means.

    Returns:
        16 hexadecimal digits for each problem.
    """
    settings = settings or Settings()
    index = SimilarityIndex(settings)
    for texts in problems:
        index.add("\n".join(texts))
    roots = connected(len(problems), _links(problems, index))
    alone = [group_of("\n".join(texts), "numbers" if settings.mask_numbers else "text") for texts in problems]
    names: dict[int, str] = {}
    for root, name in zip(roots, alone, strict=True):
        names[root] = min(name, names.get(root, name))
    return [names[root] for root in roots]


def _links(problems: Sequence[Sequence[str]], index: SimilarityIndex) -> Iterator[tuple[int, int]]:
    first: dict[str, int] = {}
    for number, texts in enumerate(problems):
        whole = "\n".join(texts)
        for form in named_parts(texts, index.settings.mask_numbers):
            yield number, first.setdefault(form, number)
        yield number, index.same_shingles[number]
        same = index.same_ngrams[number]
        if same is not None:
            yield number, same
        # The whole index, not what came before: whether one text contains another depends on the direction.
        for near in (index.near(whole), index.contained(whole)):
            for other, _ in near:
                yield number, other
