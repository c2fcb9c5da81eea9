"""`make bench-scaling`: what a cluster takes beyond the cores of one machine, by simulation.

A discrete-event model of the way of a record batch: producer -> event loop of a broker -> lane
(group commit, one insert in flight) -> cores of a shard -> Keeper and quorum -> answer. Merges and
the renewals of brokers run beside it. Costs come from `scaling.toml`, which
`python -m bench.scaling_inputs` measures; what cannot be measured on one machine is in `Cluster`
and `Assumed`, each with its source. Prints Markdown tables; docs/scaling.md explains them.

Time is in seconds, CPU in seconds of one core. Every run has its own fixed seed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import tomllib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

INPUTS = Path(__file__).with_name("scaling.toml")
BUSY = 0.9
"""What is used more than this bounds a run."""

_WARM_UP = 0.2  # of a run's batches, not counted
_KEPT_UP = 0.95  # what comes at random is never taken to the last record in a short run


@dataclass(frozen=True, slots=True)
class Linear:
    """A cost: so much at once, for each record, for each byte."""

    fixed: float = 0.0
    record: float = 0.0
    byte: float = 0.0

    def of(self, records: int, record_bytes: int) -> float:
        return self.fixed + records * (self.record + record_bytes * self.byte)


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU of a broker and an engine, as measured.

    `loop_*` is the event loop, of which a broker has one; `build` is the lane's thread and the
    compression, which run beside it. `insert` is what an insert waits for in the engine, `after`
    what is left to do when it is answered, `merge` what merging its rows once costs later. `idle_*`
    are cores that leases, polls and pings of one broker take: of its loop, of each shard.
    """

    loop_batch: Linear
    loop_block: float
    build: Linear
    insert: Linear
    after: Linear
    merge: Linear
    client: Linear
    sent_per_byte: float
    stored_per_byte: float
    idle_loop: float = 0.0
    idle_shard: float = 0.0
    idle_keeper_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Assumed:
    """What one machine cannot show. Sources and sensitivity: docs/scaling.md."""

    round_trip: float = 0.0005
    quorum: float = 0.005
    """Until the second replica has fetched the part and said so."""
    keeper_writes_per_block: float = 10.0
    keeper_round_trips: int = 3
    keeper_round_trip: float = 0.002
    keeper_writes_per_s: float = 5_000.0
    merges_per_row: int = 3


ON_ONE_MACHINE = Assumed(0.0, 0.0, 0.0, 0, 0.0, 5_000.0, 1)
"""Engines on one machine: no network, not replicated, and a short run merges about once."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines and settings. `shared_cores`: all of it on one machine, clients too."""

    shards: int = 1
    brokers: int = 1
    lanes: int = 2
    linger: float = 0.0
    broker_cores: int = 8
    shard_cores: int = 16
    broker_gbit_s: float = 25.0
    shard_gbit_s: float = 25.0
    block_max_rows: int = 65_536
    block_max_bytes: int = 16 << 20
    shared_cores: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """`in_flight`: batches of a partition on their way. `records_per_s` None: as fast as it goes.

    A rate is offered at random moments, whatever is in flight.
    """

    record_bytes: int
    batch_records: int
    partitions: int
    in_flight: int = 5
    records_per_s: float | None = None


LOOP, BROKER_CORES, BROKER_NETWORK = "broker: event loop", "broker: cores", "broker: network"
SHARD_CORES, SHARD_NETWORK = "shard: cores", "shard: network"
KEEPER, LANES, MACHINE, PRODUCERS = "Keeper", "lanes", "the one machine's cores", "producers"


@dataclass(frozen=True, slots=True)
class Result:
    """`used`: the busiest of each kind of resource, as a share of the time.

    `kept_up`: all that was offered was taken; never so when producers send as fast as it goes.
    """

    records_per_s: float
    p50_ms: float
    p99_ms: float
    blocks_per_s: float
    rows_per_block: float
    used: Mapping[str, float]
    kept_up: bool

    @property
    def bottleneck(self) -> str:
        """What bounds it. Lanes only where nothing behind them is used up: then it is latency."""
        shared = {name: share for name, share in self.used.items() if name != LANES}
        name = max(shared, key=lambda each: shared[each])
        if shared[name] >= BUSY:
            return name
        return LANES if self.used[LANES] >= BUSY and not self.kept_up else PRODUCERS


