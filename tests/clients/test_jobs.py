"""What jobs share, without Spark: the command line, errors, and the SQL client."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from brokerhouse.broker.cli.jobs import JOBS
from brokerhouse.broker.cli.main import main
from brokerhouse.spark_jobs import job, progress, sql_client
from brokerhouse.spark_jobs.iceberg.job import _topics
from brokerhouse.spark_jobs.job import JobFailure, JobReport, JobRun, glob_pattern
from brokerhouse.spark_jobs.sql_client import SqlFailure, SqlServers
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.engine_process import EngineProcess
from tests.support.server_process import PROJECT


def brokerhouse(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brokerhouse", *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )


def test_list_shows_every_job() -> None:
    result = CliRunner().invoke(main, ["jobs", "list"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(JOBS)


def test_every_job_has_the_same_options() -> None:
    for name in JOBS:
        result = CliRunner().invoke(main, ["jobs", "run", name, "--help"])
        assert result.exit_code == 0, result.output
        for option in ("--http", "--user", "--master", "--dry-run", "--group", "--topic"):
            assert option in result.stdout


def test_an_unknown_job_is_an_error() -> None:
    result = CliRunner().invoke(main, ["jobs", "run", "nothing"])
    assert result.exit_code == 2
    assert "No such command 'nothing'" in result.stderr


def test_without_java_the_error_says_what_to_install() -> None:
    done = brokerhouse("jobs", "run", "audit", PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1
    assert re.fullmatch(r"Error: Spark needs Java: install Java 17 .*\n", done.stderr)


def test_without_pyspark_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('no', name='pyspark')")
    done = brokerhouse("jobs", "run", "lag", PYTHONPATH=f"{tmp_path}:{PROJECT}")
    assert done.returncode == 1
    assert re.fullmatch(r"Error: pyspark is missing: pip install 'brokerhouse.*\n", done.stderr)


def test_the_broker_needs_no_spark() -> None:
    code = (
        "import sys, brokerhouse.broker.cli.main, brokerhouse.broker.server\n"
        "print([m for m in sys.modules if 'spark' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, text=True, capture_output=True, check=True
    )
    assert done.stdout == "[]\n"


# --- patterns and servers


@pytest.mark.parametrize(
    ("globs", "fits", "not_these"),
    [
        ([], ["", "anything", "two\nlines"], []),
        (["orders-*"], ["orders-", "orders-1\n2"], ["orders", "my-orders-1"]),
        (["a?c", "x"], ["abc", "a.c", "a\nc", "x"], ["ac", "abbc", "xx"]),
        (
            ["a.c", "[b]", "(d|e)", "f\\g", "h+"],
            ["a.c", "[b]", "(d|e)", "f\\g", "h+"],
            ["abc", "b", "d", "hh"],
        ),
    ],
)
def test_a_pattern_may_have_stars_and_question_marks(
    globs: list[str], fits: list[str], not_these: list[str]
) -> None:
    pattern = re.compile(glob_pattern(globs))
    assert [name for name in fits + not_these if pattern.match(name)] == fits


def test_servers_are_urls_or_addresses() -> None:
    assert SqlServers.parse("a:1, https://b/ch").urls == ("http://a:1", "https://b:8443/ch")


@pytest.mark.parametrize("text", ["", " , ", "ftp://x", "http://", "http://u:p@x", "x:port"])
def test_a_wrong_server_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write a URL|port|Port"):
        SqlServers.parse(text)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(SqlServers.parse("a", "u", "secret"))


def test_a_server_that_does_not_answer_is_an_error_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sql_client, "FIRST_PAUSE_S", 0)
    with pytest.raises(SqlFailure, match=r"http://127.0.0.1:1 does not answer \(.*refused"):
        SqlServers.parse("127.0.0.1:1").rows("SELECT 1")


# --- an engine without a broker


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineProcess:
    process = EngineProcess(tmp_path_factory.mktemp("engine") / "data")
    process.start()
    process.sql("CREATE DATABASE IF NOT EXISTS brokerhouse")
    process.sql(
        "CREATE TABLE brokerhouse.t (a Int64, b String) ENGINE = MergeTree ORDER BY a"
        " SETTINGS non_replicated_deduplication_window = 100"
    )
    return process


@pytest.fixture(scope="module", autouse=True)
def stopped(engine: EngineProcess) -> object:
    yield None
    engine.stop()


def test_values_are_bound_parameters(engine: EngineProcess) -> None:
    text = "o'dd \\ {g:String}\t\n\"`%\N{SNOWMAN}"
    assert SqlServers.parse(engine.http).rows("SELECT {x:String}", {"x": text}) == [[text]]


def test_the_next_server_is_asked_when_one_does_not_answer(engine: EngineProcess) -> None:
    assert SqlServers.parse(f"127.0.0.1:1,{engine.http}").rows("SELECT 7") == [[7]]


def test_a_repeated_insert_is_stored_once(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_client, "BLOCK_ROWS", 2)
    servers = SqlServers.parse(engine.http)
    rows = pa.table({"a": [1, 2, 3], "b": ["x", "\0", "\N{SNOWMAN}"]})
    for _ in range(2):
        assert servers.insert("t", rows, "once") == 3
    assert servers.rows("SELECT a, b FROM t ORDER BY a") == [[1, "x"], [2, "\0"], [3, "☃"]]
    servers.insert("t", rows, "another")
    assert servers.rows("SELECT count() FROM t") == [[6]]


def test_an_insert_without_a_token_is_stored_each_time(engine: EngineProcess) -> None:
    servers = SqlServers.parse(engine.http)
    for _ in range(2):
        assert servers.insert("t", pa.table({"a": [99], "b": ["x"]}), None) == 1
    assert servers.rows("SELECT count() FROM t WHERE a = 99") == [[2]]


def test_a_missing_table_is_an_error_in_one_sentence(engine: EngineProcess) -> None:
    with pytest.raises(SqlFailure, match=r"lacks a table: its brokerhouse is older than this"):
        SqlServers.parse(engine.http).rows("SELECT * FROM lag_history")


# --- reports


def run_command(work: click.Command, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(work, arguments)
    return result.exit_code, result.stdout, result.stderr


@job.command("try")
@click.option("--what")
def try_it(run: JobRun, /, what: str | None) -> JobReport:
    """For these tests."""
    run.progress.step("working")
    if what == "fails":
        raise JobFailure("it cannot")
    rows = [("o\x1bdd", 1, 2.5, None)]
    return JobReport(("name", "n", "x", "none"), rows, "done", ok=what != "bad")


def test_the_report_is_a_table() -> None:
    code, stdout, stderr = run_command(try_it)
    assert (code, stderr) == (0, "try: working\n")
    assert [line.split() for line in stdout.splitlines()] == [
        ["name", "n", "x", "none"],
        ["o\\x1bdd", "1", "2.5", "-"],
        ["done"],
    ]


def test_a_count_of_one_is_singular() -> None:
    assert progress.counted(1, "partition") == "1 partition"
    assert progress.counted(2_000, "batch", "batches") == "2,000 batches"


def test_progress_is_rows_of_a_total_their_rate_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, done = [100.0], [0]
    monkeypatch.setattr("brokerhouse.spark_jobs.progress.time.monotonic", lambda: now[0])
    shown = progress.JobProgress("audit")
    assert shown.line() == "audit"
    shown.step("reading", 1_000_000, lambda: done[0])
    assert shown.line() == "audit: reading: 0 of 1,000,000 rows"
    now[0], done[0] = 110.0, 100_000
    assert shown.line() == "audit: reading: 100,000 of 1,000,000 rows, 10,000/s, 1 min 30 s left"
    done[0] = 1_200_000  # Spark repeated a task
    assert shown.line() == "audit: reading: 1,000,000 of 1,000,000 rows"
    shown.step("looking")
    assert shown.line() == "audit: looking"


def test_nothing_is_told_before_the_first_step() -> None:
    told: list[str] = []
    shown = progress.JobProgress("counts", told.append)
    shown.tell()
    shown.step("reading")
    shown.tell()

    assert told[0] == "counts: reading"


def test_progress_without_a_terminal_is_lines_on_stderr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    asked = threading.Semaphore(0)

    @job.command("counts")
    def counts(run: JobRun, /) -> JobReport:
        def done() -> int:
            asked.release()
            return 7

        run.progress.step("reading", 10, done)
        # The line is made of three calls, and written before the next one.
        assert all(asked.acquire(timeout=30) for _ in range(4))
        return JobReport((), (), "done")

    code, stdout, stderr = run_command(counts, "--json")
    assert (code, json.loads(stdout)["summary"]) == (0, "done")
    first, second, *_, last = stderr.splitlines()
    assert first == "counts: reading (10 rows)"
    assert re.fullmatch(r"counts: reading: 7 of 10 rows in \d+ s", last)
    assert second.startswith("counts: reading: 7 of 10 rows, ")
    assert second.endswith(" s left")


def test_the_report_may_be_json() -> None:
    code, stdout, _ = run_command(try_it, "--json", "--what", "bad")
    assert code == 1
    assert '"name": "o\\u001bdd"' in stdout
    assert '"ok": false' in stdout


def test_a_failure_is_a_sentence_and_exit_code_1() -> None:
    assert run_command(try_it, "--what", "fails") == (1, "", "try: working\nError: it cannot\n")


def test_a_pattern_of_the_job_iceberg_matches_no_internal_topic(
    broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.kafka, topic, 1)
    found = _topics({"bootstrap.servers": broker.kafka}, glob_pattern(["*"]), "iceberg-control")
    assert topic in found
    assert [name for name in found if name.startswith("__")] == []
