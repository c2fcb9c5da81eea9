"""Writes blocks of one feed, one at a time, and finds out whether a block is stored."""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID, uuid4

from brokerhouse.feeds.blocks import BlockCounts, Offsets, replay_name
from brokerhouse.feeds.decoding.client import ValueDecoder
from brokerhouse.feeds.decoding.requests import DecodeRequest, records
from brokerhouse.feeds.definition import FeedDefinition
from brokerhouse.feeds.inference import InferredColumn, field_columns, parse_sample
from brokerhouse.feeds.paths import path_as_text
from brokerhouse.feeds.server_tables import FeedTables
from brokerhouse.feeds.statements import (
    DEAD,
    MARK_BYTES,
    MISFITS,
    OF_BLOCK,
    ROWS_TABLE,
    SOURCE,
    SOURCE_WITHOUT_TRANSACTIONS,
    UNDECIDED,
    UNDERSTOOD,
    VALUES_TABLE,
    BlockStatements,
    columns_of,
    columns_statement,
)
from brokerhouse.feeds.values.layout import RowLayout
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, EngineError, FileQuery, Parameter, Row, TokenUsed

MAX_OFFSET = (1 << 63) - 1
_ASKED_AT = "fromUnixTimestamp64Milli({asked_ms:Int64}, 'UTC')"
MARKED_AT = f"greatest(now64(3, 'UTC'), addMilliseconds(time, 1), {_ASKED_AT})"
"""The time of a new version of a dead letter: later than the one before, and than the request for
the replay, also if the clock was set back or is another server's."""
_BLOCK_MAX_BYTES, _SENT_BLOCK_MAX_BYTES = 64 << 20, 8 << 20
"""The values of a block. A server's values come here, and its rows go back: so much is in memory
twice for each partition that is fed."""
COLUMNS_MAX = 1000
"""No column is added to a table that has so many: fields may be named by anything."""


class FeedSession(Protocol):
    """Statements one after the other, which see the same temporary tables."""

    async def readable(self) -> None:
        """Returns when acknowledged records are rows. Raises `EngineError`."""

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        """As `Engine.rows`."""

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        """As `Engine.execute`."""

    @property
    def reads_files(self) -> bool:
        """Whether the engine reads files of this machine."""

    async def save(self, query: FileQuery, params: Mapping[str, Parameter]) -> None:
        """Write the rows of a query into its file. Raises `EngineError`."""

    async def send(self, table: str, path: str) -> None:
        """Insert a file of RowBinary into a table. Raises `EngineError`."""

    async def settle(self, table: str) -> None:
        """Every row of the table that any replica has accepted is seen from now on."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FeedSource:
    """A partition of a topic."""

    topic: str
    topic_id: UUID
    partition: int

    def range(self, offsets: Offsets) -> dict[str, Parameter]:
        """The parameters of `SOURCE`."""
        return {
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "first": offsets.first,
            "end": offsets.end,
        }


async def first_since(engine: Engine, source: FeedSource, timestamp_ms: int) -> int | None:
    """The first offset there with this timestamp or a later one. Raises `EngineError`."""
    rows = await engine.rows(
        query("first_offset_since", source=SOURCE_WITHOUT_TRANSACTIONS),
        {**source.range(Offsets(0, MAX_OFFSET)), "timestamp": timestamp_ms},
    )
    return int(rows[0][0]) if rows else None


class PartitionWriter(ABC):
    """What a feed does with the records of a partition, a block at a time."""

    def __init__(self, session: FeedSession) -> None:
        self._session = session
        self.block_max_bytes = _BLOCK_MAX_BYTES if session.reads_files else _SENT_BLOCK_MAX_BYTES

    @abstractmethod
    async def write(
        self, feed: FeedDefinition, source: FeedSource, offsets: Offsets, token: str, *, again: bool
    ) -> BlockCounts:
        """Store a block: its rows and its dead letters. Safe to repeat with the same token.

        `again`: the block may have been stored before. Raises `TokenUsed` if the engine knows the
        token and has not all of the rows, and `EngineError`.
        """

    @abstractmethod
    async def take_away(
        self, feed: FeedDefinition, token: str, *, with_later: bool = False
    ) -> None:
        """Remove the rows of a block of which not all are stored. Raises `EngineError`.

        Where rows replace each other they stay: they are replaced by those that are stored again,
        and what they have replaced may be gone.
        """

    @abstractmethod
    async def replay(self, feed: FeedDefinition, source: FeedSource) -> BlockCounts:
        """Look again at dead letters that are older than the feed's `replay_asked_ms`.

        Those that fit now become rows; the others keep their place, with a new error and time.
        Afterwards none of them is older than `replay_asked_ms`. Safe to repeat. Raises
        `EngineError`.
        """

    async def has_dead_letters(self, feed: FeedDefinition, source: FeedSource) -> bool:
        """Whether there are some that are older than the feed's `replay_asked_ms`."""
        params: dict[str, Parameter] = {
            **source.range(Offsets(0, MAX_OFFSET)),
            "feed_id": feed.feed_id,
            "asked_ms": feed.replay_asked_ms,
        }
        [[count]] = await self._session.rows(f"SELECT count() {DEAD}", params)
        return bool(count)

    async def _renew_dead_letters(self, params: Mapping[str, Parameter]) -> None:
        """The end of a replay: those that it left as they were are newer, too.

        So a replay is over when no dead letter is older than it. `params`: those of `DEAD`.
        """
        await self._session.execute(query("renew_dead_letters", time=MARKED_AT, dead=DEAD), params)

    async def cut(self, source: FeedSource, offsets: Offsets, max_bytes: int) -> Offsets | None:
        """The beginning of a range that has at most `max_bytes` of values, or one record.

        None if it is not stored yet whether its first record is committed.
        """
        await self._session.readable()
        for (undecided,) in await self._session.rows(UNDECIDED, source.range(offsets)):
            if undecided <= offsets.first:
                return None
            offsets = Offsets(offsets.first, min(undecided, offsets.end))
        [[end]] = await self._session.rows(
            query("first_offset_beyond", source=SOURCE_WITHOUT_TRANSACTIONS),
            {**source.range(offsets), "max_bytes": max_bytes},
        )
        return Offsets(offsets.first, end or offsets.end)


