"""The state of a feed that Spark fills, in ClickHouse: changed by compare-and-set; its history.

All of it is in the database `brokerhouse_feeds` of the target. The states are keys of the table
`registry`. Where ClickHouse has Keeper that is a KeeperMap table. Elsewhere it is a MergeTree table
with a row for each version of a key, whose deduplication token is the key and the version: of
several that write the same version, ClickHouse stores the first, and each reads whose it is.

`table_feed_blocks` and `dead_letter_versions` are made by the files of sql/schema/ that also make
them in a broker. No job writes or reads the column `rows` of `dead_letter_versions`, which tables
of earlier versions do not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa

from brokerhouse.feeds.blocks import FeedState, Phase, first_state, state_from_text, taken_over
from brokerhouse.feeds.progress import FeedChanges, state_key
from brokerhouse.feeds.tables import WINDOW
from brokerhouse.feeds.writer import FeedSource
from brokerhouse.spark_jobs.job import JobFailure
from brokerhouse.spark_jobs.sql_client import SqlDenied, SqlFailure, SqlRefused, SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import EngineError, Parameter, Row
from brokerhouse.storage.registry import KeeperRegistry, Versioned
from brokerhouse.storage.schema_files import FileKind, Rendering, schema_files

T = TypeVar("T")

DATABASE = "brokerhouse_feeds"
_REGISTRY = "registry"
_OLD_VERSIONS = 1000
"""So many changes of a key are kept, and removed together."""
_OF_BROKER = ("table_feed_blocks", "dead_letter_versions", "dead_letters")
"""Tables, and a view on them, that a broker has, too."""
# The first of a version has won it; a second one is only there if its token was forgotten.
_NEWEST = f"FROM {_REGISTRY} WHERE key = {{key:String}} ORDER BY version DESC, time, writer LIMIT 1"


class FeedRegistry(Protocol):
    """Both travel to Spark's workers. Everything raises SqlFailure."""

    @property
    def current(self) -> str:
        """A query for what the table has of the value of `{key:String}`; its end is the value."""

    def get(self, key: str) -> Versioned | None:
        """The current value of a key, or None."""

    def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        """Set `key` if it is still as `expected`. False if somebody else was faster."""


@dataclass(frozen=True, slots=True)
class KeeperFeedRegistry:
    """A KeeperMap table."""

    servers: SqlServers

    @property
    def current(self) -> str:
        return f"SELECT value FROM {_REGISTRY} WHERE key = {{key:String}}"

    def get(self, key: str) -> Versioned | None:
        return _answered(self._registry().get(key))

    def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        return _answered(self._registry().compare_and_set(key, expected, value))

    def _registry(self) -> KeeperRegistry:
        return KeeperRegistry(_BlockingServer(self.servers), _REGISTRY)


