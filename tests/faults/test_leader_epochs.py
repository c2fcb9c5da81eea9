"""Leader epochs of which nothing is left: clients that committed or fetched in one go on.

One broker of a cluster is restarted: with each start it leads its partitions in a new epoch.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from brokerhouse.protocol.errors import OffsetOutOfRange
from tests.support import messages, tools
from tests.support.cluster_processes import Cluster
from tests.support.cluster_view import await_settled, epoch_end, leaders
from tests.support.log_parts import plain
from tests.support.messages import Target
from tests.support.one_partition import EPOCHS, LIST, NAMED_FETCH, read, write
from tests.support.waiting import until
from tests.support.wire import Wire

pytestmark = pytest.mark.test_all

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSUMER_LIMIT_S = 60.0
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("epochs"), brokers=1)
    try:
        made.start()
        await_settled(made)
        yield made
    finally:
        made.close()


@pytest.fixture
def target(cluster: Cluster, topic: str) -> Target:
    with Wire(cluster.brokers[0]) as wire:
        return messages.create_topic(wire, topic)


def epoch(cluster: Cluster, target: Target) -> int:
    return leaders(cluster.brokers[0], target.name)[0].epoch


def next_epoch(cluster: Cluster, target: Target) -> int:
    """Restarts the broker; returns when it leads the partition again."""
    before = epoch(cluster, target)
    cluster.brokers[0].restart()

    def is_led() -> bool:
        with Wire(cluster.brokers[0]) as wire:
            code: int = listed(wire, target, LATEST).error_code
        return code == 0

    until(is_led, f"{target.name} has a leader")
    after = epoch(cluster, target)
    assert after > before
    return after


def listed(wire: Wire, target: Target, timestamp: int) -> Any:
    return wire.ask(messages.list_offsets(target, timestamp), LIST).topics[0].partitions[0]


def found(wire: Wire, target: Target, timestamp: int) -> tuple[int, int]:
    """Offset and leader epoch of the answer of ListOffsets."""
    answer = listed(wire, target, timestamp)
    assert answer.error_code == 0
    return answer.offset, answer.leader_epoch


def end_of(wire: Wire, target: Target, asked: int) -> tuple[int, int]:
    """The answer of OffsetForLeaderEpoch: the largest epoch up to this one, and where it ended."""
    (answer,) = wire.ask(epoch_end(target, asked), EPOCHS).topics[0].partitions
    assert answer.error_code == 0
    return answer.leader_epoch, answer.end_offset


def diverging(wire: Wire, target: Target, offset: int, last_epoch: int) -> tuple[int, int] | None:
    """Where Fetch says that the last fetched epoch ended; it does not wait to say so."""
    waits = {"min_bytes": 1, "max_wait_ms": 60_000}
    answer = read(wire, target, offset, NAMED_FETCH, last_fetched_epoch=last_epoch, **waits)
    assert answer.error_code == 0
    if answer.diverging_epoch is None or answer.diverging_epoch.epoch == -1:
        return None
    assert answer.records in (None, b"")
    return answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset


def consumed(cluster: Cluster, target: Target, count: int, *options: str) -> list[str]:
    """What Kafka's console consumer prints. At the end it commits, with the epochs of records."""
    command = [*tools.java_command(), CONSOLE_CONSUMER, "--bootstrap-server", cluster.bootstrap]
    command += [
        "--topic",
        target.name,
        "--group",
        f"{target.name}-group",
        "--max-messages",
        str(count),
        *options,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=CONSUMER_LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_a_java_consumer_reads_on_when_the_records_of_the_epoch_of_its_commit_are_deleted(
    cluster: Cluster, target: Target
) -> None:
    with Wire(cluster.brokers[0]) as wire:
        write(wire, target, plain(*(b"old-%d" % n for n in range(10))).data)
    assert len(consumed(cluster, target, 10, "--from-beginning")) == 10

    next_epoch(cluster, target)
    with Wire(cluster.brokers[0]) as wire:
        deleted = wire.ask(messages.delete_records(target, 10), 2)
        assert deleted.topics[0].partitions[0].low_watermark == 10
        write(wire, target, plain(*(b"new-%d" % n for n in range(5))).data)

    latest = ("--timeout-ms", "30000")  # and auto.offset.reset is latest
    assert consumed(cluster, target, 5, *latest) == [f"new-{n}" for n in range(5)]


def test_epochs_end_where_the_next_ones_began_whatever_is_left_of_their_records(
    cluster: Cluster, target: Target
) -> None:
    first = epoch(cluster, target)
    with Wire(cluster.brokers[0]) as wire:
        write(wire, target, plain(b"0", b"1", b"2").data)
    empty = next_epoch(cluster, target)
    third = next_epoch(cluster, target)
    with Wire(cluster.brokers[0]) as wire:
        assert end_of(wire, target, third) == (third, 3), "the end of the log"
        write(wire, target, plain(b"3", b"4").data)

        def ends(*asked: int) -> list[tuple[int, int]]:
            return [end_of(wire, target, one) for one in asked]

        assert ends(first, empty, third) == [(first, 3), (first, 3), (third, 5)]
        assert ends(-1, third + 1) == [(-1, -1), (-1, -1)]
        assert found(wire, target, EARLIEST) == (0, first)
        assert found(wire, target, LATEST) == (5, third)
        assert found(wire, target, messages.TIME_MS) == (0, first)
        assert found(wire, target, MAX_TIMESTAMP)[1] == first
        assert found(wire, target, LATEST_TIERED) == (-1, -1)

        wire.ask(messages.delete_records(target, 4), 2)
        assert ends(first, empty, third) == [(first, 4), (empty, 4), (third, 5)]
        assert found(wire, target, EARLIEST) == found(wire, target, EARLIEST_LOCAL) == (4, third)
        assert found(wire, target, messages.TIME_MS) == (4, third)
        wire.ask(messages.delete_records(target, 5), 2)
    last = next_epoch(cluster, target)
    with Wire(cluster.brokers[0]) as wire:
        asked = (first, empty, third, last)
        assert [end_of(wire, target, one) for one in asked] == [(one, 5) for one in asked]
        assert found(wire, target, EARLIEST) == found(wire, target, LATEST) == (5, last)
        assert found(wire, target, messages.TIME_MS) == (-1, -1)


def test_a_fetch_of_an_epoch_that_has_ended_is_answered_with_its_end(
    cluster: Cluster, target: Target
) -> None:
    first = epoch(cluster, target)
    with Wire(cluster.brokers[0]) as wire:
        write(wire, target, plain(b"0", b"1", b"2").data)
    second = next_epoch(cluster, target)
    with Wire(cluster.brokers[0]) as wire:
        write(wire, target, plain(b"3", b"4").data)
        assert diverging(wire, target, 3, first) is None
        assert diverging(wire, target, 4, first) == (first, 3)
        assert diverging(wire, target, 4, second) is None
        assert diverging(wire, target, 9, second) == (second, 5), "beyond the end of the log"
        wire.ask(messages.delete_records(target, 5), 2)
        assert diverging(wire, target, 6, first) == (first, 5)
        future = read(wire, target, 5, NAMED_FETCH, last_fetched_epoch=second + 1)
        assert future.error_code == OffsetOutOfRange.code
        below = read(wire, target, 4, NAMED_FETCH, last_fetched_epoch=first)
        assert below.error_code == OffsetOutOfRange.code
