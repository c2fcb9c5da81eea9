"""`python -m bench.scaling_inputs`: measures the costs that the model of bench/scaling.py needs.

Starts a Keeper, two engines as shards and one broker on this machine, and prints `scaling.toml`:
blocks of several sizes inserted over HTTP, records produced in small and large batches, the
registry, and how fast all of it is. CPU seconds are counted by process, and for the broker by
thread: its main thread runs the event loop, the others do work that needs no interpreter lock.
Other load changes CPU seconds less than times; the output says how much of the machine was left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import lz4.frame
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.machine import compiled_client, cpu_seconds, machine, stat_seconds
from protocol._batches import parse_headers
from protocol._decode_batches import BlockBuilder
from protocol.columns import COLUMN_LIST
from storage.clickhouse import ClickHouseServer, ConnectionSettings
from storage.registry import KeeperRegistry
from storage.slot_map import slot_of_partition
from tests.support.cluster_processes import (
    DATABASE,
    SLOTS,
    SQL_PASSWORD,
    SQL_USER,
    Broker,
    Cluster,
    Engine,
)

LANES = 2
_TICK = os.sysconf("SC_CLK_TCK")
_SAMPLE = "scaling_inputs"
_TOPICS = 24
"""Enough that each lane of each shard nearly always has one of them."""

_MERGING = ("MergeMutate", "BgSchPool")
_IDLE_S = 8.0
_MERGED_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Seconds:
    """CPU seconds used so far, and `wall`, the time of the clock."""

    loop: float
    threads: float
    engines: float
    merges: float
    machine: float
    wall: float

    def since(self, before: Seconds) -> Seconds:
        return Seconds(*(getattr(self, name) - getattr(before, name) for name in Seconds.__slots__))

    def less(self, idle: Seconds) -> Seconds:
        """Without what idle processes use in the same time."""
        share = self.wall / idle.wall
        return Seconds(
            self.loop - idle.loop * share,
            self.threads - idle.threads * share,
            self.engines - idle.engines * share,
            self.merges - idle.merges * share,
            self.machine,
            self.wall,
        )


@dataclass(frozen=True, slots=True)
class Produced:
    """Records produced through the broker. CPU seconds exclude what an idle cluster uses.

    `engine_s` includes `merge_s`, which the engines' merge threads used until all was merged.
    `cores_left`: the cores that other load left of this machine, on average.
    """

    what: str
    shards: int
    lanes: int
    record_bytes: int
    batch_records: int
    records: int
    records_per_s: float
    blocks: int
    loop_s: float
    threads_s: float
    engine_s: float
    merge_s: float
    client_s: float
    cores_left: float


@dataclass(frozen=True, slots=True)
class Inserted:
    """Blocks of one size, inserted directly into an engine; figures of one insert."""

    record_bytes: int
    rows: int
    inserts: int
    p50_ms: float
    min_ms: float
    engine_cpu_ms: float
    merge_cpu_ms: float
    sender_cpu_ms: float
    sent_bytes: int
    stored_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling_inputs", description=__doc__)
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="how many records of 100 bytes, per run"
    )
    parser.add_argument(
        "--repeat", type=int, default=3, help="how many runs of each kind; the median counts"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        client = compiled_client(Path(folder))
        cluster = Cluster(
            Path(folder),
            settings={"lanes": str(LANES), "broker_session_timeout_ms": "7000"},
            brokers=1,
        )
        try:
            cluster.start()
            _print_all(client, cluster, options.records, options.repeat)
        finally:
            cluster.close()


def _print_all(client: Path, cluster: Cluster, records: int, repeat: int) -> None:
    print("# Measured by `python -m bench.scaling_inputs`; read by bench/scaling.py.")
    print(f"machine = {json.dumps(machine())}")
    print(f"day = {json.dumps(time.strftime('%Y-%m-%d'))}", flush=True)
    topics = _topics(cluster)
    idle = _idle(cluster)
    asyncio.run(_print_registry(cluster.engines[0]))
    for inserted in asyncio.run(_inserts(cluster.engines[0], repeat)):
        _print("inserts", inserted)
    one, lanes, shards = (
        [(1, 0)],
        [(1, 0), (1, 1)],
        [(1, 0), (2, 0)],
    )
    kinds: list[tuple[str, Sequence[tuple[int, int]], int, int, int]] = [
        ("batches of 10", one, 100, 10, records // 5),
        ("batches of 100", one, 100, 100, records // 2),
        ("batches of 1,000", one, 100, 1_000, records),
        ("batches of 9,000", one, 100, 9_000, records * 2),
        ("two lanes", lanes, 100, 9_000, records),
        ("two shards", shards, 100, 9_000, records),
        ("1 KB", one, 1000, 900, records // 2),
        ("1 KB, two shards", shards, 1000, 900, records // 4),
    ]
    for what, places, size, batch, count in kinds:
        names = [topics[place] for place in places]
        runs = [
            _produce(client, cluster, idle, what, places, names, size, batch, count)
            for _ in range(repeat)
        ]
        runs.sort(key=lambda run: run.records_per_s)
        _print("produced", runs[len(runs) // 2])
    name = topics[1, 0]
    with _client(client, "latency", cluster.bootstrap, name, 500, 100, "linger.ms=0") as latency:
        found = json.loads(latency.communicate()[0])
    print("\n[one_at_a_time]")
    for key, value in found.items():
        print(f"{key} = {value}")


def _print(table: str, row: Produced | Inserted) -> None:
    print(f"\n[[{table}]]")
    for name in type(row).__slots__:
        value = getattr(row, name)
        print(f"{name} = {_number(value) if isinstance(value, float) else json.dumps(value)}")
    print(end="", flush=True)


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def _topics(cluster: Cluster) -> dict[tuple[int, int], str]:
    """A topic of one partition for each (shard, lane)."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    names = [f"scaling-{number}" for number in range(_TOPICS)]
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result()
    topics: dict[tuple[int, int], str] = {}
    per_shard = SLOTS // len(cluster.engines)
    rows = cluster.engines[0].sql("SELECT name, topic_id FROM topics")
    for row in rows:
        topic_id = UUID(row["topic_id"])
        shard = slot_of_partition(topic_id, 0, SLOTS) // per_shard + 1
        topics[shard, topic_id.int % LANES] = row["name"]
    return topics


