"""The steps of the job `lag` over DataFrames, without IO.

Windows are numbered from 0; all time before window 0 has number -1. Seconds and milliseconds count
from 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  its usual name

KEY = ["group_id", "topic", "topic_id", "partition"]
PARTITION = ["topic_id", "partition"]


@dataclass(frozen=True, slots=True)
class Windows:
    """`count` windows of `seconds` each; number 0 begins at `origin` (seconds since 1970).

    Windows before number `first` are only needed to compute later ones.
    """

    seconds: int
    origin: int
    count: int
    first: int

    @property
    def end(self) -> int:
        return self.origin + self.count * self.seconds


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When to alert; None is never. `growing` and `stalled` are numbers of windows in a row."""

    records: int | None = None
    seconds: float | None = None
    growing: int | None = None
    stalled: int | None = None

    def asked(self) -> dict[str, float]:
        """By kind."""
        values = {kind: getattr(self, kind) for kind in self.__slots__}
        return {kind: float(value) for kind, value in values.items() if value is not None}


def positions(commits: DataFrame, windows: Windows) -> DataFrame:
    """A row per key and window: the offset committed at its end, null if there was none.

    `commits`: the last commit of each window that has any; window -1 has the last one before.
    """
    every = (
        commits.select(KEY)
        .distinct()
        .withColumn("w", F.explode(F.sequence(F.lit(-1), F.lit(windows.count - 1))))
    )
    so_far = Window.partitionBy(KEY).orderBy("w")
    last = F.last("commit", ignorenulls=True).over(so_far)
    one = commits.select(*KEY, "w", F.struct("offset", "commit_ms", "deleted").alias("commit"))
    return (
        every.join(one, [*KEY, "w"], "left")
        .withColumn("commit", last)
        .withColumn("commit", F.when(~F.col("commit.deleted"), F.col("commit")))
        .select(*KEY, "w", "commit.offset", "commit.commit_ms")
    )


def ends(minutes: DataFrame, before: DataFrame, windows: Windows) -> DataFrame:
    """A row per partition and window: the end of the log (next offset) at its end.

    `before`: the end of the log when window 0 began, and where the log starts now.
    """
    number = F.floor((F.col("minute") - windows.origin) / windows.seconds).cast("int")
    in_window = (
        minutes.where(F.col("minute") >= windows.origin)
        .groupBy(*PARTITION, number.alias("w"))
        .agg((F.max("max_offset") + 1).alias("end_offset"))
    )
    known = before.select(*PARTITION, F.lit(-1).alias("w"), "end_offset").unionByName(in_window)
    every = (
        known.select(PARTITION)
        .distinct()
        .withColumn("w", F.explode(F.sequence(F.lit(-1), F.lit(windows.count - 1))))
    )
    so_far = Window.partitionBy(PARTITION).orderBy("w")
    return (
        every.join(known, [*PARTITION, "w"], "left")
        .withColumn("end_offset", F.coalesce(F.max("end_offset").over(so_far), F.lit(0)))
        .join(before.select(*PARTITION, "log_start"), PARTITION, "left")
    )


def ages(wanted: DataFrame, minutes: DataFrame) -> DataFrame:
    """When the record at each (topic_id, partition, position) was appended: `oldest_ms`.

    Interpolated from its offset among those of its minute; for a deleted record, the time of the
    next one. Null for a position that no counted minute reaches.
    """
    asked = wanted.select(*PARTITION, "position").distinct()
    both = minutes.select(
        *PARTITION,
        F.col("max_offset").alias("position"),
        F.struct("min_offset", "max_offset", "first_ms", "last_ms").alias("minute"),
    ).unionByName(asked, allowMissingColumns=True)
    # In descending order, the last minute seen is the first one that reaches the position.
    downwards = Window.partitionBy(PARTITION).orderBy(
        F.col("position").desc(), F.col("minute").isNull()
    )
    minute = F.col("reached")
    share = (F.greatest("position", minute.min_offset) - minute.min_offset) / F.greatest(
        minute.max_offset - minute.min_offset, F.lit(1)
    )
    return (
        both.withColumn("reached", F.last("minute", ignorenulls=True).over(downwards))
        .where(F.col("minute").isNull())
        .select(
            *PARTITION,
            "position",
            (minute.first_ms + (minute.last_ms - minute.first_ms) * share).alias("oldest_ms"),
        )
    )


def measures(
    committed: DataFrame, ended: DataFrame, minutes: DataFrame, windows: Windows, trend: int
) -> DataFrame:
    """A row per key and window from 0 on, with the columns of lag_history from `lag` on.

    They are null where nothing was committed. `trend`: the number of windows of the trend.
    """
    in_order = Window.partitionBy(KEY).orderBy("w")
    at_end = committed.join(ended, [*PARTITION, "w"], "left").withColumn(
        "end_offset", F.coalesce("end_offset", F.lit(0))
    )
    next_offset = F.greatest("offset", F.lit(0))
    # Only today's log start is known: in an earlier window it cannot have been beyond the end.
    exists = F.when(F.col("log_start") < F.col("end_offset"), F.col("log_start")).otherwise(0)
    lagging = (
        at_end.withColumn("lag", F.greatest(F.col("end_offset") - next_offset, F.lit(0)))
        .withColumn("lag", F.when(F.col("offset").isNotNull(), F.col("lag")))
        .withColumn("position", F.greatest(next_offset, exists))
        .withColumn("came", F.col("end_offset") - F.lag("end_offset").over(in_order))
        .withColumn("went", F.col("offset") - F.lag("offset").over(in_order))
        .where(F.col("w") >= 0)
    )
    when = ages(lagging.where("lag > 0"), minutes)
    end_ms = (F.lit(windows.origin) + (F.col("w") + 1) * windows.seconds).cast("bigint") * 1000
    recent = in_order.rowsBetween(1 - trend, 0)
    behind_s = F.greatest(end_ms - F.col("oldest_ms"), F.lit(0)) / 1000
    per_second = F.col("w") * windows.seconds
    faster = F.col("rate_out") - F.col("rate_in")
    return (
        lagging.join(when, [*PARTITION, "position"], "left")
        .withColumn("lag_seconds", F.when(F.col("lag") == 0, 0.0).otherwise(behind_s))
        .withColumn("rate_in", F.col("came") / windows.seconds)
        .withColumn(
            "rate_out",
            F.when(F.col("went").isNotNull(), F.greatest("went", F.lit(0)) / windows.seconds),
        )
        .withColumn(
            "catch_up_seconds",
            F.when(F.col("lag") == 0, 0.0).when(faster > 0, F.col("lag") / faster),
        )
        .withColumn("trend", F.coalesce(F.regr_slope("lag", per_second).over(recent), F.lit(0.0)))
        .drop("position", "came", "went", "oldest_ms", "log_start")
    )


