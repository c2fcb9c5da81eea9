"""The frame of a job: its command line, how it tells what it does, and its last word, a table.

A job is a function from a `Run` and its own options to a `Report`. `command` makes a click command
of it, which is both `brokerhouse jobs run NAME` and what spark-submit starts. Whatever goes wrong
is one sentence on stderr and exit code 1; wrong options are exit code 2. The report goes to stdout,
everything else to stderr.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn

from common.console import console, new_table, printable
from common.environment import ENV_PREFIX
from spark_jobs.session import SparkMissing, session
from spark_jobs.sql import Endpoint, SqlFailure, glob_pattern

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"


class JobFailure(Exception):
    """The job cannot do its work; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Report:
    """The last word of a job. `ok`: false makes the exit code 1. Numbers stand to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    summary: str
    ok: bool = True


@dataclass(slots=True)
class Run:
    """One run of a job: whom it asks, what it looks at, how it tells what it does.

    `groups` and `topics` are regular expressions (RE2) that fit what was selected.
    """

    endpoint: Endpoint
    dry_run: bool = False
    groups: str = field(default_factory=lambda: glob_pattern(()))
    topics: str = field(default_factory=lambda: glob_pattern(()))
    master: str | None = LOCAL
    say: Callable[[str], None] = lambda _text: None
    name: str = "brokerhouse"

    def spark(self) -> SparkSession:
        """Raises SparkMissing. What goes wrong in a worker is told once, as the job's error."""
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        made = session(f"brokerhouse {self.name}", self.master)
        made.sparkContext.setLogLevel("OFF")
        return made


def _to_endpoint_urls(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    try:
        Endpoint.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


_OPTIONS = (
    click.option(
        "--servers",
        metavar="URL[,URL]",
        default="http://127.0.0.1:8123",
        envvar=ENV_PREFIX + "HTTP",
        callback=_to_endpoint_urls,
        show_default=True,
        show_envvar=True,
        help="The broker's SQL interface, or ClickHouse servers of its cluster.",
    ),
    click.option("--user", envvar=ENV_PREFIX + "SQL_USER", show_envvar=True, help="The sql_user."),
    click.option("--password", envvar=ENV_PREFIX + "SQL_PASSWORD", show_envvar=True),
    click.option(
        "--master",
        metavar="MASTER",
        help=f"Where Spark runs.  [default: {LOCAL}, or what spark-submit says]",
    ),
    click.option("--dry-run", is_flag=True, help="Write nothing; say what would be written."),
    click.option(
        "--group", "groups", metavar="PATTERN", multiple=True,
        help="Only these groups, * for any text; may be repeated.",
    ),
    click.option(
        "--topic", "topics", metavar="PATTERN", multiple=True,
        help="Only these topics, * for any text; may be repeated.",
    ),
    click.option(
        "--format", "output", type=click.Choice(["table", "json"]), default="table",
        show_default=True,
    ),
)  # fmt: skip


def command(name: str) -> Callable[[Callable[..., Report]], click.Command]:
    """Makes a command of a job: of a `Run` and its own options, which click.option gave it."""

    def make(work: Callable[..., Report]) -> click.Command:
        @click.pass_context
        @functools.wraps(work)
        def invoke(
            context: click.Context, /, servers: str, user: str | None, password: str | None,
            master: str | None, dry_run: bool, groups: tuple[str, ...], topics: tuple[str, ...],
            output: str, **own: Any,
        ) -> None:  # fmt: skip
            with _telling(name) as say, _one_sentence():
                run = Run(
                    Endpoint.parse(servers, user, password),
                    dry_run,
                    glob_pattern(groups),
                    glob_pattern(topics),
                    master or (None if _submitted() else LOCAL),
                    say,
                    name,
                )
                report = work(run, **own)
            show(report, output)
            context.exit(0 if report.ok else 1)

        wrapped: Any = invoke
        for option in reversed(_OPTIONS):
            wrapped = option(wrapped)
        made: click.Command = click.command(name, context_settings={"max_content_width": 110})(
            wrapped
        )
        return made

    return make


def _submitted() -> bool:
    """Whether spark-submit started this process, which then has its own word on the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except (JobFailure, SqlFailure, SparkMissing) as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        told = _told_by_a_worker(error)
        if told is None:
            raise
        raise click.ClickException(told) from error


def _told_by_a_worker(error: Exception) -> str | None:
    """The sentence of a SqlFailure that Spark brought back from one of its workers."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    _, found, rest = str(error).partition(f"{SqlFailure.__module__}.{SqlFailure.__name__}: ")
    return rest.splitlines()[0] if found else None


@contextmanager
def _telling(name: str) -> Iterator[Callable[[str], None]]:
    """What a job says while it works: a line that changes on a terminal, else a line for each."""
    told = Console(stderr=True)
    if not told.is_terminal:
        yield lambda text: click.echo(f"{name}: {text}", err=True)
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        _SparkTasks(""),
        TimeElapsedColumn(),
        console=told,
        transient=True,
    ) as progress:
        line = progress.add_task(name, total=None)
        yield lambda text: progress.update(line, description=f"{name}: {text}")


class _SparkTasks(TextColumn):
    """How many tasks of the stage that runs are done."""

    def render(self, task: Task) -> Any:
        del task
        from pyspark import SparkContext
        from rich.text import Text

        context = SparkContext._active_spark_context
        if context is None:
            return Text("")
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage)
        tasks = sum(stage.numTasks for stage in stages if stage)
        return Text(f"{done}/{tasks} tasks" if tasks else "")


def show(report: Report, output: str) -> None:
    if output == "json":
        rows = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
        click.echo(json.dumps({"summary": report.summary, "ok": report.ok, "rows": rows},
                              default=_as_text, indent=2))  # fmt: skip
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
