"""`brokerhouse tables`: tables with columns, filled from topics (docs/tables.md).

The commands speak SQL. The broker reads the definitions of feeds once a second, and does the work.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import click
from yarl import URL

from broker.cli.ctrl_c import INTERRUPTED, ctrl_c
from broker.cli.kafka_client import admin_client, raise_for
from broker.cli.options import Bootstrap, json_option, print_json, to_bootstrap
from broker.cli.sql import SqlServer, asked, to_url
from broker.cli.table_replays import ASKED_NOW, asked_replay
from common.console import console, new_table
from common.options import environment_option, server_option
from coordinator.feeds.decoding.debezium_columns import columns_of_change, key_columns
from coordinator.feeds.definition import (
    INTERVAL_MS,
    START,
    FeedDefinitionError,
    FeedOptions,
    Format,
    split_name,
)
from coordinator.feeds.inference import InferredColumn, flat_columns, parse_sample
from coordinator.feeds.options import engine_option, path_option, unit_option
from coordinator.feeds.routing import ANY_TABLE, route_from_text
from coordinator.feeds.tables import (
    BLOCK_DEFINITION,
    local_name,
    preparing,
    table_engine,
    table_to_make,
    window_settings,
)
from storage.cluster_sql import SHARD_DATABASE
from storage.engine import DATABASE
from storage.parameters import parameter_texts, quoted

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_SAMPLE_RECORDS = 1000
_TOPIC_LIMIT_S = 10.0
_POLL_S = 0.1


@dataclass(frozen=True)
class _Server:
    """SQL with bound parameters: of a single broker, or of a server of a cluster."""

    sql: SqlServer

    @cached_property
    def _databases(self) -> dict[str, str]:
        """Those that have the tables of this program, and the engine of the log there."""
        text = self._answer(
            "SELECT database, engine FROM system.tables WHERE name = 'messages' AND database IN"
            f" ('{DATABASE}', '{SHARD_DATABASE}') FORMAT JSONCompactEachRow",
            {},
            {},
        )
        return dict(map(json.loads, text.splitlines()))

    @property
    def is_of_cluster(self) -> bool:
        return SHARD_DATABASE in self._databases

    @property
    def is_replicated(self) -> bool:
        return self._databases.get(SHARD_DATABASE, "").startswith("Replicated")

    @property
    def database(self) -> str:
        """Where to read: of a cluster that is not distributed, one shard."""
        return DATABASE if DATABASE in self._databases else SHARD_DATABASE

    @property
    def stores(self) -> str:
        """Where definitions are written."""
        return SHARD_DATABASE if self.is_of_cluster else DATABASE

    def run(self, statement: str, settings: Mapping[str, str] | None = None, **params: str) -> None:
        self._answer(statement, settings or {}, params)

    def rows(self, statement: str, **params: str) -> list[dict[str, Any]]:
        text = self._answer(f"{statement} FORMAT JSONEachRow", {}, params)
        return [json.loads(line) for line in text.splitlines()]

    def _answer(
        self, statement: str, settings: Mapping[str, str], params: Mapping[str, str]
    ) -> str:
        bound = {f"param_{name}": text for name, text in parameter_texts(params).items()}
        quoting = {"output_format_json_quote_64bit_integers": "0"}
        return asked(self.sql, "/", {**quoting, **settings, **bound}, statement)


def _with_server(command: CommandT) -> CommandT:
    for option in (
        environment_option("--password", "SQL_PASSWORD"),
        environment_option(
            "--user", "SQL_USER", "One who may write, except for list and describe."
        ),
        server_option("--http", "URL", "http://127.0.0.1:8123", "HTTP", to_url, "The broker."),
    ):
        command = option(command)
    return command


@click.group()
def tables() -> None:
    """Fill tables with columns from topics, each record once."""


def _to_place(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not START.fullmatch(text):
        raise click.BadParameter(
            f"write earliest, latest, offset:N or milliseconds since 1970, not {text!r}"
        )
    return text


def _to_route(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str:
    if text is None:
        return ""
    try:
        return str(route_from_text(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _to_model(context: click.Context, parameter: click.Parameter, text: str | None) -> str:
    if text is None:
        return ""
    if _is_router(_to_name(context, parameter, text)):
        raise click.BadParameter(f"{text} is not one table")
    return text


def _to_name(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        split_name(text)
    except FeedDefinitionError as error:
        raise click.BadParameter(str(error)) from error
    return text


def _to_brokers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> Bootstrap | None:
    return None if text is None else to_bootstrap(context, parameter, text)


_name = click.argument("name", metavar="DATABASE.TABLE", callback=_to_name)


@tables.command("create")
@_name
@click.option("--topic", "topics", multiple=True, required=True, help="May be repeated.")
@click.option(
    "--format",
    "kind",
    type=click.Choice([one.value for one in Format]),
    default="json",
    show_default=True,
    help="Of the records' values.",
)
@click.option(
    "--columns",
    metavar="LIST",
    help="As in CREATE TABLE. Without it and without a table: inferred from a sample of JSON, or"
    " from the schema in Debezium's records.",
)
@click.option(
    "--order-by",
    metavar="LIST",
    help="Sorting key of a new table. For debezium: the columns of the primary key.",
)
@engine_option
@click.option("--partition-by", metavar="EXPRESSION", help="Partitioning of a new table.")
@path_option
@unit_option
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    callback=_to_place,
    help="Where to begin: earliest, latest, offset:N, or a time in milliseconds since 1970.",
)
@click.option(
    "--interval-ms",
    type=click.IntRange(*INTERVAL_MS),
    default=250,
    show_default=True,
    help="How long records wait for others of their block.",
)
@click.option("--stop-on-error", is_flag=True, help="A dead letter pauses the feed.")
@click.option(
    "--route",
    metavar="header=NAME|field=PATH|key=SEPARATOR",
    callback=_to_route,
    help="Where a record says which table it is for: in a header, in a field of JSON, or in its key"
    " before a separator. With DATABASE.*, each table that is named gets a feed.",
)
@click.option(
    "--route-value", metavar="TEXT", help="What the records name that DATABASE.TABLE takes."
)
@click.option(
    "--like",
    metavar="DATABASE.TABLE",
    callback=_to_model,
    help="With DATABASE.*: new tables have the columns, keys and settings of this one.",
)
@click.option("--add-columns", is_flag=True, help="Fields of records without a column get one.")
@click.option("--yes", is_flag=True, help="Do not ask whether inferred columns are right.")
@click.option(
    "--bootstrap",
    metavar="HOST:PORT,...",
    callback=_to_brokers,
    help="Brokers that make a topic that is missing, with their defaults.",
)
@_with_server
def create_table(
    name: str,
    topics: Sequence[str],
    kind: str,
    columns: str | None,
    order_by: str | None,
    engine: str | None,
    partition_by: str | None,
    paths: Mapping[str, str],
    units: Mapping[str, str],
    start: str,
    interval_ms: int,
    stop_on_error: bool,
    route: str,
    route_value: str | None,
    like: str,
    add_columns: bool,
    yes: bool,
    bootstrap: Bootstrap | None,
    http: URL,
    user: str | None,
    password: str | None,
) -> None:
    """Make DATABASE.TABLE, if it does not exist, and fill it from topics.

    Columns named _topic, _partition, _offset, _timestamp, _key and _headers get what Kafka says of
    a record. DATABASE.* makes and fills a table for each name that records have in --route.
    """
    server = _Server(SqlServer(http, user, password))
    _check_routes(name, kind, columns, route, route_value, like)
    if engine is not None and _is_router(name):
        raise click.UsageError("--engine is for one table: give --like")
    if add_columns and not Format(kind).has_paths:
        raise click.UsageError(f"--add-columns needs fields with names, which {kind} has not")
    if _feed_rows(server, name):
        raise click.ClickException(f"there is a feed {name}: drop it first")
    _check_topics(server, topics, bootstrap)
    database, table = split_name(name)
    if not _is_router(name):
        filled = local_name(table) if server.is_of_cluster else table
        exists = _has_table(server, database, filled)
        if exists and (columns is not None or engine is not None):
            raise click.ClickException(
                f"table {database}.{filled} exists: leave --columns and --engine out to fill it as"
                " it is"
            )
        if not exists and columns is None:
            columns, inferred, key = _infer(server, topics[0], kind, yes)
            paths = {**inferred, **paths}
            order_by = order_by or key
        if columns is None:
            for statement in preparing(
                f"{quoted(database)}.{quoted(filled)}", replicated=server.is_replicated
            ):
                server.run(statement)
        else:
            try:
                columns, engine = table_to_make(Format(kind), columns, order_by, engine)
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            by = f"ORDER BY ({order_by or 'tuple()'})"
            if partition_by:
                by = f"{by} PARTITION BY {partition_by}"
            _make_table(server, database, filled, columns, engine, by)
    elif like and not _has_table(server, *split_name(like)):
        raise click.ClickException(f"there is no table {like}")
    options = FeedOptions(
        route=route_from_text(route) if route else None,
        route_value=route_value or "",
        like=like,
        add_columns=add_columns,
        units=units,
    )
    server.run(
        f"INSERT INTO {server.stores}.table_feed_versions (name, version, feed_id, database, table,"
        " topics, format, paths, start, interval_ms, stop_on_error, options, status,"
        " replay_asked_at)"
        " SELECT {name:String}, toUnixTimestamp64Milli(now64(3)), generateUUIDv4(), {d:String},"
        " {t:String}, JSONExtract({topics:String}, 'Array(String)'), {kind:String},"
        " JSONExtract({paths:String}, 'Map(String, String)'), {start:String}, {interval:UInt32},"
        " {stop:Bool}, JSONExtract({options:String}, 'Map(String, String)'), 'running',"
        " fromUnixTimestamp64Milli(0)",
        name=name, d=database, t=table, topics=json.dumps(list(topics)), kind=kind,
        paths=json.dumps(dict(paths)), start=start, interval=str(interval_ms),
        stop=str(stop_on_error).lower(),
        options=json.dumps(options.as_map()),
    )  # fmt: skip
    click.echo(f"created {name}, filled from {', '.join(topics)}")


def _check_topics(server: _Server, topics: Sequence[str], bootstrap: Bootstrap | None) -> None:
    """Each topic is there afterwards. Raises `click.ClickException`."""
    known = f"SELECT 1 FROM {server.database}.topics WHERE name = {{t:String}}"
    missing = [topic for topic in topics if not server.rows(known, t=topic)]
    if not missing:
        return
    if bootstrap is None:
        raise click.ClickException(
            f"there is no topic {missing[0]}: make it, or let --bootstrap name who makes it"
        )
    with admin_client(bootstrap) as admin:
        made = admin.create_topics({topic: {} for topic in missing}, raise_errors=False)["topics"]
        for outcome in made:
            raise_for(
                outcome["error_code"], outcome.get("error_message"), f"topic {outcome['name']}"
            )
    deadline = time.monotonic() + _TOPIC_LIMIT_S
    while missing := [topic for topic in missing if not server.rows(known, t=topic)]:
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"{bootstrap} made topic {missing[0]}, which {server.sql.url} does not show: are"
                " they of the same broker or cluster?"
            )
        time.sleep(_POLL_S)


def _is_router(name: str) -> bool:
    return split_name(name)[1] == ANY_TABLE


def _check_routes(
    name: str, kind: str, columns: str | None, route: str, value: str | None, like: str
) -> None:
    """Raises `click.UsageError` for options that do not fit together."""
    if route.startswith("field=") and kind != Format.JSON.value:
        raise click.UsageError(f"--route field=PATH reads JSON, not {kind}")
    if not _is_router(name):
        if like:
            raise click.UsageError("--like is for DATABASE.*")
        if bool(route) != (value is not None):
            raise click.UsageError("--route and --route-value go together, or name DATABASE.*")
        return
    if not route:
        raise click.UsageError(f"{name} needs --route: where records name their table")
    if value is not None or columns is not None:
        raise click.UsageError(f"{name} takes all records, and makes tables by itself or --like")
    if kind != Format.JSON.value and not like:
        raise click.UsageError(f"the columns of {kind} cannot be inferred: give --like")


def _has_table(server: _Server, database: str, table: str) -> bool:
    return bool(
        server.rows(
            "SELECT 1 FROM system.tables WHERE database = {d:String} AND name = {t:String}",
            d=database, t=table,
        )
    )  # fmt: skip


def _make_table(
    server: _Server, database: str, table: str, columns: str, engine: str, by: str
) -> None:
    """`by`: how it is sorted and partitioned."""
    server.run(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}")
    replicated = server.is_replicated
    server.run(
        f"CREATE TABLE {quoted(database)}.{quoted(table)} ({columns}, {BLOCK_DEFINITION})"
        f" ENGINE = {table_engine(database, table, engine, replicated=replicated)} {by}"
        f" SETTINGS {window_settings(replicated=replicated)}",
        {"flatten_nested": "0"},
    )


def _infer(server: _Server, topic: str, kind: str, yes: bool) -> tuple[str, dict[str, str], str]:
    """Columns, the paths of those that are not fields of the object, and the sorting key."""
    if kind == Format.DEBEZIUM.value:
        columns, key = _columns_of_changes(server, topic)
        _confirm(columns, f"columns by the schema of the last record of {topic}:", yes)
    elif kind == Format.JSON.value:
        found = _last_records(server, topic, _SAMPLE_RECORDS)
        columns, key = flat_columns(parse_sample(value for _, value in found)), ""
        if not columns:
            raise click.ClickException(
                f"topic {topic} has no JSON objects to infer columns from: give --columns"
            )
        _confirm(columns, f"columns by the last {len(found)} records of {topic}:", yes)
    else:
        raise click.ClickException(f"the columns of {kind} cannot be inferred: give --columns")
    text = ", ".join(f"{quoted(one.name)} {one.type}" for one in columns)
    return text, {one.name: one.path for one in columns}, key


def _columns_of_changes(server: _Server, topic: str) -> tuple[list[InferredColumn], str]:
    """Columns, and the sorting key."""
    for key, value in _last_records(server, topic, 1):
        try:
            columns = columns_of_change(value)
            names = key_columns(key) if key else ()
        except ValueError as error:
            raise click.ClickException(f"the last record of {topic}: {error}") from error
        if columns:
            return columns, ", ".join(map(quoted, names))
    raise click.ClickException(
        f"topic {topic} has no record with a schema to infer columns from: give --columns"
    )


def _last_records(server: _Server, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """Keys and values; no tombstones."""
    found = server.rows(
        "SELECT base64Encode(ifNull(key, '')) AS key, base64Encode(assumeNotNull(value)) AS value"
        f" FROM {server.database}.messages_committed WHERE topic = {{t:String}}"
        f" AND value IS NOT NULL ORDER BY partition DESC, offset DESC LIMIT {count}",
        t=topic,
    )  # fmt: skip
    return [(base64.b64decode(row["key"]), base64.b64decode(row["value"])) for row in found]


def _confirm(columns: Sequence[InferredColumn], heading: str, yes: bool) -> None:
    shown = new_table("column", "type", "JSON path")
    for column in columns:
        shown.add_row(*column)
    click.echo(heading)
    console().print(shown)
    if not yes:
        click.confirm("Make the table?", abort=True)


@tables.command("list")
@json_option
@_with_server
def list_tables(as_json: bool, http: URL, user: str | None, password: str | None) -> None:
    """Print every feed: its topics, and how far it is."""
    server = _Server(SqlServer(http, user, password))
    rows = server.rows(
        "SELECT name, topics, format, status, rows, dead_letters, lag FROM"
        f" (SELECT name, topics, format, status FROM {server.database}.table_feeds) AS feeds"
        " LEFT JOIN"
        " (SELECT feed, sum(rows) AS rows, sum(dead_letters) AS dead_letters, sum(lag) AS lag"
        f" FROM {server.database}.table_feed_progress GROUP BY feed) AS progress"
        " ON progress.feed = feeds.name ORDER BY name"
    )
    if as_json:
        print_json(rows)
        return
    numbers = ("rows", "dead_letters", "lag")
    shown = new_table("table", "topics", "format", "status", *numbers, right=numbers)
    for row in rows:
        first = (row["name"], ", ".join(row["topics"]), row["format"], row["status"])
        shown.add_row(*first, *(str(row[number]) for number in numbers))
    console().print(shown)


@tables.command("describe")
@_name
@json_option
@_with_server
def describe_table(
    name: str, as_json: bool, http: URL, user: str | None, password: str | None
) -> None:
    """Print a feed: its definition, its partitions, and its last dead letters."""
    server = _Server(SqlServer(http, user, password))
    feed = _feed(server, name)
    partitions = server.rows(
        "SELECT topic, partition, phase, next_offset, lag, rows, dead_letters, rows_per_second,"
        f" since FROM {server.database}.table_feed_progress WHERE feed = {{n:String}}",
        n=name,
    )
    dead_letters = server.rows(
        f"SELECT topic, partition, offset, error FROM {server.database}.dead_letters"
        " WHERE feed = {n:String} ORDER BY time DESC, offset DESC LIMIT 10",
        n=name,
    )
    if as_json:
        print_json({**feed, "partitions": partitions, "last_dead_letters": dead_letters})
        return
    for key in ("name", "topics", "format", "paths", "start", "interval_ms", "options", "status"):
        click.echo(f"{key:12} {feed[key]}")
    for rows in (partitions, dead_letters):
        if rows:
            shown = new_table(*rows[0])
            for row in rows:
                shown.add_row(*map(str, row.values()))
            click.echo()
            console().print(shown)


def _changing(command: str, change: str, done: str, summary: str) -> None:
    """Makes a command that writes another version of a feed's definition."""

    @tables.command(command, help=summary)
    @_name
    @_with_server
    def changing(name: str, http: URL, user: str | None, password: str | None) -> None:
        server = _Server(SqlServer(http, user, password))
        _feed(server, name)
        _change(server, name, change)
        click.echo(f"{done} {name}")


