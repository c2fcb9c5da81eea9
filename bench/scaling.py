"""`make bench-scaling`: how much a cluster of several machines could take, by simulation.

The simulation is in scaling_model.py, the same by arithmetic in scaling_limits.py. Costs come from
`scaling.toml`, which `python -m bench.scaling_inputs` measures. Prints Markdown tables;
docs/scaling.md explains them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.scaling_costs import INPUTS, costs_of, read_inputs
from bench.scaling_limits import limits, on_paper, size_for
from bench.scaling_model import (
    KEEPER,
    LOOP,
    ON_ONE_MACHINE,
    PRODUCERS,
    SHARD_CORES,
    Assumed,
    Cluster,
    Costs,
    Linear,
    Load,
    Result,
    simulate,
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--inputs", type=Path, default=INPUTS, help="the measured costs")
    options = parser.parse_args()
    inputs = read_inputs(options.inputs)
    costs = costs_of(inputs)
    print(f"Costs measured on {inputs['machine']}, {inputs['day']}", flush=True)
    _print_costs(costs)
    _print_against_measured(costs, inputs)
    _print_limits(costs)
    _print_partition(costs)
    for lanes, linger in ((2, 0.0), (8, 0.0)):
        _print_grid(costs, lanes, linger)
    _print_sensitivity(costs)
    _print_ten_million(costs)


def _print_costs(costs: Costs) -> None:
    print("\n| cost, one core | at once | each record | each KB |")
    print("|---|---:|---:|---:|")
    for what, cost in (
        ("event loop, a batch in a request of its own", costs.loop_batch),
        ("event loop, a block", Linear(costs.loop_block)),
        ("lane's thread and compression, a block", costs.build),
        ("engine, an insert until it is answered", costs.insert),
        ("engine, an insert after that", costs.after),
        ("engine, merging its rows once", costs.merge),
    ):
        print(
            f"| {what} | {cost.fixed * 1e3:.3f} ms | {cost.record * 1e6:.2f} us |"
            f" {cost.byte * 1e9:.2f} us |"
        )
    print(
        f"\nIdle, for each broker: {costs.idle_loop:.3f} of its loop, {costs.idle_shard:.3f} cores"
        f" of each shard, {costs.idle_keeper_per_s:.0f} Keeper requests/s. On the wire"
        f" {costs.sent_per_byte:.2f} bytes for each byte of 100 B records, on disk"
        f" {costs.stored_per_byte:.2f}.",
        flush=True,
    )


def _print_against_measured(costs: Costs, inputs: Mapping[str, Any]) -> None:
    print("\n| on the one machine | cores left | measured records/s | simulated | error |")
    print("|---|---:|---:|---:|---:|")
    for row in inputs["produced"]:
        cluster = Cluster(
            shards=row["shards"],
            lanes=row["lanes"] // row["shards"],
            shared_cores=row["cores_left"],
            broker_gbit_s=1e3,
            shard_gbit_s=1e3,
        )
        # librdkafka without idempotence has all of its queue, a million records, in flight.
        waiting = max(1_000_000 // row["batch_records"] // row["lanes"], 1)
        in_flight = min(waiting, 100 << 20 // (row["batch_records"] * row["record_bytes"]), 2_000)
        load = Load(row["record_bytes"], row["batch_records"], row["lanes"], max(in_flight, 1))
        found = simulate(costs, ON_ONE_MACHINE, cluster, load, 1_000)
        error = found.records_per_s / row["records_per_s"] - 1
        print(
            f"| {row['what']}, {row['record_bytes']} B | {row['cores_left']:.2f} |"
            f" {row['records_per_s']:,.0f} | {found.records_per_s:,.0f} | {error:+.0%} |",
            flush=True,
        )


def _print_limits(costs: Costs) -> None:
    print("\n| record, batch | rows in a block | a lane | a broker's loop | a shard | Keeper |")
    print("|---|---:|---:|---:|---:|---:|")
    for size, batch in _BATCHES:
        for rows in (1_000, 10_000, min(65_536, (16 << 20) // size)):
            if rows >= batch:
                found = limits(costs, Assumed(), Cluster(), Load(size, batch, 1), rows)
                each = (found.lane, found.loop, found.shard, found.keeper)
                cells = " | ".join(map(_rounded, each))
                print(f"| {_size(size)}, {batch:,} | {rows:,} | {cells} |")
    print(end="", flush=True)


_BATCHES = ((100, 160), (100, 1_000), (1000, 16), (1000, 100))


def _rounded(number: float) -> str:
    """To two digits: the model is not more exact than that."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _size(record_bytes: int) -> str:
    return f"{record_bytes} B" if record_bytes < 1000 else f"{record_bytes // 1000} KB"


