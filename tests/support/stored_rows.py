"""Rows put into the tables directly, with times of the test's choosing.

The code under test finds records, topics and checkpoints as a broker would have left them.
"""

from __future__ import annotations

from uuid import UUID

from brokerhouse.storage.engine import Engine


async def store_records(
    engine: Engine,
    topic: str,
    topic_id: UUID,
    *,
    append_time_ms: int,
    timestamp_ms: int = 0,
    partition: int = 0,
    first: int = 0,
    count: int = 1,
    value_bytes: int = 5,
) -> None:
    """`count` records from offset `first` on, without keys, with random values of one size."""
    await engine.execute(
        "INSERT INTO messages (topic, topic_id, partition, offset, timestamp_ms, value,"
        " append_time) SELECT {topic:String}, {id:UUID}, {partition:Int32}, {first:Int64} + number,"
        " {timestamp:Int64}, randomString({size:UInt64}),"
        " fromUnixTimestamp64Milli({appended:Int64}, 'UTC') FROM numbers({count:UInt64})",
        {
            "topic": topic,
            "id": str(topic_id),
            "partition": partition,
            "first": first,
            "timestamp": timestamp_ms,
            "size": value_bytes,
            "appended": append_time_ms,
            "count": count,
        },
    )


async def store_topic(
    engine: Engine,
    name: str,
    topic_id: UUID,
    partitions: int = 1,
    *,
    version: int = 1,
    state: str = "live",
) -> None:
    """A version of a topic without configs; a topic that is deleted has a later one, `deleting`."""
    await engine.execute(
        "INSERT INTO topic_versions (topic_id, version, name, partitions, configs, state)"
        " SELECT {id:UUID}, {version:UInt64}, {name:String}, {partitions:Int32}, map(),"
        " {state:String}",
        {
            "id": str(topic_id),
            "version": version,
            "name": name,
            "partitions": partitions,
            "state": state,
        },
    )


async def store_minute(
    engine: Engine,
    topic: str,
    topic_id: UUID,
    minute_ms: int,
    *,
    partition: int = 0,
    records: int = 0,
    size_bytes: int = 0,
    first: int = 0,
    last: int = -1,
) -> None:
    """The counts of a partition in the minute that begins at `minute_ms`."""
    await engine.execute(
        "INSERT INTO partition_minutes SELECT {topic:String}, {id:UUID}, {partition:Int32},"
        " toDateTime({minute:Int64}, 'UTC'), {records:UInt64}, {bytes:UInt64}, {first:Int64},"
        " {last:Int64}, now64(3), now64(3)",
        {
            "topic": topic,
            "id": str(topic_id),
            "partition": partition,
            "minute": minute_ms // 1000,
            "records": records,
            "bytes": size_bytes,
            "first": first,
            "last": last,
        },
    )
