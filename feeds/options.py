"""Options of the commands that make feeds: of `brokerhouse tables` and of the job `feed`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from brokerhouse.common.places import parse_place, timestamp_ms
from brokerhouse.feeds.definition import AT_OFFSET
from brokerhouse.feeds.paths import path_from_text
from brokerhouse.feeds.tables import ENGINE, LATEST_ENGINE, PLAIN_ENGINE
from brokerhouse.feeds.values.plan import UNITS

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _to_paths(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> Mapping[str, str]:
    paths = {}
    for pair in pairs:
        column, equals, path = pair.partition("=")
        if not column or not equals:
            raise click.BadParameter(
                f"write COLUMN=PATH, for example city=address.city, not {pair!r}"
            )
        try:
            path_from_text(path)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        paths[column] = path
    return paths


def _to_units(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> Mapping[str, str]:
    units = dict(pair.rpartition("=")[::2] for pair in pairs)
    for column, unit in units.items():
        if not column or unit not in UNITS:
            raise click.BadParameter(
                f"write COLUMN=UNIT with one of {', '.join(UNITS)}, for example created=ms"
            )
    return units


def _to_engine(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> str | None:
    if text is not None and ENGINE.fullmatch(text) is None:
        raise click.BadParameter(
            f"write MergeTree or ReplacingMergeTree(...), not {text!r}; a materialized view on the"
            " table can have any other engine"
        )
    return text


def _to_start(_context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        place = parse_place(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if isinstance(place, str):
        return place
    if not isinstance(place, int):
        return str(timestamp_ms(place))
    if place < 0:
        raise click.BadParameter("a feed cannot begin at the last N records: name an offset")
    return f"{AT_OFFSET}{place}"


def start_option(command: CommandT) -> CommandT:
    """`start`: where a new feed begins, as its definition says it."""
    return click.option(
        "--offset",
        "start",
        metavar="PLACE",
        default="earliest",
        show_default=True,
        callback=_to_start,
        help="Where a new feed begins in each partition: earliest, latest, an offset N, or a time"
        " (@2026-01-31T12:00, UTC, or @ and milliseconds since 1970).",
    )(command)


def engine_option(command: CommandT) -> CommandT:
    """`engine`: of a new table, or None."""
    return click.option(
        "--engine",
        callback=_to_engine,
        help=f"Of a new table: {PLAIN_ENGINE}, or {LATEST_ENGINE}, which is the default for"
        " debezium. Replicated where the log is.",
    )(command)


def path_option(command: CommandT) -> CommandT:
    """`paths`: of columns whose value is not the field with the column's name."""
    return click.option(
        "--path",
        "paths",
        metavar="COLUMN=PATH",
        multiple=True,
        callback=_to_paths,
        help="Where a column's value is in the record, as in city=address.city. A dot in a name is"
        " \\., or use JSONPath: $['a.b'].city. May be repeated.",
    )(command)


def unit_option(command: CommandT) -> CommandT:
    """`units`: of columns whose numbers are not what ClickHouse takes them for."""
    return click.option(
        "--unit",
        "units",
        metavar=f"COLUMN={'|'.join(UNITS)}",
        multiple=True,
        callback=_to_units,
        help="What numbers count since 1970 that are for a column of dates or times, also digits in"
        " text. Without it: days for Date and Date32, seconds for DateTime, ticks for DateTime64."
        " May be repeated.",
    )(command)
