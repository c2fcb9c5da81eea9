"""Metrics of what clients asked: requests, connections, memory, what consumers were given."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from brokerhouse.broker.broker import Broker
from brokerhouse.broker.monitoring.families import counter, gauge, histogram
from brokerhouse.broker.monitoring.request_counts import CLOSED
from brokerhouse.broker.net.connection import Connections
from brokerhouse.protocol.errors import error_name

_API = ("api",)
_CLOSED = "CONNECTION_CLOSED"


class RequestMetrics:
    """`MetricSource` of the Kafka listener."""

    def __init__(self, broker: Broker, connections: Connections) -> None:
        self._broker = broker
        self._connections = connections

    async def collect(self) -> Iterable[Metric]:
        return [*self._requests(), *self._of_connections(), *self._memory(), *self._fetched()]

    def _requests(self) -> Iterable[Metric]:
        apis = sorted((key.name, counts) for key, counts in self._broker.requests.apis.items())
        yield histogram(
            "brokerhouse_request_seconds",
            "Time from the start of a request to its response, including waits for records",
            [((name,), counts.timings) for name, counts in apis],
            _API,
        )
        yield counter(
            "brokerhouse_request_errors_total",
            "Error codes in responses, those of partitions and topics included",
            [
                ((name, _CLOSED if code == CLOSED else error_name(code)), count)
                for name, counts in apis
                for code, count in sorted(counts.errors.items())
            ],
            ("api", "error"),
        )
        yield counter(
            "brokerhouse_request_bytes_total",
            "Size of requests",
            [((name,), counts.received_bytes) for name, counts in apis],
            _API,
        )
        yield counter(
            "brokerhouse_response_bytes_total",
            "Size of responses",
            [((name,), counts.sent_bytes) for name, counts in apis],
            _API,
        )

    def _of_connections(self) -> Iterable[Metric]:
        requests = self._broker.requests
        yield gauge(
            "brokerhouse_connections", "Open connections of Kafka clients", len(self._connections)
        )
        yield gauge(
            "brokerhouse_connections_limit",
            "The setting max_connections",
            self._broker.settings.max_connections,
        )
        yield counter(
            "brokerhouse_connections_accepted_total", "Connections accepted", requests.accepted
        )
        yield counter(
            "brokerhouse_connections_refused_total",
            "Connections refused at the limit",
            requests.refused,
        )
        yield counter(
            "brokerhouse_connections_aborted_total",
            "Connections that the broker closed: idle, malformed requests, unread responses",
            requests.aborted,
        )

    def _memory(self) -> Iterable[Metric]:
        in_flight, responses = self._broker.in_flight, self._broker.response_memory
        yield gauge(
            "brokerhouse_requests_in_flight_bytes",
            "Requests that are not answered yet",
            in_flight.size,
        )
        yield gauge(
            "brokerhouse_requests_in_flight_limit_bytes",
            "The setting in_flight_max_bytes",
            in_flight.max_bytes,
        )
        yield gauge(
            "brokerhouse_responses_unsent_bytes",
            "Responses that are not sent yet",
            responses.used,
        )
        yield gauge(
            "brokerhouse_responses_unsent_limit_bytes",
            "The setting response_memory_bytes",
            responses.max_bytes,
        )
        yield gauge(
            "brokerhouse_long_polls",
            "Fetches that wait for records",
            len(self._broker.long_polls),
        )

    def _fetched(self) -> Iterable[Metric]:
        fetched = self._broker.fetched
        yield counter(
            "brokerhouse_fetched_records_total", "Records in fetch responses", fetched.records
        )
        yield counter(
            "brokerhouse_fetched_bytes_total",
            "Compressed size of record batches in fetch responses",
            fetched.bytes,
        )
        yield counter(
            "brokerhouse_partition_reads_total",
            "Reads of a partition by fetches: from the tail cache, or cold (from the table)",
            [(("tail",), fetched.tail_reads), (("cold",), fetched.cold_reads)],
            ("source",),
        )