_HEAD = (
    "| records/s | p50 ms | p99 ms | blocks/s | rows in one | bound by | loop | shard | Keeper |\n"
)


def _cells(full: Result, calm: Result) -> str:
    return (
        f"{_rounded(full.records_per_s)} | {calm.p50_ms:.0f} | {calm.p99_ms:.0f} |"
        f" {full.blocks_per_s:,.0f} | {full.rows_per_block:,.0f} | {full.bottleneck} |"
        f" {full.used[LOOP]:.0%} | {full.used[SHARD_CORES]:.0%} | {full.used[KEEPER]:.0%} |"
    )


def _full_and_calm(
    costs: Costs, assumed: Assumed, cluster: Cluster, load: Load
) -> tuple[Result, Result]:
    """A run at full speed, and one at half of its rate, for the latency."""
    full = simulate(costs, assumed, cluster, load)
    half = replace(load, records_per_s=full.records_per_s / 2)
    return full, simulate(costs, assumed, cluster, half)


def _print_partition(costs: Costs) -> None:
    print("\n| one partition: record, batch, in flight " + _HEAD + "|---" + "|---:" * 9 + "|")
    for size, batch in _BATCHES:
        for in_flight in (5, 100):
            load = Load(size, batch, 1, in_flight)
            both = _full_and_calm(costs, Assumed(), Cluster(), load)
            print(f"| {_size(size)}, {batch:,}, {in_flight} | {_cells(*both)}", flush=True)


def _print_grid(costs: Costs, lanes: int, linger: float) -> None:
    print(f"\n`lanes = {lanes}`, `linger_ms = {linger * 1e3:.0f}`\n")
    print("| record | shards x brokers | on paper " + _HEAD + "|---" * 2 + "|---:" * 10 + "|")
    for size, batch in ((100, 1_000), (1000, 100)):
        for shards in (1, 2, 4):
            for brokers in (1, 2, 4):
                cluster = Cluster(shards, brokers, lanes, linger)
                load = Load(size, batch, 4 * shards * brokers * lanes, 10)
                paper = _rounded(on_paper(costs, Assumed(), cluster, load))
                cells = _cells(*_full_and_calm(costs, Assumed(), cluster, load))
                print(f"| {_size(size)} | {shards} x {brokers} | {paper} | {cells}", flush=True)


def _print_sensitivity(costs: Costs) -> None:
    print("\n| 2 shards x 2 brokers, 2 lanes, 100 B: if " + _HEAD + "|---" + "|---:" * 9 + "|")
    usual, full = Assumed(), Load(100, 1_000, 32, 10)
    for what, assumed, load in (
        ("nothing else", usual, full),
        ("quorum takes 1 ms", replace(usual, quorum=0.001), full),
        ("quorum takes 20 ms", replace(usual, quorum=0.02), full),
        ("quorum takes 100 ms", replace(usual, quorum=0.1), full),
        ("Keeper takes 10 ms to answer", replace(usual, keeper_round_trip=0.01), full),
        ("Keeper takes 1,000 writes/s", replace(usual, keeper_writes_per_s=1_000.0), full),
        ("rows are merged 6 times", replace(usual, merges_per_row=6), full),
        ("batches hold 160 records, 60 in flight", usual, Load(100, 160, 32, 60)),
        ("5 in flight", usual, replace(full, in_flight=5)),
    ):
        found = _full_and_calm(costs, assumed, Cluster(2, 2, 2), load)
        print(f"| {what} | {_cells(*found)}", flush=True)


TEN_MILLION = 10_000_000.0


