"""A block of a feed as ClickHouse's statements. No value of a record becomes an object of Python.

A block goes through three places, so that each record is parsed once:

1. `values`: the values of the records go into a file, and the scanner (values/) makes another file
   of rows from it, with what columns need. Values that are decoded first are so in a process of
   its own (decoding/);
2. `convert`: these rows as values of the columns' types, in the temporary table `feed_rows`. Where
   one does not fit, `_feed_error` says so. An engine that cannot read files of this machine gets
   the rows in the temporary table `feed_values` before;
3. `insert`: the rows into the feed's table, under the block's token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokerhouse.feeds.decoding.debezium import PACKED
from brokerhouse.feeds.definition import BLOCK_COLUMN, Format
from brokerhouse.feeds.paths import path_from_text
from brokerhouse.feeds.values.layout import Column, RowLayout, uses
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import FileQuery
from brokerhouse.storage.parameters import literal, quoted

_IS_PARTITION = (
    "topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
)
SOURCE_WITHOUT_TRANSACTIONS = (
    f"FROM messages WHERE {_IS_PARTITION} AND offset >= {{first:Int64}} AND offset < {{end:Int64}}"
)
"""All records of a range: faster, where a few more do no harm."""
SOURCE = (
    f"{SOURCE_WITHOUT_TRANSACTIONS} AND NOT control AND (NOT transactional OR transaction_start"
    f" NOT IN (SELECT transaction_start FROM aborted_transactions WHERE {_IS_PARTITION}))"
)
"""The committed records of a range below `UNDECIDED`. Records without a value are no rows.

Not from `messages_committed`: that shows a new record only if the marker that commits it is on the
same shard, and nothing behind a transaction whose end was not stored yet.
"""
UNDECIDED = (
    f"SELECT min(transaction_start) FROM open_transactions WHERE {_IS_PARTITION} HAVING count()"
)
"""Where the first transaction begins of which it is not stored yet whether it was aborted."""
WITH_VALUE = "value IS NOT NULL"
_DEAD_LETTERS = (
    "FROM dead_letter_versions FINAL WHERE feed_id = {feed_id:UUID} AND topic_id = {topic_id:UUID}"
    " AND partition = {partition:Int32} AND NOT replayed"
)
OF_BLOCK = f"{_DEAD_LETTERS} AND offset >= {{first:Int64}} AND offset < {{end:Int64}}"
"""Dead letters of a range."""
DEAD = f"{_DEAD_LETTERS} AND time < fromUnixTimestamp64Milli({{asked_ms:Int64}}, 'UTC')"
"""Dead letters that were asked to be parsed again."""
LARGE_STATEMENTS = (
    "SET max_query_size = 16777216, max_ast_elements = 1000000, max_expanded_ast_elements = 5000000"
)
"""For a session: hundreds of columns need more than ClickHouse's 256 KiB."""
COLUMNS_OF_SMALL_STATEMENTS = 100
VALUES_TABLE, ROWS_TABLE = "feed_values", "feed_rows"
UNDERSTOOD = f"(SELECT _offset FROM {ROWS_TABLE} WHERE _feed_error = '')"
MISFITS = f"(SELECT _offset FROM {ROWS_TABLE} WHERE _feed_error != '')"

_BEGINS = (
    f"({BLOCK_COLUMN} = {{token:String}}"
    f" OR startsWith({BLOCK_COLUMN}, concat({{token:String}}, '/')))"
)
# Text stays text in columns of type JSON, Dynamic and Variant, also if it looks like a date.
_CONVERTING = (
    "SETTINGS max_threads = 2, engine_file_empty_if_not_exists = 1,"
    " input_format_try_infer_dates = 0, input_format_try_infer_datetimes = 0,"
    " cast_string_to_variant_use_inference = 0"
)
# One insert is one block of the engine, and so one part in each partition of the table.
AS_ONE_BLOCK = (
    "SETTINGS max_threads = 1, max_insert_threads = 1, min_insert_block_size_rows = 1000000000,"
    " min_insert_block_size_bytes = 0, max_partitions_per_insert_block = 0, async_insert = 0,"
    "  insert_deduplicate = 1"
)
MARK_BYTES = 16
VALUES_STRUCTURE = f"mark FixedString({MARK_BYTES}), offset Int64, value String"


def columns_statement() -> str:
    """The columns of a table. Parameters: `database`, `table`."""
    return query("feed_columns", block_column=BLOCK_COLUMN)


def columns_of(
    rows: Sequence[Sequence[Any]], paths: Mapping[str, str], units: Mapping[str, str]
) -> list[Column]:
    """Those that a feed fills. `rows`: of `columns_statement`.

    Raises ValueError for a path that is none, and for a default that cannot be known here.
    """
    computed = [name for name, _, kind, _, _ in rows if kind not in _FILLED]
    columns = []
    for name, type_name, kind, default, zone in rows:
        if kind not in _FILLED:
            continue
        if uses(default, computed):
            raise ValueError(
                f"column {name}: its default uses a column that is computed: {default}"
            )
        path = path_from_text(paths[name]) if name in paths else (name,)
        own = default if kind == "DEFAULT" else ""
        columns.append(Column(name, type_name, path, own, units.get(name), zone))
    return columns


