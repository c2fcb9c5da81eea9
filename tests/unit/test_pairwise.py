"""Tests with many parameters run pairwise in `make test`: each pair of two values at least once."""

from collections.abc import Hashable, Sequence
from itertools import combinations, product

import pytest

from tests.support.pairwise import also_in_test_all, pairwise

FACTORS: list[tuple[Sequence[Hashable], ...]] = [
    (["a", "b"], ["x", "y", "z"]),
    (["tail", "cold"], range(6), range(5), range(6)),  # those of test_roundtrip
    (range(3), range(3), range(3), range(3)),
    (["a", "b"], ["a", "b"], ["a", "b"]),  # the same values in each place
]


@pytest.mark.parametrize("factors", FACTORS, ids=len)
def test_the_pairwise_choice_has_each_pair_of_two_values(
    factors: tuple[Sequence[Hashable], ...],
) -> None:
    chosen = pairwise(product(*factors))

    for (first, some), (second, others) in combinations(enumerate(factors), 2):
        found = {(combination[first], combination[second]) for combination in chosen}
        assert found == set(product(some, others))
    assert set(chosen) <= set(product(*factors))


def test_the_pairwise_choice_is_small_and_always_the_same() -> None:
    every = list(product(["tail", "cold"], range(6), range(5), range(6)))

    assert 36 <= len(pairwise(every)) <= 42
    assert pairwise(every) == pairwise(every)


def test_a_pair_that_is_in_no_combination_is_not_looked_for() -> None:
    assert pairwise([("a", "x", 1), ("b", "y", 1)]) == [("a", "x", 1), ("b", "y", 1)]


def test_all_values_of_a_single_parameter_are_chosen() -> None:
    assert pairwise([("a",), ("b",)]) == [("a",), ("b",)]


def test_parameters_that_do_not_always_run_have_the_marker_test_all() -> None:
    every = also_in_test_all([("a", 1)], [("a", 1), ("b", 2)])

    assert every[0] == ("a", 1)
    assert every[1].values == ("b", 2)
    assert [mark.name for mark in every[1].marks] == ["test_all"]
    with pytest.raises(AssertionError, match=r"\['c'\] is not among \['a', 'b'\]"):
        also_in_test_all(["c"], ["a", "b"])
