"""`brokerhouse tables`: tables with columns, filled from topics (docs/tables.md).

The commands speak SQL. The broker reads the definitions of feeds once a second, and does the work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from brokerhouse.broker.cli.ctrl_c import INTERRUPTED, ctrl_c
from brokerhouse.broker.cli.feed_server import FeedServer
from brokerhouse.broker.cli.inferred_columns import infer_columns
from brokerhouse.broker.cli.kafka_client import admin_client, raise_for
from brokerhouse.broker.cli.options import Bootstrap, bootstrap_option, json_option, print_json
from brokerhouse.broker.cli.sql import SqlServer, server_options
from brokerhouse.broker.cli.table_replays import ASKED_NOW, asked_replay
from brokerhouse.common.console import console, new_table
from brokerhouse.feeds.definition import (
    INTERVAL_MS,
    FeedDefinitionError,
    FeedOptions,
    Format,
    split_name,
)
from brokerhouse.feeds.options import engine_option, path_option, start_option, unit_option
from brokerhouse.feeds.routing import ANY_TABLE, route_from_text
from brokerhouse.feeds.statements import checked_columns, columns_statement
from brokerhouse.feeds.tables import (
    creating,
    local_name,
    preparing,
    sorting,
    table_to_make,
)
from brokerhouse.sql.queries import query
from brokerhouse.storage.parameters import quoted

_TOPIC_LIMIT_S = 10.0
_POLL_S = 0.1


_READER = "Anonymous if not given."
_WRITER = "The broker's sql_user, who may write."


@click.group()
def tables() -> None:
    """Fill tables with columns from topics, each record once."""


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


_name = click.argument("name", metavar="DATABASE.TABLE", callback=_to_name)


@tables.command("create")
@_name
@click.option("--topic", "topics", multiple=True, required=True, help="A topic; may be repeated.")
@click.option(
    "--input-format",
    "kind",
    type=click.Choice([one.value for one in Format]),
    default="json",
    show_default=True,
    help="The format of the records' values.",
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
@start_option
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
    help="Where a record names its table: in a header, in a field of JSON, or in its key"
    " before a separator. With DATABASE.*, each table that is named gets a feed.",
)
@click.option(
    "--route-value", metavar="TEXT", help="The text that names DATABASE.TABLE in its records."
)
@click.option(
    "--like",
    metavar="DATABASE.TABLE",
    callback=_to_model,
    help="With DATABASE.*: new tables have the columns, keys and settings of this one.",
)
@click.option("--add-columns", is_flag=True, help="Add a column for each new field of a record.")
@click.option("--yes", is_flag=True, help="Do not ask whether inferred columns are right.")
@click.option(
    "--create-topics",
    is_flag=True,
    help="Create topics that do not exist, through --bootstrap, with the broker's defaults.",
)
@bootstrap_option
@server_options(_WRITER, with_timeout=False)
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
    create_topics: bool,
    bootstrap: Bootstrap,
    sql_server: SqlServer,
) -> None:
    """Make DATABASE.TABLE, if it does not exist, and fill it from topics.

    Columns named _topic, _partition, _offset, _timestamp, _key and _headers get what Kafka says of
    a record. DATABASE.* makes and fills a table for each name that records have in --route.
    """
    server = FeedServer(replace(sql_server, timeout_s=bootstrap.timeout_s))
    _check_routes(name, kind, columns, route, route_value, like)
    if engine is not None and _is_router(name):
        raise click.UsageError("--engine is for one table: give --like")
    if add_columns and not Format(kind).has_paths:
        raise click.UsageError(f"--add-columns needs named fields, which {kind} does not have")
    if _feed_rows(server, name):
        raise click.ClickException(f"there is a feed {name}: drop it first")
    _check_topics(server, topics, bootstrap if create_topics else None)
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
            columns, inferred, key = infer_columns(server, topics[0], kind, yes)
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
            by = sorting(order_by, partition_by)
            _make_table(server, database, filled, columns, engine, by)
        _check_columns(server, (database, filled), Format(kind), paths, units)
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
        query("store_new_feed", database=server.stores),
        name=name,
        d=database,
        t=table,
        topics=json.dumps(list(topics)),
        kind=kind,
        paths=json.dumps(dict(paths)),
        start=start,
        interval=str(interval_ms),
        stop=str(stop_on_error).lower(),
        options=json.dumps(options.as_map()),
    )
    click.echo(f"created {name}, filled from {', '.join(topics)}")


def _check_topics(server: FeedServer, topics: Sequence[str], bootstrap: Bootstrap | None) -> None:
    """Each topic is there afterwards. Raises `click.ClickException`."""
    known = f"SELECT 1 FROM {server.database}.topics WHERE name = {{t:String}}"
    missing = [topic for topic in topics if not server.rows(known, t=topic)]
    if not missing:
        return
    if bootstrap is None:
        raise click.ClickException(
            f"topic {missing[0]} does not exist: create it, or add --create-topics"
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
                f"topic {missing[0]} was created at {bootstrap}, but {server.sql.url} does not show"
                " it: do both belong to the same broker or cluster?"
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
        raise click.UsageError(f"{name} needs --route, which says where records name their table")
    if value is not None or columns is not None:
        raise click.UsageError(
            f"{name} creates its tables itself: leave out --columns and --route-value"
        )
    if kind != Format.JSON.value and not like:
        raise click.UsageError(f"the columns of {kind} cannot be inferred: give --like")


def _has_table(server: FeedServer, database: str, table: str) -> bool:
    return bool(
        server.rows(
            "SELECT 1 FROM system.tables WHERE database = {d:String} AND name = {t:String}",
            d=database,
            t=table,
        )
    )


def _check_columns(
    server: FeedServer,
    table: tuple[str, str],
    kind: Format,
    paths: Mapping[str, str],
    units: Mapping[str, str],
) -> None:
    """Raises `click.ClickException` if a feed could not fill the table."""
    database, name = table
    rows = server.rows(columns_statement(), database=database, table=name)
    try:
        checked_columns([list(row.values()) for row in rows], kind, paths, units)
    except ValueError as error:
        raise click.ClickException(
            f"{database}.{name} cannot be filled: {error}; there is no feed yet"
        ) from error


def _make_table(
    server: FeedServer, database: str, table: str, columns: str, engine: str, by: str
) -> None:
    """`by`: how it is sorted and partitioned."""
    server.run(f"CREATE DATABASE IF NOT EXISTS {quoted(database)}")
    name, replicated = (database, table), server.is_replicated
    made = creating(name, columns, engine, by, replicated=replicated)
    server.run(made, {"flatten_nested": "0"})


@tables.command("list")
@json_option
@server_options(_READER)
def list_tables(as_json: bool, sql_server: SqlServer) -> None:
    """Print every feed: its topics, and how far it is."""
    server = FeedServer(sql_server)
    rows = server.rows(query("list_feeds", database=server.database))
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
@server_options(_READER)
def describe_table(name: str, as_json: bool, sql_server: SqlServer) -> None:
    """Print a feed: its definition, its partitions, and its last dead letters."""
    server = FeedServer(sql_server)
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
    @server_options(_WRITER)
    def changing(name: str, sql_server: SqlServer) -> None:
        server = FeedServer(sql_server)
        _feed(server, name)
        _change(server, name, change)
        click.echo(f"{done} {name}")


_changing("pause", "'paused' AS status", "paused", "Stop filling DATABASE.TABLE until `resume`.")
_changing("resume", "'running' AS status", "resumed", "Go on filling DATABASE.TABLE.")


@tables.command("replay")
@_name
@click.option(
    "--no-wait", is_flag=True, help="Do not wait for the result; a broker begins within a second."
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="How long to wait while no dead letter is parsed.",
)
@server_options(_WRITER, with_timeout=False)
def replay_table(name: str, no_wait: bool, timeout_s: int, sql_server: SqlServer) -> None:
    """Parse the dead letters of DATABASE.TABLE again, after a fix.

    Waits until the broker has done it. Ctrl-C ends only the waiting.
    """
    server = FeedServer(replace(sql_server, timeout_s=timeout_s))
    feed = _feed(server, name)
    with ctrl_c() as pressed:
        _change(server, name, ASKED_NOW)
        if no_wait:
            click.echo(f"requested a replay of {name}")
            return
        done = asked_replay(server, feed).wait(timeout_s, pressed)
    if done is None:
        click.echo(f"the broker continues the replay of {name}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    made = done.routed_text if _is_router(name) else done.rows_text
    click.echo(f"replayed {name}: {made}, {done.left_text}")


@tables.command("drop")
@_name
@click.option("--with-table", is_flag=True, help="Drop the table, too.")
@server_options(_WRITER)
def drop_table(name: str, with_table: bool, sql_server: SqlServer) -> None:
    """Stop filling DATABASE.TABLE for good. The table stays."""
    server = FeedServer(sql_server)
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


def _change(server: FeedServer, name: str, change: str) -> None:
    """`change`: `EXPRESSION AS COLUMN`, written by this module."""
    places = {"stores": server.stores, "database": server.database}
    server.run(query("change_feed", change=change, **places), n=name)


def _feed(server: FeedServer, name: str) -> dict[str, Any]:
    rows = _feed_rows(server, name)
    if not rows:
        raise click.ClickException(f"there is no feed {name}")
    return rows[0]


def _feed_rows(server: FeedServer, name: str) -> list[dict[str, Any]]:
    feeds = f"{server.database}.table_feeds"
    return server.rows(f"SELECT * FROM {feeds} WHERE name = {{n:String}}", n=name)
