"""Connections and topics for the wire tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import TIME_MS, Target
from tests.support.one_partition import write
from tests.support.record_batches import Record, batch_of
from tests.support.samples import OFFSETS_GROUP
from tests.support.wire import Wire


@pytest.fixture(scope="session")
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that kill or restart it, each with topics of its own."""
    settings = {"group_initial_rebalance_delay_ms": "0", "fetch_sessions_max": "2"}
    process = BrokerProcess(tmp_path_factory.mktemp("restartable") / "data", settings)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker) as connection:
        yield connection


@pytest.fixture
def target(wire: Wire, topic: str) -> Target:
    return messages.create_topic(wire, topic)


@pytest.fixture(scope="session")
def known(broker: BrokerProcess) -> Target:
    """The topic that samples are sent about, as `Asked` describes it."""
    with Wire(broker) as wire:
        target = messages.create_topic(wire, "wire-versions")
        assert write(wire, target, messages.small_batch()) == 0
        commit = messages.commit(OFFSETS_GROUP, (target, {0: 1}), metadata="a note")
        (topic,) = wire.ask(commit, 9).topics
        assert [partition.error_code for partition in topic.partitions] == [0]
    return target


@pytest.fixture
def timed(wire: Wire, target: Target) -> Target:
    """Holds timestamps +0 +10 +20 | +5 +30 +30 | +7 at offsets 0 to 6."""
    for deltas in ((0, 10, 20), (5, 30, 30), (7,)):
        records = [Record(delta) for delta in deltas]
        write(wire, target, batch_of(*records, max_timestamp=TIME_MS + max(deltas)).data)
    return target
