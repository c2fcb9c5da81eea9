"""A shard of a cluster as feeds use it, on a broker or in `brokerhouse feed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.feeds.host import FeedStore
from storage.clickhouse import ClickHouseServer
from storage.row_lane import RowLane
from storage.shard_session import ShardSession
from storage.shards import Shard


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
