"""Columns for a new table of a feed, by the records of its topic; shown before they are made."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import click

from brokerhouse.broker.cli.feed_server import FeedServer
from brokerhouse.common.console import console, new_table
from brokerhouse.feeds.decoding.debezium_columns import columns_of_change, key_columns
from brokerhouse.feeds.definition import Format
from brokerhouse.feeds.inference import (
    InferredColumn,
    fields_without_columns,
    flat_columns,
    parse_sample,
)
from brokerhouse.feeds.paths import path_from_text
from brokerhouse.sql.queries import query
from brokerhouse.storage.parameters import quoted

_SAMPLE_RECORDS = 1000


def infer_columns(
    server: FeedServer, topic: str, kind: str, yes: bool
) -> tuple[str, dict[str, str], str]:
    """Columns, the paths of those that are not fields of the object, and the sorting key."""
    if kind == Format.DEBEZIUM.value:
        columns, key = _columns_of_changes(server, topic)
        _confirm(columns, f"columns from the schema of the last record of {topic}:", yes)
    elif kind == Format.JSON.value:
        found = _last_records(server, topic, _SAMPLE_RECORDS)
        sample = parse_sample(value for _, value in found)
        columns, key = flat_columns(sample), ""
        if not columns:
            raise click.ClickException(
                f"topic {topic} has no JSON objects to infer columns from: give --columns"
            )
        if without := fields_without_columns(sample):
            names = ", ".join(map(repr, without))
            click.echo(f"left out fields whose names no column can have: {names}")
        _confirm(columns, f"columns inferred from the last {len(found)} records of {topic}:", yes)
    else:
        raise click.ClickException(f"the columns of {kind} cannot be inferred: give --columns")
    text = ", ".join(f"{quoted(one.name)} {one.type}" for one in columns)
    paths = {one.name: one.path for one in columns if path_from_text(one.path) != (one.name,)}
    return text, paths, key


def _columns_of_changes(server: FeedServer, topic: str) -> tuple[list[InferredColumn], str]:
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


def _last_records(server: FeedServer, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """Keys and values; no tombstones."""
    found = server.rows(query("last_values", database=server.database), t=topic, count=str(count))
    return [(base64.b64decode(row["key"]), base64.b64decode(row["value"])) for row in found]


def _confirm(columns: Sequence[InferredColumn], heading: str, yes: bool) -> None:
    shown = new_table("column", "type", "JSON path")
    for column in columns:
        shown.add_row(*column)
    click.echo(heading)
    console().print(shown)
    if not yes:
        click.confirm("Make the table?", abort=True)
