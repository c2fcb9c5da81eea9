"""The job `lag` on a broker whose history was written by hand."""

from __future__ import annotations

import base64
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokerhouse.spark_jobs import lag
from brokerhouse.spark_jobs.job import JobRun, glob_pattern
from brokerhouse.spark_jobs.lag_steps import Windows
from brokerhouse.spark_jobs.sql_client import SqlServers
from tests.spark.history import MINUTE, Ended, History, run_job
from tests.support.broker_process import BrokerProcess
from tests.support.process_session import signal_session
from tests.support.server_process import PROJECT
from tests.support.sql_client import PASSWORD, USER

pytestmark = pytest.mark.usefixtures("spark")

ODD = "o'dd \\ {g}\t\"`%\N{SNOWMAN}"
MINUTES = 12
"""Minutes of records in `orders`, 600 each; the group ODD commits half of them until minute 8."""
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    made = History(tmp_path_factory.mktemp("lag"))
    start = made.base - MINUTES * MINUTE
    orders, gone = made.topic("orders", 2), made.topic("gone")
    made.minutes(
        "orders", orders, [(start + n * MINUTE, n * 600, n * 600 + 599) for n in range(12)]
    )
    made.minutes("orders", orders, [(start, 0, 9)], partition=1)
    made.minutes("gone", gone, [(start, 0, 9)])
    made.commits(ODD, "orders", orders, [(start + n * MINUTE + 30, n * 300) for n in range(8)])
    made.commits("keeps up", "orders", orders, [(start + 20, 10)], partition=1)
    made.commits("keeps up", "gone", gone, [(start + 20, 5)])
    made.commits("keeps up", "gone", gone, [(start + 5 * MINUTE + 1, 5)], deleted=True)
    made.counted_until(made.base)
    made.done()
    yield made
    made.broker.stop()


@pytest.fixture
def nothing_computed(history: History) -> None:
    """For a test that begins without rows. It may stop the broker, so the others do without."""
    remove_rows(history)


def remove_rows(history: History) -> None:
    if _rows(history.broker):
        tables = ("lag_history", "lag_alerts")
        history.change(*(f"TRUNCATE TABLE brokerhouse.{name}" for name in tables))


@dataclass(frozen=True)
class Computed:
    """A run of the job that found no rows: how it ended, what it stored, and its plot."""

    ended: Ended
    rows: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    plot: Path


@pytest.fixture(scope="module")
def computed(history: History, tmp_path_factory: pytest.TempPathFactory) -> Computed:
    remove_rows(history)
    plot = tmp_path_factory.mktemp("plot") / "lag.png"
    ended = run_job(
        lag.command,
        history.broker.http,
        *shlex.split(
            f"--alert-records 2000 --alert-stalled 2 --trend-windows 3 --json --plot {plot}"
        ),
    )
    assert ended.code == 0, ended.stderr
    alerts = history.broker.sql("SELECT * FROM lag_alerts ORDER BY kind")
    return Computed(ended, _rows(history.broker), alerts, plot)


def _rows(broker: BrokerProcess) -> list[dict[str, Any]]:
    """Without FINAL, so that rows stored twice are seen."""
    return broker.sql(
        "SELECT group_id, topic, partition, toUnixTimestamp(window_start) AS start,"
        " committed_offset, end_offset, lag, lag_seconds, rate_in, rate_out,"
        " catch_up_seconds, trend FROM lag_history ORDER BY group_id, topic, partition, start"
    )


def _of(rows: list[dict[str, Any]], group: str, topic: str = "orders") -> list[dict[str, Any]]:
    return [row for row in rows if (row["group_id"], row["topic"]) == (group, topic)]


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.test_all
def test_a_dry_run_writes_nothing_and_reports_what_it_would_write(
    history: History, tmp_path: Path
) -> None:
    plot = tmp_path / "lag.png"
    ended = run_job(
        lag.command,
        history.broker.http,
        *shlex.split(f"--dry-run --alert-records 0 --plot {plot} --group keeps* --topic gone"),
        user=None,
    )
    assert ended.code == 0, ended.stderr
    assert (
        "would write 5 rows of 5 windows to lag_history, 1 to lag_alerts (1 ended)" in ended.stdout
    )
    assert f"would draw {plot}" in ended.stdout
    assert not plot.exists()
    assert _rows(history.broker) == []
    assert history.broker.sql("SELECT * FROM lag_alerts") == []