class _LoadedBlock(NamedTuple):
    """What is in `feed_rows`.

    `statements` know the columns that were added. `rows` are those of the records whose rows all
    fit, `misfits` the other records.
    """

    statements: BlockStatements
    rows: int
    misfits: int


class BlockWriter(PartitionWriter):
    """Fills the feed's table. Needs a session, and a file of its own."""

    def __init__(
        self, session: FeedSession, path: str, decoder: ValueDecoder, tables: FeedTables
    ) -> None:
        super().__init__(session)
        self._tables = tables
        self._decoder = decoder
        self._path = path

    async def write(
        self, feed: FeedDefinition, source: FeedSource, offsets: Offsets, token: str, *, again: bool
    ) -> BlockCounts:
        params = source.range(offsets)
        statements, rows, dead_letters = await self._load(feed, params)
        if dead_letters:
            await self._dead_letters(feed, params)
        if rows:
            await self._session.execute(statements.insert(token), params)
        if again:
            # The block counts their rows.
            await self._not_dead_any_more(feed, OF_BLOCK, params, "0")
        if again and await self._stored(statements, token) != rows:
            raise TokenUsed(f"block {token} should have {rows} rows, but fewer are stored")
        await self._free_memory()
        return BlockCounts(rows, dead_letters)

    async def take_away(
        self, feed: FeedDefinition, token: str, *, with_later: bool = False
    ) -> None:
        table: dict[str, Parameter] = {"database": feed.database, "table": feed.table}
        if await self._session.rows(query("table_replaces_rows"), table) == [[1]]:
            return
        statements = await self._statements(feed)
        if await self._stored(statements, token):
            await self._session.execute(
                statements.take_away(with_later=with_later), {"token": token}
            )

    async def _stored(self, statements: BlockStatements, token: str) -> int:
        await self._session.settle(statements.target)
        [[count]] = await self._session.rows(statements.stored(), {"token": token})
        return int(count)

    async def replay(self, feed: FeedDefinition, source: FeedSource) -> BlockCounts:
        params: dict[str, Parameter] = {
            **source.range(Offsets(0, MAX_OFFSET)),
            "feed_id": feed.feed_id,
            "feed": feed.name,
            "asked_ms": feed.replay_asked_ms,
        }
        [[first, last, count]] = await self._session.rows(
            f"SELECT min(offset), max(offset), count() {DEAD}", params
        )
        if not count:
            return BlockCounts()
        params |= {"first": first, "end": last + 1}
        statements, rows, _ = await self._load(feed, params, f"offset IN (SELECT offset {DEAD})")
        place = feed.feed_id, str(source.topic_id), source.partition
        base = replay_name(*place, feed.replay_asked_ms)
        if rows:
            await self._session.execute(statements.insert(base), params)
        if await self._stored(statements, base) != rows:
            # A replay before this one was killed, and the table has changed since.
            await self.take_away(feed, base, with_later=True)
            await self._session.execute(statements.insert(f"{base}/{uuid4()}"), params)
        await self._dead_letters(feed, params)
        await self._not_dead_any_more(feed, DEAD, params, "made.rows")
        await self._renew_dead_letters(params)
        [[mended]] = await self._session.rows(
            f"SELECT uniqExact(_offset) FROM {ROWS_TABLE} WHERE _offset NOT IN {MISFITS}"
        )
        await self._free_memory()
        return BlockCounts(rows, count - mended)  # also those whose records were deleted

    async def _statements(self, feed: FeedDefinition, condition: str = "true") -> BlockStatements:
        found = await self._session.rows(
            columns_statement(), {"database": feed.database, "table": feed.table}
        )
        if not found:
            raise EngineError(f"there is no table {feed.database}.{feed.table}")
        source = f"{SOURCE} AND {feed.condition} AND {condition}"
        try:
            return BlockStatements(
                feed.database,
                feed.table,
                feed.format,
                columns_of(found, feed.paths, feed.options.units),
                source,
                collects_unknown=feed.options.add_columns,
            )
        except ValueError as error:
            raise EngineError(f"{feed.database}.{feed.table}: {error}") from error

    async def _load(
        self, feed: FeedDefinition, params: Mapping[str, Parameter], condition: str = "true"
    ) -> _LoadedBlock:
        """Fill `feed_rows` with those of the feed's records that meet the condition."""
        statements = await self._statements(feed, condition)
        mark = secrets.token_hex(MARK_BYTES // 2)
        await self._session.readable()
        await self._session.save(statements.values(mark, self._values_path), params)
        unknown = await self._scan(feed, statements, mark)
        if unknown and await self._add_columns(feed, unknown):
            statements = await self._statements(feed, condition)
            await self._scan(feed, statements, mark)
        for statement in (*statements.settings, statements.rows_table):
            await self._session.execute(statement)
        if self._session.reads_files:
            await self._session.execute(statements.convert(self._path))
        else:
            await self._session.execute(statements.values_table)
            await self._session.send(VALUES_TABLE, self._path)
            await self._session.execute(statements.convert(None))
        [[rows, misfits]] = await self._session.rows(
            f"SELECT countIf(_offset NOT IN {MISFITS}), uniqExactIf(_offset, _feed_error != '')"
            f" FROM {ROWS_TABLE}"
        )
        return _LoadedBlock(statements, rows, misfits)

    @property
    def _values_path(self) -> str:
        return f"{self._path}.values"

    async def _scan(
        self, feed: FeedDefinition, statements: BlockStatements, mark: str
    ) -> Sequence[InferredColumn]:
        """Make the file of rows. Returns columns for fields that have none, if they are wanted."""
        layout, collects = statements.layout, feed.options.add_columns
        if not feed.format.is_decoded:
            return await asyncio.to_thread(scan_file, layout, self._values_path, self._path, mark)
        columns = [column.as_list() for column in statements.columns]
        answer = await self._decoder.decode(
            DecodeRequest(
                self._values_path,
                self._path,
                mark,
                feed.format.value,
                columns,
                self._decoder.registry,
                collects,
            )
        )
        return [InferredColumn(name, kind, path_as_text((name,))) for name, kind in answer.unknown]

    async def _add_columns(self, feed: FeedDefinition, unknown: Sequence[InferredColumn]) -> bool:
        """Add columns for fields of the block that have none.

        Returns whether the table has others now: another feeder may have added them a moment ago.
        """
        names = await self._session.rows(
            "SELECT name FROM system.columns"
            " WHERE database = {database:String} AND table = {table:String}",
            {"database": feed.database, "table": feed.table},
        )
        taken = {name for (name,) in names}
        new = [one for one in unknown if one.name not in taken][: COLUMNS_MAX - len(taken)]
        if new:
            await self._tables.add_columns(feed, new)
        return bool(new) or any(one.name in taken for one in unknown)

    async def _free_memory(self) -> None:
        await self._session.execute(f"TRUNCATE TEMPORARY TABLE {ROWS_TABLE}")
        if not self._session.reads_files:
            await self._session.execute(f"TRUNCATE TEMPORARY TABLE {VALUES_TABLE}")

    async def _not_dead_any_more(
        self, feed: FeedDefinition, dead: str, params: Mapping[str, Parameter], rows: str
    ) -> None:
        """Dead letters whose records fit now. `rows`: SQL for what each counts in `rows`."""
        await self._session.execute(
            query(
                "mark_mended_records",
                time=MARKED_AT,
                rows=rows,
                dead=dead,
                misfits=MISFITS,
                understood=UNDERSTOOD,
                rows_table=ROWS_TABLE,
            ),
            {"asked_ms": 0, **params, "feed_id": feed.feed_id},
        )

    async def _dead_letters(self, feed: FeedDefinition, params: Mapping[str, Parameter]) -> None:
        await self._session.execute(
            query("store_dead_letters", rows_table=ROWS_TABLE, asked_at=_ASKED_AT),
            {"asked_ms": 0, **params, "feed": feed.name, "feed_id": feed.feed_id},
        )


def scan_file(layout: RowLayout, values: str, rows: str, mark: str) -> Sequence[InferredColumn]:
    """Make the scanner's rows of a file of values. Paths; see `BlockStatements.values`.

    Returns columns for fields that have none, if the layout collects them.
    """
    try:
        data = Path(values).read_bytes()
    except FileNotFoundError:
        data = b""  # ClickHouse makes no file for no rows
    scanner = layout.scanner()
    Path(rows).write_bytes(scanner.scan_file(data, mark.encode()))
    unknown = {name.decode("utf-8", "replace") for name in scanner.take_unknown()}
    if not unknown:
        return []
    names = [name.encode() for name in unknown]
    with_unknown = (  # an escape may be in the name
        value
        for _, value in records(data, mark.encode())
        if b"\\" in value or any(name in value for name in names)
    )
    return field_columns(parse_sample(with_unknown), unknown)
