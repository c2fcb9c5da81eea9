"""What a feed is: topics, a format, and the table that gets the rows.

The columns are those of the table itself, which may change while the feed runs. Definitions are
rows of `table_feed_versions`: each change is a new version, and the highest wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

from brokerhouse.feeds.routing import ANY_TABLE, TABLE_NAME, Route, route_from_text
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter, Row

BLOCK_COLUMN = "_block"
"""A column that `SELECT *` does not show, with the token of each row's block."""
METADATA_COLUMNS = frozenset({"_topic", "_partition", "_offset", "_timestamp", "_key", "_headers"})
"""Columns of these names get what Kafka says of a record."""


class Format(Enum):
    JSON = "json"
    CSV = "csv"
    RAW = "raw"
    AVRO = "avro"
    MSGPACK = "msgpack"
    PROTOBUF = "protobuf"
    DEBEZIUM = "debezium"

    @property
    def is_decoded(self) -> bool:
        """Whether each value is made a line of JSON first (decoding/)."""
        return self in (Format.AVRO, Format.MSGPACK, Format.PROTOBUF, Format.DEBEZIUM)

    @property
    def needs_key(self) -> bool:
        """Whether the record's key is decoded with its value (decoding/debezium.py)."""
        return self is Format.DEBEZIUM

    @property
    def has_doubles(self) -> bool:
        """Whether numbers with a fraction are binary ones, not digits."""
        return self in (Format.AVRO, Format.MSGPACK, Format.PROTOBUF)

    @property
    def has_paths(self) -> bool:
        """Whether values have fields with names."""
        return self is Format.JSON or self.is_decoded


class FeedStatus(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DROPPED = "dropped"


class FeedDefinitionError(ValueError):
    """A definition that cannot work. One sentence says why."""


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What few feeds have.

    `route`: how records name their table; None: all records are for this one. `route_value`: what
    the records name that this feed takes. `like`: the table that a router makes new ones like;
    empty: their columns are inferred. `router`: id of the feed that made this one, or empty.
    `add_columns`: fields without a column get one. `units`: of the numbers for columns of dates and
    times, where they are not those of ClickHouse (values/plan.py).
    """

    route: Route | None = None
    route_value: str = ""
    like: str = ""
    router: str = ""
    add_columns: bool = False
    units: Mapping[str, str] = field(default_factory=dict)

    def as_map(self) -> dict[str, str]:
        """As they are stored: what is not used is left out."""
        texts = {
            "route": "" if self.route is None else str(self.route),
            "route_value": self.route_value,
            "like": self.like,
            "router": self.router,
            "add_columns": "1" if self.add_columns else "",
            **{f"{_UNIT}{column}": unit for column, unit in self.units.items()},
        }
        return {name: text for name, text in texts.items() if text}


_UNIT = "unit:"
"""What the names of options begin with that are units; the column follows."""


def options_from_map(stored: Mapping[str, str]) -> FeedOptions:
    """Raises ValueError with a sentence."""
    route = stored.get("route", "")
    return FeedOptions(
        route=route_from_text(route) if route else None,
        route_value=stored.get("route_value", ""),
        like=stored.get("like", ""),
        router=stored.get("router", ""),
        add_columns="add_columns" in stored,
        units={
            name.removeprefix(_UNIT): unit
            for name, unit in stored.items()
            if name.startswith(_UNIT)
        },
    )


@dataclass(frozen=True, slots=True)
class FeedDefinition:
    """`feed_id` names this feed and no other one, also not one of the same name made later.

    `start`: `earliest`, `latest`, `offset:N`, or milliseconds since 1970. `paths`: the JSON path of
    each column whose path is not its name. `stop_on_error`: a dead letter pauses the feed.
    """

    name: str
    feed_id: str
    version: int
    database: str
    table: str
    topics: Sequence[str]
    format: Format
    paths: Mapping[str, str]
    start: str
    interval_ms: int
    stop_on_error: bool
    status: FeedStatus
    replay_asked_ms: int
    """When dead letters of before were asked to be parsed again; 0 if never."""
    options: FeedOptions = FeedOptions()

    @property
    def is_router(self) -> bool:
        """Whether it only makes feeds, of the tables that records name."""
        return self.name.endswith(f".{ANY_TABLE}")

    @property
    def condition(self) -> str:
        """Which committed records it takes, as SQL."""
        route = self.options.route
        return (
            "true" if route is None or self.is_router else route.condition(self.options.route_value)
        )

    @property
    def group_id(self) -> str:
        """The consumer group whose committed offsets show how far the feed is."""
        return f"feed-{self.name}"


_NAME = re.compile(rf"({TABLE_NAME.pattern})\.({TABLE_NAME.pattern}|\*)")
_CLOSED = frozenset({"brokerhouse", "brokerhouse_shard", "system", "information_schema"})
AT_OFFSET = "offset:"
START = re.compile(rf"earliest|latest|{AT_OFFSET}[0-9]{{1,18}}|[0-9]{{1,15}}")
INTERVAL_MS = (10, 3_600_000)


def split_name(name: str) -> tuple[str, str]:
    """Database and table of `database.table`; `*` is any table. Raises `FeedDefinitionError`."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise FeedDefinitionError(
            f"{name!r} is not DATABASE.TABLE with letters, digits and underscores"
        )
    database, table = match.groups()
    if database.lower() in _CLOSED:
        raise FeedDefinitionError(f"a feed cannot write into the database {database}")
    return database, table


