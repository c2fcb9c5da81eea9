"""`make bench`: throughput and latency of the broker, compared with the engine alone.

For records of 100 bytes and 1 KB: produce and consume throughput and produce latency, with a client
in C on librdkafka (`client.c`); then the rows that the broker stored are inserted directly into an
empty embedded engine. Client and broker share the machine's cores, so every figure includes the
client's own cost. Prints Markdown tables; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from bench.machine import (
    LARGE_BATCHES,
    LARGE_FETCHES,
    compiled_client,
    cpu_seconds,
    machine,
    run_client,
    running_broker,
)
from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.schema import migrate
from tests.support.broker_process import BrokerProcess

_DIRECT_BLOCK_BYTES = 4 << 20  # the size of the broker's blocks under this load
_TOPIC = "bench"
_HEAVY = "SELECT sum(sipHash64(number)) FROM system.numbers"


@dataclass(frozen=True, slots=True)
class Throughput:
    """`cpu_s`: CPU seconds of the broker, or of the engine alone, per million records."""

    what: str
    records_per_s: float
    mb_per_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    size: int
    count: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--records", type=int, default=5_000_000, help="how many records of 100 bytes"
    )
    parser.add_argument("--latency-records", type=int, default=5_000)
    options = parser.parse_args()
    loads = (Load("100 B", 100, options.records), Load("1 KB", 1000, options.records // 5))
    print(machine(), flush=True)
    print("\n| record | what | records/s | MB/s | CPU s per million records |")
    print("|---|---|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        client = compiled_client(Path(folder))
        for load in loads:
            with tempfile.TemporaryDirectory(dir=folder) as work:
                for row in _throughputs(client, Path(work), load):
                    print(
                        f"| {load.name} | {row.what} | {row.records_per_s:,.0f} |"
                        f" {row.mb_per_s:,.0f} | {row.cpu_s:.2f} |",
                        flush=True,
                    )
        print("\n| record | produce latency, one at a time | p50 ms | p99 ms | max ms |")
        print("|---|---|---:|---:|---:|", flush=True)
        for load in loads:
            for beside in (None, _HEAVY):
                with tempfile.TemporaryDirectory(dir=folder) as work:
                    got = _latency(client, Path(work), load.size, options.latency_records, beside)
                print(
                    f"| {load.name} | {'beside a heavy query' if beside else 'alone'} |"
                    f" {got.p50_ms:.1f} | {got.p99_ms:.1f} | {got.max_ms:.1f} |",
                    flush=True,
                )


def _broker(data_dir: Path) -> AbstractContextManager[BrokerProcess]:
    return running_broker(data_dir, {"tail_cache_bytes": str(4 << 30)})


def _throughputs(client: Path, work: Path, load: Load) -> Iterator[Throughput]:
    data_dir = work / "data"
    with _broker(data_dir) as broker:
        yield _measure(client, broker, "produce, acks=all", "produce", load, LARGE_BATCHES)
        yield _measure(client, broker, "consume, from memory", "consume", load, LARGE_FETCHES)
    with _broker(data_dir) as broker:
        yield _measure(client, broker, "consume, from storage", "consume", load, LARGE_FETCHES)
    yield asyncio.run(_direct(data_dir, work / "direct", load))


def _measure(
    client: Path,
    broker: BrokerProcess,
    what: str,
    mode: str,
    load: Load,
    properties: tuple[str, ...],
) -> Throughput:
    before = cpu_seconds(broker.pid)
    found = _run(client, mode, broker, load.count, load.size, properties)
    cpu_s = (cpu_seconds(broker.pid) - before) / load.count * 1e6
    return Throughput(what, found["records_per_s"], found["mb_per_s"], cpu_s)


def _run(
    client: Path,
    mode: str,
    broker: BrokerProcess,
    count: int,
    size: int,
    properties: tuple[str, ...],
) -> dict[str, float]:
    return run_client(client, mode, broker.kafka, _TOPIC, count, size, properties)


async def _direct(source_dir: Path, target_dir: Path, load: Load) -> Throughput:
    """Insert the broker's rows, block by block, into an empty table; only the inserts are timed."""
    source = EmbeddedEngine(source_dir, 1, fsync=False)
    blocks: list[bytes] = []
    rows = load.count
    step = _DIRECT_BLOCK_BYTES // load.size
    for first in range(0, rows, step):
        parts = [
            part
            async for part in source.read_native(
                f"SELECT {COLUMN_LIST} FROM messages WHERE topic = {{topic:String}}"
                " AND offset >= {first:Int64} AND offset < {end:Int64} ORDER BY offset",
                {"topic": _TOPIC, "first": first, "end": first + step},
                1 << 40,
            )
        ]
        blocks.append(b"".join(parts))
    await source.close()
    target = EmbeddedEngine(target_dir, 1, fsync=False)
    await migrate(target)
    cpu, began = time.process_time(), time.perf_counter()
    for number, block in enumerate(blocks):
        await target.insert_block(0, "messages", COLUMN_LIST, block, f"direct-{number}")
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    stored = await target.rows("SELECT count() FROM messages")
    await target.close()
    assert stored == [[rows]], f"inserted {rows} rows, the engine has {stored}"
    return Throughput(
        "the same rows inserted directly",
        rows / seconds,
        rows * load.size / seconds / 1e6,
        cpu_s / rows * 1e6,
    )


def _latency(client: Path, work: Path, size: int, count: int, beside: str | None) -> Latency:
    """`beside`: a query that runs meanwhile, until its client disconnects."""
    with _broker(work / "data") as broker, closing(HTTPConnection(broker.http)) as sql:
        if beside is not None:
            sql.request("POST", "/", beside)
        found = _run(client, "latency", broker, count, size, ("acks=all", "linger.ms=0"))
    return Latency(found["p50_ms"], found["p99_ms"], found["max_ms"])


if __name__ == "__main__":
    main()
