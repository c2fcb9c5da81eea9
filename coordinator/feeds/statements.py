"""A block of a feed as ClickHouse's statements. No value of a record becomes an object of Python.

A block goes through four places, so that each record is parsed once:

1. `lines`: one line per record into a file, each beginning with the record's offset. Values that
   are decoded (decoding/) go into a file of values before, and the decoder writes the lines. An
   engine that cannot read files of this machine gets the lines inside the next statement, from a
   query or, decoded, from the temporary table `feed_lines`;
2. `load`: the lines, read by ClickHouse's input format, into the temporary table `feed_values`:
   the values of each record as text. What the format does not understand is left out;
3. `convert`: the text as values of the columns' types, in the temporary table `feed_rows`. Where
   one does not fit, `_feed_error` says so;
4. `insert`: these rows into the feed's table, under the block's token.

Values are read as text first because ClickHouse's formats let a number that is too large wrap
around, and because a format that skips records may leave half of one behind in columns of
`Nullable(Decimal)` (measured, 26.9: rows behind it then get values of others).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.feeds.decoding.worker import DecodeRequest
from coordinator.feeds.definition import BLOCK_COLUMN, METADATA_COLUMNS, Format
from storage.engine import FileQuery
from storage.parameters import literal, quoted

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
VALUES_TABLE, ROWS_TABLE, LINES_TABLE = "feed_values", "feed_rows", "feed_lines"
UNDERSTOOD = f"(SELECT _offset FROM {VALUES_TABLE} WHERE _error = '')"
MISFITS = f"(SELECT _offset FROM {ROWS_TABLE} WHERE _feed_error != '')"

_TEXT = "Nullable(String)"
_BEGINS = (
    f"({BLOCK_COLUMN} = {{token:String}}"
    f" OR startsWith({BLOCK_COLUMN}, concat({{token:String}}, '/')))"
)
_PARSING = (
    "SETTINGS max_threads = 2, engine_file_empty_if_not_exists = 1,"
    " input_format_allow_errors_num = 1000000000,"
    " input_format_allow_errors_ratio = 1, input_format_null_as_default = 1,"
    " input_format_json_named_tuples_as_objects = 1,"
    " input_format_json_defaults_for_missing_elements_in_named_tuple = 1,"
    " input_format_json_ignore_unknown_keys_in_named_tuple = 1,"
    " input_format_json_read_objects_as_strings = 1, input_format_json_read_arrays_as_strings = 1,"
    " input_format_json_read_numbers_as_strings = 1, input_format_json_read_bools_as_strings = 1,"
    " input_format_csv_empty_as_default = 1"
)
# A text that looks like a date may be followed by others.
LOOKING_FOR_FIELDS = (
    "SETTINGS max_threads = 2, engine_file_empty_if_not_exists = 1,"
    " input_format_allow_errors_num = 1000000000, input_format_allow_errors_ratio = 1,"
    " input_format_try_infer_dates = 0, input_format_try_infer_datetimes = 0"
)
# A quote that is not closed would take the records behind it. The expression is one of UTF-8.
_FIELD = r'[ \t]*(?:"(?:[^"]|"")*"[ \t]*|(?:[^" \t,\r\n][^,\r\n]*)?)'
_CLOSED_QUOTES = rf"^{_FIELD}(?:,{_FIELD}|\r?\n{_FIELD})*$"
# One insert is one block of the engine, and so one part in each partition of the table.
AS_ONE_BLOCK = (
    "SETTINGS max_threads = 1, max_insert_threads = 1, min_insert_block_size_rows = 1000000000,"
    " min_insert_block_size_bytes = 0, max_partitions_per_insert_block = 0, async_insert = 0,"
    " insert_null_as_default = 1, insert_deduplicate = 1"
)
_NOT_FROM_TEXT = re.compile(
    r"(Variant|AggregateFunction|SimpleAggregateFunction)\(|"
    r"Dynamic\b|.*Map\((?!String\b|LowCardinality\(String\))|"
    r"(Point|Ring|LineString|MultiLineString|Polygon|MultiPolygon)$"
)
"""Types that the format itself parses; of maps those whose keys are no text."""
_FROM_JSON = re.compile(r"(Array|Map|Tuple|Nested)\(")
_DATETIME64 = re.compile(r"DateTime64\((\d)(?:, *('[^']*'))?\)")
_DATETIME = re.compile(r"DateTime(?:\(('[^']*')\))?")
_WRAPS_AROUND = frozenset({"Int128", "UInt128", "Int256", "UInt256"})
"""Types whose values come out as others where their text is too large."""
_ENUM_NAME = re.compile(r"('(?:[^'\\]|\\.)*') *= *-?\d+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a feed's table. `path`: where its value is in a JSON object."""

    name: str
    type: str
    path: tuple[str, ...]

    @property
    def is_metadata(self) -> bool:
        return self.name in METADATA_COLUMNS

    @property
    def bare_type(self) -> str:
        """Without Nullable and LowCardinality around it."""
        kind = self.type
        for wrapper in ("LowCardinality(", "Nullable("):
            if kind.startswith(wrapper):
                kind = kind.removeprefix(wrapper).removesuffix(")")
        return kind

    @property
    def read_type(self) -> str:
        """As what the format reads a value."""
        return self.type if _NOT_FROM_TEXT.match(self.type) else _TEXT

    @property
    def is_read_as_text(self) -> bool:
        return self.read_type == _TEXT

    @property
    def row_type(self) -> str:
        """As what a value waits for its insert: null where the record has none."""
        if self.is_from_json or self.read_type != _TEXT or self.is_json:
            return self.type
        return f"Nullable({self.bare_type})"

    @property
    def is_from_json(self) -> bool:
        return _FROM_JSON.match(self.type) is not None

    @property
    def is_json(self) -> bool:
        return self.type.startswith("JSON")

    def converted(self, text: str) -> str | None:
        """An expression: `text` as a value of the type, null if it does not fit.

        None where nothing has to be converted.
        """
        kind = self.bare_type
        if self.read_type != _TEXT or kind == "String":
            return None
        if self.is_json:
            return f"accurateCastOrNull({text}, {literal(self.type)})"
        if self.is_from_json:
            wrapped = f"concat('{{\"v\":', {text}, '}}')"
            return f"accurateCastOrNull({wrapped}, {literal(f'JSON(v {self.type})')})"
        if match := _DATETIME64.fullmatch(kind):
            zone = f", {match[2]}" if match[2] else ""
            return f"parseDateTime64BestEffortOrNull({text}, {match[1]}{zone})"
        if match := _DATETIME.fullmatch(kind):
            zone = f", {match[1]}" if match[1] else ""
            return f"parseDateTimeBestEffortOrNull({text}{zone})"
        if kind in ("Date", "Date32"):
            moment = f"parseDateTime64BestEffortOrNull({text}, 0, 'UTC')"
            return f"accurateCastOrNull({moment}, '{kind}')"
        if kind.startswith("Enum"):
            names = f"({', '.join(_ENUM_NAME.findall(kind))})"
            known = f"if({text} IN {names}, {text}, NULL)"
            return f"CAST({known}, {literal(f'Nullable({kind})')})"
        number = f"accurateCastOrNull({text}, {literal(kind)})"
        if kind in _WRAPS_AROUND:
            return f"if(toString({number}) = {text}, {number}, NULL)"
        return number


