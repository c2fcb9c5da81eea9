"""`make bench-groups`: what consumer groups cost, with a client that speaks plain Kafka requests.

Joining: one group with many members and a topic of many partitions; the time from the first
JoinGroup until the last member has its partitions, and the same when one more member joins.
Committing: many groups of one member each; each commits all its partitions once a second. The
client is a process of its own, on the same cores as the broker. Prints Markdown tables; asserts
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

from bench.machine import cpu_seconds, machine, running_broker
from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey
from tests.support.wire import decode, frame, request_body

_JOIN, _SYNC, _HEARTBEAT, _COMMIT, _CREATE_TOPICS = 9, 5, 4, 8, 5
_MEMBER_ID_REQUIRED, _REBALANCE_IN_PROGRESS = 79, 27
_SESSION_TIMEOUT_MS = 45_000
_HEARTBEAT_EVERY_S = 0.5
_TOPIC = "bench"


class _Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)

    async def ask(self, request: ApiMessage, version: int) -> Any:
        self._writer.write(frame(request_body(request, version, next(self._numbers))))
        response = APIS[ApiKey(request.API_KEY)].response
        return decode(response, version, await self._frame())[1]

    async def ask_encoded(self, body: bytes) -> bytes:
        self._writer.write(body)
        return await self._frame()

    async def _frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


async def _connect(kafka: str) -> _Connection:
    host, port = kafka.rsplit(":", 1)
    return _Connection(*await asyncio.open_connection(host, int(port)))


@dataclass
class _Member:
    """A consumer of one group. The leader assigns partitions in ranges."""

    connection: _Connection
    group_id: str
    partitions: int
    member_id: str = ""
    generation: int = -1
    settled_at: float = 0.0
    generation_settled: dict[int, float] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(self) -> None:
        """Join until the member has its partitions, through every rebalance meanwhile."""
        while True:
            joined = await self._join_once()
            if joined.error_code in (_MEMBER_ID_REQUIRED, _REBALANCE_IN_PROGRESS):
                self.member_id = joined.member_id or self.member_id
                continue
            assert joined.error_code == 0, joined
            self.member_id, self.generation = joined.member_id, joined.generation_id
            members = [member.member_id for member in joined.members]
            synced = await self._sync(_ranges(members, self.partitions))
            if synced.error_code == 0:
                self.settled_at = time.perf_counter()
                self.generation_settled[self.generation] = self.settled_at
                self.settled.set()
                return
            assert synced.error_code == _REBALANCE_IN_PROGRESS, synced

    async def reaches(self, generation: int) -> None:
        """Wait until the member has its partitions in this generation."""
        while generation not in self.generation_settled:
            self.settled.clear()
            await self.settled.wait()

    async def _join_once(self) -> Any:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=_subscription())
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[protocol],
            reason=None,
        )
        return await self.connection.ask(request, _JOIN)

    async def _sync(self, assignments: dict[str, bytes]) -> Any:
        kind = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[kind(member_id=m, assignment=a) for m, a in assignments.items()],
        )
        return await self.connection.ask(request, _SYNC)

    async def stay(self) -> None:
        """Send heartbeats, and join again on a rebalance, until cancelled."""
        while True:
            await asyncio.sleep(_HEARTBEAT_EVERY_S)
            request = HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
            )
            answer = await self.connection.ask(request, _HEARTBEAT)
            if answer.error_code == _REBALANCE_IN_PROGRESS:
                await self.join()
            else:
                assert answer.error_code == 0, answer

    def commit(self, offset: int) -> bytes:
        """An OffsetCommit of all its partitions, as a frame."""
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            topics=[
                topic(
                    name=_TOPIC,
                    partitions=[
                        topic.OffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=offset,
                            committed_leader_epoch=0,
                            committed_metadata="",
                        )
                        for number in range(self.partitions)
                    ],
                )
            ],
        )
        return frame(request_body(request, _COMMIT))


def _subscription() -> bytes:
    """ConsumerProtocolSubscription, version 0."""
    name = _TOPIC.encode()
    return struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)


def _ranges(members: Sequence[str], partitions: int) -> dict[str, bytes]:
    """ConsumerProtocolAssignment, version 0, for each member."""
    assignments = {}
    name = _TOPIC.encode()
    for place, member in enumerate(sorted(members)):
        first = partitions * place // len(members)
        end = partitions * (place + 1) // len(members)
        own = range(first, end)
        assignments[member] = (
            struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, len(own))
            + struct.pack(f">{len(own)}i", *own)
            + struct.pack(">i", -1)
        )
    return assignments


async def _create_topic(kafka: str, partitions: int) -> None:
    connection = await _connect(kafka)
    topic = CreateTopicsRequest.CreatableTopic(
        name=_TOPIC, num_partitions=partitions, replication_factor=-1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
    answer = await connection.ask(request, _CREATE_TOPICS)
    assert answer.topics[0].error_code == 0, answer
    connection.close()


@dataclass(frozen=True, slots=True)
class Joined:
    """Seconds until the last member had its partitions."""

    first_s: float
    one_more_s: float


async def _join_many(kafka: str, members: int, partitions: int) -> Joined:
    await _create_topic(kafka, partitions)
    connections = [await _connect(kafka) for _ in range(members)]
    consumers = [_Member(connection, "bench", partitions) for connection in connections]
    *first, last = consumers
    began = time.perf_counter()
    await asyncio.gather(*(member.join() for member in first))
    first_s = max(member.settled_at for member in first) - began
    staying = [asyncio.create_task(member.stay()) for member in first]
    began = time.perf_counter()
    await last.join()
    generation = last.generation
    await asyncio.gather(*(member.reaches(generation) for member in first))
    one_more_s = max(member.generation_settled[generation] for member in consumers) - began
    for task in staying:
        task.cancel()
    await asyncio.gather(*staying, return_exceptions=True)
    for connection in connections:
        connection.close()
    return Joined(first_s, one_more_s)


async def _commit_many(
    kafka: str, groups: int, partitions: int, seconds: int, started: Any
) -> list[float]:
    """Latencies in seconds. `started` is set when every group has joined and commits begin."""
    await _create_topic(kafka, partitions)
    members = [_Member(await _connect(kafka), f"group-{n}", partitions) for n in range(groups)]
    await asyncio.gather(*(member.join() for member in members))
    frames = [member.commit(1) for member in members]
    latencies: list[float] = []
    started.set()
    began = asyncio.get_running_loop().time() + 0.5

    async def commit_each_second(place: int) -> None:
        for second in range(seconds):
            due = began + second + place / groups
            await asyncio.sleep(max(due - asyncio.get_running_loop().time(), 0))
            sent = time.perf_counter()
            answer = await members[place].connection.ask_encoded(frames[place])
            latencies.append(time.perf_counter() - sent)
            errors = decode(APIS[ApiKey.OffsetCommit].response, _COMMIT, answer)[1]
            assert errors.topics[0].partitions[-1].error_code == 0, errors

    await asyncio.gather(*(commit_each_second(place) for place in range(groups)))
    for member in members:
        member.connection.close()
    return latencies


def _commit_client(
    kafka: str, groups: int, partitions: int, seconds: int, started: Any, results: Any
) -> None:
    results.put(asyncio.run(_commit_many(kafka, groups, partitions, seconds, started)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.groups", description=__doc__)
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--member-partitions", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--group-partitions", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        _print_joins(Path(folder), options.members, options.member_partitions)
        _print_commits(Path(folder), options.groups, options.group_partitions, options.seconds)


def _print_joins(folder: Path, members: int, partitions: int) -> None:
    print(f"\n| {members} members, {partitions} partitions | s | broker's CPU s |")
    print("|---|---:|---:|", flush=True)
    for delay_ms in (0, 3000):
        settings = {"group_initial_rebalance_delay_ms": str(delay_ms)}
        with running_broker(folder / f"join-{delay_ms}", settings) as broker:
            before = cpu_seconds(broker.pid)
            joined = asyncio.run(_join_many(broker.kafka, members, partitions))
            cpu_s = cpu_seconds(broker.pid) - before
        print(
            f"| all join at once, initial delay {delay_ms} ms | {joined.first_s:.2f} | |\n"
            f"| one more comes, members heartbeat every {_HEARTBEAT_EVERY_S} s |"
            f" {joined.one_more_s:.2f} | {cpu_s:.2f} (both) |",
            flush=True,
        )


def _print_commits(folder: Path, groups: int, partitions: int, seconds: int) -> None:
    context = multiprocessing.get_context("spawn")
    with running_broker(folder / "commit", {"group_initial_rebalance_delay_ms": "0"}) as broker:
        started, results = context.Event(), context.Queue()
        client = context.Process(
            target=_commit_client,
            args=(broker.kafka, groups, partitions, seconds, started, results),
        )
        client.start()
        started.wait()
        before, began = cpu_seconds(broker.pid), time.perf_counter()
        latencies = sorted(results.get())
        cpu_s, took_s = cpu_seconds(broker.pid) - before, time.perf_counter() - began
        client.join()
    print(
        f"\n| {groups} groups commit {partitions} partitions each second | commits/s |"
        " p50 ms | p99 ms | max ms | broker's CPU, cores |\n|---|---:|---:|---:|---:|---:|"
    )
    print(
        f"| {seconds} s | {len(latencies) / took_s:,.0f} |"
        f" {latencies[len(latencies) // 2] * 1e3:.1f} |"
        f" {latencies[len(latencies) * 99 // 100] * 1e3:.1f} | {latencies[-1] * 1e3:.1f} |"
        f" {cpu_s / took_s:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
