"""The job `lag`: how far groups were behind at the end of each window, from the history alone.

What must hold:
* A window is computed from what was stored: every commit (`consumer_offsets`) and every counted
  minute of the log (`partition_minutes`). So it has the same values whoever computes it and when,
  and windows that nobody computed in time are caught up on.
* A window is closed when its minutes are counted and its commits had time to be stored.
* A window's rows are one insert with a token of their own, and only what `lag_history` lacks is
  written. Alerts are written before the rows that they come from: a run that was ended between the
  two writes the same alerts again, under the same keys.

How it is computed is in lag_steps.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from spark_jobs import job
from spark_jobs.job import JobFailure, Report, Run
from spark_jobs.lag_steps import (
    KEY,
    Thresholds,
    Windows,
    alerts,
    conditions,
    ends,
    measures,
    positions,
)
from spark_jobs.plot import FORMATS, draw
from spark_jobs.sql import Question, frame

if TYPE_CHECKING:
    from spark_jobs.sql import Endpoint

SETTLED_S = 10
"""A commit is stored by then: it waits for a lane and is tried again when the engine is busy."""
MAX_BACKFILL_S = 6 * 86_400
"""Minutes of the log become hours after a week, and those before the first window count too."""
HISTORY_S = 9 * 86_400
"""An offset that stays current is written again after a week, so what was current is in these."""
SHOWN = 100
QUESTION_ROWS = 500_000

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


# --- questions

_SELECTED = """
    match(group_id, {groups:String}) AND match(topic, {topics:String})
    AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
"""
_STORED = "toUnixTimestamp(stored_at) >= {history:Int64}"
_COMMITS = f"""
    SELECT
        group_id, topic, toString(topic_id) AS topic_id, partition, w,
        argMax(offset, version) AS offset,
        argMax(toUnixTimestamp64Milli(commit_time), version) AS commit_ms,
        argMax(deleted, version) AS deleted
    FROM
    (
        SELECT
            group_id, topic, topic_id, partition, offset, version, commit_time, deleted,
            toInt32(if(toUnixTimestamp(commit_time) < {{origin:Int64}}, -1,
                intDiv(toUnixTimestamp(commit_time) - {{origin:Int64}}, {{seconds:Int64}}))) AS w
        FROM consumer_offsets
        WHERE {_SELECTED} AND {_STORED} AND toUnixTimestamp(commit_time) < {{end:Int64}}
            AND cityHash64(group_id) % {{parts:UInt64}} = {{part:UInt64}}
    )
    GROUP BY group_id, topic, topic_id, partition, w
"""
_MINUTES = f"""
    SELECT
        toString(topic_id) AS topic_id, partition, toInt64(toUnixTimestamp(minute)) AS minute,
        min_offset, max_offset, toUnixTimestamp64Milli(first_append_time) AS first_ms,
        toUnixTimestamp64Milli(last_append_time) AS last_ms
    FROM partition_minutes
    GLOBAL INNER JOIN
    (
        SELECT topic_id, partition, min(offset) AS wanted_from
        FROM consumer_offsets
        WHERE {_SELECTED} AND {_STORED}
        GROUP BY topic_id, partition
    ) AS wanted USING (topic_id, partition)
    WHERE toUnixTimestamp(minute) < {{end:Int64}}
        AND (toUnixTimestamp(minute) >= {{origin:Int64}} OR max_offset >= wanted_from)
        AND cityHash64(topic_id) % {{parts:UInt64}} = {{part:UInt64}}
"""
_ENDS = """
    SELECT
        toString(topic_id) AS topic_id, partition,
        max(counted) AS end_offset, max(start) AS log_start
    FROM
    (
        SELECT topic_id, partition, max_offset + 1 AS counted, toInt64(0) AS start
        FROM partition_minutes
        WHERE toUnixTimestamp(minute) < {origin:Int64} AND match(topic, {topics:String})
            AND topic != ''
        UNION ALL
        SELECT topic_id, partition, toInt64(0) AS counted, log_start_offset AS start
        FROM partition_checkpoints
    )
    WHERE topic_id GLOBAL IN (SELECT topic_id FROM topics WHERE match(name, {topics:String}))
    GROUP BY topic_id, partition
"""
_LAG_STORED = """
    SELECT
        group_id, toString(topic_id) AS topic_id, partition,
        toInt64(toUnixTimestamp(window_start)) AS window_start
    FROM lag_history
    WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
        AND match(topic, {topics:String}) AND toUnixTimestamp(window_start) >= {first:Int64}
    GROUP BY group_id, topic_id, partition, window_start
