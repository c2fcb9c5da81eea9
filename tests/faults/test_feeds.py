"""Feeds of typed tables while the broker is killed: the table equals the log, row for row.

`FEED_SEED` chooses the moments; the long test is `make test-feeds`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import output
from tests.support.committed import create_topic
from tests.support.sql_rows import SqlError
from tests.support.steady_producer import producing
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until

TOPIC, PARTITIONS = "events", 2
TABLE = "fed.events"
COLUMNS = "id UInt64, name String, _partition Int32, _offset Int64"
BAD_EVERY = 50


def seeded() -> random.Random:
    seed = int(os.environ.get("FEED_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    return random.Random(seed)


def check_table_equals_log(broker: BrokerProcess, kills: int) -> None:
    chance = seeded()
    tables = TypedTables(broker)
    create_topic(broker.kafka, TOPIC, PARTITIONS)
    tables(
        "create", TABLE, "--topic", TOPIC, "--interval-ms", "10", "--partition-by", "id % 2",
        "--columns", COLUMNS,
    )  # fmt: skip
    numbers = itertools.count()

    def record() -> tuple[str, str]:
        number = next(numbers)
        value = {"id": number, "name": f"n{number}"} if number % BAD_EVERY else {"id": "none"}
        return str(number), json.dumps(value)

    with producing(broker.kafka, TOPIC, record):
        for _ in range(kills):
            tables.await_rows(TABLE, tables.sql(f"SELECT count() AS n FROM {TABLE}")[0]["n"] + 1)
            time.sleep(chance.random() * 0.5)  # a random moment is what this is about
            broker.kill()
            broker.start()
    sent = next(numbers)
    _await_fed(tables, sent)

    logged = tables.sql(
        "SELECT JSONExtractUInt(value, 'id') AS id, JSONExtractString(value, 'name') AS name,"
        f" partition AS _partition, offset AS _offset FROM brokerhouse.messages"
        f" WHERE topic = '{TOPIC}' AND name != '' ORDER BY id"
    )
    rows = tables.sql(f"SELECT * FROM {TABLE} ORDER BY id, _offset")
    assert rows == logged
    assert [row["id"] for row in rows] == [n for n in range(sent) if n % BAD_EVERY]
    [dead] = tables.sql(
        "SELECT count() AS n, uniqExact(partition, offset) AS offsets, uniqExact(error) AS errors"
        " FROM brokerhouse.dead_letters"
    )
    assert dead == {"n": -(-sent // BAD_EVERY), "offsets": dead["n"], "errors": 1}
    _check_history(tables)
    print(f"{sent} records, {kills} kills, {_replays(tables)} blocks were repeated")


def _await_fed(tables: TypedTables, count: int) -> None:
    until(lambda: _fed(tables) == count, f"{count} records are fed")


def _fed(tables: TypedTables) -> int:
    try:
        [row] = tables.sql(
            "SELECT sum(next_offset) AS n FROM brokerhouse.table_feed_progress"
            " WHERE phase = 'after'"
        )
    except SqlError:
        return -1
    return int(row["n"])


def _check_history(tables: TypedTables) -> None:
    """Blocks follow one another, and each has the rows in the table that it was completed with."""
    blocks = tables.sql(
        "SELECT partition, first_offset, end_offset, rows FROM brokerhouse.table_feed_blocks FINAL"
        " WHERE phase = 'after' AND first_offset >= 0"
        " GROUP BY ALL ORDER BY partition, first_offset"
    )
    for one, two in itertools.pairwise(blocks):
        if one["partition"] == two["partition"]:
            assert one["end_offset"] == two["first_offset"]
    stored = tables.sql(
        "SELECT _partition AS partition, toInt64(extract(_block, '/(\\\\d+)-\\\\d+(?:/\\\\d+)?$'))"
        f" AS first_offset, count() AS rows FROM {TABLE} GROUP BY ALL ORDER BY ALL"
    )
    completed = [(one["partition"], one["first_offset"], one["rows"]) for one in blocks]
    assert [one for one in completed if one[2]] == [tuple(one.values()) for one in stored]


def _replays(tables: TypedTables) -> int:
    [row] = tables.sql(
        "SELECT count() AS n FROM (SELECT partition, first_offset FROM"
        " brokerhouse.table_feed_blocks FINAL WHERE phase = 'before' GROUP BY ALL"
        " HAVING uniqExact(epoch) > 1)"
    )
    return int(row["n"])


def test_the_table_equals_the_log_whenever_the_broker_is_killed(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    check_table_equals_log(own_broker(**SETTINGS), kills=6)


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
            tables.await_rows(TABLE, tables.sql(f"SELECT count() AS n FROM {TABLE}")[0]["n"] + 1)
            output("backup", str(copy), "--data-dir", str(broker.data_dir))
    for copy in copies:
        restored = BrokerProcess(copy.with_suffix(".data"), SETTINGS)
        output("restore", str(copy), "--data-dir", str(restored.data_dir))
        with restored:
            of_copy = TypedTables(restored)
            [log] = of_copy.sql(f"SELECT count() AS n FROM messages WHERE topic = '{TOPIC}'")
            _await_fed(of_copy, log["n"])
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
    check_table_equals_log(own_broker(**SETTINGS), int(os.environ.get("FEED_KILLS") or 40))
