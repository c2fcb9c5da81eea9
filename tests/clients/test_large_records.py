"""Records far larger than their compressed batch: `max.message.bytes` bounds the batch alone.

They are stored, and read from the tail cache, from the journal and from the table, by clients with
default settings: a fetch brings at least one batch, however large it is (KIP-74).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from brokerhouse.protocol.batches import BATCH_OVERHEAD
from brokerhouse.protocol.compression import Codec, compress, decompress
from tests.conftest import RunBroker
from tests.support import messages
from tests.support.adapters import CLIENTS, GetClient
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import batches, read, write
from tests.support.record_batches import Batch, Record, batch_of, stored
from tests.support.wire import Wire

CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
VALUES = (b"a" * 1_200_000, b"b" * 20_000_000)
"""Snappy compresses the larger one to just less than the default of `max.message.bytes`."""


@pytest.fixture(scope="module")
def broker(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    with run_broker("large-records", journal_insert_ms="600000") as started:
        yield started


@pytest.fixture(scope="module")
def written(broker: BrokerProcess) -> dict[Codec, Target]:
    with Wire(broker) as wire:
        targets = {codec: messages.create_topic(wire, f"large-{codec.name}") for codec in CODECS}
        for codec, target in targets.items():
            for offset, value in enumerate(VALUES):
                batch = batch_of(Record(value=value))
                packed = replace(batch, payload=compress(codec, batch.payload), attributes=codec)
                assert write(wire, target, packed.data) == offset
    return targets


def fetched(broker: BrokerProcess, target: Target) -> list[bytes | None]:
    """The values that fetches bring which ask for very little."""
    with Wire(broker, limit_s=60) as wire:
        answers = [
            bytes(read(wire, target, offset, max_bytes=1, partition_max_bytes=1).records)
            for offset in range(len(VALUES))
        ]
    return [value_in(answer) for answer in answers]


def value_in(batch: bytes) -> bytes | None:
    """The value of the only record of a batch, which may be compressed."""
    (header,) = batches(batch)
    payload = decompress(header.codec, batch[BATCH_OVERHEAD:], 2**31)
    (row,) = stored(Batch(payload, 1), header.base_offset, 0)
    return row.value


def test_large_records_are_delivered_from_the_tail_from_the_journal_and_from_the_table(
    broker: BrokerProcess, written: dict[Codec, Target]
) -> None:
    def check(*codecs: Codec) -> None:
        for codec in codecs:
            assert fetched(broker, written[codec]) == list(VALUES), codec.name

    check(Codec.SNAPPY)  # as it came, of any codec
    broker.kill()
    broker.start()
    check(Codec.SNAPPY)
    broker.restart()
    check(*CODECS)
    sizes = broker.sql(
        "SELECT topic, arraySort(groupArray(length(value))) AS n FROM messages GROUP BY 1"
    )
    assert {row["topic"]: row["n"] for row in sizes} == {
        target.name: [len(value) for value in VALUES] for target in written.values()
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            # Of librdkafka and of Java, whose limits of a fetch differ most.
            marks=() if name in ("confluent-kafka", "java") else pytest.mark.test_all,
        )
        for name in CLIENTS
    ],
)
def test_every_client_reads_large_records_with_its_defaults(
    broker: BrokerProcess, written: dict[Codec, Target], client: GetClient, name: str
) -> None:
    topic = written[Codec.ZSTD].name
    found = client(name).read_from_offset(broker.kafka, topic, 0, len(VALUES))
    assert [record.value for record in found] == list(VALUES)
