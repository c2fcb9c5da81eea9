"""`make bench-tables-kills`: a feed beside what people run, each killed again and again under load.

In turn, each with records of its own, at the same steady rate:

* consumer: Apache Kafka, and a consumer that inserts at the defaults of ClickHouse's Kafka engine
  (65,536 rows or 7.5 s; that engine does not start in the embedded ClickHouse) and commits its
  offsets afterwards. The consumer is killed.
* connector: Apache Kafka, and the ClickHouse Kafka Connect sink with exactlyOnce=true. The worker
  is killed. A task that fails is restarted, as an operator does; where its state in KeeperMap does
  not fit what it reads again, the state is deleted first, as ClickHouse's documentation says. The
  connector is in no package registry: build it as one jar, and name the folder of the jar by
  --connector. Without it this part is left out.
* brokerhouse: a feed. The broker is killed, which is log, feed and ClickHouse at once.

Their ClickHouse is the same embedded one, behind HTTP. Each is killed (SIGKILL) at a random moment
after rows have come again. Prints a Markdown table; asserts nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka

from bench.kafka import servers
from bench.kafka.sink import MAX_ROWS, MAX_S
from bench.machine import machine, running_broker
from tests.support.connect_worker import ConnectWorker
from tests.support.engine_process import EngineProcess
from tests.support.server_process import ServerProcess
from tests.support.steady_producer import producing
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.zookeeper import Keeper

TOPIC = "events"
COLUMNS = (
    "id UInt64, sent_us Int64, name String, country String, paid Bool, note String,"
    " stored DateTime64(6) MATERIALIZED now64(6)"
)
TABLE = (
    f"({COLUMNS}) ENGINE = MergeTree ORDER BY id"
    " SETTINGS non_replicated_deduplication_window = 1000"
)
_MOMENT_S = 3.0
_LIMIT_S = 300.0
_COMPLETE_S = 90.0
"""A record that is not a row when no new row has come for so long counts as lost."""
_LOOK_EVERY_S = 0.1
"""How often it looks for rows: each look costs the ClickHouse that is measured a query."""
_WRONG_STATE = "ERROR State given"
"""In the connector's message that its state does not fit what Kafka has sent it again."""


@dataclass(frozen=True, slots=True)
class Contender:
    """`victim` is killed and started. `sql` asks the ClickHouse that has `table`.

    `notes` is what the table of figures does not say, filled at the end.
    """

    name: str
    kafka: str
    table: str
    victim: ServerProcess
    sql: Callable[[str], list[dict[str, Any]]]
    notes: list[str] = field(default_factory=list)


