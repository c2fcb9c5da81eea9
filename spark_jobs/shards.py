"""Which servers have which rows: all rows behind a single broker, or those of one shard each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from brokerhouse.spark_jobs.sql_client import (
    SqlCredentials,
    SqlFailure,
    SqlRefused,
    SqlServers,
    SqlUnavailable,
)
from brokerhouse.sql.queries import query
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import DATABASE
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.slot_map import SlotMap

SLOTS_KEY = "slots"
"""The registry's key of the slot map: storage/slot_map.py."""


def find_shards(urls: Iterable[str], login: SqlCredentials) -> tuple[SqlServers, ...]:
    """For each shard its servers, the most up to date first; together they have the whole log.

    Where the named servers do not reach every shard, ClickHouse's own Distributed tables are read:
    the answer is then one group of servers. Raises SqlFailure when none of the servers answers, or
    when they cannot show the whole log.
    """
    of_whole: list[str] = []
    of_shard: dict[str, list[tuple[int, str]]] = defaultdict(list)
    unavailable: list[SqlUnavailable] = []
    databases = {"whole": DATABASE, "shard": SHARD_DATABASE}
    for url in urls:
        try:
            ((has_whole, has_shard),) = _once(url, login, query("databases_of_server"), databases)
            if has_shard:
                ((shard, delay_s),) = _once(
                    url, login, query("shard_of_server"), {"shard": SHARD_DATABASE}
                )
                of_shard[shard].append((delay_s or 0, url))
        except SqlUnavailable as error:
            unavailable.append(error)
            continue
        if has_whole:
            of_whole.append(url)
    if not of_whole and not of_shard:
        if unavailable:
            raise SqlUnavailable("; ".join(str(error) for error in unavailable))
        raise SqlRefused(f"there is no database {DATABASE} on {', '.join(urls)}")
    shards = _shard_count(of_shard, login, needed=not of_whole) if of_shard else 0
    if of_shard and len(of_shard) == shards:
        return tuple(
            SqlServers(tuple(url for _, url in sorted(servers)), login, SHARD_DATABASE)
            for _, servers in sorted(of_shard.items())
        )
    if of_whole:
        return (SqlServers(tuple(of_whole), login, DATABASE),)
    unknown = f" ({'; '.join(str(error) for error in unavailable)})" if unavailable else ""
    raise SqlUnavailable(
        f"the servers reach {len(of_shard)} of the cluster's {shards} shards:"
        f" name one of each{unknown}"
    )


def _once(
    url: str, login: SqlCredentials, sql: str, parameters: Mapping[str, str]
) -> list[list[Any]]:
    """Without retries: a server that does not answer is left out."""
    return [
        list(row.values())
        for batch in SqlServers((url,), login).stream(url, sql, parameters)
        for row in batch.to_pylist()
    ]


def _shard_count(
    of_shard: Mapping[str, list[tuple[int, str]]], login: SqlCredentials, *, needed: bool
) -> int:
    """How many shards of the cluster have rows, or may have; 0 where that cannot be known."""
    urls = tuple(url for servers in of_shard.values() for _, url in servers)
    servers = SqlServers(urls, login, SHARD_DATABASE)
    # In the registry, the marks of the brokers that wrote a value stand before its text.
    sql = "SELECT substring(value, position(value, '{')) FROM registry WHERE key = {key:String}"
    try:
        stored = servers.rows(sql, {"key": SLOTS_KEY})
    except SqlRefused:  # a user who may read rows need not have the right to read this table
        if needed:
            raise
        return 0
    if not stored:
        return 0
    try:
        slot_map = SlotMap.from_text(stored[0][0])
    except MalformedState as error:
        raise SqlFailure(f"the slot map in the registry is malformed: {error}") from error
    return len({shard for slot in slot_map.slots for shard in slot.shards})