def definitions_of(stored: Iterable[Sequence[Row]]) -> tuple[list[FeedDefinition], list[str]]:
    """The newest version of each feed, of dropped ones, too, and what is wrong with those that
    cannot work.

    `stored`: what each engine has (feed_definitions.sql). Anybody who may write can store a
    definition, and the broker has more rights than they have.
    """
    newest: dict[str, Row] = {}
    for row in chain.from_iterable(stored):
        name, _, version, *_ = row
        if name not in newest or version > newest[name][2]:
            newest[name] = row
    found, wrong = [], []
    for row in newest.values():
        try:
            found.append(_definition(row))
        except ValueError as error:
            wrong.append(f"feed {row[0]!r} cannot work: {error}")
    return found, wrong


def paused_statement(feed: FeedDefinition) -> tuple[str, dict[str, Parameter]]:
    """Writes a version of the definition that says so, where this version is stored."""
    return (
        query("pause_feed"),
        {"feed_id": feed.feed_id, "version": feed.version},
    )


def storing_statement(feed: FeedDefinition) -> tuple[str, dict[str, Parameter]]:
    """Writes a definition. `feed.table` is not used: its name says which table it fills."""
    database, table = split_name(feed.name)
    return (
        query("store_feed"),
        {
            "name": feed.name,
            "version": feed.version,
            "feed_id": feed.feed_id,
            "database": database,
            "table": table,
            "topics": list(feed.topics),
            "format": feed.format.value,
            "paths": dict(feed.paths),
            "start": feed.start,
            "interval_ms": feed.interval_ms,
            "stop_on_error": int(feed.stop_on_error),
            "options": feed.options.as_map(),
            "status": feed.status.value,
            "replay_asked_ms": feed.replay_asked_ms,
        },
    )


def _definition(row: Row) -> FeedDefinition:
    name, feed_id, version, database, table, topics, kind, columns, paths, *more = row
    start, interval_ms, stop_on_error, status, replay_asked_ms, option_names, option_values = more
    if split_name(name) != (database, table):
        raise FeedDefinitionError(f"its table is {database}.{table}")
    if not START.fullmatch(start):
        raise FeedDefinitionError(f"it begins at {start!r}")
    least, most = INTERVAL_MS
    if not least <= interval_ms <= most:
        raise FeedDefinitionError(f"its interval is {interval_ms} ms")
    options = options_from_map(dict(zip(option_names, option_values, strict=True)))
    if table == ANY_TABLE and options.route is None:
        raise FeedDefinitionError("nothing says which table a record is for")
    if options.like and ANY_TABLE in split_name(options.like):
        raise FeedDefinitionError(f"tables cannot be made like {options.like}")
    return FeedDefinition(
        name=name,
        feed_id=feed_id,
        version=version,
        database=database,
        table=table,
        topics=topics,
        format=Format(kind),
        paths=dict(zip(columns, paths, strict=True)),
        start=start,
        interval_ms=interval_ms,
        stop_on_error=bool(stop_on_error),
        status=FeedStatus(status),
        replay_asked_ms=replay_asked_ms,
        options=options,
    )
