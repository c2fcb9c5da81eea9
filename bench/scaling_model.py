"""The model of bench/scaling.py: a discrete-event simulation of record batches in a cluster.

A batch goes from its producer to the event loop of a broker, to a lane (group commit, one insert in
flight), to the cores of a shard, to Keeper and the quorum, and is answered. Merges and the renewals
of brokers run beside it. Measured costs are `Costs`; what cannot be measured on one machine is in
`Cluster` and `Assumed`.

Time is in seconds, CPU in seconds of one core. Every run uses the same random seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count

BUSY = 0.9
"""A resource that is busier than this limits a run."""

_WARM_UP = 0.2  # the share of a run's batches that is not counted
_KEPT_UP = 0.95  # when a short run ends, some records are still in flight


@dataclass(frozen=True, slots=True)
class Linear:
    """A cost in seconds: a fixed part, and a part for each record and each byte."""

    fixed: float = 0.0
    record: float = 0.0
    byte: float = 0.0

    def of(self, records: int, record_bytes: int) -> float:
        return self.fixed + records * (self.record + record_bytes * self.byte)


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured CPU seconds of a broker and an engine.

    `loop_*`: the event loop, of which a broker has one. `build`: the lane's thread and compression,
    which run beside the loop. `insert`: what an insert waits for in the engine; `after`: the work
    that is left when it is answered; `merge`: merging its rows once, later. `idle_*`: the cores
    that leases, polls and pings of one broker use, of its loop and of each shard. `sent_per_byte`:
    bytes on the wire for each byte of records; `stored_per_byte`: on disk.
    """

    loop_batch: Linear
    loop_block: float
    build: Linear
    insert: Linear
    after: Linear
    merge: Linear
    sent_per_byte: float
    stored_per_byte: float
    idle_loop: float = 0.0
    idle_shard: float = 0.0
    idle_keeper_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Assumed:
    """What cannot be measured on one machine. Sources and sensitivity: docs/scaling.md."""

    round_trip: float = 0.0005
    quorum: float = 0.005
    """Until the second replica has confirmed that it fetched the part."""
    keeper_writes_per_block: float = 10.0
    keeper_round_trips: int = 3
    keeper_round_trip: float = 0.002
    keeper_writes_per_s: float = 5_000.0
    merges_per_row: int = 3


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines and settings."""

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


@dataclass(frozen=True, slots=True)
class Load:
    """What producers send. `in_flight`: batches of a partition that are not answered yet.

    `records_per_s`: batches are sent at random moments, whatever is in flight; None: producers
    send as fast as they are answered.
    """

    record_bytes: int
    batch_records: int
    partitions: int
    in_flight: int = 5
    records_per_s: float | None = None


LOOP, BROKER_CORES, BROKER_NETWORK = "broker: event loop", "broker: cores", "broker: network"
SHARD_CORES, SHARD_NETWORK = "shard: cores", "shard: network"
KEEPER, LANES, PRODUCERS = "Keeper", "lanes", "producers"


@dataclass(frozen=True, slots=True)
class Result:
    """`used`: how busy the busiest resource of each kind was, as a share of the time.

    `kept_up`: the cluster stored all records that were sent; always false without a rate.
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
        """The resource that limits the run: lanes only if nothing behind them is used up."""
        shared = {name: share for name, share in self.used.items() if name != LANES}
        name = max(shared, key=lambda each: shared[each])
        if shared[name] >= BUSY:
            return name
        return LANES if self.used[LANES] >= BUSY and not self.kept_up else PRODUCERS


class Clock:
    """Simulated time, and the events to come."""

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
    """Servers that run jobs in order. `taken`: how many servers are occupied by other work."""

    def __init__(self, clock: Clock, servers: int, taken: float = 0.0) -> None:
        self._clock = clock
        self._servers = servers
        self._speed = max(1 - taken / servers, 1e-3)
        self._running = 0
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = 0.0
        self._looked = 0.0

    def submit(self, work: float, then: Callable[[], None]) -> None:
        self._waiting.append((work, then))
        self._start()

    def busy(self) -> float:
        """Seconds that the servers were busy so far, divided by their number."""
        self._busy += (self._clock.now - self._looked) * self._running
        self._looked = self._clock.now
        return self._busy / self._servers

    def _start(self) -> None:
        while self._running < self._servers and self._waiting:
            work, then = self._waiting.popleft()
            self.busy()
            self._running += 1
            self._clock.after(work / self._speed, partial(self._end, then))

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
        self.loop = Station(model.clock, 1, model.costs.idle_loop)
        self.cores = Station(model.clock, max(model.cluster.broker_cores - 1, 1))
        self.network = Station(model.clock, 1)


class _Shard:
    def __init__(self, model: _Model) -> None:
        self._model = model
        taken = model.costs.idle_shard * model.cluster.brokers
        self.cores = Station(model.clock, model.cluster.shard_cores, taken)
        self.network = Station(model.clock, 1)

    def insert(self, rows: int, sent_bytes: float, then: Callable[[], None]) -> None:
        """Network, then a core, then Keeper, then the second replica. Merges follow."""
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
    """As in broker/log/lane.py: waiting batches become the next block; one insert in flight."""

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
            self._model.clock.after(self._model.cluster.linger, self._send_block)
        else:
            self._send_block()

    def _send_block(self) -> None:
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
        self.brokers = [_Broker(self) for _ in range(cluster.brokers)]
        self.shards = [_Shard(self) for _ in range(cluster.shards)]
        idle = costs.idle_keeper_per_s * cluster.brokers / assumed.keeper_writes_per_s
        self.keeper = Station(self.clock, 1, idle)
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
        bits = load.batch_records * load.record_bytes * 8
        travels = bits / (self.cluster.broker_gbit_s * 1e9) + self.assumed.round_trip
        work = self.costs.loop_batch.of(load.batch_records, load.record_bytes)
        read = partial(broker.loop.submit, work, partial(lane.append, batch))
        self.clock.after(travels, read)

    def _busy(self) -> dict[str, float]:
        """The busiest resource of each kind: at two moments nearly always the same one."""
        return {
            LOOP: max(broker.loop.busy() for broker in self.brokers),
            BROKER_CORES: max(broker.cores.busy() for broker in self.brokers),
            BROKER_NETWORK: max(broker.network.busy() for broker in self.brokers),
            SHARD_CORES: max(shard.cores.busy() for shard in self.shards),
            SHARD_NETWORK: max(shard.network.busy() for shard in self.shards),
            KEEPER: self.keeper.busy(),
            LANES: max(lane.busy() for lane in self.lanes),
        }


def _nothing() -> None:
    """The event that follows work which no batch waits for."""


def simulate(
    costs: Costs, assumed: Assumed, cluster: Cluster, load: Load, batches: int = 2_000
) -> Result:
    """One run of `batches` answered batches, at least five times as many as are in flight."""
    closed = load.partitions * load.in_flight if load.records_per_s is None else 0
    return _Model(costs, assumed, cluster, load).run(max(batches, 5 * closed))
