"""Feeds of typed tables while what feeds them is killed or paused: the table equals the log.

`FEED_SEED` chooses the moments; the long test is `make test-feeds`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import output
from tests.support.committed import create_topic
from tests.support.feed_check import check_fed
from tests.support.feed_records import COLUMNS, add_schemas, numbered
from tests.support.schemas import Schemas
from tests.support.steady_producer import producing
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

TOPIC, PARTITIONS = "events", 2
TABLE = "fed.events"
MOMENT_S = 0.5
"""A fault comes within this time after rows have come; a pause is as long at most."""


def seeded() -> random.Random:
    seed = int(os.environ.get("FEED_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    return random.Random(seed)


def a_moment(chance: random.Random) -> None:
    time.sleep(chance.random() * MOMENT_S)  # a random moment is what this is about


def pause_and_kill(broker: BrokerProcess, chance: random.Random) -> None:
    """SIGKILL, at random of a broker that stands still or has stood still."""
    if chance.random() < 0.5:
        with broker.paused():
            a_moment(chance)
        a_moment(chance)
    elif chance.random() < 0.5:
        broker.pause()
        a_moment(chance)
    broker.kill()
    broker.start()


def check_table_equals_log(
    broker: BrokerProcess, kills: int, rows: int = 0, limit_s: float = 60.0
) -> None:
    """At least so many rows; the kills are spread over them."""
    chance = seeded()
    tables = TypedTables(broker)
    create_topic(broker.kafka, TOPIC, PARTITIONS)
    tables(
        *shlex.split(
            f"create {TABLE} --topic {TOPIC} --interval-ms 10 --partition-by 'id % 2' --columns"
        ),
        COLUMNS,
    )
    record, sent = numbered("json")
    begun_s = time.monotonic()
    with producing(broker.kafka, TOPIC, record, 2000 if rows else 5):
        for kill in range(kills):
            _await_sent(sent, rows * kill // kills, limit_s)
            tables.await_more_rows(TABLE, limit_s)
            a_moment(chance)
            pause_and_kill(broker, chance)
        _await_sent(sent, rows, limit_s)
    repeated = check_fed(tables, TOPIC, TABLE, sent(), limit_s)
    print(
        f"{sent():,} records, {kills} kills, {repeated} blocks were repeated,"
        f" {time.monotonic() - begun_s:.0f} s"
    )


def _await_sent(sent: Callable[[], int], count: int, limit_s: float) -> None:
    until(lambda: sent() >= count, f"{count} records are sent", limit_s)


@pytest.fixture
def schemas() -> Iterator[Schemas]:
    made = Schemas()
    add_schemas(made)
    yield made
    made.close()


def decoder_of(broker: BrokerProcess) -> int | None:
    """The process that decodes for it, if there is one now."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    for child in children:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if b"brokerhouse.feeds.decoding.worker" in command:
            return int(child)
    return None


def await_decoder(broker: BrokerProcess) -> int:
    until(lambda: decoder_of(broker), "values are decoded")
    found = decoder_of(broker)
    assert found is not None
    return found


@pytest.mark.test_all
def test_bad_records_of_every_format_while_broker_and_decoder_are_killed(
    own_broker: Callable[..., BrokerProcess], schemas: Schemas
) -> None:
    check_formats(own_broker, schemas, ["kill decoder", "kill"])


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_bad_records_of_every_format_while_broker_and_decoder_are_killed_and_paused(
    own_broker: Callable[..., BrokerProcess], schemas: Schemas
) -> None:
    rounds = int(os.environ.get("FEED_KILLS") or 40) // len(DECODING_FAULTS)
    check_formats(own_broker, schemas, DECODING_FAULTS * max(rounds, 1))


DECODING_FAULTS = ["kill", "kill decoder", "pause", "pause decoder"]


