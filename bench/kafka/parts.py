"""The parts of the comparison that drive one server and yield figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from bench.kafka.figures import Figure, percentile
from bench.kafka.loads import (
    WARM_UP_SHARE,
    Plan,
    c_client,
    full_rate,
    full_speed,
    java_consumer,
    java_producer,
    watched,
)
from bench.kafka.servers import Server, cores, create_topic, settle
from bench.kafka.small_requests import Asked, ask_many
from bench.kafka.transactions import commit_many
from bench.machine import LARGE_BATCHES, LARGE_FETCHES

SIZES = (("1 KB", 1000), ("100 B", 100))
THROTTLED = (1_000, 20_000, 100_000)
PARTITIONS = (1, 10, 100, 1000)
_STORED_BYTES = 500_000_000
_WARM_UP_BYTES = 50_000_000
_BOUNDED_QUEUE = "queue.buffering.max.kbytes=131072"  # what is sent after the clock has run out
_IDLE_S, _IDLE_QUICK_S = 30.0, 5.0


def java_defaults(server: Server, plan: Plan) -> Iterator[Figure]:
    """kafka-producer-perf-test with its defaults, as fast as it can."""
    for case, size in SIZES:
        create_topic(server, f"defaults-{size}")
        result, used = full_speed(server, plan, case, f"defaults-{size}", size)
        yield Figure(case, "records/s", result.records_per_s)
        yield from used.per_million(case, result.records)


def throttled(server: Server, plan: Plan) -> Iterator[Figure]:
    """The same with fewer records per second, 100 B.

    The first fifth of each run warms up: it does not count in the latencies.
    """
    create_topic(server, "warm-up")
    full = full_rate(server, plan, "100 B", "warm-up", 100)
    for wanted in THROTTLED:
        case, topic = f"{wanted:,} records/s", f"throttled-{wanted}"
        create_topic(server, topic)
        settle(server, plan.quiet_s)
        count = plan.count(min(wanted, full), plan.seconds * 1.25)
        load = partial(
            java_producer, server, topic, 100, count, throughput=wanted, warmup=count // 5
        )
        result, used = watched(server, plan, load)
        yield Figure(case, "records/s reached", result.records_per_s)
        yield Figure(case, "p50 ms", result.p50_ms)
        yield Figure(case, "p99 ms", result.p99_ms)
        yield Figure(case, "p99.9 ms", result.p999_ms)
        yield Figure(case, "broker's cores", used.server_s / result.seconds)


def one_at_a_time(server: Server, plan: Plan) -> Iterator[Figure]:
    """librdkafka with linger.ms=0 and one record in flight."""
    properties = ("acks=all", "linger.ms=0")
    create_topic(server, "one-by-one")
    c_client(server, plan, "latency", "one-by-one", 100, properties, count=1000)
    settle(server, plan.quiet_s)
    result, used = watched(
        server, plan, partial(c_client, server, plan, "latency", "one-by-one", 100, properties)
    )
    case = "100 B"
    yield Figure(case, "p50 ms", result["p50_ms"])
    yield Figure(case, "p99 ms", result["p99_ms"])
    yield from used.per_million(case, result["records"])


def large_batches(server: Server, plan: Plan) -> Iterator[Figure]:
    """librdkafka with batches of up to 1 MB."""
    properties = (*LARGE_BATCHES, _BOUNDED_QUEUE)
    for case, size in SIZES:
        topic = f"large-{size}"
        create_topic(server, topic)
        warm = plan.count(_WARM_UP_BYTES / size, 1.0)
        c_client(server, plan, "produce", topic, size, LARGE_BATCHES, warm)
        result, used = watched(
            server, plan, partial(c_client, server, plan, "produce", topic, size, properties)
        )
        yield Figure(case, "records/s", result["records_per_s"])
        yield from used.per_million(case, result["records"])


def consume_cold(server: Server, plan: Plan) -> Iterator[Figure]:
    """Topics that the server has not in its own memory, because it was restarted before.

    The system's page cache keeps what it has. Another topic is read first: a JVM starts slowly.
    """
    share = 0.1 if plan.quick else 1.0
    counts = {size: plan.count(_STORED_BYTES / size, share) for _, size in SIZES}
    for _, size in SIZES:
        create_topic(server, f"cold-{size}")
        c_client(server, plan, "produce", f"cold-{size}", size, LARGE_BATCHES, counts[size])
    warm = plan.count(_WARM_UP_BYTES / 100, 1.0)
    create_topic(server, "warm-up")
    c_client(server, plan, "produce", "warm-up", 100, LARGE_BATCHES, warm)
    settle(server, plan.quiet_s)
    server.restart()
    c_client(server, plan, "consume", "warm-up", 100, LARGE_FETCHES, warm)
    for case, size in SIZES:
        topic, count = f"cold-{size}", counts[size]
        result, used = watched(
            server,
            plan,
            partial(c_client, server, plan, "consume", topic, size, LARGE_FETCHES, count),
        )
        yield Figure(f"{case}, librdkafka", "records/s", result["records_per_s"])
        yield from used.per_million(f"{case}, librdkafka", result["records"])
    server.restart()
    c_client(server, plan, "consume", "warm-up", 100, LARGE_FETCHES, warm)
    for case, size in SIZES:
        topic, count = f"cold-{size}", counts[size]
        found, used = watched(server, plan, partial(java_consumer, server, topic, count))
        yield Figure(f"{case}, ConsumerPerformance", "MB/s", found.mb_per_s)
        yield Figure(f"{case}, ConsumerPerformance", "fetch.MB/s", found.fetch_mb_per_s)
        yield from used.per_million(f"{case}, ConsumerPerformance", found.records)


def many_partitions(server: Server, plan: Plan) -> Iterator[Figure]:
    """kafka-producer-perf-test with its defaults, 100 B, to topics of 1 to 1,000 partitions."""
    for partitions in PARTITIONS:
        case = f"{partitions:,} partition{'s' if partitions > 1 else ''}"
        topic = f"partitions-{partitions}"
        create_topic(server, topic, partitions)
        result, used = full_speed(server, plan, case, topic, 100)
        yield Figure(case, "records/s", result.records_per_s)
        yield from used.per_million(case, result.records)


def many_producers(server: Server, plan: Plan) -> Iterator[Figure]:
    """Producers with a connection each and one record of 100 B in a request; 10 partitions."""
    loads = (
        ("10 producers, each sends when its last record is acknowledged", Asked(10, None)),
        ("1,000 producers, each sends when its last record is acknowledged", Asked(1000, None)),
        ("1,000 producers, each sends one record a second", Asked(1000, 1.0)),
    )
    topic, partitions = "producers", 10
    create_topic(server, topic, partitions)
    ask_many(server.kafka, topic, partitions, loads[0][1], plan.seconds * WARM_UP_SHARE)
    for case, asked in loads:
        settle(server, plan.quiet_s)
        answers, used = watched(
            server, plan, partial(ask_many, server.kafka, topic, partitions, asked, plan.seconds)
        )
        yield Figure(case, "records/s", answers.records_per_s)
        yield Figure(case, "p50 ms", answers.p50_ms)
        yield Figure(case, "p99 ms", answers.p99_ms)
        yield from replace(used, clients_s=answers.cpu_s).per_million(case, answers.records)


def transactions(server: Server, plan: Plan) -> Iterator[Figure]:
    """One librdkafka producer commits transactions of 100 records of 100 B, one partition."""
    create_topic(server, "transactions")
    settle(server, plan.quiet_s)
    load = partial(commit_many, server.kafka, "transactions", plan.seconds)
    result, used = watched(server, plan, load)
    case = "100 records"
    yield Figure(case, "transactions/s", result.per_s)
    yield Figure(case, "p50 ms", percentile(result.taken_ms, 50))
    yield Figure(case, "p99 ms", percentile(result.taken_ms, 99))
    yield Figure(case, "broker's CPU s per million", used.settled_s / result.records * 1e6)


def idle(server: Server, plan: Plan) -> Iterator[Figure]:
    """A new broker without clients."""
    seconds = _IDLE_QUICK_S if plan.quick else _IDLE_S
    settle(server, plan.quiet_s)
    yield Figure(f"no clients, {seconds:.0f} s", "broker's cores", cores(server, seconds))
