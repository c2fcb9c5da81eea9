"""What a feed is: topics, a format, and the table that gets the rows.

The columns are those of the table itself, which may change while the feed runs. Definitions are
rows of `table_feed_versions`: each change is a new version, and the highest wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from storage.engine import Engine, Parameter, Row

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

    @property
    def is_decoded(self) -> bool:
        """Whether each value is made a line of JSON first (decoding/)."""
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
class FeedDefinition:
    """`feed_id` names this feed and no other one, also not one of the same name made later.

    `start`: `earliest`, `latest`, or milliseconds since 1970. `paths`: the JSON path of each column
    whose path is not its name. `stop_on_error`: a dead letter pauses the feed.
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

    @property
    def group_id(self) -> str:
        """The consumer group whose committed offsets show how far the feed is."""
        return f"feed-{self.name}"


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
_CLOSED = frozenset({"brokerhouse", "system", "information_schema"})
START = re.compile(r"earliest|latest|[0-9]{1,15}")
INTERVAL_MS = (10, 3_600_000)


def split_name(name: str) -> tuple[str, str]:
    """Database and table of `database.table`. Raises `FeedDefinitionError`."""
    if not _NAME.fullmatch(name):
        raise FeedDefinitionError(
            f"{name!r} is not DATABASE.TABLE with letters, digits and underscores"
        )
    database, _, table = name.partition(".")
    if database.lower() in _CLOSED:
        raise FeedDefinitionError(f"a feed cannot write into the database {database}")
    return database, table


_READ = """
SELECT
    name, toString(feed_id), version, database, table, topics, format,
    mapKeys(paths), mapValues(paths), start, interval_ms, stop_on_error, status,
    toUnixTimestamp64Milli(replay_asked_at)
FROM table_feed_versions FINAL
ORDER BY name
"""


async def read_definitions(engine: Engine) -> tuple[list[FeedDefinition], list[str]]:
    """All feeds that are not dropped, and what is wrong with those that cannot work.

    Raises `EngineError`.
    """
    return newest_definitions([await stored_definitions(engine)])


async def stored_definitions(engine: Engine) -> list[Row]:
    """What one engine has: the newest version of each feed there, of dropped ones, too.

    Raises `EngineError`.
    """
    return await engine.rows(_READ)


def newest_definitions(
    stored: Iterable[Sequence[Row]],
) -> tuple[list[FeedDefinition], list[str]]:
    """As `read_definitions`, of what several engines have stored.

    Anybody who may write can store a definition, and the broker has more rights than they have.
    """
    newest: dict[str, Row] = {}
    for row in chain.from_iterable(stored):
        name, _, version, *_ = row
        if name not in newest or version > newest[name][2]:
            newest[name] = row
    found, wrong = [], []
    for row in newest.values():
        try:
            feed = _definition(row)
            if feed.status is not FeedStatus.DROPPED:
                found.append(feed)
        except ValueError as error:
            wrong.append(f"feed {row[0]!r} cannot work: {error}")
    return found, wrong


def paused_statement(feed: FeedDefinition) -> tuple[str, dict[str, Parameter]]:
    """Writes a version of the definition that says so, where this version is stored."""
    return (
        "INSERT INTO table_feed_versions SELECT * REPLACE (version + 1 AS version,"
        " 'paused' AS status, now64(3) AS changed_at) FROM (SELECT * FROM table_feed_versions"
        " FINAL WHERE feed_id = {feed_id:UUID} AND version = {version:UInt64})",
        {"feed_id": feed.feed_id, "version": feed.version},
    )


def _definition(row: Row) -> FeedDefinition:
    (
        name, feed_id, version, database, table, topics, kind, columns, paths, start, interval_ms,
        stop_on_error, status, replay_asked_ms,
    ) = row  # fmt: skip
    if split_name(name) != (database, table):
        raise FeedDefinitionError(f"its table is {database}.{table}")
    if not START.fullmatch(start):
        raise FeedDefinitionError(f"it begins at {start!r}")
    least, most = INTERVAL_MS
    if not least <= interval_ms <= most:
        raise FeedDefinitionError(f"its interval is {interval_ms} ms")
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
    )
