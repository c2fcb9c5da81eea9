"""How large a cluster must be for a load: by arithmetic, which the simulation then checks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bench.scaling_model import Assumed, Cluster, Costs, Load


def lane_seconds(
    costs: Costs, assumed: Assumed, cluster: Cluster, rows: int, record_bytes: int
) -> float:
    """How long one block takes on its lane when everything else is idle."""
    sent_bits = rows * record_bytes * costs.sent_per_byte * 8e-9
    keeper = assumed.keeper_writes_per_block / assumed.keeper_writes_per_s
    return (
        cluster.linger
        + costs.build.of(rows, record_bytes)
        + costs.loop_block / (1 - costs.idle_loop)
        + sent_bits * (1 / cluster.broker_gbit_s + 1 / cluster.shard_gbit_s)
        + costs.insert.of(rows, record_bytes)
        + keeper
        + assumed.keeper_round_trips * assumed.keeper_round_trip
        + assumed.quorum
        + assumed.round_trip
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Records per second that one lane, loop, shard and Keeper can take, each by itself."""

    lane: float
    loop: float
    shard: float
    keeper: float


def limits(
    costs: Costs, assumed: Assumed, cluster: Cluster, load: Load, rows_per_block: int
) -> Limits:
    """For blocks of so many rows."""
    size = load.record_bytes
    loop = costs.loop_batch.of(load.batch_records, size) / load.batch_records
    loop += costs.loop_block / rows_per_block
    shard = costs.insert.of(rows_per_block, size) + costs.after.of(rows_per_block, size)
    shard += assumed.merges_per_row * costs.merge.of(rows_per_block, size)
    keeper = assumed.keeper_writes_per_s - costs.idle_keeper_per_s * cluster.brokers
    return Limits(
        rows_per_block / lane_seconds(costs, assumed, cluster, rows_per_block, size),
        (1 - costs.idle_loop) / loop,
        (cluster.shard_cores - costs.idle_shard * cluster.brokers) * rows_per_block / shard,
        keeper / assumed.keeper_writes_per_block * rows_per_block
        if assumed.keeper_writes_per_block
        else float("inf"),
    )


class TooManyLanes(Exception):
    """Each added broker and shard makes blocks smaller, and costs as much as it adds."""


def size_for(
    costs: Costs, assumed: Assumed, load: Load, usual: Cluster, target: float = 0.6
) -> Cluster:
    """The smallest cluster that a rate uses to `target`, with as few lanes as possible.

    Raises `TooManyLanes`: use a longer linger then, or two clusters.
    """
    assert load.records_per_s is not None
    rate, brokers, shards = load.records_per_s, 1, 1
    bits = rate * load.record_bytes * (1 + costs.sent_per_byte) * 8e-9
    while max(brokers, shards) < _MOST:
        cluster = replace(usual, shards=shards, brokers=brokers, lanes=1)
        rows = _rows_per_block(costs, assumed, cluster, load)
        found = limits(costs, assumed, cluster, load, rows)
        need_brokers = max(rate / found.loop, bits / cluster.broker_gbit_s) / target
        need_shards = max(rate / found.shard, bits / cluster.shard_gbit_s) / target
        need_lanes = rate / _largest(costs, assumed, cluster, load) / target
        if brokers >= need_brokers and shards >= need_shards:
            return replace(cluster, lanes=max(1, math.ceil(need_lanes / (brokers * shards))))
        brokers += brokers < need_brokers
        shards += shards < need_shards
    raise TooManyLanes(f"blocks of {rows:,} rows over {brokers} x {shards}")


_MOST = 1_000


def _largest(costs: Costs, assumed: Assumed, cluster: Cluster, load: Load) -> float:
    """Records per second of a lane with full blocks."""
    rows = min(cluster.block_max_rows, cluster.block_max_bytes // load.record_bytes)
    return limits(costs, assumed, cluster, load, rows).lane


def _rows_per_block(costs: Costs, assumed: Assumed, cluster: Cluster, load: Load) -> int:
    """The size at which a block takes as long as the next one gathers: rate x seconds = rows."""
    assert load.records_per_s is not None
    lanes = cluster.brokers * cluster.shards * cluster.lanes
    most = min(cluster.block_max_rows, cluster.block_max_bytes // load.record_bytes)
    rows = load.batch_records
    for _ in range(50):
        seconds = lane_seconds(costs, assumed, cluster, rows, load.record_bytes)
        rows = min(max(int(load.records_per_s / lanes * seconds), load.batch_records), most)
    return rows
