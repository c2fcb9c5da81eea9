"""Puts blocks into the table of a feed, and finds out whether they are stored. Runs in workers.

A block's records arrive with their values as text, parsed by Spark. From there on it goes the way
of the broker's own feeds, with the same statements (coordinator/feeds/statements.py): into
temporary tables, where the text becomes values of the columns' types, and from there into the
table, as one insert with the block's token. The temporary tables belong to a session of one server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from coordinator.feeds.blocks import Counted, FeedState, token
from coordinator.feeds.definition import BLOCK_COLUMN, Format
from coordinator.feeds.statements import (
    MISFITS,
    ROWS_TABLE,
    UNDERSTOOD,
    VALUES_TABLE,
    BlockStatements,
    Column,
)
from coordinator.feeds.writer import FeedSource
from spark_jobs.feed_state import DATABASE
from spark_jobs.sql_client import HttpSession, SqlServers
from storage.engine import Parameter, TokenUsed
from storage.parameters import quoted

_RECORDS_TABLE = "feed_records"
"""What Kafka says of the block's records."""
KAFKA_COLUMNS = {
    "_timestamp": "timestamp DateTime64(3, 'UTC')",
    "_key": "key Nullable(String)",
    "_headers": "headers Array(Tuple(key String, value Nullable(String)))",
}
"""Columns of the table, and those of `feed_records` that they are filled from."""


@dataclass(frozen=True, slots=True)
class SparkFeed:
    """A feed, with the columns that its table has now."""

    name: str
    feed_id: str
    database: str
    table: str
    format: Format
    columns: Sequence[Column]

    @property
    def target(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.table)}"

    @property
    def kafka_columns(self) -> list[str]:
        return [column.name for column in self.columns if column.name in KAFKA_COLUMNS]


class SparkBlockWriter:
    """Writes blocks of one partition through one server. Everything raises SqlFailure."""

    def __init__(
        self, servers: SqlServers, url: str, session: str, feed: SparkFeed, source: FeedSource
    ) -> None:
        """`session`: a name that nobody else uses now."""
        self._session = HttpSession(servers, url, session)
        self._feed = feed
        self._source = source
        self._statements = BlockStatements(
            feed.database, feed.table, feed.format, feed.columns, "", f"FROM {_RECORDS_TABLE}"
        )

    def write(self, state: FeedState, records: pa.Table | None, *, again: bool) -> Counted:
        """Store the block that has begun: its rows and its dead letters. Safe to repeat.

        `records`: columns offset, rows, error, and what Kafka says of each; None: there are none.
        `again`: the block may
        have been stored before; raises `TokenUsed` if ClickHouse knows the token and has not
        exactly its rows.
        """
        counted = self._load(records)
        if counted.dead_letters:
            self._dead_letters()
        if counted.rows:
            params: dict[str, Parameter] = {
                "topic": self._source.topic,
                "partition": self._source.partition,
            }
            self._session.execute(self._statements.insert(self._token(state)), params)
        if again:
            first = {"token": self._token(state, 0)}
            [[stored]] = self._session.rows(self._statements.stored(), first)
            if stored != counted.rows:
                raise TokenUsed(f"block {self._token(state)} has {stored} of {counted.rows} rows")
        self._drop()
        return counted

    def take_away(self, state: FeedState) -> None:
        """Remove what is stored of earlier attempts. No later feeder uses their tokens.

        A broker lets nobody delete with SETTINGS; by default, ClickHouse answers when it is done.
        """
        tokens = [self._token(state, attempt) for attempt in range(state.attempt)]
        self._session.execute(
            f"DELETE FROM {self._feed.target} WHERE {BLOCK_COLUMN} IN {{tokens:Array(String)}}",
            {"tokens": tokens},
        )

    def _token(self, state: FeedState, attempt: int | None = None) -> str:
        assert state.offsets is not None, "no block has begun"
        return token(
            self._feed.feed_id, str(self._source.topic_id), self._source.partition, state.offsets,
            state.attempt if attempt is None else attempt,
        )  # fmt: skip

    def _load(self, records: pa.Table | None) -> Counted:
        """Fill the temporary tables."""
        self._drop()
        for statement in self._statements.temporary_tables:
            self._session.execute(statement.replace("CREATE OR REPLACE", "CREATE"))
        if self._feed.kafka_columns:
            self._session.execute(
                f"CREATE TEMPORARY TABLE {_RECORDS_TABLE} (offset Int64,"
                f" {', '.join(KAFKA_COLUMNS.values())}) ENGINE = Memory"
            )
        if records is not None:
            values = records.select(["offset", "rows", "error"])
            self._insert(VALUES_TABLE, values.rename_columns(["_offset", "_rows", "_error"]))
            of_kafka = [name.removeprefix("_") for name in self._feed.kafka_columns]
            if of_kafka:
                self._insert(_RECORDS_TABLE, records.select(["offset", *of_kafka]))
        self._session.execute(self._statements.convert())
        [[rows, dead_letters]] = self._session.rows(
            f"SELECT toInt64(countIf(_offset NOT IN {MISFITS})), toInt64("
            f"(SELECT count() FROM {VALUES_TABLE} WHERE _offset NOT IN {UNDERSTOOD})"
            f" + uniqExactIf(_offset, _feed_error != '')) FROM {ROWS_TABLE}"
        )
        return Counted(rows, dead_letters)

    def _drop(self) -> None:
        """Memory is free again; a broker lets nobody replace tables."""
        of_kafka = [_RECORDS_TABLE] if self._feed.kafka_columns else []
        for table in (VALUES_TABLE, ROWS_TABLE, *of_kafka):
            self._session.execute(f"DROP TABLE IF EXISTS {table}")

    def _insert(self, table: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self._session.insert(table, rows)

    def _dead_letters(self) -> None:
        self._session.execute(
            f"INSERT INTO {DATABASE}.dead_letter_versions SELECT {{feed:String}}, {{feed_id:UUID}},"
            " {topic:String}, {topic_id:UUID}, {partition:Int32}, _offset, any(error),"
            f" now64(3, 'UTC'), false FROM (SELECT _offset, _feed_error AS error FROM {ROWS_TABLE}"
            f" UNION ALL SELECT _offset, _error FROM {VALUES_TABLE}) WHERE error != ''"
            " GROUP BY _offset",
            {
                "feed": self._feed.name,
                "feed_id": self._feed.feed_id,
                "topic": self._source.topic,
                "topic_id": str(self._source.topic_id),
                "partition": self._source.partition,
            },
        )