class Clock:
    """Simulated time, and what is to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def run(self, ended: Callable[[], bool]) -> None:
        while self._events and not ended():
            self.now, _, event = heapq.heappop(self._events)
            event()


class Station:
    """Servers that take jobs in order. `on`: a job needs a server there too, as threads do cores.

    `taken`: how many servers' time is gone before any job comes.
    """

    def __init__(
        self,
        clock: Clock,
        servers: int,
        *,
        taken: float = 0.0,
        speed: float = 1.0,
        on: Station | None = None,
    ) -> None:
        self._clock = clock
        self._servers = servers
        self._speed = speed * max(1 - taken / servers, 1e-3)
        self._on = on
        self._running = 0
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = 0.0
        self._looked = 0.0

    def submit(self, work: float, then: Callable[[], None]) -> None:
        self._waiting.append((work, then))
        self._start()

    def busy(self) -> float:
        """Seconds that its servers were busy so far, divided by their number."""
        self._busy += (self._clock.now - self._looked) * self._running
        self._looked = self._clock.now
        return self._busy / self._servers

    def _start(self) -> None:
        while self._running < self._servers and self._waiting:
            work, then = self._waiting.popleft()
            self.busy()
            self._running += 1
            end = partial(self._end, then)
            if self._on is None:
                self._clock.after(work / self._speed, end)
            else:
                self._on.submit(work / self._speed, end)

    def _end(self, then: Callable[[], None]) -> None:
        self.busy()
        self._running -= 1
        then()
        self._start()


@dataclass(frozen=True, slots=True)
class _Batch:
    partition: int
    sent: float


class _Broker:
    def __init__(self, model: _Model) -> None:
        cluster, clock = model.cluster, model.clock
        self.loop = Station(clock, 1, taken=model.costs.idle_loop, on=model.machine)
        cores = max(cluster.broker_cores - 1, 1)
        self.cores = Station(clock, cores, on=model.machine)
        self.network = Station(clock, 1)


class _Shard:
    def __init__(self, model: _Model) -> None:
        self._model = model
        taken = model.costs.idle_shard * model.cluster.brokers
        self.cores = Station(model.clock, model.cluster.shard_cores, taken=taken, on=model.machine)
        self.network = Station(model.clock, 1)

    def insert(self, rows: int, sent_bytes: float, then: Callable[[], None]) -> None:
        """Network, then a core, then Keeper, then the second replica. Merges come after it."""
        model = self._model
        size, assumed = model.load.record_bytes, model.assumed

        def arrived() -> None:
            self.cores.submit(model.costs.insert.of(rows, size), written)

        def written() -> None:
            self.cores.submit(model.costs.after.of(rows, size), _nothing)
            for _ in range(assumed.merges_per_row):
                self.cores.submit(model.costs.merge.of(rows, size), _nothing)
            if assumed.keeper_writes_per_block:
                work = assumed.keeper_writes_per_block / assumed.keeper_writes_per_s
                model.keeper.submit(work, registered)
            else:
                registered()

        def registered() -> None:
            waits = assumed.keeper_round_trips * assumed.keeper_round_trip + assumed.quorum
            model.clock.after(waits + assumed.round_trip, then)

        self.network.submit(sent_bytes * 8 / (model.cluster.shard_gbit_s * 1e9), arrived)


class _Lane:
    """As broker/log/lane.py: what waits becomes the next block, one insert in flight."""

    def __init__(self, model: _Model, broker: _Broker, shard: _Shard) -> None:
        self._model = model
        self._broker = broker
        self._shard = shard
        self._queue: deque[_Batch] = deque()
        self._began: float | None = None
        self._busy = 0.0
        load, cluster = model.load, model.cluster
        in_rows = math.ceil(cluster.block_max_rows / load.batch_records)
        in_bytes = math.ceil(cluster.block_max_bytes / (load.batch_records * load.record_bytes))
        self._most = min(in_rows, in_bytes)

    def append(self, batch: _Batch) -> None:
        self._queue.append(batch)
        if self._began is None:
            self._wake()

    def busy(self) -> float:
        now = self._model.clock.now
        return self._busy + (0.0 if self._began is None else now - self._began)

    def _wake(self) -> None:
        self._began = self._model.clock.now
        if self._model.cluster.linger:
            self._model.clock.after(self._model.cluster.linger, self._take)
        else:
            self._take()

    def _take(self) -> None:
        model = self._model
        taken = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
        rows = len(taken) * model.load.batch_records
        sent_bytes = rows * model.load.record_bytes * model.costs.sent_per_byte
        model.blocks += 1

        def built() -> None:
            self._broker.loop.submit(model.costs.loop_block, encoded)

        def encoded() -> None:
            seconds = sent_bytes * 8 / (model.cluster.broker_gbit_s * 1e9)
            self._broker.network.submit(seconds, sent)

        def sent() -> None:
            self._shard.insert(rows, sent_bytes, stored)

        def stored() -> None:
            assert self._began is not None
            self._busy += model.clock.now - self._began
            self._began = None
            for batch in taken:
                model.answered(batch)
            if self._queue and self._began is None:
                self._wake()

        self._broker.cores.submit(model.costs.build.of(rows, model.load.record_bytes), built)


class _Model:
    """One run. Partitions are spread evenly over shards, brokers and lanes."""

    def __init__(self, costs: Costs, assumed: Assumed, cluster: Cluster, load: Load) -> None:
        self.costs = costs
        self.assumed = assumed
        self.cluster = cluster
        self.load = load
        self.clock = Clock()
        shared = cluster.shared_cores
        self.machine: Station | None = None
        if shared is not None:
            cores = max(round(shared), 1)
            self.machine = Station(self.clock, cores, speed=shared / cores)
        self.brokers = [_Broker(self) for _ in range(cluster.brokers)]
        self.shards = [_Shard(self) for _ in range(cluster.shards)]
        idle = costs.idle_keeper_per_s * cluster.brokers / assumed.keeper_writes_per_s
        self.keeper = Station(self.clock, 1, taken=idle)
        self.lanes = [
            _Lane(self, broker, shard)
            for _ in range(cluster.lanes)
            for broker in self.brokers
            for shard in self.shards
        ]
        self.blocks = 0
        self.latencies: list[float] = []
        self._random = random.Random(1)

    def run(self, batches: int) -> Result:
        load = self.load
        if load.records_per_s is None:
            for _ in range(load.in_flight):
                for partition in range(load.partitions):
                    self._send(partition)
        else:
            self._offer(load.records_per_s / load.batch_records)
        warm = int(batches * _WARM_UP)
        self.clock.run(lambda: len(self.latencies) >= warm)
        since, blocks, before = self.clock.now, self.blocks, self._busy()
        self.latencies.clear()
        self.clock.run(lambda: len(self.latencies) >= batches)
        seconds = self.clock.now - since
        found = sorted(self.latencies)
        records_per_s = len(found) * load.batch_records / seconds
        blocks_per_s = (self.blocks - blocks) / seconds
        return Result(
            records_per_s,
            found[len(found) // 2] * 1e3,
            found[len(found) * 99 // 100] * 1e3,
            blocks_per_s,
            records_per_s / blocks_per_s,
            {name: (busy - before[name]) / seconds for name, busy in self._busy().items()},
            load.records_per_s is not None and records_per_s > _KEPT_UP * load.records_per_s,
        )

    def answered(self, batch: _Batch) -> None:
        self.latencies.append(self.clock.now - batch.sent)
        if self.load.records_per_s is None:
            self._send(batch.partition)

    def _offer(self, batches_per_s: float) -> None:
        partition = self._random.randrange(self.load.partitions)
        self._send(partition)
        wait = self._random.expovariate(batches_per_s)
        self.clock.after(wait, partial(self._offer, batches_per_s))

    def _send(self, partition: int) -> None:
        batch = _Batch(partition, self.clock.now)
        load = self.load
        lane = self.lanes[partition % len(self.lanes)]
        broker = self.brokers[partition // len(self.shards) % len(self.brokers)]
        size = load.batch_records * load.record_bytes

        def made() -> None:
            bits = size * 8 / (self.cluster.broker_gbit_s * 1e9)
            self.clock.after(bits + self.assumed.round_trip, came)

        def came() -> None:
            work = self.costs.loop_batch.of(load.batch_records, load.record_bytes)
            broker.loop.submit(work, partial(lane.append, batch))

        if self.machine is None:
            made()
        else:
            self.machine.submit(self.costs.client.of(load.batch_records, load.record_bytes), made)

    def _busy(self) -> dict[str, float]:
        """Of each kind the busiest; the figures of two moments are for the same one nearly."""
        found = {
            LOOP: max(broker.loop.busy() for broker in self.brokers),
            BROKER_CORES: max(broker.cores.busy() for broker in self.brokers),
            BROKER_NETWORK: max(broker.network.busy() for broker in self.brokers),
            SHARD_CORES: max(shard.cores.busy() for shard in self.shards),
            SHARD_NETWORK: max(shard.network.busy() for shard in self.shards),
            KEEPER: self.keeper.busy(),
            LANES: max(lane.busy() for lane in self.lanes),
        }
        if self.machine is not None:
            found[MACHINE] = self.machine.busy()
        return found


def _nothing() -> None:
    """What follows work that nobody waits for."""


def simulate(
    costs: Costs, assumed: Assumed, cluster: Cluster, load: Load, batches: int = 2_000
) -> Result:
    """One run until so many batches were answered, and each that may be in flight several times."""
    closed = load.partitions * load.in_flight if load.records_per_s is None else 0
    return _Model(costs, assumed, cluster, load).run(max(batches, 5 * closed))


# On paper


def lane_seconds(
    costs: Costs, assumed: Assumed, cluster: Cluster, rows: int, record_bytes: int
) -> float:
    """What one block takes on its lane when nothing else is asked of anybody."""
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
    """Records per second of one of each, alone and used up, when blocks have so many rows."""

    lane: float
    loop: float
    shard: float
    keeper: float


def limits(
    costs: Costs, assumed: Assumed, cluster: Cluster, load: Load, rows_per_block: int
) -> Limits:
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


def on_paper(costs: Costs, assumed: Assumed, cluster: Cluster, load: Load) -> float:
    """Records per second when producers send as fast as they are answered: the first limit met.

    Of what is on its way to a lane, half is in its block and half will be the next one.
    """
    lanes = cluster.lanes * cluster.brokers * cluster.shards
    rows = max(load.partitions * load.in_flight // lanes // 2, 1) * load.batch_records
    rows = min(rows, cluster.block_max_rows, cluster.block_max_bytes // load.record_bytes)
    each = limits(costs, assumed, cluster, load, rows)
    return min(
        lanes * each.lane, cluster.brokers * each.loop, cluster.shards * each.shard, each.keeper
    )


# Measured


def read_inputs(path: Path = INPUTS) -> Mapping[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def costs_of(inputs: Mapping[str, Any]) -> Costs:
    """The costs behind the figures: what is fixed from the smallest, the rest from the largest.

    Each is worked out from as few figures as can tell it, so that they can be checked by hand.
    """
    inserts = {(row["record_bytes"], row["rows"]): row for row in inputs["inserts"]}
    produced = {row["what"]: row for row in inputs["produced"]}
    one = inserts[100, 1]
    small, large = (inserts[size, max(rows for each, rows in inserts if each == size)]
                    for size in (100, 1000))  # fmt: skip
    loop_block = one["sender_cpu_ms"] / 1e3
    batches = produced["batches of 10"]
    loop_fixed = (batches["loop_s"] - batches["blocks"] * loop_block) / (
        batches["records"] / batches["batch_records"]
    )
    few, wide = produced["batches of 9,000"], produced["1 KB"]

    def loop_rest(row: Mapping[str, Any]) -> float:
        spent = row["blocks"] * loop_block + row["records"] / row["batch_records"] * loop_fixed
        return float(row["loop_s"] - spent)

    def through(seconds: Callable[[Mapping[str, Any]], float]) -> Linear:
        at_once = seconds(one)
        return _linear(
            at_once, (small, seconds(small) - at_once), (large, seconds(large) - at_once)
        )

    def after(row: Mapping[str, Any]) -> float:
        return max(float(row["engine_cpu_ms"] - row["merge_cpu_ms"] - row["min_ms"]) / 1e3, 0.0)

    idle = inputs["idle"]
    return Costs(
        loop_batch=_linear(
            loop_fixed, (few, loop_rest(few)), (wide, loop_rest(wide)), rows="records"
        ),
        loop_block=loop_block,
        build=_linear(0.0, (few, few["threads_s"]), (wide, wide["threads_s"]), rows="records"),
        insert=through(lambda row: float(row["min_ms"]) / 1e3),
        after=through(after),
        merge=through(lambda row: float(row["merge_cpu_ms"]) / 1e3),
        client=_linear(0.0, (few, few["client_s"]), (wide, wide["client_s"]), rows="records"),
        sent_per_byte=small["sent_bytes"] / (small["rows"] * small["record_bytes"]),
        stored_per_byte=small["stored_bytes"] / (small["rows"] * small["record_bytes"]),
        idle_loop=idle["loop_cores"],
        idle_shard=idle["engines_cores"] / 2,
        idle_keeper_per_s=idle["keeper_requests_per_s"],
    )


def _linear(
    fixed: float,
    first: tuple[Mapping[str, Any], float],
    second: tuple[Mapping[str, Any], float],
    rows: str = "rows",
) -> Linear:
    """Through two figures of different record sizes; never below nothing."""
    (a, a_seconds), (b, b_seconds) = first, second
    per_a, per_b = a_seconds / a[rows], b_seconds / b[rows]
    byte = (per_b - per_a) / (b["record_bytes"] - a["record_bytes"])
    byte = min(max(byte, 0.0), per_b / b["record_bytes"])
    record = max(per_a - byte * a["record_bytes"], 0.0)
    return Linear(max(fixed, 0.0), record, byte)


# Tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--inputs", type=Path, default=INPUTS, help="what was measured")
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
        # librdkafka without idempotence sends whatever its queue of a million records holds.
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
    """To what such a model can tell at best."""
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
    """As much as goes, and the latency at half of that."""
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


class TooManyLanes(Exception):
    """Each broker and shard that is added makes blocks so small that it takes away what it adds."""


def size_for(
    costs: Costs, assumed: Assumed, load: Load, usual: Cluster, target: float = 0.6
) -> Cluster:
    """The fewest brokers and shards that a rate uses to `target`, with as few lanes as will do.

    Raises `TooManyLanes`: then a longer linger, or two clusters, are the way.
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
    """Records per second of a lane whose blocks are full."""
    rows = min(cluster.block_max_rows, cluster.block_max_bytes // load.record_bytes)
    return limits(costs, assumed, cluster, load, rows).lane


def _rows_per_block(costs: Costs, assumed: Assumed, cluster: Cluster, load: Load) -> int:
    """Where what comes during a block is as much as the block: rate x seconds(rows) = rows."""
    assert load.records_per_s is not None
    lanes = cluster.brokers * cluster.shards * cluster.lanes
    most = min(cluster.block_max_rows, cluster.block_max_bytes // load.record_bytes)
    rows = load.batch_records
    for _ in range(50):
        seconds = lane_seconds(costs, assumed, cluster, rows, load.record_bytes)
        rows = min(max(int(load.records_per_s / lanes * seconds), load.batch_records), most)
    return rows


@dataclass(frozen=True, slots=True)
class _Scenario:
    """`clusters`: how many share the load, each with its own Keeper."""

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
            "on its way on a broker, MB",
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
