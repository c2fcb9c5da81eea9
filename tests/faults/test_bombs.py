"""Small compressed batches that are very large when decompressed."""

from __future__ import annotations

import os
import statistics
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from kafka.protocol.api_message import ApiMessage

from brokerhouse.protocol.compression import Codec, compress
from tests.conftest import RunBroker
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import TIME_MS, Target
from tests.support.record_batches import Batch, Record, batch_of, decoded
from tests.support.wire import Wire

MIB: Final = 1 << 20
BUDGET_BYTES: Final = 48 * MIB
GROWTH_MAX_BYTES: Final = 700 * MIB
"""The budget, a few copies of the largest batch on its way into the journal, what waits in the
journal, and what the engine takes to insert that."""
CONNECTIONS: Final = 4
ROUNDS: Final = 5

CODECS: Final = [
    pytest.param(Codec.GZIP, marks=pytest.mark.test_all),
    pytest.param(Codec.LZ4, marks=pytest.mark.test_all),
    Codec.ZSTD,
]
MESSAGE_TOO_LARGE: Final = 10
INVALID_RECORD: Final = 87
VERSION: Final = 9


def bomb(codec: Codec, records: int) -> bytes:
    """A batch that a broker accepts: a record of noise, others of almost a megabyte of zeros."""
    zeros = [Record(value=bytes(1_000_000))] * (records - 1)
    batch = batch_of(Record(value=os.urandom(64_000)), *zeros, max_timestamp=TIME_MS)
    return replace(batch, payload=compress(codec, batch.payload), attributes=int(codec)).data


def nothing_but_zeros(codec: Codec, size: int) -> bytes:
    return Batch(compress(codec, bytes(size)), 14, attributes=int(codec)).data


