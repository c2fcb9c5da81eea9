"""Kafka Streams with exactly_once_v2, while the application and brokers are killed.

It counts words through a repartition topic and a state store. Whatever is killed, each count of
each word is committed once, in order. The long tests: `make test-apps`.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import restarts
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_broker import ClusterBroker
from tests.support.committed import (
    EndOffsets,
    aborted_transactions,
    committed_in_sql,
    create_topic,
    read_committed,
)
from tests.support.restarts import BROKER_SETTINGS, Restart
from tests.support.steady_producer import producing
from tests.support.streams_app import COUNTS, WORDS, StreamsApp

PARTITIONS = 2
DIFFERENT_WORDS = 50
FOR_A_CLUSTER = {
    "session.timeout.ms": "10000",
    "heartbeat.interval.ms": "1000",
    "transaction.timeout.ms": "30000",
}
"""Longer than a broker takes to replace another."""


class Talk:
    """Random words, and how often each was said."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.words: Counter[str] = Counter()

    def record(self) -> tuple[str, str]:
        word = f"w{self._chance.randrange(DIFFERENT_WORDS)}"
        self.words[word] += 1
        return str(self._chance.randrange(1000)), word


def check_each_count_once(
    broker: BrokerProcess,
    apps: Sequence[StreamsApp],
    killings: Iterator[Restart],
    chance: random.Random,
) -> int:
    """Returns how many transactions were aborted."""
    for topic in (WORDS, COUNTS):
        create_topic(broker.kafka, topic, PARTITIONS)
    for app in apps:
        app.start()
    talk = Talk(random.Random(chance.random()))
    with (
        EndOffsets(broker.kafka, COUNTS, PARTITIONS) as ends,
        producing(broker.kafka, WORDS, talk.record),
    ):
        restarts.play(killings, ends, chance)
    total = talk.words.total()
    read_committed(broker.kafka, COUNTS, PARTITIONS, total)
    for app in apps:
        app.stop()
    rows = read_committed(broker.kafka, COUNTS, PARTITIONS, total)
    counts: defaultdict[str | None, list[str]] = defaultdict(list)
    for row in rows:
        counts[row.key].append(row.value)
    assert counts == {
        word: [str(number) for number in range(1, count + 1)] for word, count in talk.words.items()
    }
    assert committed_in_sql(broker.sql, COUNTS) == rows
    aborted = aborted_transactions(broker.sql, COUNTS)
    print(f"{total} words, {aborted} transactions aborted")
    return aborted


@contextmanager
def ended(*apps: StreamsApp) -> Iterator[Sequence[StreamsApp]]:
    try:
        yield apps
    finally:
        for app in apps:
            app.kill()


@pytest.mark.test_all
def test_each_count_of_each_word_is_there_once_whatever_is_killed(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    chance = restarts.seeded()
    broker = own_broker(**BROKER_SETTINGS)
    with ended(StreamsApp(tmp_path, broker.kafka)) as apps:
        check_each_count_once(broker, apps, restarts.each_twice(broker, apps, chance), chance)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_count_of_each_word_is_there_once_for_long(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    chance = restarts.seeded()
    broker = own_broker(**BROKER_SETTINGS)
    two = [StreamsApp(tmp_path, broker.kafka, name=name) for name in ("app1", "app2")]
    with ended(*two) as apps:
        assert check_each_count_once(broker, apps, restarts.for_long(broker, apps, chance), chance)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_count_of_each_word_is_there_once_while_the_brokers_of_a_cluster_change(
    app_cluster: ClusterBroker, tmp_path: Path
) -> None:
    chance = restarts.seeded()
    two = [
        StreamsApp(tmp_path, app_cluster.kafka, FOR_A_CLUSTER, name=name)
        for name in ("app1", "app2")
    ]
    with ended(*two) as apps:
        killings = restarts.of_a_cluster(app_cluster.cluster, apps, chance)
        check_each_count_once(app_cluster, apps, killings, chance)
