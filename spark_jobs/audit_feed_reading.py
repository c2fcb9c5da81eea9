"""What the job `audit` reads of feeds: their history, and how many rows their tables have of each
block.

On a cluster, definitions, history and rows are spread over the shards: a feed is defined on any of
them, a partition whose slot has moved has its history on two. The history is read before the
tables, so that blocks which are completed meanwhile are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from brokerhouse.feeds.definition import BLOCK_COLUMN
from brokerhouse.feeds.tables import local_name
from brokerhouse.spark_jobs.audit_feeds import BLOCKS, STORED, feed_findings
from brokerhouse.spark_jobs.job import JobRun
from brokerhouse.spark_jobs.progress import counted
from brokerhouse.spark_jobs.queries import Query, answers, answers_of_shards
from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import Parameter

_HAS_HISTORY = (
    "SELECT toInt64(count()) FROM system.tables"
    " WHERE database = {database:String} AND name = 'table_feed_blocks'"
)
_OF_THE_JOB = "brokerhouse_feeds"
"""Where the job `feed` keeps its history: on the servers that have its tables."""
_COLUMNS = (
    "SELECT toInt64(count()), toInt64(countIf(name = {block:String})) FROM system.columns"
    " WHERE database = {database:String} AND table = {table:String}"
)


@dataclass(frozen=True, slots=True)
class _FedTable:
    """A feed, and the table that it fills; on a shard of a cluster the table has another name."""

    feed_id: str
    database: str
    table: str


@dataclass(frozen=True, slots=True)
class FeedAudit:
    """`findings`: as of `feed_findings`. `uncounted`: tables whose rows cannot be told by blocks:
    without the column of blocks, or where rows replace each other."""

    findings: DataFrame
    uncounted: Sequence[str]


def audit_feeds_of_brokers(run: JobRun, shards: Sequence[SqlServers]) -> FeedAudit | None:
    """None where there are no feeds."""
    shards = [one for one in shards if _has_history(one, one.database or "")]
    feeds = _defined(shards, run.topics)
    if not feeds:
        return None
    parameters: dict[str, Parameter] = {
        "topics": run.topics,
        "feeds": [feed.feed_id for feed in feeds],
    }
    of_blocks = [[Query(query("audit_feed_blocks"), parameters)]] * len(shards)
    spark = run.spark(len(feeds))
    history = answers_of_shards(spark, shards, of_blocks, BLOCKS).cache()
    run.progress.step(f"reading the blocks of {counted(len(feeds), 'feed')}")
    history.count()
    uncounted: set[str] = set()
    of_tables = []
    for servers in shards:
        there, without = _there(servers, feeds)
        of_tables.append([_rows_query(one) for one in there])
        uncounted |= without
    stored = answers_of_shards(spark, shards, of_tables, STORED)
    names = {feed.feed_id: f"{feed.database}.{feed.table}" for feed in feeds}
    return FeedAudit(
        feed_findings(history, stored, uncounted), sorted(names[one] for one in uncounted)
    )


def audit_feeds_of_the_job(run: JobRun, servers: SqlServers) -> FeedAudit | None:
    """The feeds of the Spark job `feed` on these servers; None where there are none."""
    if not _has_history(servers, _OF_THE_JOB):
        return None
    topics: dict[str, Parameter] = {"topics": run.topics}
    rows = servers.rows(query("audit_spark_feed_tables"), topics)
    if not rows:
        return None
    spark = run.spark(len(rows))
    of_blocks = [Query(query("audit_spark_feed_blocks"), topics)]
    history = answers(spark, servers, of_blocks, BLOCKS).cache()
    run.progress.step(f"reading the blocks of {counted(len(rows), 'feed')} of the job feed")
    history.count()
    tables = [_FedTable(*row) for row in rows]
    of_tables = [_rows_query(one) for one in tables]
    uncounted = [one for one in tables if _replaces(servers, one.database, one.table)]
    stored = answers(spark, servers, of_tables, STORED)
    return FeedAudit(
        feed_findings(history, stored, [one.feed_id for one in uncounted]),
        sorted(f"{one.database}.{one.table}" for one in uncounted),
    )


def _has_history(servers: SqlServers, database: str) -> bool:
    return bool(servers.rows(_HAS_HISTORY, {"database": database})[0][0])


def _defined(shards: Iterable[SqlServers], topics: str) -> list[_FedTable]:
    """The feeds of these topics. Shards may have different versions: the highest wins."""
    parameters: dict[str, Parameter] = {"topics": topics}
    newest: dict[str, Sequence[Any]] = {}
    for servers in shards:
        for name, version, *rest in servers.rows(query("audit_feed_tables"), parameters):
            if name not in newest or version > newest[name][0]:
                newest[name] = (version, *rest)
    return [
        _FedTable(feed_id, database, table)
        for _, feed_id, database, table, status, is_selected in newest.values()
        if status != "dropped" and is_selected
    ]


def _there(
    servers: SqlServers, feeds: Iterable[_FedTable]
) -> tuple[Collection[_FedTable], set[str]]:
    """Those tables of feeds whose rows can be counted there, and ids of feeds of which they cannot.

    A table that does not exist has no rows; a router has no table.
    """
    found, uncounted = [], set()
    for feed in feeds:
        is_shard = servers.database == SHARD_DATABASE
        table = local_name(feed.table) if is_shard else feed.table
        names: dict[str, Parameter] = {
            "database": feed.database,
            "table": table,
            "block": BLOCK_COLUMN,
        }
        ((columns, block),) = servers.rows(_COLUMNS, names)
        if block and not _replaces(servers, feed.database, table):
            found.append(_FedTable(feed.feed_id, feed.database, table))
        elif columns:
            uncounted.add(feed.feed_id)
    return found, uncounted


def _replaces(servers: SqlServers, database: str, table: str) -> bool:
    found = servers.rows(query("table_replaces_rows"), {"database": database, "table": table})
    return found == [[1]]


def _rows_query(one: _FedTable) -> Query:
    return Query(
        query("audit_feed_rows"),
        {"feed_id": one.feed_id, "database": one.database, "table": one.table},
    )
