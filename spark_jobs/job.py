"""What jobs share: the command line, progress messages, errors, and the report at the end.

A job is a function from a `JobRun` and its own options to a `JobReport`. `command` makes a click
command of it: `brokerhouse jobs run NAME`, and what spark-submit starts. A failure is one sentence
on stderr and exit code 1; wrong options are exit code 2. The report goes to stdout, everything else
to stderr.
"""

from __future__ import annotations

import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from brokerhouse.common.console import console, new_table, printable
from brokerhouse.common.options import (
    CommandT,
    brokers_from_text,
    brokers_option,
    environment_option,
    server_option,
)
from brokerhouse.spark_jobs.progress import JobProgress, shown
from brokerhouse.spark_jobs.session import SparkMissing, session, spark_context
from brokerhouse.spark_jobs.sql_client import SqlFailure, SqlServers, SqlUnavailable

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
MAX_TASKS = 2000
"""Of one shuffle: each costs the driver time and memory."""


class JobFailure(Exception):
    """The job cannot do its work; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job found, as a table and a sentence. If not `ok`, the exit code is 1."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    summary: str
    ok: bool = True


def glob_pattern(globs: Sequence[str]) -> str:
    """One regular expression (RE2) for all of these: `*` is any text and `?` any character.

    Without globs it matches everything.
    """
    special = {"*": ".*", "?": "."}
    one_by_one = (
        "".join(special.get(character, re.escape(character)) for character in glob)
        for glob in globs or ["*"]
    )
    return f"(?s)^(?:{'|'.join(one_by_one)})$"


@dataclass(slots=True)
class JobRun:
    """One run of a job: the servers it asks, what it is about, and where its messages go.

    `groups` and `topics`: regular expressions (RE2) of the names that were selected.
    `progress`: what is shown while the job runs. `tasks`: of each of Spark's shuffles.
    """

    servers: SqlServers
    dry_run: bool = False
    groups: str = field(default_factory=lambda: glob_pattern(()))
    topics: str = field(default_factory=lambda: glob_pattern(()))
    master: str | None = LOCAL
    progress: JobProgress = field(default_factory=lambda: JobProgress("brokerhouse"))
    name: str = "brokerhouse"
    tasks: int = 1

    def spark(self, tasks: int = 1, **conf: str | int | bool) -> SparkSession:
        """Raises SparkMissing. Spark's own log is off: a worker's error becomes the job's error.

        `tasks`: how many each shuffle should have at least. Spark's 200 are far too many for most
        logs. `conf`: as of `session`.
        """
        self._starting()
        made = session(f"brokerhouse {self.name}", self.master, **conf)
        self._started(made.sparkContext)
        self.tasks = max(self.tasks, min(tasks, MAX_TASKS), made.sparkContext.defaultParallelism)
        made.conf.set("spark.sql.shuffle.partitions", self.tasks)
        return made

    def spark_context(self, **conf: str | int | bool) -> SparkContext:
        """For a job without SQL. `conf`: as of `session`. Raises SparkMissing."""
        self._starting()
        made = spark_context(f"brokerhouse {self.name}", self.master, **conf)
        self._started(made)
        return made

    def _starting(self) -> None:
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        if self.progress.context is None:
            self.progress.step("starting Spark")

    def _started(self, made: SparkContext) -> None:
        self.progress.context = made
        made.setLogLevel("OFF")


# --- options


def _check_servers(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        SqlServers.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


_DURATION = re.compile(r"(\d+)([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Duration(click.ParamType[int]):
    """`90s`, `5m`, `6h`, `1d`, or a number of seconds; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _DURATION.fullmatch(value)
        if match is None:
            self.fail(f"write a time such as 90s, 5m, 6h or 1d, not {value!r}", param, ctx)
        return int(match[1]) * _UNITS[match[2]]


def number(
    name: str, default: int, purpose: str, least: int = 0
) -> Callable[[Callable[..., JobReport]], Callable[..., JobReport]]:
    """An option that is a whole number, `least` or more."""
    kind = click.IntRange(least)
    return click.option(name, type=kind, default=default, show_default=True, help=purpose)


def text(
    name: str, default: str, purpose: str, read: Callable[..., Any] | None = None, **more: Any
) -> Callable[[CommandT], CommandT]:
    """An option that is a text, as `read`, a click callback, returns it; `more` is click's."""
    return click.option(name, default=default, callback=read, help=purpose, **more)