# Records through the broker


def _produce(
    client: Path,
    cluster: Cluster,
    idle: Seconds,
    what: str,
    places: Sequence[tuple[int, int]],
    names: Sequence[str],
    size: int,
    batch: int,
    count: int,
) -> Produced:
    broker = cluster.brokers[0]
    blocks = _blocks(cluster.engines, names)
    before = _seconds(broker, cluster.engines)
    clients_before = _children_seconds()
    with ExitStack() as ending:
        running = [
            ending.enter_context(
                _client(
                    client,
                    "produce",
                    broker.kafka,
                    name,
                    count // len(names),
                    size,
                    "linger.ms=50",
                    f"batch.num.messages={batch}",
                    "batch.size=1000000",
                )
            )
            for name in names
        ]
        found = [json.loads(each.communicate()[0]) for each in running]
    wall = max(each["seconds"] for each in found)
    ended = _seconds(broker, cluster.engines).since(before)
    _wait_for_merges(cluster.engines)
    spent = _seconds(broker, cluster.engines).since(before).less(idle)
    client_s = _children_seconds() - clients_before
    ours = ended.loop + ended.threads + ended.engines + client_s
    left_s = (os.cpu_count() or 1) * ended.wall - ended.machine
    return Produced(
        what,
        len({shard for shard, _ in places}),
        len(places),
        size,
        batch,
        count,
        count / wall,
        _blocks(cluster.engines, names) - blocks,
        spent.loop,
        spent.threads,
        spent.engines,
        spent.merges,
        client_s,
        (ours + max(left_s, 0.0)) / ended.wall,
    )


@contextmanager
def _client(
    client: Path, mode: str, kafka: str, topic: str, count: int, size: int, *properties: str
) -> Iterator[subprocess.Popen[str]]:
    command = [str(client), mode, kafka, topic, str(count), str(size), "acks=all", *properties]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _blocks(engines: Iterable[Engine], topics: Sequence[str]) -> int:
    """How many blocks there are: each has an append_time of its own."""
    return sum(
        row["blocks"]
        for engine in engines
        for name in topics
        for row in engine.sql(
            "SELECT uniqExact(append_time) AS blocks FROM messages WHERE topic = {topic:String}",
            {"topic": name},
        )
    )


def _idle(cluster: Cluster) -> Seconds:
    """What an idle cluster uses: renewals, polls, pings, housekeeping."""
    broker = cluster.brokers[0]
    before, asked = _seconds(broker, cluster.engines), _keeper_requests(cluster.engines[0])
    time.sleep(_IDLE_S)
    spent = _seconds(broker, cluster.engines).since(before)
    asked = _keeper_requests(cluster.engines[0]) - asked
    print("\n[idle]")
    print(f"loop_cores = {_number(spent.loop / spent.wall)}")
    print(f"threads_cores = {_number(spent.threads / spent.wall)}")
    print(f"engines_cores = {_number(spent.engines / spent.wall)}")
    print(f"keeper_requests_per_s = {_number(asked / spent.wall)}", flush=True)
    return spent


def _wait_for_merges(engines: Iterable[Engine]) -> None:
    deadline = time.monotonic() + _MERGED_WITHIN_S
    for engine in engines:
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline:
            found = engine.sql("SELECT count() AS merges FROM system.merges")
            quiet = 0 if found[0]["merges"] else quiet + 1
            time.sleep(0.1)


def _seconds(broker: Broker, engines: Iterable[Engine]) -> Seconds:
    loop = _main_thread_seconds(broker.pid)
    return Seconds(
        loop,
        cpu_seconds(broker.pid) - loop,
        sum(cpu_seconds(engine.pid) for engine in engines),
        sum(_merge_seconds(engine.pid) for engine in engines),
        _machine_seconds(),
        time.monotonic(),
    )


