"""Seeds of random histories: `make test` takes one of each test, `make test-all` all of them."""

from __future__ import annotations

from typing import Any

from tests.support.pairwise import also_in_test_all


def seeds(count: int) -> list[Any]:
    """For `pytest.mark.parametrize("seed", ...)`."""
    return also_in_test_all([0], range(count))