def test_every_window_since_the_first_commit_is_computed(
    history: History, computed: Computed
) -> None:
    rows = _of(computed.rows, ODD)
    start = history.base - MINUTES * MINUTE
    assert [row["start"] for row in rows] == [start + n * MINUTE for n in range(len(rows))]
    assert len(rows) >= MINUTES
    rows = rows[:MINUTES]
    committed = [min(n, 7) * 300 for n in range(MINUTES)]
    assert [row["committed_offset"] for row in rows] == committed
    assert [row["end_offset"] for row in rows] == [600 * (n + 1) for n in range(MINUTES)]
    assert [row["lag"] for row in rows] == [600 * (n + 1) - committed[n] for n in range(MINUTES)]
    assert [row["rate_in"] for row in rows] == [10] * MINUTES
    assert [row["rate_out"] for row in rows] == [None] + [5] * 7 + [0] * 4
    assert [row["catch_up_seconds"] for row in rows] == [None] * MINUTES
    assert [row["trend"] for row in rows] == pytest.approx([0] + [5] * 7 + [7.5] + [10] * 3)
    waited = [start + (offset // 600) * MINUTE + (offset % 600) / 599 * 59 for offset in committed]
    ends = [start + (n + 1) * MINUTE for n in range(MINUTES)]
    expected = [end - at for end, at in zip(ends, waited, strict=True)]
    assert [row["lag_seconds"] for row in rows] == pytest.approx(expected, abs=0.01)
    (one,) = [row for row in computed.ended.told["rows"] if row["group"] == ODD]
    assert (one["lag"], one["end"]) == (600 * 12 - 2100, 7200)
    alerts = computed.alerts
    assert [
        (one["kind"], one["group_id"], one["began_at"][-8:], one["value"]) for one in alerts
    ] == [
        ("records", ODD, _clock(ends[5]), 2100),
        ("stalled", ODD, _clock(ends[9]), 3900),
    ]
    # Nothing came in after that, so it is stalled no more; still it is as far behind.
    assert alerts[0]["ended_at"] is None


def _clock(second: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(second))


def test_the_plot_option_writes_a_picture(computed: Computed) -> None:
    check_picture(computed.plot)


@pytest.mark.slow
def test_a_page_has_the_plot_as_a_picture(history: History, tmp_path: Path) -> None:
    path = tmp_path / "lag.HTML"
    ended = run_job(lag.command, history.broker.http, "--backfill", "5m", "--plot", str(path))
    assert ended.code == 0, ended.stderr
    picture = tmp_path / "again.png"
    picture.write_bytes(base64.b64decode(path.read_bytes().split(b"base64,")[1].split(b'"')[0]))
    check_picture(picture)


def check_picture(path: Path) -> None:
    from matplotlib.image import imread

    height, width, _ = imread(path).shape
    assert width == 1320
    assert height > 600


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.test_all
def test_an_offset_that_was_deleted_has_no_lag_from_then_on(history: History) -> None:
    assert run_job(lag.command, history.broker.http, "--topic", "gon?").code == 0
    rows = _rows(history.broker)
    start = history.base - MINUTES * MINUTE
    assert {row["topic"] for row in rows} == {"gone"}
    assert [row["start"] for row in rows] == [start + n * MINUTE for n in range(5)]
    assert [row["lag"] for row in rows] == [5] * 5
    run = JobRun(SqlServers.parse(history.broker.http), topics=glob_pattern(["gone"]))
    end = lag.closed_until(run.servers, MINUTE)
    assert end is not None
    assert lag.first_missing(run, MINUTE, 86_400, end) == end - MINUTE


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.slow
def test_a_second_run_writes_nothing_twice_and_a_wider_run_adds_missing_rows(
    history: History,
) -> None:
    pattern = ODD.replace("\\", "?")
    assert run_job(lag.command, history.broker.http, "--group", pattern).code == 0
    rows = _rows(history.broker)
    assert {row["group_id"] for row in rows} == {ODD}
    until = rows[-1]["start"]
    for arguments in ([], ["--group", pattern], []):
        assert run_job(lag.command, history.broker.http, *arguments).code == 0
    wider = _rows(history.broker)
    keys = [(row["group_id"], row["topic"], row["partition"], row["start"]) for row in wider]
    assert len(set(keys)) == len(keys)
    assert [row for row in _of(wider, ODD) if row["start"] <= until] == rows
    assert [row["start"] for row in _of(wider, "keeps up")] == [
        row["start"] for row in _of(wider, ODD)
    ]


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.test_all
def test_two_runs_at_once_store_each_row_once(history: History, spark: SparkSession) -> None:
    """Both look for missing windows before either of them writes."""
    servers = SqlServers.parse(history.broker.http, USER, PASSWORD)
    run = JobRun(servers, groups=glob_pattern(["keeps*"]))
    end = lag.closed_until(servers, MINUTE)
    assert end is not None
    windows = Windows(MINUTE, end - 8 * MINUTE, 8, 3)
    both = [lag.measured(run, windows, 3).cache() for _ in range(2)]
    counts = [lag._rows_by_window(found) for found in both]
    assert counts[0] == counts[1]
    for found in both:
        lag._write_windows(run, found, MINUTE, 5)
    assert len(_rows(history.broker)) == sum(counts[0].values()) == 5


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.test_all
def test_progress_counts_the_rows_that_are_written(history: History) -> None:
    ended = run_job(lag.command, history.broker.http, "--backfill", "3m", "--group", "keeps*")
    rows = len(_rows(history.broker))
    assert f"lag: writing: {rows} of {rows} rows in " in ended.stderr
    assert rows > 0


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.test_all
def test_without_credentials_the_error_says_who_may_write(history: History) -> None:
    ended = run_job(lag.command, history.broker.http, "--backfill", "2m", user=None)
    assert ended.code == 1
    assert "allows only its sql_user to do this: give user and password" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--window", "90s"], "a window must be whole minutes"),
        (["--window", "7m"], "a day must be a whole number of windows"),
        (["--window", "soon"], "write a time such as 90s"),
        (["--plot", "lag.gif"], "the name must end with .png or .html"),
        (["--alert-growing", "0"], "range"),
        (["--http", "ftp://x"], "write a URL or HOST:PORT"),
    ],
)
def test_wrong_options_are_errors(history: History, arguments: list[str], complaint: str) -> None:
    ended = run_job(lag.command, history.broker.http, *arguments)
    assert ended.code == 2
    assert complaint in ended.stderr


