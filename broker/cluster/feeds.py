"""A shard of a cluster as feeds use it, on a broker or in `brokerhouse feed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerhouse.broker.feeds.host import FeedStore
from brokerhouse.storage.clickhouse import ClickHouseServer
from brokerhouse.storage.row_lane import RowLane
from brokerhouse.storage.shard_session import ShardSession
from brokerhouse.storage.shards import Shard


def shard_store(
    shard: Shard,
    servers: Sequence[ClickHouseServer],
    rows: RowLane,
    expect_others: Callable[[], None] = lambda: None,
) -> FeedStore:
    """`servers`: of the shard. For the others see `FeedStore`."""
    return FeedStore(
        shard.name, shard, servers, shard, rows, lambda _: ShardSession(shard), expect_others
    )