def columns_statement() -> str:
    """The columns that a feed may fill. Parameters: `database`, `table`."""
    return (
        "SELECT name, type FROM system.columns"
        " WHERE database = {database:String} AND table = {table:String}"
        f" AND default_kind IN ('', 'DEFAULT') AND name != '{BLOCK_COLUMN}' ORDER BY position"
    )


def columns_of(rows: Sequence[Sequence[Any]], paths: Mapping[str, str]) -> list[Column]:
    return [Column(name, kind, tuple(paths.get(name, name).split("."))) for name, kind in rows]


@dataclass(frozen=True, slots=True)
class SentLines:
    """Statements: `table` makes a temporary table, `query` finds the lines that are to be sent with
    `insert`, and `load` fills `feed_values`.
    """

    table: str
    query: str
    insert: str
    load: str


class BlockStatements:
    """The statements of one feed, for the columns that its table has now."""

    def __init__(
        self,
        database: str,
        table: str,
        kind: Format,
        columns: Sequence[Column],
        path: str,
        source: str = SOURCE,
        *,
        reads_files: bool = True,
    ) -> None:
        """`path`: of the file with the lines. `source`: of the records, `SOURCE` or a part of it.

        `reads_files`: whether the engine reads and writes files of this machine. Raises ValueError
        if no block can be formed.
        """
        self.target = f"{quoted(database)}.{quoted(table)}"
        self._format = kind
        self._columns = columns
        self._values = [column for column in columns if not column.is_metadata]
        self._path = path
        self._reads_files = reads_files
        self.source = source
        if not self._values:
            raise ValueError(f"{database}.{table} has no column for values")
        if kind is Format.RAW and len(self._values) > 1:
            names = ", ".join(column.name for column in self._values)
            raise ValueError(f"the format raw fills one column, and {database}.{table} has {names}")

    @property
    def fields_known(self) -> frozenset[str]:
        """The fields of records that are in a column, or have something that is."""
        return frozenset(one.name for one in self._columns) | {
            self._path_of(one)[0] for one in self._values
        }

    @property
    def temporary_tables(self) -> Sequence[str]:
        """Make the temporary tables anew."""
        if self._format.is_decoded and not self._reads_files:
            return [*self.tables_of_rows, _temporary(LINES_TABLE, "line String")]
        return self.tables_of_rows

    @property
    def tables_of_rows(self) -> Sequence[str]:
        """Make those anew that depend on the columns."""
        fields = ", ".join(f"{quoted(one.name)} {one.row_type}" for one in self._values)
        values = f"_offset Int64, _rows Array({self._read_type()}), _error String"
        return [
            _temporary(VALUES_TABLE, values),
            _temporary(ROWS_TABLE, f"_offset Int64, _feed_error String, {fields}"),
        ]

    def lines(self, mark: str) -> FileQuery | None:
        """What makes the file of lines, or that of the values. Parameters: those of `SOURCE`.

        None where no file is needed.

        `mark`: a word that no record and no earlier block knows, in every line. Lines of an earlier
        block are not taken for this one's if nothing is written, and a record of several lines of
        CSV cannot pretend to be another one.
        """
        if self._format.is_decoded:
            return FileQuery(
                f"SELECT toFixedString('{mark}', {len(mark)}) AS mark, offset,"
                f" assumeNotNull(value) AS value {self.source} AND {WITH_VALUE}",
                self.values_path,
                "RowBinary",
                f"mark FixedString({len(mark)}), offset Int64, value String",
            )
        if self._format is Format.RAW or not self._reads_files:
            return None
        return FileQuery(self._lines_query(mark), self._path, "LineAsString", "line String")

    def _lines_query(self, mark: str) -> str:
        value = "assumeNotNull(value)"
        if self._format is Format.JSON:
            # No line break is inside a value. countSubstrings is the fastest way to see it.
            text = (
                f"if(countSubstrings({value}, '\\n') > 0, replaceAll({value}, '\\n', ' '), {value})"
            )
            is_array = f"startsWith(trimLeft({value}), '[')"
            line = (
                f"concat('[\"{mark}\",', toString(offset), if({is_array}, ',', ',['), {text},"
                f" if({is_array}, ']', ']]'))"
            )
            where = f"{WITH_VALUE} AND {_is_rows(value)}"
        else:
            text = f"replaceRegexpOne({value}, '\\\\r?\\\\n$', '')"
            line = f"concat('{mark},', toString(offset), ',', {text}, ',{mark}')"
            where = f"{WITH_VALUE} AND match(toValidUTF8({value}), {literal(_CLOSED_QUOTES)})"
        return f"SELECT {line} AS line {self.source} AND {where}"

    @property
    def values_path(self) -> str:
        return f"{self._path}.values"

    def decoding(self, mark: str, registry: str) -> DecodeRequest | None:
        """What the decoder is asked between `lines` and `load`. None where nothing is decoded."""
        if not self._format.is_decoded:
            return None
        paths = [list(one.path) for one in self._values]
        return DecodeRequest(
            self.values_path, self._path, mark, self._format.value, paths, registry
        )

    def fields(self, mark: str) -> str:
        """The paths of all values, with their types. Parameters: those of `SOURCE`."""
        source = self._read("JSONCompactEachRow", self._structure(mark, "JSON"), mark)
        return (
            f"SELECT distinctJSONPathsAndTypes(arrayJoin(_rows)) FROM {source} {LOOKING_FOR_FIELDS}"
        )

    def load(self, mark: str) -> str:
        """Fills `feed_values`. Parameters: those of `SOURCE`."""
        kind = literal(self._read_type())
        if self._format is Format.RAW:
            return (
                f"INSERT INTO {VALUES_TABLE} SELECT offset, [CAST(tuple(value), {kind})], ''"
                f" {self.source} AND {WITH_VALUE} SETTINGS max_threads = 1"
            )
        if self._format.has_paths:
            error = "_error" if self._format.is_decoded else "''"
            structure = self._structure(mark, self._read_type())
            source = self._read("JSONCompactEachRow", structure, mark)
            return (
                f"INSERT INTO {VALUES_TABLE} SELECT _offset, _rows, {error} FROM {source}"
                f" {_PARSING}"
            )
        return f"{self._load_csv(self._read('CSV', self._csv_structure(mark), mark))} {_PARSING}"

    def sent_csv(self, mark: str) -> SentLines:
        """What fills `feed_values` where the engine reads lines of CSV only as a client's insert.

        Parameters: those of `SOURCE`.
        """
        return SentLines(
            _temporary(LINES_TABLE, self._csv_structure(mark)),
            self._lines_query(mark),
            f"INSERT INTO {LINES_TABLE} {_PARSING} FORMAT CSV",
            self._load_csv(LINES_TABLE),
        )

    def _csv_structure(self, mark: str) -> str:
        fields = ", ".join(f"{quoted(one.name)} {one.read_type}" for one in self._values)
        marked = f"Enum8('{mark}' = 1)"
        return f"_begin {marked}, _offset Int64, {fields}, _end {marked}"

    def _load_csv(self, source: str) -> str:
        names = ", ".join(quoted(one.name) for one in self._values)
        return (
            f"INSERT INTO {VALUES_TABLE} SELECT _offset,"
            f" [CAST(tuple({names}), {literal(self._read_type())})], '' FROM {source}"
        )

    def convert(self) -> str:
        """Fills `feed_rows`."""
        errors, values = [], []
        for column in self._values:
            text = _element("row", self._path_of(column))
            converted = column.converted(text)
            values.append(_row_value(column, text, converted))
            if converted is not None:
                errors.append(
                    f"{text} IS NOT NULL AND {converted} IS NULL,"
                    f" concat({literal(f'{column.name}: ')},"
                    f" substringUTF8(assumeNotNull({text}), 1, 100),"
                    f" {literal(f' does not fit {column.type}')})"
                )
        error = f"multiIf({', '.join(errors)}, '')" if errors else "''"
        return (
            f"INSERT INTO {ROWS_TABLE} SELECT _offset, {error}, {', '.join(values)}"
            f" FROM (SELECT _offset, arrayJoin(_rows) AS row FROM {VALUES_TABLE})"
            " SETTINGS max_threads = 2"
        )

    def insert(self, token: str) -> str:
        """Puts the rows into the table. Parameters: those of `SOURCE`."""
        names = [quoted(column.name) for column in self._columns]
        values = [_value(column) for column in self._columns]
        from_log = {"_timestamp", "_key", "_headers"} & {one.name for one in self._columns}
        join = (
            " ANY LEFT JOIN (SELECT offset, timestamp, key, headers"
            f" {self.source}) AS record ON record.offset = feed_rows._offset"
            if from_log
            else ""
        )
        return (
            f"INSERT INTO {self.target} ({', '.join(names)}) SELECT {', '.join(values)}"
            f" FROM {ROWS_TABLE} AS feed_rows{join} WHERE feed_rows._offset NOT IN {MISFITS}"
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

    def not_understood(self) -> str:
        """An expression on a record of `SOURCE`: why it is not in `feed_values`."""
        if self._format is Format.JSON:
            value = "assumeNotNull(value)"
            return (
                f"multiIf(NOT isValidJSON({value}), 'not valid JSON', NOT {_is_rows(value)},"
                " 'neither an object nor an array of objects',"
                " 'ClickHouse cannot read this JSON, for example because a field comes twice')"
            )
        if self._format.is_decoded:
            return "'ClickHouse cannot read its fields, for example because one comes twice'"
        names = ", ".join(one.name for one in self._values)
        return literal(f"not one line of CSV with the columns {names}")

    def _structure(self, mark: str, row: str) -> str:
        """Of the lines of JSON: `row` is the type of what a record's row is read as."""
        error = ", _error String" if self._format.is_decoded else ""
        return f"_mark Enum8('{mark}' = 1), _offset Int64, _rows Array({row}){error}"

    def _read(self, kind: str, structure: str, mark: str) -> str:
        """The lines, read in a format."""
        if self._reads_files:
            return f"file({literal(self._path)}, '{kind}', {literal(structure)})"
        is_decoded = self._format.is_decoded
        lines = f"SELECT line FROM {LINES_TABLE}" if is_decoded else self._lines_query(mark)
        text = f"SELECT arrayStringConcat(groupArray(line), '\\n') FROM ({lines})"
        return f"format('{kind}', {literal(structure)}, ({text}))"

    def _read_type(self) -> str:
        """A tuple with the values of a row, as they are read: JSON paths are tuples in it."""
        return _tuple_of([(self._path_of(one), one.read_type) for one in self._values])

    def _path_of(self, column: Column) -> tuple[str, ...]:
        return column.path if self._format.has_paths else (column.name,)


def _temporary(table: str, columns: str) -> str:
    return f"CREATE OR REPLACE TEMPORARY TABLE {table} ({columns}) ENGINE = Memory"


def _row_value(column: Column, text: str, converted: str | None) -> str:
    """A column of `feed_rows`."""
    if converted is None:
        return text
    if column.is_from_json:
        return f"({converted}).v"
    return f"assumeNotNull({converted})" if column.is_json else converted


def _value(column: Column) -> str:
    """What is inserted into a column of the table."""
    said = {
        "_topic": "{topic:String}",
        "_partition": "{partition:Int32}",
        "_offset": "feed_rows._offset",
    }
    if column.is_metadata:
        return said.get(column.name, f"record.{column.name[1:]}")
    return f"feed_rows.{quoted(column.name)}"


def _is_rows(value: str) -> str:
    """Whether a value is a JSON object, or an array of nothing else. Other text has no type."""
    kind = f"toString(JSONType({value}))"
    return (
        f"multiIf({kind} = 'Object', true, {kind} != 'Array', false,"
        f" arrayAll(one -> toString(JSONType(one)) = 'Object', JSONExtractArrayRaw({value})))"
    )


def _tuple_of(fields: Sequence[tuple[tuple[str, ...], str]]) -> str:
    """Fields with the same first step of their path are in one tuple."""
    tree: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for path, kind in fields:
        tree.setdefault(path[0], []).append((path[1:], kind))
    parts = []
    for name, below in tree.items():
        kind = below[0][1] if not below[0][0] else _tuple_of(below)
        parts.append(f"{quoted(name)} {kind}")
    return f"Tuple({', '.join(parts)})"


def _element(row: str, path: tuple[str, ...]) -> str:
    for step in path:
        row = f"tupleElement({row}, {literal(step)})"
    return row
