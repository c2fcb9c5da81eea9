"""Which parameters of a test run in `make test`; the others are for `make test-all`.

`pairwise` chooses a few combinations that contain each pair of values of two parameters.
"""

from collections.abc import Collection, Hashable, Iterable
from itertools import combinations
from typing import Any

import pytest

Combination = tuple[Hashable, ...]


def also_in_test_all(always: Collection[Any], every: Iterable[Any]) -> list[Any]:
    """`every` for pytest.mark.parametrize: those that are not in `always` only run in test-all."""
    values = list(every)
    unknown = [one for one in always if one not in values]
    assert not unknown, f"{unknown} is not among {values}"
    return [one if one in always else only_in_test_all(one) for one in values]


def only_in_test_all(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.test_all)


def pairs(combination: Combination) -> set[frozenset[tuple[int, Hashable]]]:
    """Each two of its values, with their places."""
    return {frozenset(pair) for pair in combinations(enumerate(combination), 2)}


def pairwise(every: Iterable[Combination]) -> list[Combination]:
    """Choose from `every` until each pair that is in one of them is in one of the chosen.

    The next one is always the first of those with the most new pairs, so the choice is always the
    same. Combinations of a single parameter are all chosen.
    """
    left = {combination: pairs(combination) for combination in every}
    if all(len(combination) == 1 for combination in left):
        return list(left)
    missing = set().union(*left.values())
    chosen: list[Combination] = []
    while missing:
        best = max(left, key=lambda combination: len(left[combination] & missing))
        chosen.append(best)
        missing -= left.pop(best)
    return chosen