class InsertingConsumer(ServerProcess):
    """The consumer, in a process of its own."""

    def __init__(self, directory: Path, kafka: str, url: str) -> None:
        super().__init__(directory / "consumer.log")
        self._arguments = (kafka, url)

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "bench.feeds_compare", "--consume", *self._arguments]

    def is_ready(self) -> bool:
        return "ready" in self.printed()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.feeds_compare", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=int, default=5000, help="records a second")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--connector", type=Path, help="folder with the connector's jar")
    parser.add_argument(
        "--connector-settings",
        default="async_insert=0,insert_deduplicate=1",
        # async_insert=0 is also what the connector sets itself, since 1.1.0.
        help="the connector's clickhouseSettings (default: %(default)s)",
    )
    parser.add_argument("--consume", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--only", help="one of: consumer, connector, brokerhouse")
    options = parser.parse_args(arguments)
    if options.consume:
        consume(*options.consume)
        return
    print(f"{machine()}\n{servers.versions()}\nseed {options.seed}\n")
    print("| | records | kills | rows/s | p50 ms | p99 ms | max ms | duplicates | losses |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    notes = []
    for contend in (_consumer, _connector, _brokerhouse):
        name = contend.__name__.removeprefix("_")
        if options.only not in (None, name) or (name == "connector" and not options.connector):
            continue
        with (
            tempfile.TemporaryDirectory(prefix="bench-feeds-") as directory,
            contend(Path(directory), options) as contender,
        ):
            print(_killed(contender, options), flush=True)
        notes += contender.notes
    print("", *notes, sep="\n")


def _killed(one: Contender, options: argparse.Namespace) -> str:
    chance = random.Random(options.seed)
    numbers = itertools.count()
    sent = 0

    def record() -> tuple[str, str]:
        nonlocal sent
        number = next(numbers)
        sent = number + 1
        value = {
            "id": number,
            "sent_us": time.time_ns() // 1000,
            "name": f"customer {number % 1000}",
            "country": "DE",
            "paid": True,
            "note": "x" * 60,
        }
        return str(number), json.dumps(value)

    def rows() -> int:
        return int(one.sql(f"SELECT count() AS n FROM {one.table}")[0]["n"])

    def different() -> int:
        return int(one.sql(f"SELECT uniqExact(id) AS n FROM {one.table}")[0]["n"])

    def await_more() -> None:
        before, deadline = rows(), time.monotonic() + _LIMIT_S
        while rows() <= before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{one.name}: no row has come for {_LIMIT_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)

    with producing(one.kafka, TOPIC, record, options.rate // 100):
        for _ in range(options.kills):
            await_more()
            time.sleep(chance.random() * _MOMENT_S)
            one.victim.kill()
            one.victim.start()
        await_more()
    found, deadline = different(), time.monotonic() + _COMPLETE_S
    while found < sent and time.monotonic() < deadline:
        time.sleep(1)
        before, found = found, different()
        if found > before:
            deadline = time.monotonic() + _COMPLETE_S
    [figures] = one.sql(
        "SELECT count() AS n, sum(copies) AS copies, n * 1e6 / (max(at_us) - min(sent)) AS rate,"
        " quantilesExact(0.5, 0.99, 1)((at_us - sent) / 1000) AS delays FROM"
        " (SELECT id, count() AS copies, min(toUnixTimestamp64Micro(stored)) AS at_us,"
        f" any(sent_us) AS sent FROM {one.table} GROUP BY id)"
    )
    p50, p99, longest = figures["delays"]
    return (
        f"| {one.name} | {sent:,} | {options.kills} | {figures['rate']:,.0f} | {p50:,.0f} |"
        f" {p99:,.0f} | {longest:,.0f} | {figures['copies'] - figures['n']:,} |"
        f" {sent - figures['n']:,} |"
    )


@contextmanager
def _consumer(directory: Path, _: argparse.Namespace) -> Iterator[Contender]:
    with servers.started(servers.KAFKA) as kafka, EngineProcess(directory / "engine") as engine:
        servers.create_topic(kafka, TOPIC)
        engine.sql(f"CREATE TABLE {TOPIC} {TABLE}")
        with InsertingConsumer(directory, kafka.kafka, engine.urls[0]) as consumer:
            yield Contender("Kafka and a consumer", kafka.kafka, TOPIC, consumer, engine.sql)


@contextmanager
def _connector(directory: Path, options: argparse.Namespace) -> Iterator[Contender]:
    with (
        servers.started(servers.KAFKA) as kafka,
        Keeper(directory / "keeper") as keeper,
        EngineProcess(directory / "engine", keepers=[keeper.address]) as engine,
    ):
        servers.create_topic(kafka, TOPIC)
        engine.sql(f"CREATE TABLE {TOPIC} {TABLE}")
        host, _, port = engine.http.rpartition(":")
        worker = ConnectWorker(
            directory,
            kafka.kafka,
            {
                "plugin.path": str(options.connector),
                # The shortest that Kafka allows: a killed worker leaves its groups sooner.
                "session.timeout.ms": "6000",
                "heartbeat.interval.ms": "1500",
                "consumer.session.timeout.ms": "6000",
                # At the default of 60 s no kill would find an offset that was committed.
                "offset.flush.interval.ms": "1000",
            },
        )
        # A failure may be seen twice before the task is restarted; its trace has the offsets.
        wrong: set[str] = set()

        def delete_wrong_state(trace: str) -> None:
            if _WRONG_STATE in trace and trace not in wrong:
                wrong.add(trace)
                engine.sql("TRUNCATE TABLE connect_state")

        with worker:
            worker.configure(
                "clickhouse",
                {
                    "connector.class": "com.clickhouse.kafka.connect.ClickHouseSinkConnector",
                    "tasks.max": "1",
                    "topics": TOPIC,
                    "hostname": host,
                    "port": port,
                    "ssl": "false",
                    "database": "default",
                    "exactlyOnce": "true",
                    # Skip what it reads again and has inserted; by default the task fails then.
                    "tolerateStateMismatch": "true",
                    # Kafka's default of 500 is too few for it to catch up.
                    "consumer.override.max.poll.records": "10000",
                    "clickhouseSettings": options.connector_settings,
                    # ClickHouse's own compression is not served by the embedded one.
                    "clientVersion": "V1",
                    "jdbcConnectionProperties": "?compress=0&decompress=0",
                    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
                    "value.converter.schemas.enable": "false",
                },
            )
            one = Contender("Kafka and the connector", kafka.kafka, TOPIC, worker, engine.sql)
            with worker.attended("clickhouse", delete_wrong_state) as failures:
                yield one
        others = [trace for trace in failures if _WRONG_STATE not in trace]
        one.notes.append(f"The connector's state did not fit, and was deleted, {len(wrong)} times.")
        one.notes.append(f"It failed {len(others)} times otherwise.")
        one.notes.extend(others[:1])


@contextmanager
def _brokerhouse(directory: Path, _: argparse.Namespace) -> Iterator[Contender]:
    with running_broker(directory / "data", SETTINGS) as broker:
        tables = TypedTables(broker)
        servers.create_topic(broker, TOPIC)
        tables(
            "create", f"bench.{TOPIC}", "--topic", TOPIC, "--columns", COLUMNS, "--order-by", "id"
        )
        yield Contender("brokerhouse", broker.kafka, f"bench.{TOPIC}", broker, tables.sql)


def consume(kafka: str, url: str) -> None:
    """Insert what comes, and commit it; until killed."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka, "group.id": "sink", "enable.auto.commit": False}
    )
    place = confluent_kafka.TopicPartition(TOPIC, 0)
    [committed] = consumer.committed([place], 60)
    place.offset = max(committed.offset, 0)
    consumer.assign([place])
    print("ready", flush=True)
    query = urllib.parse.urlencode({"query": f"INSERT INTO {TOPIC} FORMAT JSONEachRow"})
    rows: list[bytes] = []
    due = time.monotonic() + MAX_S
    while True:
        for message in consumer.consume(min(10_000, MAX_ROWS - len(rows)), 0.05):
            if message.error():
                raise confluent_kafka.KafkaException(message.error())
            rows.append(message.value() or b"")
        if rows and (len(rows) >= MAX_ROWS or time.monotonic() >= due):
            urllib.request.urlopen(f"{url}/?{query}", b"\n".join(rows), timeout=60).read()
            consumer.commit(offsets=consumer.position([place]), asynchronous=False)
            rows, due = [], time.monotonic() + MAX_S


if __name__ == "__main__":
    main()