"""
_ALERTS_STORED = """
    SELECT
        kind, group_id, topic, toString(topic_id) AS topic_id, partition,
        toInt64(toUnixTimestamp(began_at)) AS began_at,
        toInt64(toUnixTimestamp(ended_at)) AS ended_at,
        threshold, value, peak
    FROM lag_alerts FINAL
    WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
        AND match(topic, {topics:String}) AND has({kinds:Array(String)}, kind)
        AND (ended_at IS NULL OR toUnixTimestamp(assumeNotNull(ended_at)) >= {first:Int64})
"""
# The first window that lag_history may lack rows of. A key is complete if it has every window from
# its first commit on, up to `until`, when its offset was deleted. One that had none for a while and
# then committed again never is, and costs a longer look.
_NEEDED = f"""
    SELECT min(if(wanted < until, wanted, {{end:Int64}})) AS needed
    FROM
    (
    SELECT until, multiIf(
        have.windows = 0, since,
        have.newest - have.oldest = (have.windows - 1) * {{seconds:Int64}} AND have.oldest <= since,
        have.newest + {{seconds:Int64}},
        since) AS wanted
    FROM
    (
        SELECT
            group_id, topic_id, partition,
            greatest({{first:Int64}}, intDiv(toUnixTimestamp(minIf(commit_time, NOT deleted)),
                {{seconds:Int64}}) * {{seconds:Int64}}) AS since,
            if(argMax(deleted, version),
                intDiv(toUnixTimestamp(argMax(commit_time, version)), {{seconds:Int64}})
                    * {{seconds:Int64}},
                {{end:Int64}}) AS until
        FROM consumer_offsets
        WHERE {_SELECTED} AND {_STORED} AND toUnixTimestamp(commit_time) < {{end:Int64}}
        GROUP BY group_id, topic_id, partition
        HAVING countIf(NOT deleted) > 0
    ) AS keys
    GLOBAL LEFT JOIN
    (
        SELECT
            group_id, topic_id, partition, uniqExact(window_start) AS windows,
            toInt64(toUnixTimestamp(min(window_start))) AS oldest,
            toInt64(toUnixTimestamp(max(window_start))) AS newest
        FROM lag_history
        WHERE window_seconds = {{seconds:UInt32}}
            AND toUnixTimestamp(window_start) >= {{first:Int64}}
        GROUP BY group_id, topic_id, partition
    ) AS have USING (group_id, topic_id, partition)
    )
    SETTINGS join_use_nulls = 0
"""
_COUNTED = "SELECT toInt64(toUnixTimestamp(max(minute))) AS last FROM partition_minutes"
_COUNTED_BY_ALL = (
    "SELECT toInt64(min(last)) FROM"
    " (SELECT toUnixTimestamp(max(minute)) AS last FROM partition_minutes GROUP BY _shard_num)"
)
_DISTRIBUTED = (
    "SELECT count() FROM system.tables"
    " WHERE database = 'brokerhouse' AND name = 'partition_minutes' AND engine = 'Distributed'"
)
_SERIES = """
    SELECT group_id, topic, toInt64(toUnixTimestamp(window_start)) + {seconds:Int64} AS at,
        sum(lag) AS records
    FROM lag_history FINAL
    WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
        AND match(topic, {topics:String}) AND toUnixTimestamp(window_start) >= {first:Int64}
        AND (group_id, topic) GLOBAL IN
        (
            SELECT group_id, topic FROM lag_history
            WHERE window_seconds = {seconds:UInt32} AND match(group_id, {groups:String})
                AND match(topic, {topics:String}) AND toUnixTimestamp(window_start) >= {first:Int64}
            GROUP BY group_id, topic ORDER BY max(lag) DESC, group_id, topic LIMIT 12
        )
    GROUP BY group_id, topic, window_start
    ORDER BY group_id, topic, window_start