def check_formats(
    own_broker: Callable[..., BrokerProcess], schemas: Schemas, faults: Sequence[str]
) -> None:
    chance = seeded()
    broker = own_broker(**SETTINGS, schema_registry=schemas.url)
    tables = TypedTables(broker)
    kinds = ("csv", "avro", "protobuf", "msgpack", "debezium")
    made: dict[str, Callable[[], int]] = {}
    with ExitStack() as producers:
        for kind in kinds:
            create_topic(broker.kafka, kind, PARTITIONS)
            tables(
                *shlex.split(
                    f"create fed.{kind} --topic {kind} --input-format {kind} --interval-ms 10"
                    " --columns"
                ),
                COLUMNS,
                "--engine",
                "MergeTree",
            )
            record, made[kind] = numbered(kind)
            producers.enter_context(producing(broker.kafka, kind, record, at_once=1))
        for fault in chance.sample(faults, len(faults)):
            for kind in kinds:
                tables.await_more_rows(f"fed.{kind}")
            await_decoder(broker)
            a_moment(chance)
            match fault:
                case "kill":
                    broker.kill()
                    broker.start()
                case "kill decoder":
                    os.kill(await_decoder(broker), signal.SIGKILL)
                case "pause":
                    with broker.paused():
                        a_moment(chance)
                case "pause decoder":
                    decoder = await_decoder(broker)
                    os.kill(decoder, signal.SIGSTOP)
                    a_moment(chance)
                    os.kill(decoder, signal.SIGCONT)
    for kind in kinds:
        repeated = check_fed(tables, kind, f"fed.{kind}", made[kind]())
        print(f"{kind}: {made[kind]()} records, {repeated} blocks were repeated")


@pytest.mark.test_all
def test_a_feed_goes_on_when_its_decoder_is_killed_in_the_middle_of_a_block(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    """Paused first, so that the kill comes while it has a request.

    On a busy machine a block may take a second without it: then another one is killed.
    """
    broker = own_broker(**SETTINGS)
    tables = TypedTables(broker)
    create_topic(broker.kafka, TOPIC, 1)
    tables("create", TABLE, "--topic", TOPIC, "--input-format", "msgpack", "--columns", COLUMNS)
    record, sent = numbered("msgpack")
    logged = broker.log_size()

    def had_a_request() -> bool:
        return "the decoder of msgpack ended with code -9" in broker.log(logged)

    def is_noticed(killed: int) -> bool:
        return had_a_request() or decoder_of(broker) not in (None, killed)

    with producing(broker.kafka, TOPIC, record):
        while not had_a_request():
            tables.await_more_rows(TABLE)
            killed = await_decoder(broker)
            os.kill(killed, signal.SIGSTOP)
            until(
                lambda: tables.sql(
                    "SELECT 1 FROM table_feed_progress WHERE phase = 'before'"
                    " AND since < now64(3, 'UTC') - INTERVAL 1 SECOND"
                ),
                "a block waits for the decoder",
            )
            os.kill(killed, signal.SIGKILL)
            until(
                partial(is_noticed, killed),
                "the broker says that its decoder has ended, or has another one",
            )
        tables.await_more_rows(TABLE)
        assert await_decoder(broker) != killed
    assert check_fed(tables, TOPIC, TABLE, sent()) == 1


@pytest.mark.test_all
def test_the_table_equals_the_log_whenever_the_broker_is_killed(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    check_table_equals_log(own_broker(**SETTINGS), kills=6)


@pytest.mark.test_all
def test_a_backup_of_a_broker_that_feeds_loses_and_doubles_nothing(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """After a restore nobody remembers tokens, and the last block may be in the table."""
    broker = own_broker(**SETTINGS)
    tables = TypedTables(broker)
    create_topic(broker.kafka, TOPIC, PARTITIONS)
    tables("create", TABLE, "--topic", TOPIC, "--interval-ms", "10", "--columns", COLUMNS)
    numbers = itertools.count()

    def record() -> tuple[str, str]:
        number = next(numbers)
        return str(number), json.dumps({"id": number, "name": f"n{number}"})

    copies = [tmp_path / f"copy{number}" for number in range(3)]
    with producing(broker.kafka, TOPIC, record):
        for copy in copies:
            tables.await_more_rows(TABLE)
            output("backup", str(copy), "--data-dir", str(broker.data_dir))
    for copy in copies:
        restored = BrokerProcess(copy.with_suffix(".data"), SETTINGS)
        output("restore", str(copy), "--data-dir", str(restored.data_dir))
        with restored:
            of_copy = TypedTables(restored)
            [log] = of_copy.sql(f"SELECT count() AS n FROM messages WHERE topic = '{TOPIC}'")
            of_copy.await_all_fed(TABLE, log["n"])
            logged = of_copy.sql(
                "SELECT JSONExtractUInt(value, 'id') AS id, partition AS _partition,"
                f" offset AS _offset FROM messages WHERE topic = '{TOPIC}' ORDER BY id"
            )
            assert of_copy.sql(f"SELECT id, _partition, _offset FROM {TABLE} ORDER BY id") == logged
            restored.stop()


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_table_equals_the_log_after_many_kills(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    check_table_equals_log(
        own_broker(**SETTINGS),
        kills=int(os.environ.get("FEED_KILLS") or 40),
        rows=int(os.environ.get("FEED_ROWS") or 0),
        limit_s=1800.0,
    )
