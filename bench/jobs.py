"""`make bench-jobs`: how long the jobs lag, audit and compaction take, as a user runs them.

The log is a day of records, written as rows of the tables while no broker runs: a batch of one
partition after the other, with keys in random order, in a topic that is compacted. Groups have
committed every partition once a minute, one in ten of them always an hour late. Each round fills a
new broker and runs each job once as a process of its own. What PySpark needs before a job can begin
is measured too: with its files read from the disk, and from memory. Prints a Markdown table;
asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pyspark

from bench.machine import machine, running_broker
from brokerhouse.broker.cli.jobs import JOBS
from tests.support.broker_process import BrokerProcess
from tests.support.engine_process import EngineProcess
from tests.support.waiting import until

_DAY_S = 86_400
_LATE_S = 3600
_COUNTED_LIMIT_S = 180
_LOGIN = {"sql_user": "jobs", "sql_password": "jobs"}
_START = (
    "from brokerhouse.spark_jobs.session import session; s = session('start');"
    " s.range(2).selectExpr('sum(id)').collect(); s.stop()"
)
_MESSAGES = """
INSERT INTO brokerhouse.messages
    (topic, topic_id, partition, offset, timestamp_ms, key, value, producer_id, append_time)
SELECT 'bench', '{topic_id}', intDiv(number, {batch}) % {partitions},
    intDiv(intDiv(number, {batch}), {partitions}) * {batch} + number % {batch},
    toUnixTimestamp64Milli(append_time), toString(rand(1) % {keys}), randomPrintableASCII({bytes}),
    -1, fromUnixTimestamp64Milli({from_ms}
        + intDiv(intDiv(number, {batch}) * {day_ms}, intDiv({records}, {batch}) + 1)) AS append_time
FROM numbers({records})
"""
_COMMITS = """
INSERT INTO brokerhouse.consumer_offsets (group_id, topic, topic_id, partition, offset, member_id,
    generation, commit_time, version, stored_at)
WITH number % {groups} AS one, intDiv(number, {groups}) % {partitions} AS place,
    intDiv(number, {groups} * {partitions}) * 60 AS second
SELECT 'group-' || toString(one), 'bench', '{topic_id}', place,
    intDiv(greatest(second - if(one % 10 = 9, {late_s}, 30), 0) * {records}, {partitions} * {day_s})
        AS offset,
    'member', 1, toDateTime64(intDiv({from_ms}, 1000) + second, 3), number + 1,
    toDateTime64(intDiv({from_ms}, 1000) + second, 3)
FROM numbers({groups} * {partitions} * intDiv({day_s}, 60))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.jobs", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=100, help="the size of each value")
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--batch", type=int, default=100, help="records per batch of a producer")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", default=",".join(JOBS), help="only these, separated by commas")
    options = parser.parse_args(arguments)
    print(f"{machine()}, pyspark {pyspark.__version__}\n")
    took: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        _forget_files()
        took["PySpark starts, files from the disk"].append(_seconds(["-c", _START]))
        took["PySpark starts, files in memory"].append(_seconds(["-c", _START]))
        with tempfile.TemporaryDirectory() as directory:
            data = Path(directory, "data")
            _fill(data, options)
            with running_broker(data, _LOGIN) as broker:
                _await_counted(broker)
                for name in options.jobs.split(","):
                    took[f"`{name}`"].append(_run(broker, name))
    print(
        f"\n{options.records:,} records of {options.bytes} bytes, {options.keys:,} keys,"
        f" {options.partitions} partitions, {options.groups} groups; seconds:\n"
    )
    print("| | median | lowest | highest |\n|---|---:|---:|---:|")
    for what, seconds in took.items():
        print(
            f"| {what} | {statistics.median(seconds):.1f} | {min(seconds):.1f}"
            f" | {max(seconds):.1f} |"
        )


def _fill(data: Path, options: argparse.Namespace) -> None:
    broker = BrokerProcess(data, _LOGIN)
    broker.start()
    broker.stop()
    values = {
        "topic_id": uuid4(),
        "from_ms": (int(time.time()) - _DAY_S) * 1000,
        "day_s": _DAY_S,
        "day_ms": _DAY_S * 1000,
        "late_s": _LATE_S,
        **vars(options),
    }
    engine = EngineProcess(data)
    engine.start()
    engine.sql(
        "INSERT INTO brokerhouse.topic_versions (topic_id, version, name, partitions, configs,"
        f" state) VALUES ('{values['topic_id']}', 1, 'bench', {options.partitions},"
        " map('cleanup.policy', 'compact'), 'live')"
    )
    engine.sql(_MESSAGES.format(**values))
    engine.sql(_COMMITS.format(**values))
    # Without rows the broker counts the whole log at its next start.
    engine.sql("TRUNCATE TABLE brokerhouse.partition_minutes")
    engine.stop()


def _await_counted(broker: BrokerProcess) -> None:
    counted = "SELECT max(minute) > now() - INTERVAL 3 MINUTE AS done FROM partition_minutes"
    until(lambda: broker.sql(counted)[0]["done"], "the log is counted", _COUNTED_LIMIT_S)


def _run(broker: BrokerProcess, name: str) -> float:
    login = ["--user", _LOGIN["sql_user"], "--password", _LOGIN["sql_password"]]
    command = ["-m", "brokerhouse", "jobs", "run", name, "--http", broker.http_url, *login]
    return _seconds([*command, "--json"])


def _seconds(command: Sequence[str]) -> float:
    """How long Python needs for this. Shows what a job reports."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
    took = time.perf_counter() - began
    if done.stdout:
        print(json.loads(done.stdout)["summary"], file=sys.stderr)
    return took


def _forget_files() -> None:
    """The kernel drops its copies in memory of PySpark, Java and the packages of Python."""
    java = Path(shutil.which("java") or sys.executable).resolve()
    roots = (Path(pyspark.__file__).parent.parent, java.parent.parent)
    for path in (path for root in roots for path in root.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