@pytest.fixture(scope="module")
def broker(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    """Every partition is in the same lane."""
    with run_broker(
        "bombs",
        lanes="1",
        decompression_memory_bytes=str(BUDGET_BYTES),
        journal_max_bytes=str(96 * MIB),
        journal_insert_bytes=str(32 * MIB),
        tail_cache_bytes=str(16 * MIB),
    ) as started:
        yield started


@pytest.fixture(scope="module")
def quiet_broker(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    """One whose engine does not insert what other tests stored."""
    with run_broker("zeros", lanes="1") as started:
        yield started


@pytest.mark.test_all
def test_batches_that_are_large_when_decompressed_do_not_delay_others(
    broker: BrokerProcess,
) -> None:
    # Snappy becomes 21 times as large at most.
    bombs = [bomb(Codec.GZIP, 30), bomb(Codec.SNAPPY, 16), bomb(Codec.LZ4, 30)]
    bombs.append(bomb(Codec.ZSTD, 30))
    with ExitStack() as open_wires:
        polite = open_wires.enter_context(Wire(broker))
        others = messages.create_topic(polite, "polite")
        bombed = messages.create_topic(polite, "bombed", CONNECTIONS)
        produce_one(polite, others, 0)
        before = broker.rss_bytes()
        attackers = [open_wires.enter_context(Wire(broker, limit_s=60)) for _ in range(CONNECTIONS)]
        sent: deque[tuple[int, int, ApiMessage]] = deque()
        rounds = [0] * CONNECTIONS
        answers: list[int] = []
        largest = [0]
        enough = threading.Event()

        def send(partition: int) -> None:
            data = bombs[(rounds[partition] + partition) % len(bombs)]
            request = messages.produce(bombed, data, partition=partition)
            sent.append((partition, attackers[partition].send_request(request, VERSION), request))
            rounds[partition] += 1

        def read_answers() -> None:
            """For each answer one more is sent, until it is enough."""
            while sent:
                partition, correlation_id, request = sent.popleft()
                answer = attackers[partition].receive_response(request, VERSION, correlation_id)
                answers.append(answer.responses[0].partition_responses[0].error_code)
                largest[0] = max(largest[0], broker.rss_bytes())
                if not enough.is_set():
                    send(partition)

        for _ in range(ROUNDS):
            for partition in range(CONNECTIONS):
                send(partition)
        reading = threading.Thread(target=read_answers)
        reading.start()
        overtaken_by = []
        for number in range(1, 12):
            answered = len(answers)
            produce_one(polite, others, number)
            overtaken_by.append(len(answers) - answered)
        enough.set()
        reading.join()
        assert answers == [0] * sum(rounds)
        print(f"{overtaken_by}, {(largest[0] - before) / MIB:.0f} MiB more memory")
        # Each waits for one block of large batches at most, without turns for all that are sent.
        # Where a thread here stands still, one waits for more.
        assert statistics.median(overtaken_by) <= 2
        assert largest[0] - before < GROWTH_MAX_BYTES
        for partition in range(CONNECTIONS):
            ends = polite.ask(messages.fetch(bombed, 0, partition=partition), 12)
            assert ends.responses[0].partitions[0].high_watermark == sum(
                16 if (number + partition) % len(bombs) == 1 else 30
                for number in range(rounds[partition])
            )


@pytest.mark.parametrize("codec", CODECS)
def test_zeros_are_refused_before_they_are_decompressed(
    quiet_broker: BrokerProcess, codec: Codec
) -> None:
    data = nothing_but_zeros(codec, 100 * MIB)
    with ExitStack() as open_wires:
        polite = open_wires.enter_context(Wire(quiet_broker))
        target = messages.create_topic(polite, f"zeros-{codec.name}", 2)
        attackers = [
            open_wires.enter_context(Wire(quiet_broker, limit_s=60)) for _ in range(CONNECTIONS)
        ]
        request = messages.produce(target, data, partition=1)
        before = quiet_broker.rss_bytes()
        forget_peak(quiet_broker)
        sent = [
            (wire, wire.send_request(request, VERSION)) for _ in range(ROUNDS) for wire in attackers
        ]
        produce_one(polite, target, 0)
        for wire, correlation_id in sent:
            answer = wire.receive_response(request, VERSION, correlation_id)
            found = answer.responses[0].partition_responses[0].error_code
            assert found == INVALID_RECORD
        assert peak_bytes(quiet_broker) - before < 60 * MIB  # all of one batch would be 100
        produce_one(polite, target, 1)


@pytest.mark.parametrize("codec", CODECS)
def test_letters_are_refused_at_the_limit_by_an_error_that_names_the_setting(
    quiet_broker: BrokerProcess, codec: Codec
) -> None:
    records = batch_of(Record(value=b"a" * (100 * MIB)), max_timestamp=TIME_MS)
    data = replace(records, payload=compress(codec, records.payload), attributes=int(codec)).data
    with Wire(quiet_broker, limit_s=60) as wire:
        target = messages.create_topic(wire, f"letters-{codec.name}")
        produce_one(wire, target, 0)
        before = quiet_broker.rss_bytes()
        forget_peak(quiet_broker)
        for _ in range(ROUNDS):
            answer = wire.ask(messages.produce(target, data), VERSION)
            partition = answer.responses[0].partition_responses[0]
            assert partition.error_code == MESSAGE_TOO_LARGE
            assert "decompressed_max_bytes allows no more" in partition.error_message
        assert peak_bytes(quiet_broker) - before < 60 * MIB
        produce_one(wire, target, 1)


def forget_peak(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")


def peak_bytes(broker: BrokerProcess) -> int:
    """The most memory that the process had since `forget_peak`."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak) << 10


def produce_one(wire: Wire, target: Target, offset: int) -> None:
    """Store a record, and read it back."""
    value = b"record %d" % offset
    data = batch_of(Record(value=value), max_timestamp=TIME_MS).data
    answer = wire.ask(messages.produce(target, data), VERSION)
    partition = answer.responses[0].partition_responses[0]
    assert (partition.error_code, partition.base_offset) == (0, offset)
    read = wire.ask(messages.fetch(target, offset), 12)
    assert [row.value for row in decoded(read.responses[0].partitions[0].records)] == [value]
