"""The one "directory" of a broker, as DescribeLogDirs and AlterReplicaLogDirs know it."""

from __future__ import annotations

from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.log.topic import Topic

_SHARDS = "clickhouse"


def log_dir_name(ctx: RequestContext) -> str:
    """The data directory; in a cluster a word that stands for the ClickHouse servers."""
    directory = ctx.broker.data_dir
    return _SHARDS if directory is None else str(directory)


def leads(ctx: RequestContext, topic: Topic, index: int) -> bool:
    """Whether this broker leads the partition, and so has its only replica."""
    leader = ctx.broker.leadership.leader(topic.topic_id, index)
    return leader.node_id == ctx.broker.node_id
