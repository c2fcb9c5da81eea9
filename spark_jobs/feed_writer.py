"""Puts blocks into the table of a feed, and finds out whether they are stored. Runs in workers.

A block's records arrive as the rows that the scanner has made of them (feed_values.py). From there
on it goes the way of the broker's own feeds, with the same statements
(feeds/statements.py): into temporary tables, where they become values of the columns'
types, and from there into the table, as one insert with the block's token. The temporary tables
belong to a session of one server.

A dead letter is written by a statement that looks at the state itself, so that a run that was
taken over, and does not know it yet, cannot bring one back that has been replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from brokerhouse.feeds.blocks import BlockCounts, FeedState, Offsets, replay_token, token
from brokerhouse.feeds.definition import BLOCK_COLUMN, Format
from brokerhouse.feeds.statements import (
    AS_ONE_BLOCK,
    MISFITS,
    ROWS_TABLE,
    VALUES_TABLE,
    BlockStatements,
)
from brokerhouse.feeds.values.layout import Column
from brokerhouse.feeds.writer import FeedSource
from brokerhouse.spark_jobs.feed_state import DATABASE, Fence
from brokerhouse.spark_jobs.sql_client import HttpSession, SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter, TokenUsed
from brokerhouse.storage.parameters import quoted

_RECORDS_TABLE = "feed_records"
"""What Kafka says of the block's records."""
_IS_PARTITION = (
    "feed_id = {feed_id:UUID} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
)
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
    def record_columns(self) -> list[str]:
        """Columns of Kafka's records that the table `feed_records` is needed for."""
        return [one.name.removeprefix("_") for one in self.columns if one.name in KAFKA_COLUMNS]


