"""Feeds of typed tables on a cluster whose parts are killed, paused and moved: the table equals the
log, row for row, over all shards.

`FEED_SEED` chooses the moments; the long tests are `make test-feeds`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgpack
import pytest
from confluent_kafka import Producer

from tests.support.cluster_processes import SLOTS, Broker, Cluster, Engine, Part
from tests.support.cluster_tables import ClusterTables
from tests.support.cluster_view import NOBODY, leaders
from tests.support.command_line import complaint, output
from tests.support.committed import create_topic
from tests.support.steady_producer import producing
from tests.support.transactional import ConfluentProducer
from tests.support.waiting import until

TOPIC, PARTITIONS = "events", 4
TABLE = "fed.events"
LOCAL = f"{TABLE}_local"
COLUMNS = "id UInt64, name String, _partition Int32, _offset Int64"
BAD_EVERY = 50
LIMIT_S = 180.0
EVERY_S = 0.05
"""Between the writes of a producer: a feed is nearly always at work, and no broker is busy."""
SHARD_NAMES = ("shard1", "shard2")


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One whose brokers and shards a test may kill and whose slots it may move."""
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
            *shlex.split(
                f"create {TABLE} --topic {TOPIC} --interval-ms 10 --partition-by 'id % 2' --columns"
            ),
            COLUMNS,
        )
        self._numbers = itertools.count()

    def record(self) -> tuple[str, str]:
        number = next(self._numbers)
        value = {"id": number, "name": f"n{number}"} if number % BAD_EVERY else {"id": "none"}
        return str(number), json.dumps(value)

    def await_more(self, count: int = 1) -> None:
        self.tables.await_rows(LOCAL, self.tables.count(LOCAL) + count)

    def await_every_partition(self) -> None:
        """Wait until each partition has more rows."""
        before = self.tables.by_partition(LOCAL)

        def is_done() -> bool:
            now = self.tables.by_partition(LOCAL)
            return all(now[one] > before[one] for one in range(PARTITIONS))

        until(is_done, "every partition is fed", LIMIT_S, every_s=0.1)

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
        dead = tables.sql(f"SELECT partition, offset FROM dead_letters WHERE feed = '{TABLE}'")
        assert len(dead) == -(-sent // BAD_EVERY)
        assert len({(one["partition"], one["offset"]) for one in dead}) == len(dead)
        return sent


def _values(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row.values())


@pytest.mark.test_all
def test_tables_that_records_name_are_made_on_every_shard_while_a_broker_is_killed(
    own_cluster: Cluster,
) -> None:
    """Each with the columns of all fields, wherever a field came first."""
    tables = ClusterTables(own_cluster)
    create_topic(own_cluster.bootstrap, TOPIC, PARTITIONS)
    tables(
        *shlex.split(
            f"create many.* --topic {TOPIC} --route header=kind --interval-ms 10 --add-columns"
        ),
    )
    producer = Producer({"bootstrap.servers": own_cluster.bootstrap})
    kinds = ("one", "two")

    def produce(first: int, last: int, field: str) -> None:
        for number, kind, partition in itertools.product(
            range(first, last), kinds, range(PARTITIONS)
        ):
            value = json.dumps({"id": number, field: f"{kind}-{partition}"})
            producer.produce(TOPIC, value, partition=partition, headers=[("kind", kind)])
        assert producer.flush(60) == 0

    def ids(kind: str) -> list[int]:
        return sorted(row["id"] for row in tables.sql(f"SELECT id FROM many.{kind}_local"))

    produce(0, 20, "first")
    for kind in kinds:
        tables.await_rows(f"many.{kind}_local", 1)
    own_cluster.brokers[0].kill()
    produce(20, 40, "second")
    for kind in kinds:
        tables.await_rows(f"many.{kind}_local", 40 * PARTITIONS)
        tables.await_fed(f"many.{kind}", 40 * len(kinds) * PARTITIONS)
        assert ids(kind) == sorted(list(range(40)) * PARTITIONS)
        rows = tables.sql(
            f"SELECT coalesce(first, second) AS text, count() AS n FROM many.{kind}_local"
            " GROUP BY text"
        )
        assert {row["text"]: row["n"] for row in rows} == {
            f"{kind}-{partition}": 40 for partition in range(PARTITIONS)
        }


@pytest.mark.test_all
def test_the_table_equals_the_log_whenever_brokers_are_killed_or_paused(
    own_cluster: Cluster,
) -> None:
    check_faults(own_cluster, 5)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_table_equals_the_log_after_many_faults(own_cluster: Cluster) -> None:
    check_faults(own_cluster, int(os.environ.get("FEED_FAULTS") or 40))


def check_faults(cluster: Cluster, count: int) -> None:
    """Brokers die, or sleep past their lease and wake as zombies; a shard dies in between."""
    chance = seeded()
    events = Events(cluster)
    with producing(cluster.bootstrap, TOPIC, events.record, every_s=EVERY_S):
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

    until(is_done, f"others lead what {victim} has led", LIMIT_S)


@pytest.mark.test_all
def test_slots_move_while_a_feed_runs(own_cluster: Cluster) -> None:
    """The rows of a block stay on the shard that has its records, whichever that was."""
    events = Events(own_cluster)
    half = f"0-{SLOTS // 2 - 1}"
    with producing(own_cluster.bootstrap, TOPIC, events.record, every_s=EVERY_S):
        events.await_more()
        for number, to in enumerate(("shard2", "shard1", "shard2")):
            move_slots(own_cluster, half, to)
            events.await_every_partition()
            if number == 1:  # what lies on both shards is read by those that begin anew
                for broker in own_cluster.brokers:
                    broker.kill()
                for broker in own_cluster.brokers:
                    broker.launch()
                for broker in own_cluster.brokers:
                    broker.await_ready()
    events.check()
    placed = [places(engine, LOCAL, "_partition, _offset") for engine in own_cluster.engines]
    logged = [places(engine, "messages", "partition, offset") for engine in own_cluster.engines]
    assert all(fed <= log for fed, log in zip(placed, logged, strict=True))
    assert {one for one, _ in logged[0]} & {one for one, _ in logged[1]}, "nothing has moved"


@pytest.mark.test_all
def test_a_backlog_on_two_shards_is_fed_once(own_cluster: Cluster) -> None:
    """A feed that begins after a move reads the earlier shard first; so do transactions that began
    before the move and were committed or aborted behind it."""
    create_topic(own_cluster.bootstrap, TOPIC, PARTITIONS)
    half = f"0-{SLOTS // 2 - 1}"
    kept, dropped = (ConfluentProducer(own_cluster.bootstrap, one) for one in ("kept", "dropped"))
    kept.begin()
    dropped.begin()
    for name, producer in (("kept", kept), ("dropped", dropped)):
        for number in range(20):
            producer.send(TOPIC, json.dumps({"id": number, "name": name}), number % PARTITIONS)
        producer.flush()
    move_slots(own_cluster, half, "shard2")
    tables = ClusterTables(own_cluster)
    tables("create", TABLE, "--topic", TOPIC, "--interval-ms", "10", "--columns", COLUMNS)
    for producer in (kept, dropped):
        for number in range(20, 40):
            producer.send(TOPIC, json.dumps({"id": number, "name": "late"}), number % PARTITIONS)
        producer.flush()
    kept.commit()
    dropped.abort()
    tables.await_rows(LOCAL, 40)
    tables.await_lag(own_cluster.bootstrap, TABLE, TOPIC, PARTITIONS)
    rows = tables.sql(f"SELECT id, name FROM {LOCAL}")
    assert sorted((row["id"], row["name"]) for row in rows) == [
        (number, "kept" if number < 20 else "late") for number in range(40)
    ]


def move_slots(cluster: Cluster, slots: str, to: str) -> None:
    output("slots", "move", "--slots", slots, "--to", to, "--config", str(cluster.commands_path))


def places(engine: Engine, table: str, columns: str) -> set[tuple[int, int]]:
    where = f"WHERE topic = '{TOPIC}'" if table == "messages" else ""
    rows = engine.sql(f"SELECT {columns} FROM {table} {where}")
    return {(int(str(one)), int(str(two))) for one, two in map(_values, rows)}


class Feeder(Part):
    """A process of `brokerhouse feed`."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        command = [
            sys.executable,
            "-m",
            "brokerhouse",
            "feed",
            "--config",
            str(cluster.config_path),
        ]
        log_path = cluster.directory / f"feeder{number}.log"
        super().__init__(f"feeder {number}", cluster.brokers[0].host, command, log_path)


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Its brokers do not feed."""
    made = Cluster(tmp_path, settings={"feeds": "false"})
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.mark.test_all
def test_a_process_beside_the_brokers_takes_over_from_one_that_sleeps(
    bare_cluster: Cluster,
) -> None:
    """The one that slept has lost its partitions when it wakes, and takes some again."""
    check_feeders(bare_cluster, ["pause"])


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_two_processes_beside_the_brokers_share_the_partitions(bare_cluster: Cluster) -> None:
    count = int(os.environ.get("FEED_FAULTS") or 40)
    check_feeders(bare_cluster, list(itertools.islice(itertools.cycle(FEEDER_FAULTS), count)))


FEEDER_FAULTS = ("kill", "pause", "move")


def check_feeders(cluster: Cluster, faults: Sequence[str]) -> None:
    """One is killed, or paused for so long that the other takes over; slots move meanwhile."""
    chance = seeded()
    events = Events(cluster)
    feeders = [Feeder(cluster, number) for number in (1, 2)]
    shards = itertools.cycle(reversed(SHARD_NAMES))
    try:
        with producing(cluster.bootstrap, TOPIC, events.record, at_once=1, every_s=EVERY_S):
            assert events.tables.count(LOCAL) == 0, "the brokers feed"
            for one in feeders:
                one.launch()
            for one in feeders:
                one.await_ready()
            events.await_every_partition()
            for number, fault in enumerate(faults):
                victim = chance.choice(feeders)
                time.sleep(chance.random() * 0.5)  # a random moment is what this is about
                if fault == "kill":
                    victim.kill()
                elif fault == "pause":
                    victim.pause()
                else:
                    move_slots(cluster, f"0-{SLOTS // 2 - 1}", next(shards))
                events.await_every_partition()
                if fault == "kill":
                    victim.start()
                elif fault == "pause":
                    victim.resume()
                print(f"{number}: {fault}")
            events.await_every_partition()
        sent = events.check()
        events.tables.await_lag(cluster.bootstrap, TABLE, TOPIC, PARTITIONS)
        clients = events.tables.await_members(cluster.bootstrap, TABLE, TOPIC, PARTITIONS)
        assert set(clients) == {"brokerhouse-feed"}
    finally:
        for one in feeders:
            one.kill()
    repeated = events.tables.repeated(TABLE)
    print(f"{sent} records, {len(faults)} faults, {repeated} blocks were repeated")
    assert events.tables.feeders(TABLE) >= 2


# --- nothing is broken

PACKED = "fed.packed"


@pytest.mark.test_all
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


@pytest.mark.test_all
def test_the_brokers_that_feed_are_the_members_of_the_feeds_group(
    cluster: Cluster,
) -> None:
    tables = ClusterTables(cluster)
    create_topic(cluster.bootstrap, "shown", PARTITIONS)
    tables("create", "fed.shown", "--topic", "shown", "--columns", COLUMNS)
    clients = tables.await_members(cluster.bootstrap, "fed.shown", "shown", PARTITIONS)
    leading = {one.node_id for one in leaders(cluster.brokers[0], "shown").values()}
    assert clients == ["brokerhouse-feed"] * len(leading)
    refused = complaint(1, "groups", "delete", "feed-fed.shown", "--bootstrap", cluster.bootstrap)
    assert refused == "group feed-fed.shown has active members: stop them first"

    tables("drop", "fed.shown")
    until(
        lambda: "feed-fed.shown" not in output("groups", "list", "--bootstrap", cluster.bootstrap),
        "the group of the dropped feed is gone",
        LIMIT_S,
    )


def test_values_that_are_decoded_reach_the_shards(cluster: Cluster) -> None:
    """They leave the shard for the decoder, and come back as lines."""
    tables = ClusterTables(cluster)
    create_topic(cluster.bootstrap, "packed", PARTITIONS)
    tables("create", PACKED, "--topic", "packed", "--input-format", "msgpack", "--columns", COLUMNS)
    values = [msgpack.packb({"id": n, "name": f"n{n}"}) if n % 5 else b"\xc1" for n in range(40)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number, value in enumerate(values):
        producer.produce("packed", value, partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0

    tables.await_fed(PACKED, len(values))
    rows = tables.sql(f"SELECT id, name FROM {PACKED}_local")
    expected = [(n, f"n{n}") for n in range(40) if n % 5]
    assert sorted((row["id"], row["name"]) for row in rows) == expected
    dead = tables.sql(f"SELECT offset FROM dead_letters WHERE feed = '{PACKED}'")
    assert len(dead) == 8
    assert PACKED in tables("list")
    tables("pause", PACKED)
    tables("drop", PACKED)
    assert PACKED not in tables("list")


@pytest.mark.test_all
def test_a_replay_on_a_cluster_waits_and_says_what_it_did(cluster: Cluster) -> None:
    """Without Distributed tables a command sees what its own shard has."""
    tables = ClusterTables(cluster)
    create_topic(cluster.bootstrap, "mended", PARTITIONS)
    tables("create", "fed.mended", "--topic", "mended", "--columns", "id UInt8")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for partition in range(PARTITIONS):
        for number in (1, 1000):
            producer.produce("mended", json.dumps({"id": number}), partition=partition)
    assert producer.flush(LIMIT_S) == 0
    tables.await_fed("fed.mended", 2 * PARTITIONS)
    tables.sql("ALTER TABLE fed.mended_local MODIFY COLUMN id UInt16")
    [dead] = cluster.engines[0].sql(
        "SELECT count() AS n FROM dead_letters WHERE feed = 'fed.mended'"
    )

    said = tables("replay", "fed.mended")
    rows = "1 row" if dead["n"] == 1 else f"{dead['n']} rows"  # by where the slots are
    assert said == f"replayed fed.mended: {rows}, 0 dead letters left\n"
    [feed] = [one for one in json.loads(tables("list", "--json")) if one["name"] == "fed.mended"]
    assert (feed["rows"], feed["dead_letters"]) == (2 * dead["n"], 0)
    tables.await_rows("fed.mended_local", 2 * PARTITIONS)


@pytest.mark.test_all
def test_a_feed_is_not_dropped_with_its_table(cluster: Cluster) -> None:
    """The table is on every server, and a server that is away would keep its rows."""
    tables = ClusterTables(cluster)
    create_topic(cluster.bootstrap, "kept", PARTITIONS)
    tables("create", "fed.kept", "--topic", "kept", "--interval-ms", "10", "--columns", COLUMNS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for sent in (1, 2):
        for partition in range(PARTITIONS):
            producer.produce("kept", json.dumps({"id": sent}), partition=partition)
        assert producer.flush(LIMIT_S) == 0
        tables.await_fed("fed.kept", sent * PARTITIONS)
        assert tables.refused("drop", "fed.kept", "--with-table") == (
            "in a cluster the table is on every server: drop the feed without --with-table, then"
            " the tables fed.kept and fed.kept_local on each of them, with ON CLUSTER or by hand"
        )
    assert "running" in next(line for line in tables("list").splitlines() if "fed.kept" in line)
    assert tables.count("fed.kept_local") == 2 * PARTITIONS
    versions = tables.sql("SELECT DISTINCT status FROM table_feed_versions WHERE name = 'fed.kept'")
    assert versions == [{"status": "running"}]