def _answered(asked: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(asked)
    except EngineError as error:
        raise SqlFailure(str(error)) from error


@dataclass(frozen=True, slots=True)
class _BlockingServer:
    """A `RegistryServer` in a process that has nothing else to do meanwhile."""

    servers: SqlServers

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        try:
            return self.servers.rows(sql, params)
        except SqlFailure as error:
            raise EngineError(str(error)) from error

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        try:
            self.servers.execute(sql, params)
        except SqlFailure as error:
            raise EngineError(str(error)) from error


@dataclass(frozen=True, slots=True)
class TokenFeedRegistry:
    """A MergeTree table of one server, which deduplicates by token."""

    servers: SqlServers

    @property
    def current(self) -> str:
        return f"SELECT value {_NEWEST}"

    def get(self, key: str) -> Versioned | None:
        rows = self.servers.rows(f"SELECT value, toInt64(version) {_NEWEST}", {"key": key})
        return Versioned(*rows[0]) if rows else None

    def compare_and_set(self, key: str, expected: Versioned | None, value: str) -> bool:
        if self.get(key) != expected:
            return False
        version = expected.version + 1 if expected else 1
        writer = uuid4().hex
        row = pa.table(
            {
                "key": [key],
                "version": pa.array([version], pa.uint64()),
                "writer": [writer],
                "value": [value],
            }
        )
        attempt = 0
        while not (found := self._writers(key, version)):
            # A server that was killed may know the token and not have the row: whoever finds that
            # goes on to the next token, which is the same for all.
            self.servers.insert(_REGISTRY, row, f"{key}/{version}/{attempt}")
            attempt += 1
        self._remove_old_versions(key, version)
        return found[0] == writer

    def _writers(self, key: str, version: int) -> list[str]:
        rows = self.servers.rows(
            query("spark_registry_writers", table=_REGISTRY),
            {"key": key, "version": version},
        )
        return [writer for (writer,) in rows]

    def _remove_old_versions(self, key: str, version: int) -> None:
        if version % _OLD_VERSIONS == 0:
            self.servers.execute(
                f"DELETE FROM {_REGISTRY} WHERE key = {{key:String}}"
                " AND version < {version:UInt64}",
                {"key": key, "version": version},
            )


def open_registry(servers: SqlServers) -> tuple[SqlServers, FeedRegistry]:
    """Make the tables that are missing. Returns the servers with their database, and the registry.

    Raises SqlFailure.
    """
    here = open_dead_letters(servers)
    if not (engine := _engine(here)):
        try:
            here.execute(query("spark_registry_in_keeper", database=DATABASE, table=_REGISTRY))
        except SqlRefused as error:
            if len(servers.urls) > 1:
                raise SqlRefused(
                    f"several servers need Keeper and the setting keeper_map_path_prefix: {error}"
                ) from error
            here.execute(query("spark_registry_by_token", table=_REGISTRY, window=str(WINDOW)))
        engine = _engine(here)  # somebody else may have been faster
    return here, _of_engine(here, engine)


def open_dead_letters(servers: SqlServers) -> SqlServers:
    """Make the tables that are missing. A user who may make none can use those that exist.

    Returns the servers with their database. Raises SqlFailure.
    """
    here, elsewhere = replace(servers, database=DATABASE), replace(servers, database=None)
    try:
        elsewhere.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        for statement in _definitions():
            here.execute(statement)
    except SqlDenied:
        [[count]] = elsewhere.rows(query("count_tables"), {"d": DATABASE, "names": _OF_BROKER})
        if count < len(_OF_BROKER):
            raise
    return here


def _definitions() -> list[str]:
    """The statements that make `_OF_BROKER`."""
    here = Rendering(DATABASE)
    return [
        here.fill_in(file, file.statement, _OF_BROKER)
        for file in schema_files()
        if file.subject in _OF_BROKER and file.kind in (FileKind.TABLE, FileKind.VIEW)
    ]


def check_dead_letters(servers: SqlServers) -> None:
    """Whether a run can store dead letters. Makes the tables. Raises JobFailure, SqlUnavailable."""
    try:
        here = open_dead_letters(servers)
        for table in ("dead_letter_versions", "table_feed_blocks"):
            check_insert(here, table)
    except SqlRefused as error:
        raise JobFailure(
            f"dead letters cannot be stored: {error}; --user has to be one who may read and write"
            f" the database {DATABASE} of --http, and make it if it does not exist"
        ) from error


def check_insert(servers: SqlServers, table: str) -> None:
    """Whether the user may read and add rows. Adds none. Raises SqlFailure."""
    servers.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE false")


def find_registry(servers: SqlServers) -> FeedRegistry | None:
    """The registry, if there is one. Makes nothing. Raises SqlFailure."""
    here = replace(servers, database=None)
    engine = _engine(here)
    return _of_engine(replace(servers, database=DATABASE), engine) if engine else None


def _of_engine(servers: SqlServers, engine: str) -> FeedRegistry:
    return KeeperFeedRegistry(servers) if engine == "KeeperMap" else TokenFeedRegistry(servers)


def _engine(servers: SqlServers) -> str:
    rows = servers.rows(
        "SELECT engine FROM system.tables WHERE database = {d:String} AND name = {t:String}",
        {"d": DATABASE, "t": _REGISTRY},
    )
    return rows[0][0] if rows else ""


def feed_id_of(registry: FeedRegistry, name: str) -> str:
    """The id of the feed of this name, which is new if there was none. Raises SqlFailure."""
    key = _id_key(name)
    while (found := registry.get(key)) is None:
        registry.compare_and_set(key, None, str(uuid4()))
    return found.value


def next_offsets(
    registry: FeedRegistry, name: str, topics: Mapping[str, str], places: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Where the feed goes on, in partitions in which it has begun. Raises SqlFailure."""
    feed_id = registry.get(_id_key(name))
    if feed_id is None:
        return {}
    found = {}
    for topic, partition in places:
        stored = registry.get(state_key(feed_id.value, topics[topic], partition))
        if stored is not None:
            state = state_from_text(stored.value)
            before = state.offsets if state.phase is Phase.BEFORE else None
            found[topic, partition] = before.first if before else state.next_offset
    return found


def dead_letters_of(servers: SqlServers, name: str, topics: Mapping[str, str]) -> int:
    """How many dead letters the feed has of these topics. Raises SqlFailure."""
    [[count]] = servers.rows(
        query("spark_count_dead_letters", database=DATABASE),
        {"feed": name, "topic_ids": list(topics.values())},
    )
    return int(count)


def _id_key(name: str) -> str:
    return f"feed/{name}"


@dataclass(frozen=True, slots=True)
class Fence:
    """Lets a statement fail whose run was taken over. `current`, `key`: of the registry."""

    current: str
    key: str

    @property
    def condition(self) -> str:
        return (
            f"throwIf(NOT endsWith(assumeNotNull(({self.current})), {{state:String}}),"
            " 'another run of the feed has taken over') = 0"
        )

    def parameters(self, state: FeedState) -> dict[str, Parameter]:
        return {"key": self.key, "state": state.as_text()}


class SparkFeedProgress(FeedChanges[None]):
    """In Spark's workers and its driver. Everything raises SqlFailure."""

    def __init__(
        self,
        servers: SqlServers,
        registry: FeedRegistry,
        feed: tuple[str, str],
        feeder: str,
        source: FeedSource,
    ) -> None:
        """`feed`: its name and its id. `feeder`: the run of the job."""
        super().__init__(*feed, source, feeder)
        self._servers = servers
        self._registry = registry

    @property
    def fence(self) -> Fence:
        return Fence(self._registry.current, self.key)

    def exists(self) -> bool:
        self._stored = self._registry.get(self.key)
        return self._stored is not None

    def take_over(self, first_offset: int) -> None:
        """Take over, or begin at this offset: from now on other feeders are fenced.

        The feeder before may be changing the state meanwhile.
        """
        taken = False
        while not taken:
            if self.exists():
                self._note()  # in case the one before could not
                taken = self._set(taken_over(self.state, self._feeder))
            else:
                taken = self._set(first_state(self._feeder, first_offset))

    def open(self) -> None:
        """Go on as the feeder that has taken over, or begin in a partition that is new."""
        if not self.exists():
            self._change(first_state(self._feeder, 0))
        elif self.state.feeder != self._feeder:
            raise self._fenced()

    def check(self) -> None:
        """Raises `Fenced` if the state is another one by now."""
        if self._registry.get(self.key) != self._stored:
            raise self._fenced()

    def _change(self, state: FeedState) -> None:
        if not self._set(state):
            raise self._fenced()

    def _set(self, state: FeedState) -> bool:
        """False if somebody else has changed the state."""
        text = state.as_text()
        if not self._registry.compare_and_set(self.key, self._stored, text):
            return False
        self._changed(text)
        self._note()
        return True

    def _note(self) -> None:
        """Write the state into the history."""
        row = self._history_row()
        row |= {name: str(row[name]) for name in ("feed_id", "topic_id")}
        moment = pa.array([row.pop("time")], pa.timestamp("ms", "UTC"))
        self._servers.insert(
            "table_feed_blocks", pa.Table.from_pylist([row]).append_column("time", moment), None
        )