def _main_thread_seconds(pid: int) -> float:
    return stat_seconds(Path(f"/proc/{pid}/task/{pid}"))


def _merge_seconds(pid: int) -> float:
    """CPU of the merge threads, known by the names that ClickHouse gives them."""
    return sum(
        stat_seconds(task)
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text().startswith(_MERGING)
    )


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _machine_seconds() -> float:
    """CPU time of all processors that was not idle."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICK


# Blocks inserted directly into an engine


async def _inserts(engine: Engine, repeat: int) -> list[Inserted]:
    engine.sql(f"CREATE TABLE IF NOT EXISTS {_SAMPLE} AS messages")
    server = ClickHouseServer(
        engine.urls[0], ConnectionSettings(user=SQL_USER, password=SQL_PASSWORD)
    )
    try:
        return [
            await _insert_size(engine, server, record_bytes, rows, inserts * repeat)
            for record_bytes, rows, inserts in (
                (100, 1, 60),
                (100, 1_000, 40),
                (100, 10_000, 15),
                (100, 60_000, 8),
                (1000, 1_000, 15),
                (1000, 4_000, 10),
                (1000, 16_000, 5),
            )
        ]
    finally:
        await server.close()


async def _insert_size(
    engine: Engine, server: ClickHouseServer, record_bytes: int, rows: int, inserts: int
) -> Inserted:
    await server.execute(f"TRUNCATE TABLE {_SAMPLE}")
    blocks = [_block(record_bytes, rows, number) for number in range(min(inserts, 16))]
    await server.insert_block(0, _SAMPLE, COLUMN_LIST, blocks[0], str(uuid4()))
    times: list[float] = []
    engine_before, merges_before = cpu_seconds(engine.pid), _merge_seconds(engine.pid)
    sender_before = time.process_time()
    for number in range(inserts):
        block = blocks[number % len(blocks)]
        began = time.perf_counter()
        await server.insert_block(0, _SAMPLE, COLUMN_LIST, block, str(uuid4()))
        times.append((time.perf_counter() - began) * 1e3)
    sender_s = time.process_time() - sender_before
    _wait_for_merges([engine])
    engine_s = cpu_seconds(engine.pid) - engine_before
    merge_s = _merge_seconds(engine.pid) - merges_before
    stored = await server.rows(
        "SELECT toUInt64(sum(data_compressed_bytes) / sum(rows)) FROM system.parts"
        " WHERE active AND database = {database:String} AND table = {table:String}",
        {"database": DATABASE, "table": _SAMPLE},
    )
    return Inserted(
        record_bytes,
        rows,
        inserts,
        statistics.median(times),
        min(times),
        engine_s / inserts * 1e3,
        merge_s / inserts * 1e3,
        sender_s / inserts * 1e3,
        len(lz4.frame.compress(blocks[0])),
        stored[0][0] * rows,
    )


def _block(record_bytes: int, rows: int, number: int) -> bytes:
    """A block as a lane sends it, with values like those of bench/client.c."""
    builder = BlockBuilder(time.time_ns() // 1_000_000)
    random = os.urandom(record_bytes * rows)
    letters = random.translate(bytes(97 + code % 16 for code in range(256)))
    values = [letters[at : at + record_bytes] for at in range(0, len(letters), record_bytes)]
    batch = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2 * len(letters) + 1_000_000)
    for offset, value in enumerate(values):
        batch.append(offset, 0, None, value, ())
    data = bytes(batch.build())
    builder.append(
        "scaling", UUID(int=1).bytes, 0, number * rows, 0, parse_headers(data)[0], data[61:], None
    )
    return builder.finish()


# The registry


async def _print_registry(engine: Engine) -> None:
    server = ClickHouseServer(
        engine.urls[0], ConnectionSettings(user=SQL_USER, password=SQL_PASSWORD)
    )
    try:
        registry = KeeperRegistry(server, "registry")
        gets, sets = [], []
        for number in range(40):
            key = f"scaling-inputs/{number}"
            began = time.perf_counter()
            await registry.compare_and_set(key, None, "x" * 400)
            middle = time.perf_counter()
            await registry.get(key)
            gets.append((time.perf_counter() - middle) * 1e3)
            sets.append((middle - began) * 1e3)
            found = await registry.get(key)
            assert found is not None
            await registry.delete(key, found)
    finally:
        await server.close()
    print("\n[registry]")
    print(f"get_p50_ms = {_number(statistics.median(gets))}")
    print(f"set_p50_ms = {_number(statistics.median(sets))}", flush=True)


def _keeper_requests(engine: Engine) -> int:
    rows = engine.sql("SELECT value FROM system.events WHERE event = 'ZooKeeperTransactions'")
    return int(rows[0]["value"]) if rows else 0


if __name__ == "__main__":
    main()
