"""Compares a table of numbered records (feed_records.py) with the log, row for row, inside SQL."""

from __future__ import annotations

import itertools

from tests.support.feed_records import BAD_EVERY
from tests.support.typed_tables import TypedTables
from tests.support.waiting import LIMIT_S

_SLICE = 1_000_000
"""So many offsets are compared at once: that bounds the memory."""


def check_fed(
    tables: TypedTables, topic: str, table: str, sent: int, limit_s: float = LIMIT_S
) -> int:
    """Wait until all records are fed. Each good one is a row, each bad one a dead letter, once.

    Returns how many blocks were repeated.
    """
    tables.await_all_fed(table, sent, limit_s)
    [log] = tables.sql(
        "SELECT count() AS n, uniqExact(toUInt32(key)) AS different, max(toUInt32(key)) AS last"
        f" FROM messages WHERE topic = '{topic}'"
    )
    assert log == {"n": sent, "different": sent, "last": sent - 1}
    [all_rows] = tables.sql(f"SELECT count() AS n FROM {table}")
    assert all_rows["n"] == sent - -(-sent // BAD_EVERY)
    ends = tables.sql(
        f"SELECT partition, max(offset) AS last FROM messages WHERE topic = '{topic}' GROUP BY ALL"
    )
    for one in ends:
        for first in range(0, one["last"] + 1, _SLICE):
            assert _differences(tables, topic, table, one["partition"], first) == []
    _check_history(tables, table)
    return _repeated(tables, table)


def _differences(
    tables: TypedTables, topic: str, table: str, partition: int, first: int
) -> list[object]:
    """Rows and dead letters that are not there as often as they should be, up to ten."""
    end = first + _SLICE
    found: list[object] = list(
        tables.sql(
            "SELECT id, name, place, dead, sum(side) AS balance FROM ("
            f" SELECT if(dead, 0, toUInt64(key)) AS id, if(dead, '', concat('n', key)) AS name,"
            f"  offset AS place, toUInt64(key) % {BAD_EVERY} = 0 AS dead, 1 AS side FROM messages"
            f"  WHERE topic = '{topic}' AND partition = {partition}"
            f"  AND offset >= {first} AND offset < {end}"
            f" UNION ALL SELECT id, name, _offset, false, -1 FROM {table}"
            f"  WHERE _partition = {partition} AND _offset >= {first} AND _offset < {end}"
            " UNION ALL SELECT 0, '', offset, true, -1 FROM dead_letters"
            f"  WHERE feed = '{table}' AND topic = '{topic}' AND partition = {partition}"
            f"  AND offset >= {first} AND offset < {end} AND error != ''"
            ") GROUP BY ALL HAVING balance != 0 LIMIT 10"
        )
    )
    return found


def _check_history(tables: TypedTables, table: str) -> None:
    """Blocks follow one another, and each has the rows in the table that it was completed with."""
    blocks = tables.sql(
        "SELECT partition, first_offset, end_offset, rows FROM table_feed_blocks FINAL"
        f" WHERE feed = '{table}' AND phase = 'after' AND first_offset >= 0"
        " GROUP BY ALL ORDER BY partition, first_offset"
    )
    for one, two in itertools.pairwise(blocks):
        if one["partition"] == two["partition"]:
            assert one["end_offset"] == two["first_offset"]
    stored = tables.sql(
        "SELECT _partition AS partition, toInt64(extract(_block, '/(\\\\d+)-\\\\d+(?:/\\\\d+)?$'))"
        f" AS first_offset, count() AS rows FROM {table} GROUP BY ALL ORDER BY ALL"
    )
    completed = [(one["partition"], one["first_offset"], one["rows"]) for one in blocks]
    assert [one for one in completed if one[2]] == [tuple(one.values()) for one in stored]


def _repeated(tables: TypedTables, table: str) -> int:
    [row] = tables.sql(
        "SELECT count() AS n FROM (SELECT partition, first_offset FROM table_feed_blocks FINAL"
        f" WHERE feed = '{table}' AND phase = 'before' GROUP BY ALL HAVING uniqExact(epoch) > 1)"
    )
    return int(row["n"])
