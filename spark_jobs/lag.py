"""The job `lag`: how far groups were behind at the end of each window, computed from the history.

What must hold:
* A window is computed from what is stored: every commit (`consumer_offsets`) and every counted
  minute of the log (`partition_minutes`). So its values are the same whoever computes it and when,
  and windows that no run computed in time are computed later.
* A window is closed when its minutes are counted and its commits had time to be stored.
* Each row is stored once, whatever is killed and however many runs there are at the same time
  (lag_writer.py). Alerts are written before the rows that they come from: if a run is killed
  between the two, the next one writes the same alerts again, under the same keys.

How lag is computed is in lag_steps.py, the queries are sql/queries/lag_*.sql.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  its usual name

from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.job import Duration, JobFailure, JobReport, JobRun
from brokerhouse.spark_jobs.lag_steps import (
    KEY,
    Thresholds,
    Windows,
    alerts,
    conditions,
    ends,
    measures,
    positions,
)
from brokerhouse.spark_jobs.lag_writer import SPAN_S, LagWriter
from brokerhouse.spark_jobs.plot import FORMATS, draw
from brokerhouse.spark_jobs.progress import counted
from brokerhouse.spark_jobs.queries import Query, answers
from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter

SETTLED_S = 10
"""A commit is stored by then: it waits for a lane, and is retried when the engine is busy."""
MAX_BACKFILL_S = 6 * 86_400
"""Counted minutes become hours after a week, and some before the first window are needed."""
HISTORY_S = 9 * 86_400
"""An offset that stays current is written again after a week, so it is found within this time."""
WRITE_TASKS = 32
"""Of the inserts: all cores have work, and progress is seen when a task ends."""
SHOWN = 100
SHOWN_LINES = 12
"""Of the plot; lag_series.sql has the same number."""
PART_ROWS = 500_000
"""Rows that one query returns, about: a worker holds them in memory."""

COMMITS = (
    "group_id string, topic string, topic_id string, partition int, w int, offset bigint,"
    " commit_ms bigint, deleted boolean"
)
MINUTES = (
    "topic_id string, partition int, minute bigint, min_offset bigint, max_offset bigint,"
    " first_ms bigint, last_ms bigint"
)
ENDS = "topic_id string, partition int, end_offset bigint, log_start bigint"
STORED = "group_id string, topic_id string, partition int, window_start bigint"
ALERTS = (
    "kind string, group_id string, topic string, topic_id string, partition int, began_at bigint,"
    " ended_at bigint, threshold double, value double, peak double"
)


# --- what to compute

_LAST_COUNTED_MINUTE = "SELECT toInt64(toUnixTimestamp(max(minute))) AS last FROM partition_minutes"
_LAST_MINUTE_COUNTED_BY_ALL_SHARDS = (
    "SELECT toInt64(min(last)) FROM"
    " (SELECT toUnixTimestamp(max(minute)) AS last FROM partition_minutes GROUP BY _shard_num)"
)
_IS_DISTRIBUTED = (
    "SELECT toInt64(count()) FROM system.tables"
    " WHERE database = 'brokerhouse' AND name = 'partition_minutes' AND engine = 'Distributed'"
)
_COMMITTED_PARTITIONS = (
    "SELECT toInt64(count()) FROM current_offsets"
    " WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})"
)


def closed_until(servers: SqlServers, seconds: int) -> int | None:
    """The end of the last closed window; None while the log has not been counted."""
    ((distributed,),) = servers.rows(_IS_DISTRIBUTED)
    counted = _LAST_MINUTE_COUNTED_BY_ALL_SHARDS if distributed else _LAST_COUNTED_MINUTE
    ((last,),) = servers.rows(counted)
    if not last:
        return None
    ((now,),) = servers.rows("SELECT toInt64(toUnixTimestamp(now()))")
    until: int = min(last + 60, now - SETTLED_S)
    return until - until % seconds


def first_missing(run: JobRun, seconds: int, backfill_s: int, end: int) -> int:
    """Where the first window begins that may lack rows, of those in the last `backfill_s`.

    If none lacks rows, the last closed window.
    """
    first = end - max(backfill_s // seconds, 1) * seconds
    parameters = {
        **_selection(run),
        "seconds": seconds,
        "first": first,
        "end": end,
        "history": first - HISTORY_S,
    }
    ((needed,),) = run.servers.rows(query("lag_first_missing_window"), parameters)
    return min(needed or end, end - seconds)


def _selection(run: JobRun) -> dict[str, Parameter]:
    return {"groups": run.groups, "topics": run.topics}


def _in_parts(sql: str, parameters: dict[str, Parameter], parts: int) -> list[Query]:
    return [Query(sql, {**parameters, "parts": parts, "part": n}) for n in range(parts)]


def measured(run: JobRun, windows: Windows, trend: int) -> DataFrame:
    """The measures of these windows; `new` is true where lag_history lacks the row."""
    parameters = {
        **_selection(run),
        "seconds": windows.seconds,
        "origin": windows.origin,
        "end": windows.end,
        "history": windows.origin - HISTORY_S,
        "first": windows.origin + windows.first * windows.seconds,
    }
    ((rows,),) = run.servers.rows(_COMMITTED_PARTITIONS, _selection(run))
    parts = max(1, min(64, rows * (windows.count + 1) // PART_ROWS))
    spark = run.spark(parts)
    run.progress.step(
        f"measuring {counted(windows.count - windows.first, 'window')} up to {_utc(windows.end)}"
    )

    def ask(queries: list[Query], schema: str) -> DataFrame:
        return answers(spark, run.servers, queries, schema)

    commits = ask(_in_parts(query("lag_commits"), parameters, parts), COMMITS).cache()
    minutes = ask(_in_parts(query("lag_minutes"), parameters, parts), MINUTES).cache()
    before = ask([Query(query("lag_ends"), parameters)], ENDS).cache()
    stored = ask([Query(query("lag_stored_windows"), parameters)], STORED)
    found = measures(
        positions(commits, windows), ends(minutes, before, windows), minutes, windows, trend
    )
    start = (F.lit(windows.origin) + F.col("w") * windows.seconds).cast("bigint")
    return (
        found.withColumn("window_start", start)
        .join(
            stored.withColumn("stored", F.lit(True)),
            ["group_id", "topic_id", "partition", "window_start"],
            "left",
        )
        .withColumn("new", F.col("stored").isNull() & (F.col("w") >= windows.first))
        .drop("stored")
    )


# --- writing


def _missing(found: DataFrame) -> DataFrame:
    """The rows that lag_history lacks."""
    return found.where("new AND lag IS NOT NULL")


def _rows_by_window(found: DataFrame) -> dict[int, int]:
    """How many rows lag_history lacks, by window_start."""
    counts = _missing(found).groupBy("window_start").count().collect()
    return {row["window_start"]: row["count"] for row in counts}


def _write_windows(run: JobRun, found: DataFrame, seconds: int, total: int) -> None:
    """Store in lag_history the rows that it lacks, of which there are `total`."""
    if not total:
        return
    writer, stored = LagWriter.of(run.servers, seconds), run.spark().sparkContext.accumulator(0)
    run.progress.step("writing", total, lambda: stored.value)
    rows = _missing(found).select(
        "window_start",
        F.lit(seconds).cast("int").alias("window_seconds"),
        *KEY,
        F.col("offset").alias("committed_offset"),
        F.timestamp_millis("commit_ms").alias("commit_time"),
        "end_offset",
        "lag",
        "lag_seconds",
        "rate_in",
        "rate_out",
        "catch_up_seconds",
        "trend",
        F.expr(f"window_start div {SPAN_S}").alias("span"),
    )

    def store(span: pa.Table) -> pa.Table:
        writer.store(span.drop_columns("span"))
        stored.add(span.num_rows)
        return pa.table({"rows": [span.num_rows]})

    # With a number given, Spark does not put all spans into one task.
    tasks = min(total, WRITE_TASKS)
    rows.repartition(tasks, "span").groupBy("span").applyInArrow(store, "rows bigint").collect()


def _write_alerts(news: list[dict[str, Any]], servers: SqlServers, windows: Windows) -> None:
    if not news:
        return
    rows = sorted(news, key=lambda row: repr((row["kind"], *(row[name] for name in KEY), row)))
    table = pa.Table.from_pylist(
        [{**row, "window_seconds": windows.seconds, "evaluated_until": windows.end} for row in rows]
    )
    for name in ("began_at", "ended_at", "evaluated_until"):
        place = table.schema.get_field_index(name)
        moments = pa.array(table[name].to_pylist(), pa.timestamp("s", "UTC"))
        table = table.set_column(place, name, moments)
    servers.insert("lag_alerts", table, None)


def _alert_news(
    run: JobRun, found: DataFrame, thresholds: Thresholds, windows: Windows
) -> list[dict[str, Any]]:
    """The rows to add to lag_alerts: alerts that began or ended, and no others."""
    parameters = {
        **_selection(run),
        "seconds": windows.seconds,
        "kinds": list(thresholds.asked()),
        "first": windows.origin,
    }
    stored_query = Query(query("lag_stored_alerts"), parameters)
    stored = answers(run.spark(), run.servers, [stored_query], ALERTS).cache()
    news = alerts(conditions(found, thresholds), stored, windows)
    # A deleted group or topic is not measured any more: its alerts end.
    deleted = (
        stored.where("ended_at IS NULL")
        .join(found.select(KEY).distinct(), KEY, "left_anti")
        .withColumn("ended_at", F.lit(windows.end).cast("bigint"))
    )
    return [row.asDict() for row in news.unionByName(deleted).collect()]


# --- the job


def _whole_minutes(_context: click.Context, _parameter: click.Parameter, seconds: int) -> int:
    if seconds < 60 or seconds % 60 or 86_400 % seconds:
        raise click.BadParameter(
            "a window must be whole minutes, and a day must be a whole number of windows"
        )
    return seconds


def _plot_file(
    _context: click.Context, _parameter: click.Parameter, path: Path | None
) -> Path | None:
    if path is not None and path.suffix.lower() not in FORMATS:
        raise click.BadParameter(f"the name must end with {' or '.join(FORMATS)}")
    return path


@job.command("lag")
@click.option(
    "--window",
    "seconds",
    type=Duration(),
    default="1m",
    show_default=True,
    callback=_whole_minutes,
    help="The length of a window.",
)
@click.option(
    "--backfill",
    type=Duration(),
    default="1d",
    show_default=True,
    help="How far back missing windows are computed; at most 6d.",
)
@click.option(
    "--trend-windows",
    type=click.IntRange(2, 1000),
    default=10,
    show_default=True,
    help="The number of windows of the trend.",
)
@click.option(
    "--alert-records",
    type=click.IntRange(0),
    help="Alert: more than N records behind.",
    metavar="N",
)
@click.option(
    "--alert-seconds",
    type=click.FloatRange(0),
    help="Alert: more than N seconds behind.",
    metavar="N",
)
@click.option(
    "--alert-growing",
    metavar="WINDOWS",
    type=click.IntRange(1, 1000),
    help="Alert: the lag grew in WINDOWS windows in a row.",
)
@click.option(
    "--alert-stalled",
    metavar="WINDOWS",
    type=click.IntRange(1, 1000),
    help="Alert: for WINDOWS windows in a row, records came in and none was committed.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_plot_file,
    help="Draw lag over time into this .png or .html file.",
)
def command(
    run: JobRun,
    /,
    seconds: int,
    backfill: int,
    trend_windows: int,
    alert_records: int | None,
    alert_seconds: float | None,
    alert_growing: int | None,
    alert_stalled: int | None,
    plot: Path | None,
) -> JobReport:
    """Write to lag_history how far each group was behind at the end of each window.

    Per group, topic and partition: records and seconds behind, rates in and out, time to catch up,
    trend. Missing windows are computed too. With --alert-..., alerts are written to lag_alerts.
    """
    if backfill > MAX_BACKFILL_S:
        raise JobFailure("minutes of the log are kept for a week: --backfill can be at most 6d")
    thresholds = Thresholds(alert_records, alert_seconds, alert_growing, alert_stalled)
    run.progress.step("looking for missing windows")
    end = closed_until(run.servers, seconds)
    if end is None:
        return JobReport(
            COLUMNS, [], "the broker has not counted the log yet: it does so once a minute"
        )
    needed = first_missing(run, seconds, backfill, end)
    look_back = max(trend_windows, alert_growing or 0, alert_stalled or 0) + 1
    origin = needed - look_back * seconds
    windows = Windows(seconds, origin, (end - origin) // seconds, look_back)
    found = measured(run, windows, trend_windows).cache()
    news = _alert_news(run, found, thresholds, windows) if thresholds.asked() else []
    written = _rows_by_window(found)
    if not run.dry_run:
        _write_alerts(news, run.servers, windows)
        _write_windows(run, found, seconds, sum(written.values()))
        if plot is not None:
            run.progress.step(f"drawing {plot}")
            _draw(run, seconds, end - max(backfill // seconds, 1) * seconds, end, plot)
    rows = _last_rows(found, windows)
    return JobReport(COLUMNS, rows, _summary(run, written, news, end, plot))


_COUNTED = "committed", "end", "lag", "seconds", "in/s", "out/s", "catch up s", "trend/s"
COLUMNS = ("group", "topic", "partition", *_COUNTED)


def _last_rows(found: DataFrame, windows: Windows) -> list[Sequence[object]]:
    last = (
        found.where((F.col("w") == windows.count - 1) & F.col("lag").isNotNull())
        .orderBy(F.col("lag").desc(), "group_id", "topic", "partition")
        .limit(SHOWN)
        .select(
            *("group_id", "topic", "partition", "offset", "end_offset", "lag", "lag_seconds"),
            *("rate_in", "rate_out", "catch_up_seconds", "trend"),
        )
    )
    return [tuple(row) for row in last.collect()]


def _summary(
    run: JobRun,
    written: dict[int, int],
    news: list[dict[str, Any]],
    end: int,
    plot: Path | None,
) -> str:
    ended = sum(row["ended_at"] is not None for row in news)
    would = "would write" if run.dry_run else "wrote"
    rows, of = counted(sum(written.values()), "row"), counted(len(written), "window")
    text = f"windows up to {_utc(end)}: {would} {rows} of {of} to lag_history"
    text += f", {len(news)} to lag_alerts ({ended} ended)"
    if plot is not None:
        text += f", {'would draw' if run.dry_run else 'drew'} {plot}"
    return text


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _draw(run: JobRun, seconds: int, first: int, end: int, path: Path) -> None:
    rows = run.servers.rows(
        query("lag_series"), {**_selection(run), "seconds": seconds, "first": first}
    )
    series: dict[str, tuple[list[datetime], list[int]]] = {}
    for group_id, topic, at, records in rows:
        times, values = series.setdefault(f"{group_id} · {topic}", ([], []))
        times.append(datetime.fromtimestamp(at, UTC))
        values.append(records)
    about = f"{', '.join(run.servers.urls)}: {_utc(first)} to {_utc(end)}"
    if len(series) == SHOWN_LINES:
        about = f"the {SHOWN_LINES} with the highest lag, {about}"
    try:
        draw(series, about, path)
    except OSError as error:
        raise JobFailure(f"{path} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    command()
