"""Connections to the shared broker, and a group with one member."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support import messages
from tests.support.broker_log import no_defects
from tests.support.broker_process import BrokerProcess
from tests.support.group_answers import Connect
from tests.support.member import Member
from tests.support.messages import Target
from tests.support.wire import Wire


@pytest.fixture(autouse=True)
def broker_without_defects(broker: BrokerProcess) -> Iterator[None]:
    """Nothing that a client sends makes the broker log an error of its own."""
    with no_defects(broker):
        yield


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Connect]:
    """Opens connections that are closed when the test ends."""
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(Wire(broker))


@pytest.fixture
def wire(connect: Connect) -> Wire:
    return connect()


@pytest.fixture
def target(wire: Wire, topic: str) -> Target:
    return messages.create_topic(wire, topic, partitions=2)


@pytest.fixture
def group(topic: str) -> str:
    """A group id that no other test uses."""
    return f"{topic}-group"


@pytest.fixture
def member(wire: Wire, group: str) -> Member:
    """The only member of a stable group."""
    only = Member(wire, group)
    only.settle()
    return only
