"""The model of docs/scaling.md agrees with arithmetic where arithmetic is possible."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bench.scaling import read_costs
from bench.scaling_limits import TooManyLanes, lane_seconds, limits, size_for
from bench.scaling_model import (
    KEEPER,
    LANES,
    LOOP,
    PRODUCERS,
    SHARD_CORES,
    Assumed,
    Cluster,
    Costs,
    Linear,
    Load,
    simulate,
)

COSTS = Costs(
    loop_batch=Linear(50e-6, 0.0, 1e-9),
    loop_block=1e-3,
    build=Linear(0.0, 0.1e-6, 1e-9),
    insert=Linear(5e-3, 0.5e-6, 5e-9),
    after=Linear(),
    merge=Linear(1e-3, 0.2e-6, 1e-9),
    sent_per_byte=1.0,
    stored_per_byte=0.5,
)
LOAD = Load(100, 1_000, partitions=64, in_flight=10)


def test_one_lane_with_full_blocks_takes_what_the_formula_says() -> None:
    cluster = Cluster(lanes=1, block_max_rows=10_000)
    load = Load(100, 1_000, partitions=1, in_flight=100)
    found = simulate(COSTS, Assumed(), cluster, load)
    assert found.rows_per_block == pytest.approx(10_000, rel=0.01)
    expected = 10_000 / lane_seconds(COSTS, Assumed(), cluster, 10_000, 100)
    assert found.records_per_s == pytest.approx(expected, rel=0.05)
    assert found.bottleneck == LANES


def on_paper(costs: Costs, assumed: Assumed, cluster: Cluster, load: Load) -> float:
    """Records per second when producers send as fast as they are answered: the lowest limit.

    Half of what is in flight on a lane is in its block, the other half waits for the next one.
    """
    lanes = cluster.lanes * cluster.brokers * cluster.shards
    rows = max(load.partitions * load.in_flight // lanes // 2, 1) * load.batch_records
    rows = min(rows, cluster.block_max_rows, cluster.block_max_bytes // load.record_bytes)
    each = limits(costs, assumed, cluster, load, rows)
    return min(
        lanes * each.lane, cluster.brokers * each.loop, cluster.shards * each.shard, each.keeper
    )


@pytest.mark.parametrize(("shards", "brokers"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_arithmetic_and_simulation_agree_where_one_resource_limits(
    shards: int, brokers: int
) -> None:
    cluster = Cluster(shards, brokers)
    load = Load(100, 1_000, partitions=8 * shards * brokers, in_flight=10)
    found = simulate(COSTS, Assumed(), cluster, load)
    assert found.records_per_s == pytest.approx(on_paper(COSTS, Assumed(), cluster, load), rel=0.25)


def test_a_lone_record_waits_for_its_request_and_its_block() -> None:
    load = Load(100, 1, partitions=1, in_flight=1)
    found = simulate(COSTS, Assumed(), Cluster(), load, 200)
    waits = lane_seconds(COSTS, Assumed(), Cluster(), 1, 100)
    waits += COSTS.loop_batch.of(1, 100) + Assumed().round_trip
    assert found.p50_ms == pytest.approx(waits * 1e3, rel=0.01)
    assert found.p99_ms == pytest.approx(waits * 1e3, rel=0.01)


@pytest.mark.parametrize(
    ("name", "costs", "assumed", "cluster"),
    [
        (LOOP, replace(COSTS, loop_batch=Linear(5e-3)), Assumed(), Cluster(lanes=8)),
        (SHARD_CORES, COSTS, Assumed(), Cluster(lanes=16, shard_cores=2)),
        (KEEPER, COSTS, Assumed(keeper_writes_per_s=100.0), Cluster(lanes=8)),
        (LANES, COSTS, Assumed(quorum=0.5), Cluster(lanes=2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_scarce_resource_is_the_bottleneck(
    name: str, costs: Costs, assumed: Assumed, cluster: Cluster
) -> None:
    assert simulate(costs, assumed, cluster, LOAD).bottleneck == name


def test_a_small_load_is_limited_by_its_producers() -> None:
    found = simulate(COSTS, Assumed(), Cluster(), replace(LOAD, records_per_s=20_000), 500)
    assert found.bottleneck == PRODUCERS
    assert found.records_per_s == pytest.approx(20_000, rel=0.2)


def test_more_shards_and_more_brokers_never_make_it_slower() -> None:
    for wider in (
        [Cluster(shards=shards) for shards in (1, 2, 4)],
        [Cluster(brokers=brokers) for brokers in (1, 2, 4)],
    ):
        found = [simulate(COSTS, Assumed(), cluster, LOAD).records_per_s for cluster in wider]
        assert all(more >= fewer * 0.98 for fewer, more in pairwise(found)), found


def test_a_second_broker_doubles_what_a_busy_loop_can_take() -> None:
    costs = replace(COSTS, loop_block=50e-3)
    one, two = (simulate(costs, Assumed(), Cluster(brokers=n, lanes=8), LOAD) for n in (1, 2))
    assert one.bottleneck == LOOP
    assert two.blocks_per_s == pytest.approx(2 * one.blocks_per_s, rel=0.1)


def test_when_keeper_is_the_limit_more_lanes_only_make_smaller_blocks() -> None:
    assumed = Assumed(keeper_writes_per_s=200.0)
    few, many = (simulate(COSTS, assumed, Cluster(lanes=lanes), LOAD) for lanes in (4, 16))
    assert (few.bottleneck, many.bottleneck) == (KEEPER, KEEPER)
    assert many.blocks_per_s == pytest.approx(few.blocks_per_s, rel=0.05)
    assert many.rows_per_block < few.rows_per_block


def test_no_resource_is_used_above_100_percent() -> None:
    for cluster in (Cluster(), Cluster(2, 2, lanes=8), Cluster(lanes=16, shard_cores=2)):
        used = simulate(COSTS, Assumed(), cluster, LOAD).used
        assert max(used.values()) <= 1.001, used


def test_a_sized_cluster_has_room_left_at_its_load() -> None:
    load = Load(100, 1_000, partitions=256, records_per_s=2_000_000)
    cluster = size_for(COSTS, Assumed(), load, Cluster(linger=0.1))
    found = simulate(COSTS, Assumed(), cluster, load, 6_000)
    assert found.records_per_s == pytest.approx(2_000_000, rel=0.1)
    assert max(found.used[LOOP], found.used[SHARD_CORES]) < 0.75
    assert found.p99_ms < 1_000


def test_too_many_lanes_are_an_error() -> None:
    costs = replace(COSTS, after=Linear(1.0))
    with pytest.raises(TooManyLanes):
        size_for(costs, Assumed(), replace(LOAD, records_per_s=1e7), Cluster())


def test_the_measured_costs_are_plausible() -> None:
    costs = read_costs()
    for cost in (costs.loop_batch, costs.build, costs.insert, costs.merge):
        assert min(cost.fixed, cost.record, cost.byte) >= 0
        assert cost.of(1_000, 100) > 0
    found = limits(costs, Assumed(), Cluster(), Load(100, 1_000, 1), 10_000)
    assert 0 < found.lane < found.shard
