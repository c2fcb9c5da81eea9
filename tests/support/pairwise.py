"""A few combinations that contain each pair of values of two parameters."""

from collections.abc import Hashable, Iterable
from itertools import combinations

Combination = tuple[Hashable, ...]


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