class SparkBlockWriter:
    """Writes blocks of one partition through one server. Everything raises SqlFailure."""

    def __init__(
        self,
        servers: SqlServers,
        url: str,
        session: str,
        feed: SparkFeed,
        source: FeedSource,
        fence: Fence,
    ) -> None:
        """`session`: a name that nobody else uses now."""
        self._fence = fence
        self._session = HttpSession(servers, url, session)
        self._feed = feed
        self._source = source
        self._statements = BlockStatements(
            feed.database,
            feed.table,
            feed.format,
            feed.columns,
            f"FROM {_RECORDS_TABLE} WHERE true",
        )

    def write(self, state: FeedState, records: pa.Table | None, *, again: bool) -> BlockCounts:
        """Store the block that has begun: its rows and its dead letters. Safe to repeat.

        `records`: columns offset, rows, and what Kafka says of each; None: there are none. `again`:
        the block may have been stored before; raises `TokenUsed` if ClickHouse
        knows the token and has not exactly its rows.
        """
        assert state.offsets is not None, "no block has begun"
        tokens = self._tokens(state)
        counted = self._load(records)
        if counted.dead_letters or again:
            self._dead_letters(state, state.offsets, 0)
        self._insert_rows(counted, tokens[-1])
        if again:
            [[stored]] = self._session.rows(self._statements.stored(), {"token": tokens[0]})
            if stored != counted.rows:
                raise TokenUsed(f"block {tokens[-1]} has {stored} of {counted.rows} rows")
        self._drop()
        return counted

    def replay(self, state: FeedState, records: pa.Table | None, *, again: bool) -> BlockCounts:
        """Store what fits of the replay that has begun, and what its dead letters are now.

        `records`: as of `write`. `again`: it may have been stored before, perhaps with other rows,
        because the table was another one. Uses up the token then, and raises `TokenUsed`.
        """
        assert state.replay is not None, "no replay has begun"
        name = self._replay_tokens(state)[-1]
        counted = self._load(records)
        self._insert_rows(counted, name)
        if again:
            raise TokenUsed(f"replay {name} may have been stored")
        self._dead_letters(state, state.replay.offsets, state.replay.asked_ms)
        self._drop()
        return counted

    def take_away(self, state: FeedState) -> None:
        """Remove what is stored of earlier attempts. No later feeder uses their tokens."""
        self._delete(self._tokens(state)[:-1])

    def take_away_replay(self, state: FeedState) -> None:
        """As `take_away`, of the replay."""
        self._delete(self._replay_tokens(state)[:-1])

    def _delete(self, tokens: Sequence[str]) -> None:
        """A broker lets nobody delete with SETTINGS; by default, this returns when it is done.

        Where rows replace each other they stay (feeds/writer.py).
        """
        table: dict[str, Parameter] = {"database": self._feed.database, "table": self._feed.table}
        if self._session.rows(query("table_replaces_rows"), table) == [[1]]:
            return
        self._session.execute(
            f"DELETE FROM {self._feed.target} WHERE {BLOCK_COLUMN} IN {{tokens:Array(String)}}",
            {"tokens": list(tokens)},
        )

    def _insert_rows(self, counted: BlockCounts, name: str) -> None:
        if counted.rows:
            params: dict[str, Parameter] = {
                "topic": self._source.topic,
                "partition": self._source.partition,
            }
            self._session.execute(self._statements.insert(name), params)

    def _tokens(self, state: FeedState) -> list[str]:
        """Of each attempt up to this one."""
        assert state.offsets is not None, "no block has begun"
        place = (self._feed.feed_id, str(self._source.topic_id), self._source.partition)
        return [token(*place, state.offsets, one) for one in range(state.attempt + 1)]

    def _replay_tokens(self, state: FeedState) -> list[str]:
        """Of each attempt up to this one."""
        assert state.replay is not None, "no replay has begun"
        place = (self._feed.feed_id, str(self._source.topic_id), self._source.partition)
        attempts = range(state.replay.attempt + 1)
        return [replay_token(*place, state.replay, one) for one in attempts]

    def _load(self, records: pa.Table | None) -> BlockCounts:
        """Fill the temporary tables."""
        self._drop()
        made = self._statements
        for statement in (*made.settings, made.values_table, made.rows_table):
            self._session.execute(statement.replace("CREATE OR REPLACE", "CREATE"))
        more = self._feed.record_columns
        if more:
            self._session.execute(
                f"CREATE TEMPORARY TABLE {_RECORDS_TABLE} (offset Int64,"
                f" {', '.join(KAFKA_COLUMNS.values())}) ENGINE = Memory"
            )
        if records is not None:
            if more and records.num_rows:
                self._session.insert(_RECORDS_TABLE, records.select(["offset", *more]))
            if rows := b"".join(one for one in records["rows"].to_pylist() if one):
                self._session.send(f"INSERT INTO {VALUES_TABLE} FORMAT RowBinary", rows)
        self._session.execute(self._statements.convert(None))
        [[stored, dead_letters]] = self._session.rows(
            f"SELECT toInt64(countIf(_offset NOT IN {MISFITS})),"
            f" toInt64(uniqExactIf(_offset, _feed_error != '')) FROM {ROWS_TABLE}"
        )
        return BlockCounts(stored, dead_letters)

    def _drop(self) -> None:
        """Memory is free again; a broker lets nobody replace tables."""
        records = [_RECORDS_TABLE] if self._feed.record_columns else []
        for table in (VALUES_TABLE, ROWS_TABLE, *records):
            self._session.execute(f"DROP TABLE IF EXISTS {table}")

    def _dead_letters(self, state: FeedState, offsets: Offsets, asked_ms: int) -> None:
        """Write down which of these records are dead letters, and which are so no more.

        By one insert. Each is newer than what is known of it, and not older than `asked_ms`, also
        if the server's clock was set back.
        """
        table = f"{DATABASE}.dead_letter_versions"
        errors = f"SELECT _offset, _feed_error AS error FROM {ROWS_TABLE}"
        self._session.execute(
            query(
                "spark_store_dead_letters",
                table=table,
                errors=errors,
                is_partition=_IS_PARTITION,
                fence=self._fence.condition,
                settings=AS_ONE_BLOCK,
            ),
            {
                "feed": self._feed.name,
                "feed_id": self._feed.feed_id,
                **self._source.range(offsets),
                "asked_ms": asked_ms,
                **self._fence.parameters(state),
            },
        )
