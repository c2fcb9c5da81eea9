"""What several unit tests ask for by name."""

from typing import Any

import pytest

from tests.support.record_codecs import BOTH


@pytest.fixture(params=BOTH, ids=["compiled", "reference"])
def module(request: pytest.FixtureRequest) -> Any:
    """Each implementation of the record batch format in turn."""
    return request.param
