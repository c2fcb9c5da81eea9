"""Record batches that are wrong, or that grow when they are decompressed.

Every test ends in a clear answer or a closed connection with one log line, while another client
works on undisturbed (`Bystander`).
"""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from brokerhouse.protocol import errors
from brokerhouse.protocol.compression import compress
from tests.conftest import OwnBrokers
from tests.faults.bystander import undisturbed
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import end_of, produced, write
from tests.support.record_batches import Batch, Record, batch_of, encode_records
from tests.support.wire import Wire

MIB = 1 << 20


def _batch_cases() -> Iterator[tuple[str, bytes | None, int]]:
    sound = batch_of(Record(0, b"key", b"value"), Record(1, None, b"x"))
    payload = sound.payload
    corrupt, invalid = errors.CorruptMessage.code, errors.InvalidRecord.code
    yield "no records at all", None, invalid
    yield "an empty set of records", b"", invalid
    yield "two batches", sound.data * 2, invalid
    yield "a batch and a byte", sound.data + b"\0", corrupt
    yield "a CRC of something else", sound.data[:-1] + b"\x7f", corrupt
    for size in (0, 48, -1, -(2**31), 2**31 - 1):
        yield (
            f"a length of {size}",
            sound.data[:8] + struct.pack(">i", size) + sound.data[12:],
            (corrupt),
        )
    for magic in (0, 1):
        yield f"message format {magic}", replace(sound, magic=magic).data, invalid
    for magic in (3, 127, -1):
        yield f"magic {magic}", replace(sound, magic=magic).data, corrupt
    for count in (0, -1, 1, 3, 2**31 - 1, -(2**31)):
        yield f"a count of {count}", replace(sound, count=count, last_offset_delta=1).data, invalid
    for delta in (0, 2, -1, 2**31 - 1, -(2**31)):
        yield f"a last offset of {delta}", replace(sound, last_offset_delta=delta).data, invalid
    for cut in range(len(payload)):
        yield f"records cut at {cut}", replace(sound, payload=payload[:cut]).data, invalid
    yield "a byte after the records", replace(sound, payload=payload + b"\0").data, invalid
    yield "endless varints", replace(sound, payload=b"\xff" * 1000).data, invalid
    yield "a control batch", replace(sound, attributes=0x20).data, invalid
    yield "a transaction", replace(sound, attributes=0x10, producer_id=1).data, invalid
    yield "a producer without a sequence", replace(sound, producer_id=1).data, invalid
    for codec in (5, 6, 7):
        yield (
            f"codec {codec}",
            replace(sound, attributes=codec).data,
            (errors.UnsupportedCompressionType.code),
        )
    for codec in (1, 2, 3, 4):
        compressed = compress(codec, payload)
        for name, spoilt in (
            ("nothing", b""),
            ("something else", b"this is not compressed at all"),
            ("half of it", compressed[: len(compressed) // 2]),
            ("all but a byte", compressed[:-1]),
        ):
            yield (
                f"codec {codec} of {name}",
                replace(sound, payload=spoilt, attributes=codec).data,
                (corrupt),
            )


BATCHES = [pytest.param(data, code, id=name) for name, data, code in _batch_cases()]


class TestRecordBatches:
    @pytest.mark.parametrize(("records", "code"), BATCHES)
    def test_a_wrong_batch_is_refused_and_the_right_one_beside_it_stored(
        self, wire: Wire, shared_target: Target, records: bytes | None, code: int
    ) -> None:
        request = messages.produce(shared_target, records)
        beside = messages.produce(shared_target, messages.small_batch(), partition=1)
        request.topic_data[0].partition_data += beside.topic_data[0].partition_data
        wrong, right = wire.ask(request, 9).responses[0].partition_responses
        assert (wrong.error_code, wrong.base_offset) == (code, -1)
        assert wrong.error_message
        assert right.error_code == 0
        assert end_of(wire, shared_target, 0) == 0
        assert end_of(wire, shared_target, 1) == right.base_offset + 2

    def test_every_flipped_bit_under_the_crc_is_found(
        self, wire: Wire, shared_target: Target
    ) -> None:
        data = batch_of(Record(0, b"key", b"value", ((b"h", None),))).data
        first_checked = 16  # base offset, length and leader epoch are not under the CRC
        for at in range(first_checked, len(data)):
            for bit in range(8):
                spoilt = bytearray(data)
                spoilt[at] ^= 1 << bit
                assert produced(wire, shared_target, bytes(spoilt), 9).error_code != 0, (
                    f"bit {bit} of byte {at}"
                )
        assert end_of(wire, shared_target, 0) == 0

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_a_batch_that_would_decompress_to_far_too_much_is_refused_in_bounded_memory(
        self, broker: BrokerProcess, wire: Wire, topic: str, shared_target: Target, codec: int
    ) -> None:
        """A batch of less than 1 MB that decompresses to far more than the allowed 32 MB."""
        batch = Batch(_bomb(codec), _BOMB_RECORDS, attributes=codec).data
        assert len(batch) < MIB
        with undisturbed(broker, topic):
            before_bytes = broker.rss_bytes()
            expected = errors.CorruptMessage if codec == 2 else errors.MessageTooLarge
            for _ in range(10):
                assert produced(wire, shared_target, batch, 9).error_code == expected.code
            assert broker.rss_bytes() - before_bytes < 200 * MIB

    @pytest.mark.test_all
    def test_many_batches_that_grow_on_decompression_are_stored_in_bounded_memory(
        self, own_broker: OwnBrokers, topic: str
    ) -> None:
        """Each is valid, small, and 30 MB when decompressed. In one block they had 1 GB."""
        broker = own_broker(lanes="1", decompression_memory_bytes=str(64 * MIB))
        with Wire(broker) as wire:
            target = messages.create_topic(wire, topic)
            records = [Record(value=os.urandom(32 * 1024)), *[Record(value=bytes(MIB))] * 29]
            batch = Batch(compress(4, encode_records(records)), 30, attributes=4).data
            assert len(batch) < 64 * 1024
            request = messages.produce(target, batch)
            for number in range(4):
                assert write(wire, target, batch, 9) == 30 * number
            before_bytes = most_bytes = broker.rss_bytes()
            for correlation_id in [wire.send_request(request, 9) for _ in range(30)]:
                answer = wire.receive_response(request, 9, correlation_id)
                assert answer.responses[0].partition_responses[0].error_code == 0
                most_bytes = max(most_bytes, broker.rss_bytes())
        grown = most_bytes - before_bytes
        assert grown < 800 * MIB, f"grew by {grown // MIB} MB"

    def test_a_batch_larger_than_the_topic_takes_is_refused(
        self, wire: Wire, shared_target: Target
    ) -> None:
        batch = batch_of(Record(value=bytes(1_048_588))).data
        assert produced(wire, shared_target, batch, 9).error_code == errors.MessageTooLarge.code


@pytest.fixture(scope="module")
def shared_target(broker: BrokerProcess) -> Target:
    """A topic whose partition 0 stays empty, because every batch for it is wrong."""
    with Wire(broker) as wire:
        return messages.create_topic(wire, "bad-input-shared", partitions=2)


_BOMB_RECORDS = 200


def _bomb(codec: int) -> bytes:
    """200 MB of sound records. Snappy does not compress that much, so there only a claim of it."""
    if codec == 2:
        return b"\x80\x80\x80\x80\x04" + bytes(MIB // 2)
    records = encode_records([Record(value=bytes(1_000_000))] * _BOMB_RECORDS)
    return gzip.compress(records, 1) if codec == 1 else compress(codec, records)
