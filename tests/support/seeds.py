"""Seeds of random histories: `make test` takes one of each test, `make test-all` all of them."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def seeds(count: int) -> list[ParameterSet]:
    """For `pytest.mark.parametrize("seed", ...)`."""
    return [
        pytest.param(0),
        *(pytest.param(n, marks=pytest.mark.test_all) for n in range(1, count)),
    ]