def conditions(measured: DataFrame, thresholds: Thresholds) -> DataFrame:
    """A row per key, window and wanted kind of alert: whether its condition holds (`on`)."""
    in_order = Window.partitionBy(KEY).orderBy("w")

    def in_a_row(condition: Column, count: int) -> Column:
        held = F.coalesce(condition, F.lit(False)).cast("int")
        return F.sum(held).over(in_order.rowsBetween(1 - count, 0)) == count

    grew = F.col("lag") > F.lag("lag").over(in_order)
    stood = (F.col("rate_out") == 0) & (F.col("rate_in") > 0)
    found: dict[str, Any] = {
        "records": lambda limit: (F.col("lag") > limit, F.col("lag")),
        "seconds": lambda limit: (F.col("lag_seconds") > limit, F.col("lag_seconds")),
        "growing": lambda count: (in_a_row(grew, int(count)), F.col("lag")),
        "stalled": lambda count: (in_a_row(stood, int(count)), F.col("lag")),
    }
    parts = []
    for kind, limit in thresholds.asked().items():
        on, value = found[kind](limit)
        parts.append(
            measured.select(
                *KEY,
                "w",
                "new",
                F.lit(kind).alias("kind"),
                F.lit(limit).alias("threshold"),
                F.coalesce(on & F.col("lag").isNotNull(), F.lit(False)).alias("on"),
                value.cast("double").alias("value"),
            )
        )
    return reduce(DataFrame.unionByName, parts)


def alerts(held: DataFrame, stored: DataFrame, windows: Windows) -> DataFrame:
    """The rows to add to lag_alerts: alerts that began, and alerts that ended.

    `held`: the result of `conditions`; of each key, windows from the first `new` one on count.
    `stored`: the alerts of these kinds that lag_alerts has.
    """
    each = [*KEY, "kind"]
    in_order = Window.partitionBy(each).orderBy("w")
    all_of_it = Window.partitionBy(each)
    first = F.min(F.when(F.col("new"), F.col("w"))).over(all_of_it)
    looked_at = held.withColumn("first", first).where(F.col("w") >= F.col("first"))
    first_end = F.lit(windows.origin) + (F.col("first") + 1) * windows.seconds
    # A stored alert that reaches into the first window continues.
    known = stored.select(
        *each,
        *(
            F.col(name).alias(f"old_{name}")
            for name in ("began_at", "ended_at", "threshold", "value", "peak")
        ),
    )
    covering = (
        looked_at.select(*each, first_end.alias("first_end"))
        .distinct()
        .join(known, each)
        .where(F.col("old_began_at") < F.col("first_end"))
        .where(F.col("old_ended_at").isNull() | (F.col("old_ended_at") >= F.col("first_end")))
        .groupBy(each)
        .agg(F.max_by(F.struct(*known.columns[len(each) :]), "old_began_at").alias("old"))
    )
    goes_on = (F.col("w") == F.col("first")) & F.col("old").isNotNull()
    before = F.coalesce(F.lag("on").over(in_order), goes_on)
    runs = (
        looked_at.join(covering, each, "left")
        .withColumn("begins", (F.col("on") & ~before).cast("int"))
        .withColumn("run", F.sum("begins").over(in_order))
        .withColumn("over", ~F.col("on") & before)
    )
    end = F.lit(windows.origin) + (F.col("w") + 1) * windows.seconds
    ones = (
        runs.groupBy(*each, "run")
        .agg(
            F.min(F.when(F.col("on"), end)).alias("began_at"),
            F.min(F.when(F.col("over"), end)).alias("ended_at"),
            F.first("threshold").alias("threshold"),
            F.min_by(F.when(F.col("on"), F.col("value")), F.when(F.col("on"), F.col("w"))).alias(
                "value"
            ),
            F.max(F.when(F.col("on"), F.col("value"))).alias("peak"),
            F.first("old").alias("old"),
        )
        .withColumn("old", F.when(F.col("run") == 0, F.col("old")))
    )
    old = F.col("old")
    return ones.where(
        (F.col("run") > 0) | (old.isNotNull() & F.col("ended_at").isNotNull())
    ).select(
        "kind",
        *KEY,
        F.coalesce(old.old_began_at, "began_at").cast("bigint").alias("began_at"),
        F.col("ended_at").cast("bigint"),
        F.coalesce(old.old_threshold, "threshold").alias("threshold"),
        F.coalesce(old.old_value, "value").alias("value"),
        F.greatest(old.old_peak, F.col("peak")).alias("peak"),
    )