@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_a_killed_run_the_next_one_stores_every_window_once(history: History) -> None:
    """Runs as a process of its own, as with spark-submit."""
    broker = history.broker
    # Enough inserts that the run can be killed between two of them.
    broker.stop()
    history.engine.start()
    since = history.base - 23 * 60 * MINUTE
    history.commits("since long", "long", history.topic("long"), [(since, 0)])
    history.done()
    command = [sys.executable, "-m", "brokerhouse", "jobs", "run", "lag", "--master", "local[2]"]
    command += ["--http", broker.http, "--user", USER, "--backfill", "1d"]
    command += ["--alert-records", "2000"]
    environment = {**os.environ, "BROKERHOUSE_SQL_PASSWORD": PASSWORD}
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, start_new_session=True)
    deadline = time.monotonic() + LIMIT_S
    while not _rows(broker):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
    signal_session(process.pid, signal.SIGKILL)
    process.wait()
    some = _rows(broker)
    subprocess.run(command, cwd=PROJECT, env=environment, check=True, timeout=LIMIT_S)
    rows = _rows(broker)
    keys = [(row["group_id"], row["topic"], row["partition"], row["start"]) for row in rows]
    assert len(set(keys)) == len(keys) > len(some)
    starts = [row["start"] for row in _of(rows, ODD)]
    assert starts == list(range(starts[0], starts[0] + len(starts) * MINUTE, MINUTE))
    assert starts[0] == history.base - MINUTES * MINUTE
    starts = [row["start"] for row in _of(rows, "since long", "long")]
    assert starts == list(range(since, since + len(starts) * MINUTE, MINUTE))
    assert len(starts) >= 23 * 60
    alerts = broker.sql("SELECT group_id, began_at FROM lag_alerts FINAL")
    assert [one["group_id"] for one in alerts] == [ODD]
