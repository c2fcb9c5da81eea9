"""A broker with feeds of typed tables, as tests use it: commands, SQL, and waiting for rows."""

from __future__ import annotations

import subprocess
from typing import Any

import confluent_kafka

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import COMMAND, complaint, environment, output, run
from tests.support.server_process import PROJECT
from tests.support.sql_client import PASSWORD, USER
from tests.support.waiting import LIMIT_S, until

_ASK_EVERY_S = 0.05

SETTINGS = {"sql_user": USER, "sql_password": PASSWORD}


class TypedTables:
    """Commands of `brokerhouse tables` against one broker, by the user who may write."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    @property
    def _variables(self) -> dict[str, str]:
        return {
            "BROKERHOUSE_HTTP": self.broker.http_url,
            "BROKERHOUSE_SQL_USER": USER,
            "BROKERHOUSE_SQL_PASSWORD": PASSWORD,
        }

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints; it must succeed."""
        return output("tables", *arguments, how=run, stdin=stdin, **self._variables)

    def begun(self, *arguments: str) -> subprocess.Popen[str]:
        """A command in a process of its own, whose end nobody waits for."""
        return subprocess.Popen(
            [*COMMAND, "tables", *arguments],
            env=environment(**self._variables),
            cwd=PROJECT,
            stderr=subprocess.PIPE,
            text=True,
        )

    def refused(self, *arguments: str, code: int = 1) -> str:
        """The sentence of a command that fails."""
        return complaint(code, "tables", *arguments, how=run, **self._variables)

    def refused_with_input(self, *arguments: str, stdin: str) -> bool:
        """Whether a command ends without success after this answer."""
        return run("tables", *arguments, stdin=stdin, **self._variables).returncode != 0

    def usage_error(self, *arguments: str) -> str:
        """What a command prints whose arguments are wrong."""
        done = run("tables", *arguments, **self._variables)
        assert done.returncode == 2, done
        return done.stderr

    def sql(self, statement: str) -> list[dict[str, Any]]:
        return self.broker.sql(statement, user=USER, password=PASSWORD)

    def produce(self, topic: str, *values: str, partition: int = 0) -> None:
        settings = {"bootstrap.servers": self.broker.kafka, "linger.ms": 1000}  # one batch
        producer = confluent_kafka.Producer(settings)
        for value in values:
            producer.produce(topic, value.encode(), partition=partition)
        assert producer.flush(60) == 0

    def rows(self, table: str) -> int:
        return int(self.sql(f"SELECT count() AS n FROM {table}")[0]["n"])

    def await_rows(self, table: str, count: int, limit_s: float = LIMIT_S) -> None:
        """Wait until the table has at least so many rows."""
        until(lambda: self.rows(table) >= count, f"{table} has {count} rows", limit_s, _ASK_EVERY_S)

    def await_more_rows(self, table: str, limit_s: float = LIMIT_S) -> None:
        """Wait until the table has more rows than now."""
        self.await_rows(table, self.rows(table) + 1, limit_s)

    def await_all_fed(self, feed: str, count: int, limit_s: float = LIMIT_S) -> None:
        """Wait until so many records of all partitions together are fed, and none is missing."""
        until(
            lambda: (
                self.sql(
                    "SELECT sum(next_offset) AS n FROM brokerhouse.table_feed_progress"
                    f" WHERE feed = '{feed}' AND phase = 'after'"
                )
                == [{"n": count}]
            ),
            f"{count} records are in {feed}",
            limit_s,
            _ASK_EVERY_S,
        )

    def await_started(self, feed: str) -> None:
        """Wait until the feed has begun in its first partition."""
        until(
            lambda: self.sql(
                f"SELECT 1 FROM brokerhouse.table_feed_progress WHERE feed = '{feed}'"
            ),
            f"{feed} has begun",
            every_s=_ASK_EVERY_S,
        )

    def await_fed(self, feed: str, next_offset: int, partition: int = 0) -> None:
        """Wait until all records below an offset are in the table, or dead letters."""
        until(
            lambda: self.sql(
                "SELECT 1 FROM brokerhouse.table_feed_progress"
                f" WHERE feed = '{feed}' AND partition = {partition}"
                f" AND next_offset >= {next_offset} AND phase = 'after'"
            ),
            f"{feed} has fed up to {next_offset}",
            every_s=_ASK_EVERY_S,
        )

    def await_fed_of(self, feed: str, topic: str, next_offset: int) -> None:
        """As `await_fed`, of a feed with several topics of one partition."""
        until(
            lambda: self.sql(
                "SELECT 1 FROM brokerhouse.table_feed_progress"
                f" WHERE feed = '{feed}' AND topic = '{topic}'"
                f" AND next_offset >= {next_offset} AND phase = 'after'"
            ),
            f"{feed} has fed {topic} up to {next_offset}",
            every_s=_ASK_EVERY_S,
        )
