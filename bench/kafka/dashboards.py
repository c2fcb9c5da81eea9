"""What SQL costs beside a steady load: nobody asks, one dashboard, or twenty.

A dashboard asks once a second for the records of each second of the last minute. Before each
statement runs, the rows that are only in the journal go into the table. Kafka stands in the table
without dashboards: nobody can ask it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection

from bench.kafka.figures import Figure, percentile
from bench.kafka.loads import Plan, full_rate, java_producer, watched
from bench.kafka.servers import Server, create_topic, settle
from tests.support.broker_process import BrokerProcess

_RATE = 20_000
_DASHBOARDS = (0, 1, 20)
_EVERY_S = 1.0
_LIMIT_S = 120.0
_STATEMENT = (
    "SELECT toStartOfSecond(append_time) AS second, count() AS records FROM messages"
    " WHERE topic = '{topic}' AND append_time >= now64(3) - INTERVAL 1 MINUTE"
    " GROUP BY second ORDER BY second FORMAT JSONCompact"
)


def dashboards(server: Server, plan: Plan) -> Iterator[Figure]:
    """A Java producer of 20,000 records/s of 100 B, and people who ask meanwhile."""
    create_topic(server, "warm-up")
    full_rate(server, plan, "100 B", "warm-up", 100)
    for asking in _DASHBOARDS if isinstance(server, BrokerProcess) else (0,):
        case, topic = f"{asking} dashboards", f"dashboards-{asking}"
        create_topic(server, topic)
        settle(server, plan.quiet_s)
        count = plan.count(_RATE, plan.seconds * 1.25)
        load = partial(
            java_producer, server, topic, 100, count, throughput=_RATE, warmup=count // 5
        )
        with ExitStack() as stack:
            waits_s: list[float] = []
            if isinstance(server, BrokerProcess):
                for number in range(asking):
                    late_s = _EVERY_S * number / asking
                    stack.enter_context(_asking(server, topic, late_s, waits_s))
            result, used = watched(server, plan, load)
        yield Figure(case, "records/s reached", result.records_per_s)
        yield Figure(case, "producer's p50 ms", result.p50_ms)
        yield Figure(case, "producer's p99 ms", result.p99_ms)
        yield Figure(case, "broker's cores", used.server_s / result.seconds)
        if waits_s:
            ascending = sorted(waits_s)
            yield Figure(case, "statement's p50 ms", percentile(ascending, 50) * 1e3)
            yield Figure(case, "statement's p99 ms", percentile(ascending, 99) * 1e3)


@contextmanager
def _asking(
    server: BrokerProcess, topic: str, late_s: float, waits_s: list[float]
) -> Iterator[None]:
    """A dashboard that asks every second from `late_s` on; how long it waited goes to `waits_s`."""
    done, failures = threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            with closing(HTTPConnection(server.http, timeout=_LIMIT_S)) as sql:
                wait_s = late_s
                while not done.wait(wait_s):
                    began = time.monotonic()
                    sql.request("POST", "/", _STATEMENT.format(topic=topic))
                    response = sql.getresponse()
                    answer = response.read()
                    if response.status != 200:
                        raise RuntimeError(f"SQL answered {response.status}: {answer.decode()}")
                    took_s = time.monotonic() - began
                    waits_s.append(took_s)
                    wait_s = max(_EVERY_S - took_s, 0.0)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]