@dataclass(frozen=True, slots=True)
class _Scenario:
    """`clusters`: how many clusters share the load, each with its own Keeper."""

    name: str
    record_bytes: int
    batch_records: int
    linger: float
    block_max_bytes: int = 16 << 20
    clusters: int = 1


_SCENARIOS = (
    _Scenario("100 B, 1,000 in a batch", 100, 1_000, 0.2),
    _Scenario("the same at once", 100, 1_000, 0.0),
    _Scenario("100 B, 160 in a batch", 100, 160, 0.2),
    _Scenario("1 KB, 500 in a batch", 1000, 500, 1.0, 64 << 20),
    _Scenario("the same, each of 4 clusters", 1000, 500, 0.2, 64 << 20, 4),
)


def _print_ten_million(costs: Costs) -> None:
    print("\n| 10,000,000 records/s | " + " | ".join(each.name for each in _SCENARIOS) + " |")
    print("|---" + "|---:" * len(_SCENARIOS) + "|")
    columns = [_scenario(costs, each) for each in _SCENARIOS]
    for row in zip(*columns, strict=True):
        print("| " + row[0][0] + " | " + " | ".join(value for _, value in row) + " |", flush=True)


def _scenario(costs: Costs, wanted: _Scenario) -> list[tuple[str, str]]:
    assumed = Assumed()
    rate = TEN_MILLION / wanted.clusters
    load = Load(wanted.record_bytes, wanted.batch_records, 1, records_per_s=rate)
    usual = Cluster(linger=wanted.linger, block_max_bytes=wanted.block_max_bytes)
    cluster = size_for(costs, assumed, load, usual)
    lanes = cluster.brokers * cluster.shards * cluster.lanes
    batches = int((2.0 + 8 * wanted.linger) * rate / wanted.batch_records)
    found = simulate(costs, assumed, cluster, replace(load, partitions=4 * lanes), batches)
    mb_s = rate * wanted.record_bytes / 1e6
    wire = mb_s * costs.sent_per_byte
    disk = mb_s * costs.stored_per_byte
    return [
        ("linger_ms", f"{wanted.linger * 1e3:.0f}"),
        ("block_max_bytes", f"{wanted.block_max_bytes >> 20} MiB"),
        ("lanes, of each broker on each shard", f"{cluster.lanes}"),
        ("brokers of 8 cores", f"{cluster.brokers}"),
        ("shards of 16 cores, two replicas each", f"{cluster.shards}"),
        ("cores of all", f"{cluster.brokers * 8 + cluster.shards * 2 * 16}"),
        ("partitions, four for each lane", f"{4 * lanes}"),
        ("records/s simulated", _rounded(found.records_per_s)),
        ("p50, p99 ms", f"{found.p50_ms:.0f}, {found.p99_ms:.0f}"),
        ("blocks/s, rows in one", f"{found.blocks_per_s:,.0f}, {found.rows_per_block:,.0f}"),
        ("blocks/s on a shard", f"{found.blocks_per_s / cluster.shards:.1f}"),
        ("busiest loop, shard", f"{found.used[LOOP]:.0%}, {found.used[SHARD_CORES]:.0%}"),
        ("Keeper writes/s", _rounded(found.blocks_per_s * assumed.keeper_writes_per_block)),
        ("Keeper, at 5,000 writes/s", f"{found.used[KEEPER]:.0%}"),
        ("bound by", found.bottleneck if found.bottleneck != PRODUCERS else "nothing"),
        (
            "in flight on a broker, MB",
            f"{mb_s / cluster.brokers * found.p50_ms / 1e3:,.0f}",
        ),
        ("into a broker, Gbit/s", f"{mb_s * 8e-3 / cluster.brokers:.1f}"),
        ("into a shard's first replica, Gbit/s", f"{wire * 8e-3 / cluster.shards:.1f}"),
        ("new on each replica's disk, MB/s", f"{disk / cluster.shards:.0f}"),
        (
            "written to it with merges, MB/s",
            f"{disk / cluster.shards * (1 + assumed.merges_per_row):.0f}",
        ),
        ("TB a day on all disks", f"{2 * disk * 86_400 / 1e6:.0f}"),
    ]


if __name__ == "__main__":
    main()