def repeated(
    name: str, variable: str, metavar: str, purpose: str, read: Callable[..., Any] | None = None
) -> Callable[[CommandT], CommandT]:
    """An option that may be repeated; `read`, a click callback, gets all its values."""
    return click.option(name, variable, metavar=metavar, multiple=True, callback=read, help=purpose)


def _to_brokers(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        return ",".join(map(str, brokers_from_text(text)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


bootstrap_option = brokers_option(_to_brokers)


_ONLY_THESE = "Only these {}; * is any text, ? any character. May be repeated."
_COMMON_OPTIONS = (
    server_option(
        "--http",
        "URL[,URL]",
        "http://127.0.0.1:8123",
        "HTTP",
        _check_servers,
        "The broker's SQL interface, or the ClickHouse servers of a cluster.",
    ),
    environment_option("--user", "SQL_USER", "The broker's sql_user; anonymous if not given."),
    environment_option("--password", "SQL_PASSWORD", "Password of --user."),
    click.option(
        "--master",
        metavar="MASTER",
        help=f"Where Spark runs.  [default: {LOCAL}, or what spark-submit says]",
    ),
    click.option("--dry-run", is_flag=True, help="Write nothing; report what would be written."),
    repeated("--group", "groups", "PATTERN", _ONLY_THESE.format("groups")),
    repeated("--topic", "topics", "PATTERN", _ONLY_THESE.format("topics")),
    click.option(
        "--json", "as_json", is_flag=True, help="Print the report as JSON, not as a table."
    ),
)


# --- the command


def command(name: str) -> Callable[[Callable[..., JobReport]], click.Command]:
    """Makes a click command of a job, which declares its own options with click.option."""

    def make(work: Callable[..., JobReport]) -> click.Command:
        @click.pass_context
        @functools.wraps(work)
        def invoke(
            context: click.Context,
            /,
            http: str,
            user: str | None,
            password: str | None,
            master: str | None,
            dry_run: bool,
            groups: tuple[str, ...],
            topics: tuple[str, ...],
            as_json: bool,
            **own: Any,
        ) -> None:
            with shown(name) as progress, _failures_in_one_sentence():
                run = JobRun(
                    SqlServers.parse(http, user, password),
                    dry_run,
                    glob_pattern(groups),
                    glob_pattern(topics),
                    master or (None if _submitted() else LOCAL),
                    progress,
                    name,
                )
                report = work(run, **own)
            show(report, as_json=as_json)
            context.exit(0 if report.ok else 1)

        wrapped: Any = invoke
        for option in reversed(_COMMON_OPTIONS):
            wrapped = option(wrapped)
        made: click.Command = click.command(name)(wrapped)
        return made

    return make


def _submitted() -> bool:
    """Whether spark-submit started this process: then it chooses the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _failures_in_one_sentence() -> Iterator[None]:
    try:
        yield
    except SqlUnavailable as error:
        hint = "start the server, or name another one with --http"
        raise click.ClickException(f"{error}: {hint}") from error
    except (JobFailure, SqlFailure, SparkMissing) as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        message = _message_of_a_worker(error)
        if message is None:
            raise
        raise click.ClickException(message) from error


def _message_of_a_worker(error: Exception) -> str | None:
    """The message of a SqlFailure that Spark brought back from one of its workers."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    module = re.escape(SqlFailure.__module__)
    found = re.search(rf"{module}\.Sql[A-Z]\w+: (.+)", str(error))
    return found[1] if found else None


def show(report: JobReport, *, as_json: bool) -> None:
    if as_json:
        rows = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
        shown = {"summary": report.summary, "ok": report.ok, "rows": rows}
        click.echo(json.dumps(shown, default=_as_text, indent=2))
        return
    numbers = [
        name
        for index, name in enumerate(report.columns)
        if any(isinstance(row[index], int | float) for row in report.rows)
    ]
    table = new_table(*report.columns, right=numbers)
    for row in report.rows:
        table.add_row(*map(_cell, row))
    if report.rows:
        console().print(table)
    click.echo(report.summary)


def _cell(value: object) -> Any:
    from rich.text import Text

    if value is None:
        return Text("-")
    if isinstance(value, float):
        return Text(f"{value:,.3f}".rstrip("0").rstrip("."))
    return Text(printable(_as_text(value)))


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return str(value)
