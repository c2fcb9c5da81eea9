"""`make bench-scaling`: how much a cluster of several machines could take, by simulation.

The simulation is in scaling_model.py. scaling_limits.py works out how large a cluster must be.
Costs come from scaling.toml. Prints the Markdown tables of docs/scaling.md, which explains them.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from bench.scaling_limits import size_for
from bench.scaling_model import (
    KEEPER,
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

COSTS = Path(__file__).with_name("scaling.toml")


def read_costs(path: Path = COSTS) -> Costs:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return Costs(
        loop_batch=Linear(**table["loop_batch"]),
        loop_block=table["loop_block"],
        build=Linear(**table["build"]),
        insert=Linear(**table["insert"]),
        after=Linear(**table["after"]),
        merge=Linear(**table["merge"]),
        sent_per_byte=table["sent_per_byte"],
        stored_per_byte=table["stored_per_byte"],
        idle_loop=table["idle"]["loop_cores"],
        idle_shard=table["idle"]["shard_cores"],
        idle_keeper_per_s=table["idle"]["keeper_requests_per_s"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--costs", type=Path, default=COSTS, help="the measured costs")
    parser.add_argument("--only", choices=_TABLES, help="print one table")
    options = parser.parse_args()
    costs = read_costs(options.costs)
    for name, print_table in _TABLES.items():
        if options.only in (name, None):
            print_table(costs)


def _rounded(number: float) -> str:
    """To two digits: the model is not more exact than that."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _size(record_bytes: int) -> str:
    return f"{record_bytes} B" if record_bytes < 1000 else f"{record_bytes // 1000} KB"


_HEAD = "records/s | p50 ms | p99 ms | rows in a block | bound by | loop | shard | Keeper |"
_RULE = "|---" + "|---:" * 8 + "|"


def _cells(costs: Costs, assumed: Assumed, cluster: Cluster, load: Load) -> str:
    """A run at full speed, and the latency at half of its records/s."""
    full = simulate(costs, assumed, cluster, load)
    calm = simulate(costs, assumed, cluster, replace(load, records_per_s=full.records_per_s / 2))
    return (
        f"{_rounded(full.records_per_s)} | {calm.p50_ms:.0f} | {calm.p99_ms:.0f} |"
        f" {full.rows_per_block:,.0f} | {full.bottleneck} |"
        f" {full.used[LOOP]:.0%} | {full.used[SHARD_CORES]:.0%} | {full.used[KEEPER]:.0%} |"
    )


def _print_partition(costs: Costs) -> None:
    print(f"\n| one partition: record, batch, in flight | {_HEAD}\n{_RULE}")
    for size, batch in ((100, 160), (100, 1_000), (1000, 16), (1000, 100)):
        for in_flight in (5, 100):
            cells = _cells(costs, Assumed(), Cluster(), Load(size, batch, 1, in_flight))
            print(f"| {_size(size)}, {batch:,}, {in_flight} | {cells}", flush=True)


def _print_grid(costs: Costs) -> None:
    print(f"\n| record, shards x brokers | {_HEAD} with 8 lanes | bound by |\n{_RULE}---:|---:|")
    for size, batch in ((100, 1_000), (1000, 100)):
        for shards in (1, 2, 4):
            for brokers in (1, 2, 4):
                few, many = (Cluster(shards, brokers, lanes) for lanes in (2, 8))
                load = Load(size, batch, 4 * shards * brokers * few.lanes, 10)
                cells = _cells(costs, Assumed(), few, load)
                load = replace(load, partitions=4 * shards * brokers * many.lanes)
                found = simulate(costs, Assumed(), many, load)
                print(
                    f"| {_size(size)}, {shards} x {brokers} | {cells}"
                    f" {_rounded(found.records_per_s)} | {found.bottleneck} |",
                    flush=True,
                )


def _print_sensitivity(costs: Costs) -> None:
    print(f"\n| 2 shards x 2 brokers, 2 lanes, 100 B: if | {_HEAD}\n{_RULE}")
    usual, full = Assumed(), Load(100, 1_000, 32, 10)
    for what, assumed, load in (
        ("nothing else", usual, full),
        ("quorum takes 20 ms", replace(usual, quorum=0.02), full),
        ("quorum takes 100 ms", replace(usual, quorum=0.1), full),
        ("Keeper takes 10 ms to answer", replace(usual, keeper_round_trip=0.01), full),
        ("Keeper takes 1,000 writes/s", replace(usual, keeper_writes_per_s=1_000.0), full),
        ("rows are merged 6 times", replace(usual, merges_per_row=6), full),
        ("batches hold 160 records, 60 in flight", usual, Load(100, 160, 32, 60)),
        ("5 in flight", usual, replace(full, in_flight=5)),
    ):
        print(f"| {what} | {_cells(costs, assumed, Cluster(2, 2, 2), load)}", flush=True)


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
    written = disk / cluster.shards * (1 + assumed.merges_per_row)
    return [
        ("linger_ms", f"{wanted.linger * 1e3:.0f}"),
        ("block_max_bytes", f"{wanted.block_max_bytes >> 20} MiB"),
        ("lanes, of each broker on each shard", f"{cluster.lanes}"),
        ("brokers of 8 cores", f"{cluster.brokers}"),
        ("shards of 16 cores, two replicas each", f"{cluster.shards}"),
        ("cores of all", f"{cluster.brokers * 8 + cluster.shards * 2 * 16}"),
        ("partitions, four for each lane", f"{4 * lanes}"),
        ("p50, p99 ms", f"{found.p50_ms:.0f}, {found.p99_ms:.0f}"),
        ("blocks/s, rows in one", f"{found.blocks_per_s:,.0f}, {found.rows_per_block:,.0f}"),
        ("busiest loop, shard", f"{found.used[LOOP]:.0%}, {found.used[SHARD_CORES]:.0%}"),
        ("Keeper, at 5,000 writes/s", f"{found.used[KEEPER]:.0%}"),
        ("bound by", found.bottleneck if found.bottleneck != PRODUCERS else "nothing"),
        ("in flight on a broker, MB", f"{mb_s / cluster.brokers * found.p50_ms / 1e3:,.0f}"),
        ("into a broker, Gbit/s", f"{mb_s * 8e-3 / cluster.brokers:.1f}"),
        ("into a shard's first replica, Gbit/s", f"{wire * 8e-3 / cluster.shards:.1f}"),
        ("written to each replica's disk with merges, MB/s", f"{written:.0f}"),
        ("TB a day on all disks", f"{2 * disk * 86_400 / 1e6:.0f}"),
    ]


_TABLES = {
    "partition": _print_partition,
    "cluster": _print_grid,
    "assumed": _print_sensitivity,
    "sized": _print_ten_million,
}


if __name__ == "__main__":
    main()
