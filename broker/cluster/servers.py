"""Connections to the servers of a configured cluster, each server by itself.

Commands and migrations use ClickHouse's database `default`, so that they work before the databases
of brokerhouse exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from brokerhouse.broker.cluster.config import ClusterConfig
from brokerhouse.storage.clickhouse import ClickHouseServer, ConnectionSettings
from brokerhouse.storage.cluster_schema import Migrated, migrate_cluster
from brokerhouse.storage.cluster_sql import SHARD_DATABASE, ClusterLayout
from brokerhouse.storage.registry import ANSWER_LIMIT_MS, STATEMENT_LIMIT_MS, KeeperRegistry
from brokerhouse.storage.shards import AnyServer

MIGRATION_TIMEOUT_MS = 60_000
"""How long one statement may take: a new replica fetches its parts while its table is created."""


def layout(config: ClusterConfig) -> ClusterLayout:
    """How the tables of this cluster are created."""
    return ClusterLayout(config.name, config.replicated, config.distributed)


def single_servers(
    config: ClusterConfig, request_timeout_ms: int, lanes: int = 1, database: str = "default"
) -> dict[str, list[ClickHouseServer]]:
    """Every server by the name of its shard. They connect on first use; the caller closes them."""
    settings = ConnectionSettings(
        user=config.user,
        password=config.password.get_secret_value(),
        database=database,
        lanes=lanes,
        tls_ca=config.tls_ca,
        connect_timeout_ms=config.connect_timeout_ms,
        request_timeout_ms=request_timeout_ms,
    )
    return {
        shard.name: [ClickHouseServer(url, settings) for url in shard.replicas]
        for shard in config.shards
    }


def hear_together(
    servers: Mapping[str, list[ClickHouseServer]], others: Mapping[str, list[ClickHouseServer]]
) -> None:
    """Two sets of connections to the same servers: an answer on one shows that the server works."""
    for name, replicas in servers.items():
        for one, other in zip(replicas, others[name], strict=True):
            other.heard = one.heard


def registry_of(
    servers: Mapping[str, list[ClickHouseServer]],
    table: str = "registry",
    timeout_ms: int = ANSWER_LIMIT_MS,
) -> KeeperRegistry:
    """The registry of the cluster, or its `topic_registry`, through any of these servers.

    Who gives a call more time than brokers do gives each of its statements more.
    """
    everyone = [server for replicas in servers.values() for server in replicas]
    statement_ms = max(STATEMENT_LIMIT_MS, timeout_ms * STATEMENT_LIMIT_MS // ANSWER_LIMIT_MS)
    return KeeperRegistry(
        AnyServer(everyone, statement_ms), f"{SHARD_DATABASE}.{table}", timeout_ms
    )


@asynccontextmanager
async def opened(
    config: ClusterConfig, request_timeout_ms: int | None = None
) -> AsyncIterator[dict[str, list[ClickHouseServer]]]:
    """`single_servers`, closed on exit."""
    servers = single_servers(config, request_timeout_ms or config.request_timeout_ms)
    try:
        yield servers
    finally:
        for replicas in servers.values():
            for server in replicas:
                await server.close()


async def migrate(config: ClusterConfig) -> Migrated:
    """Bring the tables of all servers that answer up to this version.

    Safe from many brokers at once. Raises `SchemaError` and `EngineError`.
    """
    async with opened(config, MIGRATION_TIMEOUT_MS) as servers:
        registry = registry_of(servers, timeout_ms=config.request_timeout_ms)
        return await migrate_cluster(servers, layout(config), registry)
