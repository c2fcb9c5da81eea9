"""Feeds of typed tables on a cluster whose parts are killed, paused and moved: the table equals the
log, row for row, over all shards.

`FEED_SEED` chooses the moments; the long tests are `make test-feeds`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_processes import Broker, Cluster
from tests.support.cluster_tables import ClusterTables
from tests.support.cluster_view import NOBODY, leaders
from tests.support.committed import create_topic
from tests.support.steady_producer import producing
from tests.support.waiting import until

TOPIC, PARTITIONS = "events", 4
TABLE = "fed.events"
LOCAL = f"{TABLE}_local"
COLUMNS = "id UInt64, name String, _partition Int32, _offset Int64"
BAD_EVERY = 50


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


def seeded() -> random.Random:
    seed = int(os.environ.get("FEED_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    return random.Random(seed)


class Events:
    """Records with numbers, every fiftieth of which does not fit."""

    def __init__(self, cluster: Cluster) -> None:
        self.tables = ClusterTables(cluster)
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        self.tables(
            "create", TABLE, "--topic", TOPIC, "--interval-ms", "10", "--partition-by", "id % 2",
            "--columns", COLUMNS,
        )  # fmt: skip
        self._numbers = itertools.count()

    def record(self) -> tuple[str, str]:
        number = next(self._numbers)
        value = {"id": number, "name": f"n{number}"} if number % BAD_EVERY else {"id": "none"}
        return str(number), json.dumps(value)

    def await_more(self, count: int = 1) -> None:
        self.tables.await_rows(LOCAL, self.tables.count(LOCAL) + count)

    def check(self) -> int:
        """Wait for the feed, and compare the table with the log. Returns how many were sent."""
        sent = next(self._numbers)
        tables = self.tables
        tables.await_fed(TABLE, sent)
        logged = tables.sql(
            "SELECT JSONExtractUInt(value, 'id') AS id, JSONExtractString(value, 'name') AS name,"
            " partition AS _partition, offset AS _offset FROM messages"
            f" WHERE topic = '{TOPIC}' AND name != ''"
        )
        rows = tables.sql(f"SELECT * FROM {LOCAL}")
        assert sorted(map(_values, rows)) == sorted(map(_values, logged))
        assert sorted(row["id"] for row in rows) == [n for n in range(sent) if n % BAD_EVERY]
        dead = tables.sql("SELECT partition, offset, error FROM dead_letters")
        assert len(dead) == -(-sent // BAD_EVERY)
        assert len({(one["partition"], one["offset"]) for one in dead}) == len(dead)
        return sent


def _values(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row.values())


def test_every_shard_has_the_rows_of_its_records(cluster: Cluster) -> None:
    events = Events(cluster)
    with producing(cluster.bootstrap, TOPIC, events.record):
        events.await_more(500)
    events.check()
    for engine in cluster.engines:
        fed = engine.sql(f"SELECT DISTINCT _partition AS n FROM {LOCAL} ORDER BY n")
        logged = engine.sql(
            f"SELECT DISTINCT partition AS n FROM messages WHERE topic = '{TOPIC}' ORDER BY n"
        )
        assert fed == logged


def test_the_table_equals_the_log_whenever_brokers_are_killed_or_paused(cluster: Cluster) -> None:
    check_faults(cluster, 5)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_table_equals_the_log_after_many_faults(cluster: Cluster) -> None:
    check_faults(cluster, int(os.environ.get("FEED_FAULTS") or 40))


def check_faults(cluster: Cluster, count: int) -> None:
    """Brokers die, or sleep past their lease and wake as zombies; a shard dies in between."""
    chance = seeded()
    events = Events(cluster)
    with producing(cluster.bootstrap, TOPIC, events.record):
        events.await_more()
        for number in range(count):
            time.sleep(chance.random() * 0.5)  # a random moment is what this is about
            if number % 5 == 2:
                engine = chance.choice(cluster.engines)
                engine.kill()
                engine.start()
                done = f"killed {engine}"
            elif chance.random() < 0.5:
                broker = chance.choice(cluster.brokers)
                broker.kill()
                events.await_more()
                broker.start()
                done = f"killed {broker}"
            else:
                broker = chance.choice(cluster.brokers)
                broker.pause()
                await_successors(cluster, broker)
                events.await_more()
                broker.resume()
                done = f"paused {broker}"
            events.await_more()
            print(f"{number}: {done}")
    sent = events.check()
    print(f"{sent} records, {count} faults, {events.tables.repeated(TABLE)} blocks were repeated")


def await_successors(cluster: Cluster, victim: Broker) -> None:
    """Wait until the others lead every partition."""
    others = [one for one in cluster.brokers if one is not victim]

    def is_done() -> bool:
        return all(
            len(found := leaders(one, TOPIC)) == PARTITIONS
            and not {victim.node_id, NOBODY} & {leader.node_id for leader in found.values()}
            for one in others
        )

    until(is_done, f"others lead what {victim} has led")