_changing("pause", "'paused' AS status", "paused", "Stop filling DATABASE.TABLE until `resume`.")
_changing("resume", "'running' AS status", "resumed", "Go on filling DATABASE.TABLE.")


@tables.command("replay")
@_name
@click.option("--no-wait", is_flag=True, help="Only ask for it: a broker begins within a second.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="How long to wait while no dead letter is parsed.",
)
@_with_server
def replay_table(
    name: str, no_wait: bool, timeout_s: int, http: URL, user: str | None, password: str | None
) -> None:
    """Parse the dead letters of DATABASE.TABLE again, after a fix.

    Waits until the broker has done it. Ctrl-C ends only the waiting.
    """
    server = _Server(SqlServer(http, user, password))
    feed = _feed(server, name)
    with ctrl_c() as pressed:
        _change(server, name, ASKED_NOW)
        if no_wait:
            click.echo(f"asked for the dead letters again: {name}")
            return
        done = asked_replay(server, feed).wait(timeout_s, pressed)
    if done is None:
        click.echo(f"the broker goes on with the replay of {name}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    made = done.routed_text if _is_router(name) else done.rows_text
    click.echo(f"replayed {name}: {made}, {done.left_text}")


@tables.command("drop")
@_name
@click.option("--with-table", is_flag=True, help="Drop the table, too.")
@_with_server
def drop_table(
    name: str, with_table: bool, http: URL, user: str | None, password: str | None
) -> None:
    """Stop filling DATABASE.TABLE for good. The table stays."""
    server = _Server(SqlServer(http, user, password))
    _feed(server, name)
    if with_table and server.is_of_cluster:
        # A server that is away now would keep its rows, and `FeedTables` would bring its table to
        # the others again when a feed of this name is made.
        raise click.ClickException(
            "in a cluster the table is on every server: drop the feed without --with-table, then"
            f" the tables {name} and {local_name(name)} on each of them, with ON CLUSTER or by hand"
        )
    _change(server, name, "'dropped' AS status")
    if with_table:
        database, table = split_name(name)
        server.run(f"DROP TABLE IF EXISTS {quoted(database)}.{quoted(table)}")
    click.echo(f"dropped {name}")


def _change(server: _Server, name: str, change: str) -> None:
    server.run(
        f"INSERT INTO {server.stores}.table_feed_versions SELECT * REPLACE ("
        "greatest(version + 1, toUnixTimestamp64Milli(now64(3))) AS version,"
        f" now64(3) AS changed_at, {change}) FROM {server.database}.table_feed_versions FINAL"
        " WHERE name = {n:String} ORDER BY version DESC LIMIT 1",
        n=name,
    )


def _feed(server: _Server, name: str) -> dict[str, Any]:
    rows = _feed_rows(server, name)
    if not rows:
        raise click.ClickException(f"there is no feed {name}")
    return rows[0]


def _feed_rows(server: _Server, name: str) -> list[dict[str, Any]]:
    feeds = f"{server.database}.table_feeds"
    return server.rows(f"SELECT * FROM {feeds} WHERE name = {{n:String}}", n=name)
