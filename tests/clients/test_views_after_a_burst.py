"""The views are exact while a broker counts part of a minute that many records come in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.lagging_groups import commit
from tests.support.broker_process import BrokerProcess
from tests.support.log_parts import plain
from tests.support.messages import create_topic, produce
from tests.support.waiting import until
from tests.support.wire import Wire

BATCH, BATCHES, TRIES = 50_000, 84, 5
"""4.2 million records: more than a broker leaves uncounted when few come."""
COMMITTED = 7
pytestmark = pytest.mark.test_all


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {}) as process:
        yield process


def counted_parts(broker: BrokerProcess) -> int:
    (row,) = broker.sql("SELECT count() AS n FROM partition_seconds WHERE topic = 'orders'")
    number: int = row["n"]
    return number


def may_begin(broker: BrokerProcess) -> bool:
    """Whether the last minute is counted, and three quarters of this one are left."""
    now_s = int(time.time())
    (row,) = broker.sql("SELECT toUnixTimestamp(max(minute)) AS last FROM partition_minutes")
    last: int = row["last"]
    return now_s % 60 < 15 and last == now_s - now_s % 60 - 60


def seen(broker: BrokerProcess) -> list[int]:
    """Records by each view, and bytes by those that have them, as records of five bytes."""
    (row,) = broker.sql(
        "SELECT (SELECT (records, bytes / 5) FROM topic_stats WHERE topic = 'orders') AS topics,"
        " (SELECT (records, bytes / 5, end_offset) FROM partition_stats WHERE topic = 'orders')"
        " AS partitions,"
        " (SELECT (sum(records), sum(bytes) / 5, max(end_offset)) FROM topic_minutes"
        " WHERE topic = 'orders') AS minutes,"
        f" (SELECT tuple(lag + {COMMITTED}) FROM consumer_lag) AS lags"
    )
    return [int(number) for numbers in row.values() for number in numbers]


def test_views_are_exact_while_a_broker_counts_a_part_of_a_minute(
    broker: BrokerProcess,
) -> None:
    batch = plain(*[b"five!"] * BATCH).data
    with Wire(broker) as wire:
        topic = create_topic(wire, "orders")

        def send(batches: int) -> None:
            for _ in range(batches):
                (answer,) = wire.ask(produce(topic, batch), 9).responses[0].partition_responses
                assert answer.error_code == 0

        def is_counted_or_over() -> bool:
            """Whether a part is counted, or the minute ended first: on a machine that is slow."""
            assert seen(broker) == [sent * BATCH] * 9
            return counted_parts(broker) > 0 or may_begin(broker)

        send(1)
        sent = 1
        commit(broker, "billing", COMMITTED)
        while not counted_parts(broker):
            assert sent <= TRIES * BATCHES, "a part of a minute is counted"
            until(lambda: may_begin(broker), "a minute begins", limit_s=240)
            assert seen(broker) == [sent * BATCH] * 9
            send(BATCHES)
            sent += BATCHES
            until(is_counted_or_over, "a part of the minute is counted", limit_s=120)
        for _ in range(2):
            send(1)
            sent += 1
            assert seen(broker) == [sent * BATCH] * 9
        assert counted_parts(broker) == 1
