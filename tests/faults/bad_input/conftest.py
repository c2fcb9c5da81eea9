"""A connection, a topic, and the check that no bad input makes the broker log an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import messages
from tests.support.broker_log import no_defects
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.wire import Wire


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker) as connection:
        yield connection


@pytest.fixture
def target(wire: Wire, topic: str) -> Target:
    return messages.create_topic(wire, topic)


@pytest.fixture(autouse=True)
def broker_without_defects(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing that a client sends makes the broker log an error of its own."""
    if "broker" not in request.fixturenames:
        yield
        return
    with no_defects(request.getfixturevalue("broker")):
        yield
