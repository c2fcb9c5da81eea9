"""Feeds of typed tables on a cluster, as tests use them: commands, and the rows of all shards."""

from __future__ import annotations

from collections import Counter
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from tests.support.cluster_processes import SQL_PASSWORD, SQL_USER, Cluster
from tests.support.command_line import complaint, output, run
from tests.support.sql_rows import SqlError
from tests.support.waiting import until

_LIMIT_S = 60.0
_WAIT_MAX_S = 180.0
"""On a busy machine leases end again and again, and each time others have to take over."""
_ASK_EVERY_S = 0.1
"""Each question is a query of every engine, which shares its cores with all others."""


class ClusterTables:
    """`brokerhouse tables` through the first shard, and SQL on every shard."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def _variables(self) -> dict[str, str]:
        return {
            "BROKERHOUSE_HTTP": self._cluster.engines[0].urls[0],
            "BROKERHOUSE_SQL_USER": SQL_USER,
            "BROKERHOUSE_SQL_PASSWORD": SQL_PASSWORD,
        }

    def __call__(self, *arguments: str) -> str:
        """What a command prints; it must succeed."""
        return output("tables", *arguments, how=run, **self._variables)

    def refused(self, *arguments: str) -> str:
        """The sentence of a command that fails."""
        return complaint(1, "tables", *arguments, how=run, **self._variables)

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """The rows of every shard, one shard after the other."""
        return [row for engine in self._cluster.engines for row in engine.sql(statement)]

    def count(self, table: str) -> int:
        """The rows of a table; 0 while a shard does not answer or has no table."""
        try:
            return sum(row["n"] for row in self.sql(f"SELECT count() AS n FROM {table}"))
        except (SqlError, OSError):
            return 0

    def by_partition(self, table: str) -> Counter[int]:
        """How many rows each partition has, by the column `_partition`."""
        found = Counter[int]()
        try:
            for row in self.sql(f"SELECT _partition AS p, count() AS n FROM {table} GROUP BY p"):
                found[row["p"]] += row["n"]
        except (SqlError, OSError):
            return Counter()
        return found

    def feeders(self, feed: str) -> int:
        """How many processes have written the history of a feed."""
        rows = self.sql(f"SELECT DISTINCT feeder FROM table_feed_blocks WHERE feed = '{feed}'")
        return len({row["feeder"] for row in rows})

    def await_rows(self, table: str, count: int) -> None:
        """Wait until the shards have at least so many rows."""
        until(
            lambda: self.count(table) >= count,
            f"{table} has {count} rows",
            _WAIT_MAX_S,
            _ASK_EVERY_S,
        )

    def fed(self, feed: str) -> int:
        """How many records are in the table, or dead letters. -1 while a shard does not answer."""
        try:
            states = self.sql(
                "SELECT topic, partition, argMax(end_offset, version) AS next, max(version) AS v"
                f" FROM table_feed_blocks WHERE feed = '{feed}' AND phase = 'after'"
                " GROUP BY topic, partition"
            )
        except (SqlError, OSError):
            return -1
        newest: dict[tuple[str, int], tuple[int, int]] = {}
        for row in states:
            key = row["topic"], row["partition"]
            newest[key] = max(newest.get(key, (0, 0)), (row["v"], row["next"]))
        return sum(end for _, end in newest.values())

    def await_fed(self, feed: str, count: int) -> None:
        """Wait until so many records are in the table, or dead letters."""
        until(
            lambda: self.fed(feed) == count, f"{count} records are fed", _WAIT_MAX_S, _ASK_EVERY_S
        )

    def repeated(self, feed: str) -> int:
        """How many blocks more than one feeder has begun."""
        [row, *others] = self.sql(
            "SELECT count() AS n FROM (SELECT partition, first_offset FROM table_feed_blocks"
            f" WHERE feed = '{feed}' AND phase = 'before' GROUP BY ALL"
            " HAVING uniqExact(epoch) > 1)"
        )
        return int(row["n"]) + sum(int(one["n"]) for one in others)

    def await_members(self, bootstrap: str, feed: str, topic: str, partitions: int) -> list[str]:
        """Wait until the feed's group is stable and each partition has one member.

        Returns the clients of the members.
        """
        admin = AdminClient({"bootstrap.servers": bootstrap})
        group = f"feed-{feed}"
        wanted = [(topic, number) for number in range(partitions)]

        def described() -> ConsumerGroupDescription:
            [answer] = admin.describe_consumer_groups([group]).values()
            found: ConsumerGroupDescription = answer.result(_LIMIT_S)
            return found

        def is_stable() -> bool:
            found = described()
            assigned = [
                (one.topic, one.partition)
                for member in found.members
                for one in member.assignment.topic_partitions
            ]
            return found.state is ConsumerGroupState.STABLE and sorted(assigned) == wanted

        until(is_stable, f"group {group} has all partitions of {topic}", _WAIT_MAX_S, _ASK_EVERY_S)
        return [member.client_id for member in described().members]

    def await_lag(self, bootstrap: str, feed: str, topic: str, partitions: int) -> None:
        """Wait until the feed's group is at the end of every partition."""
        places = [TopicPartition(topic, number) for number in range(partitions)]

        def is_done() -> bool:
            asked = ConsumerGroupTopicPartitions(f"feed-{feed}", places)
            [answer] = admin.list_consumer_group_offsets([asked]).values()
            committed = {
                one.partition: one.offset for one in answer.result(_LIMIT_S).topic_partitions
            }
            return committed == {
                place.partition: consumer.get_watermark_offsets(place, _LIMIT_S)[1]
                for place in places
            }

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "of nobody"})
        admin = AdminClient({"bootstrap.servers": bootstrap})
        what = f"group feed-{feed} is at the end of {topic}"
        until(is_done, what, _WAIT_MAX_S, _ASK_EVERY_S)
        consumer.close()
