"""A broker's data directory with data written by the test, and jobs that run on it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import click
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.engine_process import EngineProcess
from tests.support.sql_client import PASSWORD, USER

MINUTE = 60
NOBODY = UUID(int=0)


class History:
    """Writes rows as the broker would have, while it is not running. Times in seconds since 1970.

    `base` is the beginning of the minute in which the history ends: a while ago.
    """

    database = "brokerhouse"

    def __init__(self, directory: Path) -> None:
        self.broker = BrokerProcess(
            directory / "data", {"sql_user": USER, "sql_password": PASSWORD}
        )
        self.broker.start()
        self.broker.stop()
        self.engine = EngineProcess(directory / "data")
        self.engine.start()
        # The first start may have counted the minutes that the history is about to fill.
        self.engine.sql("TRUNCATE TABLE brokerhouse.partition_minutes")
        self.base = int(time.time()) // MINUTE * MINUTE - 2 * MINUTE
        self.version = 0

    def done(self) -> BrokerProcess:
        self.engine.stop()
        self.broker.start()
        return self.broker

    def change(self, *statements: str) -> None:
        """Runs statements with all rights on the data of the stopped broker."""
        self.broker.stop()
        self.engine.start()
        for statement in statements:
            self.engine.sql(statement)
        self.done()

    def topic(self, name: str, partitions: int = 1) -> UUID:
        topic_id = uuid4()
        self._put(
            "topic_versions (topic_id, version, name, partitions, configs, state)",
            [f"'{topic_id}', 1, {_text(name)}, {partitions}, map(), 'live'"],
        )
        return topic_id

    def minutes(
        self, topic: str, topic_id: UUID, rows: Sequence[tuple[int, int, int]], partition: int = 0
    ) -> None:
        """(minute, first offset, last offset): the records came in evenly over the minute."""
        self._put(
            "partition_minutes",
            [
                f"{_text(topic)}, '{topic_id}', {partition}, {_moment(minute)}, {last - first + 1},"
                f" {10 * (last - first + 1)}, {first}, {last},"
                f" {_moment(minute)}, {_moment(minute + MINUTE - 1)}"
                for minute, first, last in rows
            ],
        )

    def counted_until(self, second: int) -> None:
        last = _moment(second - MINUTE)
        self._put("partition_minutes", [f"'', '{NOBODY}', -1, {last}, 0, 0, 0, -1, {last}, {last}"])

    def commits(
        self,
        group: str,
        topic: str,
        topic_id: UUID,
        rows: Sequence[tuple[int, int]],
        partition: int = 0,
        generation: int = 1,
        member: str = "m1",
        deleted: bool = False,
    ) -> None:
        """(time, offset)."""
        texts = []
        for at, offset in rows:
            self.version += 1
            texts.append(
                f"{_text(group)}, {_text(topic)}, '{topic_id}', {partition}, {offset},"
                f" {_text(member)}, {generation}, {_moment(at)}, {deleted},"
                f" {at * 1_000_000 + self.version}, {_moment(at)}"
            )
        self._put(
            "consumer_offsets (group_id, topic, topic_id, partition, offset, member_id, generation,"
            " commit_time, deleted, version, stored_at)",
            texts,
        )

    def block(
        self,
        topic: str,
        topic_id: UUID,
        first: int,
        last: int,
        at: int,
        epoch: int = 0,
        partition: int = 0,
    ) -> None:
        self.engine.sql(
            f"INSERT INTO {self.database}.messages (topic, topic_id, partition, offset, value,"
            " leader_epoch, append_time)"
            f" SELECT {_text(topic)}, '{topic_id}', {partition}, {first} + number, 'v', {epoch},"
            f" toDateTime64({_moment(at)}, 3, 'UTC') FROM numbers({last - first + 1})"
        )

    def checkpoint(self, topic_id: UUID, log_start: int, floor: int, partition: int = 0) -> None:
        row = f"'{topic_id}', {partition}, {log_start}, {floor}, 0"
        self._put("partition_checkpoints", [row])

    def _put(self, table: str, rows: Sequence[str]) -> None:
        for start in range(0, len(rows), 500):
            values = ", ".join(f"({row})" for row in rows[start : start + 500])
            self.engine.sql(f"INSERT INTO {self.database}.{table} VALUES {values}")


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _moment(second: int) -> str:
    return time.strftime("'%Y-%m-%d %H:%M:%S'", time.gmtime(second))


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str

    @property
    def told(self) -> dict[str, Any]:
        """The report of --json."""
        told: dict[str, Any] = json.loads(self.stdout)
        return told


def run_job(command: click.Command, url: str, *arguments: str, user: str | None = USER) -> Ended:
    """One run of a job in this process, on the test's Spark session. Raises what the job raises."""
    credentials = [] if user is None else ["--user", user, "--password", PASSWORD]
    result = CliRunner().invoke(command, ["--http", url, *credentials, *arguments])
    # What a job keeps in memory ends with its process; here the same query would be found there.
    if (spark := SparkSession.getActiveSession()) is not None:
        spark.catalog.clearCache()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)