_FILLED = frozenset({"", "DEFAULT", "EPHEMERAL"})
"""Kinds of defaults of the columns that an insert may name."""


def checked_columns(
    rows: Sequence[Sequence[Any]], kind: Format, paths: Mapping[str, str], units: Mapping[str, str]
) -> list[Column]:
    """As `columns_of`, when a feed is made: also raises ValueError if it cannot fill the table, or
    if a path or a unit is for a column that does not take it."""
    columns = columns_of(rows, paths, units)
    types = {column.name: column.type for column in columns}
    for name in paths:
        if name not in types:
            raise ValueError(f"--path {name}: there is no such column that a feed can fill")
    for name in units:
        if "Date" not in types.get(name, ""):
            raise ValueError(f"--unit {name}: there is no such column of dates or times")
    BlockStatements("", "", kind, columns)
    return columns


class BlockStatements:
    """The statements of one feed, for the columns that its table has now."""

    def __init__(
        self,
        database: str,
        table: str,
        kind: Format,
        columns: Sequence[Column],
        source: str = SOURCE,
        *,
        collects_unknown: bool = False,
    ) -> None:
        """`source`: of the records, `SOURCE` or a part of it. `collects_unknown`: the scanner
        remembers fields that no column has.

        Raises ValueError if no block can be formed.
        """
        self.target = f"{quoted(database)}.{quoted(table)}"
        self.columns = columns
        self._read = PACKED if kind.needs_key else "assumeNotNull(value)"
        self.source = source
        values = [column for column in columns if not column.is_metadata]
        if not values:
            raise ValueError("the table has no column for values")
        if kind is Format.RAW and len(values) > 1:
            names = ", ".join(column.name for column in values)
            raise ValueError(f"the format raw fills one column, and the table has {names}")
        self.layout = RowLayout(columns, kind, collects_unknown=collects_unknown)

    @property
    def settings(self) -> Sequence[str]:
        """Statements that make the others possible."""
        return [LARGE_STATEMENTS] if len(self.columns) > COLUMNS_OF_SMALL_STATEMENTS else []

    @property
    def rows_table(self) -> str:
        """Make `feed_rows` anew."""
        return _temporary(ROWS_TABLE, self.layout.rows)

    @property
    def values_table(self) -> str:
        """Make `feed_values` anew, for rows of the scanner that are sent."""
        return _temporary(VALUES_TABLE, self.layout.structure)

    def values(self, mark: str, path: str) -> FileQuery:
        """What makes the file of the values. Parameters: those of `SOURCE`.

        `mark`: 16 characters that no earlier block knows. ClickHouse makes no file for no rows, so
        values of an earlier block may be there.
        """
        return FileQuery(
            f"SELECT toFixedString('{mark}', {MARK_BYTES}), offset, {self._read}"
            f" {self.source} AND {WITH_VALUE}",
            path,
            "RowBinary",
            VALUES_STRUCTURE,
        )

    def convert(self, path: str | None) -> str:
        """Fills `feed_rows`. `path`: of the scanner's rows; None: they are in `feed_values`."""
        source = VALUES_TABLE
        if path is not None:
            source = f"file({literal(path)}, 'RowBinary', {literal(self.layout.structure)})"
        return f"INSERT INTO {ROWS_TABLE} {self.layout.conversion(source)} {_CONVERTING}"

    def insert(self, token: str) -> str:
        """Puts the rows into the table. Parameters: those of `SOURCE`."""
        names = ", ".join(quoted(column.name) for column in self.columns)
        of_kafka = {
            "_topic": "{topic:String}",
            "_partition": "{partition:Int32}",
            "_offset": "_offset",
            "_timestamp": "record.timestamp",
            "_key": "record.key",
            "_headers": "record.headers",
        }
        rows = f"(SELECT * FROM {ROWS_TABLE} WHERE _offset NOT IN {MISFITS}) AS feed_rows"
        if {"_timestamp", "_key", "_headers"} & {one.name for one in self.columns}:
            rows += (
                " ANY LEFT JOIN (SELECT offset, timestamp, key, headers"
                f" {self.source}) AS record ON record.offset = feed_rows._offset"
            )
        return (
            f"INSERT INTO {self.target} ({names}) {self.layout.inserted(rows, of_kafka)}"
            f" {AS_ONE_BLOCK}, insert_deduplication_token = {literal(token)}"
        )

    def stored(self) -> str:
        """How many rows the table has of blocks whose token begins with the parameter `token`."""
        return f"SELECT count() FROM {self.target} WHERE {_BEGINS}"

    def take_away(self, *, with_later: bool = False) -> str:
        """Removes what the table has of the block with the parameter `token`.

        `with_later`: also of blocks whose tokens begin with it.
        """
        which = _BEGINS if with_later else f"{BLOCK_COLUMN} = {{token:String}}"
        return f"ALTER TABLE {self.target} DELETE WHERE {which} SETTINGS mutations_sync = 2"


def _temporary(table: str, columns: str) -> str:
    return f"CREATE OR REPLACE TEMPORARY TABLE {table} ({columns}) ENGINE = Memory"