"""


def closed_until(endpoint: Endpoint, seconds: int) -> int | None:
    """The end of the last window that is closed; None while the log has not been counted."""
    ((distributed,),) = endpoint.rows(_DISTRIBUTED)
    ((last,),) = endpoint.rows(_COUNTED_BY_ALL if distributed else _COUNTED)
    if not last:
        return None
    ((now,),) = endpoint.rows("SELECT toInt64(toUnixTimestamp(now()))")
    until = min(int(last) + 60, int(now) - SETTLED_S)
    return until - until % seconds


def missing(run: Run, seconds: int, backfill_s: int, end: int) -> int:
    """The beginning of the first window that may lack rows, of those of the last `backfill_s`.

    The last window that is closed, where none does.
    """
    first = end - max(backfill_s // seconds, 1) * seconds
    parameters = {**_selection(run), "seconds": seconds, "first": first, "end": end,
                  "history": first - HISTORY_S}  # fmt: skip
    ((needed,),) = run.endpoint.rows(_NEEDED, parameters)
    return min(int(needed) or end, end - seconds)


def _selection(run: Run) -> dict[str, object]:
    return {"groups": run.groups, "topics": run.topics}


def _in_parts(sql: str, parameters: dict[str, object], parts: int) -> list[Question]:
    return [Question(sql, {**parameters, "parts": parts, "part": n}) for n in range(parts)]


def measured(run: Run, windows: Windows, trend: int) -> DataFrame:
    """The measures of these windows; `new` is true where lag_history has no such row."""
    spark = run.spark()
    parameters = {
        **_selection(run), "seconds": windows.seconds, "origin": windows.origin,
        "end": windows.end, "history": windows.origin - HISTORY_S,
        "first": windows.origin + windows.first * windows.seconds,
    }  # fmt: skip
    ((rows,),) = run.endpoint.rows(
        "SELECT count() FROM current_offsets"
        " WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})",
        _selection(run),
    )
    parts = max(1, min(64, int(rows) * (windows.count + 1) // QUESTION_ROWS))
    commits = frame(spark, run.endpoint, _in_parts(_COMMITS, parameters, parts), COMMITS).cache()
    minutes = frame(spark, run.endpoint, _in_parts(_MINUTES, parameters, parts), MINUTES).cache()
    before = frame(spark, run.endpoint, [Question(_ENDS, parameters)], ENDS).cache()
    stored = frame(spark, run.endpoint, [Question(_LAG_STORED, parameters)], STORED)
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


def _write_windows(found: DataFrame, endpoint: Endpoint, seconds: int) -> list[tuple[int, int]]:
    """Adds what is new to lag_history, window by window; returns (window_start, rows) of each."""
    rows = found.where("new AND lag IS NOT NULL").select(
        "window_start", F.lit(seconds).cast("int").alias("window_seconds"), *KEY,
        F.col("offset").alias("committed_offset"),
        F.timestamp_millis("commit_ms").alias("commit_time"), "end_offset", "lag", "lag_seconds",
        "rate_in", "rate_out", "catch_up_seconds", "trend",
    )  # fmt: skip

    def insert(window: pa.Table) -> pa.Table:
        ordered = window.sort_by([(name, "ascending") for name in KEY])
        start = ordered["window_start"][0].as_py()
        keys = repr(ordered.select(KEY).to_pylist())
        token = f"lag-{seconds}-{start}-{_digest(keys)}"
        moments = pa.array([start] * ordered.num_rows, pa.timestamp("s", "UTC"))
        count = endpoint.insert(
            "lag_history", ordered.set_column(0, "window_start", moments), token
        )
        return pa.table({"window_start": [start], "rows": [count]})

    return [
        (row["window_start"], row["rows"])
        for row in rows.groupBy("window_start")
        .applyInArrow(insert, "window_start bigint, rows bigint")
        .collect()
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _write_alerts(news: list[dict[str, Any]], endpoint: Endpoint, windows: Windows) -> None:
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
    endpoint.insert("lag_alerts", table, f"alerts-{_digest(repr(table.to_pylist()))}")


def _alert_news(
    run: Run, found: DataFrame, thresholds: Thresholds, windows: Windows
) -> list[dict[str, Any]]:
    """What lag_alerts is told: alerts that began or ended; never more than there are changes."""
    parameters = {
        **_selection(run), "seconds": windows.seconds, "kinds": list(thresholds.asked()),
        "first": windows.origin,
    }  # fmt: skip
    stored = frame(
        run.spark(), run.endpoint, [Question(_ALERTS_STORED, parameters)], ALERTS
    ).cache()
    news = alerts(conditions(found, thresholds), stored, windows)
    # Of a group or topic that is gone nothing is measured any more.
    gone = (
        stored.where("ended_at IS NULL")
        .join(found.select(KEY).distinct(), KEY, "left_anti")
        .withColumn("ended_at", F.lit(windows.end).cast("bigint"))
    )
    return [row.asDict() for row in news.unionByName(gone).collect()]


# --- the job


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


def _whole_minutes(_context: click.Context, _parameter: click.Parameter, seconds: int) -> int:
    if seconds < 60 or seconds % 60 or 86_400 % seconds:
        raise click.BadParameter("a window is whole minutes, and a day is a number of windows")
    return seconds


def _plot_file(
    _context: click.Context, _parameter: click.Parameter, path: Path | None
) -> Path | None:
    if path is not None and path.suffix.lower() not in FORMATS:
        raise click.BadParameter(f"the name ends with {' or '.join(FORMATS)}")
    return path


@job.command("lag")
@click.option(
    "--window",
    "seconds",
    type=Duration(),
    default="1m",
    show_default=True,
    callback=_whole_minutes,
    help="How long a window is.",
)
@click.option(
    "--backfill",
    type=Duration(),
    default="1d",
    show_default=True,
    help="How far back windows that are missing are looked for; at most 6d.",
)
@click.option(
    "--trend-windows",
    type=click.IntRange(2, 1000),
    default=10,
    show_default=True,
    help="How many windows the trend is over.",
)
@click.option("--alert-records", type=click.IntRange(0), help="Alert: more than so many behind.")
@click.option("--alert-seconds", type=click.FloatRange(0), help="Alert: more than so long behind.")
@click.option(
    "--alert-growing",
    metavar="WINDOWS",
    type=click.IntRange(1, 1000),
    help="Alert: the lag grew in so many windows in a row.",
)
@click.option(
    "--alert-stalled",
    metavar="WINDOWS",
    type=click.IntRange(1, 1000),
    help="Alert: records came in and none was committed, so many windows in a row.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_plot_file,
    help="Draw the lag over time into this .png or .html file.",
)
def command(
    run: Run, /, seconds: int, backfill: int, trend_windows: int, alert_records: int | None,
    alert_seconds: float | None, alert_growing: int | None, alert_stalled: int | None,
    plot: Path | None,
) -> Report:  # fmt: skip
    """How far each group was behind at the end of each window, into the table lag_history.

    Per group, topic and partition: records and seconds behind, rates in and out, time to catch up,
    trend. Windows that are missing are caught up on. With --alert-..., alerts go to lag_alerts.
    """
    if backfill > MAX_BACKFILL_S:
        raise JobFailure("the log is counted by the minute for a week: --backfill is at most 6d")
    thresholds = Thresholds(alert_records, alert_seconds, alert_growing, alert_stalled)
    run.say("looking for windows that are missing")
    end = closed_until(run.endpoint, seconds)
    if end is None:
        return Report(
            COLUMNS, [], "the log has not been counted yet: once a minute the broker does"
        )
    needed = missing(run, seconds, backfill, end)
    look_back = max(trend_windows, alert_growing or 0, alert_stalled or 0) + 1
    origin = needed - look_back * seconds
    windows = Windows(seconds, origin, (end - origin) // seconds, look_back)
    run.say(f"measuring {windows.count - look_back} windows up to {_told(end)}")
    found = measured(run, windows, trend_windows).cache()
    news = _alert_news(run, found, thresholds, windows) if thresholds.asked() else []
    if run.dry_run:
        written = [
            (row["window_start"], row["count"])
            for row in found.where("new AND lag IS NOT NULL")
            .groupBy("window_start")
            .count()
            .collect()
        ]
    else:
        run.say("writing")
        _write_alerts(news, run.endpoint, windows)
        written = _write_windows(found, run.endpoint, seconds)
        if plot is not None:
            run.say(f"drawing {plot}")
            _draw(run, seconds, end - max(backfill // seconds, 1) * seconds, plot)
    rows = _last_rows(found, windows)
    return Report(COLUMNS, rows, _summary(run, written, news, end, plot))


COLUMNS = (
    "group", "topic", "partition", "committed", "end", "lag", "seconds", "in/s", "out/s",
    "catch up s", "trend/s",
)  # fmt: skip


def _last_rows(found: DataFrame, windows: Windows) -> list[Sequence[object]]:
    last = (
        found.where((F.col("w") == windows.count - 1) & F.col("lag").isNotNull())
        .orderBy(F.col("lag").desc(), "group_id", "topic", "partition")
        .limit(SHOWN)
        .select(
            "group_id", "topic", "partition", "offset", "end_offset", "lag", "lag_seconds",
            "rate_in", "rate_out", "catch_up_seconds", "trend",
        )
    )  # fmt: skip
    return [tuple(row) for row in last.collect()]


def _summary(
    run: Run,
    written: list[tuple[int, int]],
    news: list[dict[str, Any]],
    end: int,
    plot: Path | None,
) -> str:
    ended = sum(row["ended_at"] is not None for row in news)
    would = "would write" if run.dry_run else "wrote"
    told = f"windows up to {_told(end)}: {would} {sum(rows for _, rows in written)} rows"
    told += f" of {len(written)} windows to lag_history, {len(news)} to lag_alerts ({ended} ended)"
    if plot is not None:
        told += f", {'would draw' if run.dry_run else 'drew'} {plot}"
    return told


def _told(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _draw(run: Run, seconds: int, first: int, path: Path) -> None:
    rows = run.endpoint.rows(_SERIES, {**_selection(run), "seconds": seconds, "first": first})
    series: dict[str, tuple[list[datetime], list[int]]] = {}
    for group_id, topic, at, records in rows:
        times, values = series.setdefault(f"{group_id} · {topic}", ([], []))
        times.append(datetime.fromtimestamp(at, UTC))
        values.append(records)
    try:
        draw(series, path)
    except OSError as error:
        raise JobFailure(f"{path} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    command()
