"""What one client writes, every client reads: from the tail cache, by cold reads, and as rows.

Each client creates a topic for each codec and writes the sample to it; every test then reads one of
these topics in one way. The tests first run on the broker that received the records. Then the
broker is restarted, so that nothing is in memory, and the same tests read from storage.
"""

import random
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from tests.conftest import RunBroker
from tests.support.adapters import CLIENTS, CODECS, Client, GetClient
from tests.support.broker_process import BrokerProcess
from tests.support.records import SAMPLE, TIME_MS, Record, rows

TIMESTAMPS_MS = (0, TIME_MS, TIME_MS + 13, TIME_MS + 21, 2**62)


LARGE = [
    Record(b"%d" % n, random.Random(n).randbytes(900_000), (), TIME_MS, offset=n) for n in range(4)
]
MANY = [Record(b"%d" % n, b"value %d" % n, (), TIME_MS + n, offset=n) for n in range(20_000)]
VOLUMES = {
    "large-none": ("java", "none", LARGE),
    "large-lz4": ("java", "lz4", LARGE),
    "many-none": ("confluent-kafka", "none", MANY),
    "many-zstd": ("java", "zstd", MANY),
}


@dataclass(frozen=True)
class Log:
    """The broker with all that was written; `outcomes` tell whether each topic came to be."""

    broker: BrokerProcess
    outcomes: dict[str, "Future[None]"]

    def topic(self, name: str) -> str:
        self.outcomes[name].result()
        return name


def topic_of(writer: str, codec: str) -> str:
    return f"{writer}-{codec}"


def sent_by(client: Client) -> list[Record]:
    """The records of the sample that the client can send, as they should be in the log."""
    sendable = [client.as_sent(record) for record in SAMPLE if client.can_send(record)]
    return [record.at(offset) for offset, record in enumerate(sendable)]


@pytest.fixture(scope="module")
def written(run_broker: RunBroker, client: GetClient) -> Iterator[Log]:
    samples = {topic_of(w, codec): (w, codec, None) for w in CLIENTS for codec in CODECS}
    with run_broker("roundtrip") as broker:
        log = Log(broker, {})
        for topic, (writer, codec, records) in {**samples, **VOLUMES}.items():
            outcome = log.outcomes[topic] = Future()
            try:
                writing = client(writer)
                writing.create_topic(broker.kafka, topic, 1)
                writing.produce(broker.kafka, topic, records or sent_by(writing), codec=codec)
                outcome.set_result(None)
            except (Exception, pytest.fail.Exception) as failure:
                outcome.set_exception(failure)  # raised again by each test that asks for the topic
        yield log


@pytest.fixture(scope="module", params=["tail", "cold"])
def log(request: pytest.FixtureRequest, written: Log) -> Log:
    if request.param == "cold":
        written.broker.restart()
    return written


@pytest.mark.pairwise
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_the_records_of_a_client_are_rows(
    log: Log, client: GetClient, writer: str, codec: str
) -> None:
    found = rows(log.broker, log.topic(topic_of(writer, codec)))

    assert with_stored_timestamps(sent_by(client(writer)), found) == found


@pytest.mark.pairwise
@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_a_client_reads_what_another_wrote(
    log: Log, client: GetClient, writer: str, codec: str, reader: str
) -> None:
    topic = log.topic(topic_of(writer, codec))
    sent = with_stored_timestamps(sent_by(client(writer)), rows(log.broker, topic))
    expected = [client(reader).as_shown(record) for record in sent]

    assert client(reader).read_from_offset(log.broker.kafka, topic, 0, len(sent)) == expected


@pytest.mark.pairwise
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_reads_from_an_offset_inside_of_a_batch(
    log: Log, client: GetClient, name: str, codec: str
) -> None:
    topic = log.topic(topic_of(name, codec))
    stored = rows(log.broker, topic)
    start = len(stored) - 50
    expected = [client(name).as_shown(record) for record in stored[start:]]

    assert client(name).read_from_offset(log.broker.kafka, topic, start, 50) == expected


@pytest.mark.pairwise
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_reads_from_a_timestamp(
    log: Log, client: GetClient, name: str, codec: str
) -> None:
    topic = log.topic(topic_of(name, codec))
    stored = rows(log.broker, topic)
    latest_ms = max(record.timestamp_ms or 0 for record in stored)

    for wanted_ms in sorted({min(wanted_ms, latest_ms) for wanted_ms in TIMESTAMPS_MS}):
        start = next(
            r.offset for r in stored if r.timestamp_ms is not None and r.timestamp_ms >= wanted_ms
        )
        expected = [client(name).as_shown(record) for record in stored[start : start + 3]]

        found = client(name).read_from_timestamp(log.broker.kafka, topic, wanted_ms, len(expected))

        assert found == expected, f"from timestamp {wanted_ms}"


@pytest.mark.pairwise
@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("topic", VOLUMES)
def test_a_client_reads_more_than_one_fetch_brings(
    log: Log, client: GetClient, topic: str, reader: str
) -> None:
    _, _, records = VOLUMES[topic]

    found = client(reader).read_from_offset(log.broker.kafka, log.topic(topic), 0, len(records))

    different = next((n for n, record in enumerate(records) if found[n] != record), None)
    assert different is None, f"record {different}: {str(found[different])[:200]}"


def with_stored_timestamps(sent: list[Record], stored: list[Record]) -> list[Record]:
    """Fills in the timestamps that a client set by its own clock."""
    assert len(sent) == len(stored)
    return [
        record if record.timestamp_ms is not None else record.stamped(row.timestamp_ms)
        for record, row in zip(sent, stored, strict=True)
    ]
