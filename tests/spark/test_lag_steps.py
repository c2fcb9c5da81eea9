"""Lag is computed from histories written by hand, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from brokerhouse.spark_jobs.lag import ALERTS, COMMITS, ENDS, MINUTES
from brokerhouse.spark_jobs.lag_steps import (
    Thresholds,
    Windows,
    ages,
    alerts,
    conditions,
    ends,
    measures,
    positions,
)

W = Windows(seconds=60, origin=6000, count=4, first=0)
KEY = ("g", "t", "id", 0)


def commits(spark: SparkSession, rows: Sequence[tuple[int, int, bool]]) -> DataFrame:
    """(window, offset, deleted)."""
    return spark.createDataFrame([row_of_commit(KEY, *row) for row in rows], COMMITS)


def row_of_commit(key: tuple[Any, ...], w: int, offset: int, deleted: bool) -> tuple[Any, ...]:
    return (*key, w, offset, w * 1000, deleted)


def minutes(spark: SparkSession, rows: Sequence[tuple[int, int, int]]) -> DataFrame:
    """(window, first offset, last offset)."""
    return spark.createDataFrame([row_of_minute(0, *row) for row in rows], MINUTES)


def row_of_minute(partition: int, w: int, first: int, last: int) -> tuple[Any, ...]:
    begin = W.origin + w * 60
    return ("id", partition, begin, first, last, begin * 1000, (begin + 50) * 1000)


def before(spark: SparkSession, end: int) -> DataFrame:
    return spark.createDataFrame([("id", 0, end, 0)], ENDS)


@dataclass(frozen=True)
class LagCase:
    """What a group committed, as for `commits`, and what came into the log, as for `minutes`."""

    committed: Sequence[tuple[int, int, bool]]
    came: Sequence[tuple[int, int, int]]
    end: int = 0
    log_start: int = 0


CASES = {
    "rates": LagCase(
        [(-1, 100, False), (0, 160, False), (1, 460, False), (2, 700, False)],
        [(-1, 0, 399), (0, 400, 519), (1, 520, 579), (2, 580, 699)],
        end=400,
    ),
    "seconds": LagCase([(-1, 0, False), (2, 5, False)], [(0, 0, 10), (3, 11, 11)]),
    "deleted": LagCase([(-1, 0, False)], [(0, 0, 9), (1, 10, 19)], log_start=10),
    "ahead": LagCase([(-1, 50, False)], [(0, 0, 9)]),
    "below 0": LagCase([(-1, -7, False)], [(0, 0, 9)]),
    "reset": LagCase([(1, 60, False), (2, 30, False)], [(0, 0, 99)]),
}


Lags = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def lags(spark: SparkSession) -> Lags:
    """The rows of each case, by window. All are computed at once: a partition is a case."""
    of_topic = KEY[:-1]
    committed, came, before_ = [], [], []
    for case, one in enumerate(CASES.values()):
        committed += [row_of_commit((*of_topic, case), *row) for row in one.committed]
        came += [row_of_minute(case, *row) for row in one.came]
        before_.append(("id", case, one.end, one.log_start))
    log = spark.createDataFrame(came, MINUTES)
    found = measures(
        positions(spark.createDataFrame(committed, COMMITS), W),
        ends(log, spark.createDataFrame(before_, ENDS), W),
        log,
        W,
        trend=3,
    )
    rows: Lags = {name: [] for name in CASES}
    for row in found.orderBy("w").collect():
        rows[list(CASES)[row["partition"]]].append(row.asDict())
    return rows


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_an_offset_is_current_until_the_next_commit(spark: SparkSession) -> None:
    found = positions(commits(spark, [(-1, 5, False), (1, 7, False)]), W).orderBy("w").collect()
    assert [(row["w"], row["offset"]) for row in found] == [(-1, 5), (0, 5), (1, 7), (2, 7), (3, 7)]


def test_before_the_first_commit_and_after_a_deletion_there_is_no_offset(
    spark: SparkSession,
) -> None:
    found = positions(commits(spark, [(0, 5, False), (2, 5, True)]), W).orderBy("w").collect()
    assert [row["offset"] for row in found] == [None, 5, 5, None, None]


def test_an_end_stays_until_more_records_come(spark: SparkSession) -> None:
    log = minutes(spark, [(-3, 0, 9), (1, 10, 19), (3, 20, 24)])
    found = ends(log, before(spark, 10), W).orderBy("w").collect()
    assert [row["end_offset"] for row in found] == [10, 10, 20, 20, 25]


def test_a_partition_ends_at_0_before_it_existed(spark: SparkSession) -> None:
    found = ends(minutes(spark, [(2, 0, 4)]), before(spark, 0).limit(0), W).orderBy("w").collect()
    assert [row["end_offset"] for row in found] == [0, 0, 0, 5, 5]


def test_several_minutes_make_one_window(spark: SparkSession) -> None:
    two = Windows(seconds=120, origin=6000, count=2, first=0)
    log = minutes(spark, [(0, 0, 4), (1, 5, 9), (2, 10, 11)])
    found = ends(log, before(spark, 0), two).orderBy("w").collect()
    assert [row["end_offset"] for row in found] == [0, 10, 12]


def test_the_age_of_a_record_is_interpolated_within_its_minute(spark: SparkSession) -> None:
    log = minutes(spark, [(0, 0, 10), (2, 20, 30)])
    wanted = spark.createDataFrame(
        [("id", 0, position) for position in (0, 5, 10, 11, 20, 31, 5)],
        "topic_id string, partition int, position bigint",
    )
    found = ages(wanted, log).orderBy("position").collect()
    start = W.origin * 1000
    assert [(row["position"], row["oldest_ms"]) for row in found] == [
        (0, start),
        (5, start + 25_000),
        (10, start + 50_000),
        (11, start + 120_000),  # it is gone, or never was: the next one's
        (20, start + 120_000),
        (31, None),
    ]


def test_lag_rates_and_the_time_to_catch_up(lags: Lags) -> None:
    rows = lags["rates"]
    assert column(rows, "end_offset") == [520, 580, 700, 700]
    assert column(rows, "lag") == [360, 120, 0, 0]
    assert column(rows, "rate_in") == [2, 1, 2, 0]
    assert column(rows, "rate_out") == [1, 5, 4, 0]
    assert column(rows, "catch_up_seconds") == [None, 30, 0, 0]
    assert column(rows, "trend") == [pytest.approx(x) for x in (0, -4, -3, -1)]


def test_seconds_behind_are_the_age_of_the_oldest_waiting_record(lags: Lags) -> None:
    # From the beginning of window 0; then half of its 50 s later; at the end of each window.
    assert column(lags["seconds"], "lag_seconds") == [60, 120, 155, 215]


def test_deleted_records_do_not_count_for_seconds_behind(lags: Lags) -> None:
    rows = lags["deleted"]
    assert column(rows, "lag") == [10, 20, 20, 20]
    # In window 0 the log cannot have begun at 10 yet.
    assert column(rows, "lag_seconds") == [60, 60, 120, 180]


def test_a_group_ahead_of_the_log_has_lag_0_and_one_below_0_the_whole_log(lags: Lags) -> None:
    assert column(lags["ahead"], "lag") == [0, 0, 0, 0]
    assert column(lags["ahead"], "lag_seconds") == [0, 0, 0, 0]
    assert column(lags["below 0"], "lag") == [10, 10, 10, 10]


def test_rate_out_is_0_after_a_reset_and_null_at_the_first_commit(lags: Lags) -> None:
    rows = lags["reset"]
    assert column(rows, "lag") == [None, 40, 70, 70]
    assert column(rows, "rate_out") == [None, None, 0, 0]


# --- alerts


def news(
    spark: SparkSession,
    lags: Sequence[int | None],
    thresholds: Thresholds,
    stored: Sequence[tuple[Any, ...]] = (),
    new_from: int = 0,
    rates: tuple[float, float] = (1, 1),
) -> list[tuple[Any, ...]]:
    """(kind, began, ended, value, peak) in numbers of windows."""
    windows = Windows(60, W.origin, len(lags), new_from)
    measured = spark.createDataFrame(
        [
            (*KEY, w, lag, None if lag is None else float(lag), *map(float, rates), w >= new_from)
            for w, lag in enumerate(lags)
        ],
        "group_id string, topic string, topic_id string, partition int, w int, lag bigint,"
        " lag_seconds double, rate_in double, rate_out double, new boolean",
    )
    known = spark.createDataFrame(
        [
            (kind, *KEY, _end(began), None if ended is None else _end(ended), 10.0, value, peak)
            for kind, began, ended, value, peak in stored
        ],
        ALERTS,
    )
    found = alerts(conditions(measured, thresholds), known, windows)
    return [
        (row["kind"], _number(row["began_at"]), _number(row["ended_at"]), row["value"], row["peak"])
        for row in found.orderBy("kind", "began_at").collect()
    ]


def _end(window: int) -> int:
    return W.origin + (window + 1) * 60


def _number(end: int | None) -> int | None:
    return None if end is None else (end - W.origin) // 60 - 1


TEN = Thresholds(records=10)


def test_an_alert_begins_and_ends_with_its_condition(
    spark: SparkSession,
) -> None:
    found = news(spark, [10, 11, 30, 12, 10, 50, None], TEN)
    assert found == [("records", 1, 4, 11, 30), ("records", 5, 6, 50, 50)]


@pytest.mark.test_all
def test_a_continuing_alert_has_no_end(spark: SparkSession) -> None:
    assert news(spark, [3, 11, 12], TEN) == [("records", 1, None, 11, 12)]
    assert news(spark, [3, 4, 5], TEN) == []


@pytest.mark.test_all
def test_a_stored_alert_continues_and_is_written_again_when_it_ends(
    spark: SparkSession,
) -> None:
    known = [("records", -5, None, 20.0, 70.0)]
    assert news(spark, [11, 12, 13], TEN, known) == []
    assert news(spark, [11, 12, 3], TEN, known) == [("records", -5, 2, 20, 70)]
    assert news(spark, [3, 3, 80], TEN, known) == [
        ("records", -5, 0, 20, 70),
        ("records", 2, None, 80, 80),
    ]


@pytest.mark.test_all
def test_windows_that_are_not_new_add_no_alerts(spark: SparkSession) -> None:
    known = [("records", 1, None, 11.0, 11.0)]
    assert news(spark, [3, 11, 12, 3], TEN, known, new_from=2) == [("records", 1, 3, 11, 12)]
    # With a new threshold, an alert begins with the first new window.
    assert news(spark, [3, 11, 12, 3], TEN, new_from=2) == [("records", 2, 3, 12, 12)]


@pytest.mark.test_all
def test_a_repeated_run_writes_the_same_alerts(spark: SparkSession) -> None:
    lags = [3, 11, 30, 3, 3, 12, 3, 40]
    first = news(spark, lags, TEN)
    assert news(spark, lags, TEN, [(*one,) for one in first]) in ([], first)
    # Windows 0 to 1 of it were written before it was ended: the alert that reaches into 2 goes on.
    again = news(spark, lags, TEN, first, new_from=2)
    assert {one[:3] for one in again} <= {one[:3] for one in first}


def test_alerts_of_seconds_growth_and_stalling_begin_with_their_conditions(
    spark: SparkSession,
) -> None:
    grown = news(spark, [5, 6, 7, 8, 8, 9], Thresholds(growing=3))
    assert grown == [("growing", 3, 4, 8, 8)]
    late = news(spark, [5, 60, 5], Thresholds(seconds=59.5))
    assert late == [("seconds", 1, 2, 60, 60)]
    stood = news(spark, [5, 6, 7], Thresholds(stalled=2), rates=(1, 0))
    assert stood == [("stalled", 1, None, 6, 7)]


@pytest.mark.test_all
def test_a_group_that_commits_or_a_log_without_records_is_not_stalled(spark: SparkSession) -> None:
    assert news(spark, [5, 6, 7], Thresholds(stalled=2), rates=(1, 0.5)) == []
    assert news(spark, [5, 6, 7], Thresholds(stalled=2), rates=(0, 0)) == []


@pytest.mark.test_all
def test_alerts_of_two_kinds_do_not_mix(spark: SparkSession) -> None:
    found = news(spark, [1, 20, 30], Thresholds(records=10, seconds=25))
    assert found == [("records", 1, None, 20, 30), ("seconds", 2, None, 30, 30)]
