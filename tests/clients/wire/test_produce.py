"""Produce: acks, limits, partial failure, timestamps."""

from __future__ import annotations

import time
from dataclasses import replace
from uuid import UUID

import pytest
from kafka.protocol.producer import ProduceRequest

from brokerhouse.protocol import errors
from brokerhouse.protocol.compression import compress
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import NOWHERE, Target
from tests.support.one_partition import (
    FETCH,
    INT64_MAX,
    NAMED_PRODUCE,
    PRODUCE,
    batches,
    listed,
    produced,
    read,
    rows_of,
    write,
)
from tests.support.record_batches import Batch, Record, batch_of, encode_records
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")


class TestProduce:
    @pytest.mark.parametrize("acks", [1, -1])
    def test_acknowledged_records_can_be_fetched(
        self, wire: Wire, target: Target, acks: int
    ) -> None:
        request = messages.produce(target, messages.small_batch(), acks=acks)
        assert wire.ask(request, PRODUCE).responses[0].partition_responses[0].error_code == 0
        assert read(wire, target, 0).high_watermark == 2

    @pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
    def test_records_with_acks_0_are_stored_without_an_answer(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        wire.send_request(messages.produce(target, messages.small_batch(), acks=0), version)
        answer = wire.ask(messages.fetch(target, 0, max_wait_ms=10_000, min_bytes=1), FETCH)
        assert answer.responses[0].partitions[0].high_watermark == 2

    @pytest.mark.parametrize("acks", [2, 7, -2, 2**15 - 1, -(2**15)])
    def test_acks_other_than_0_1_and_all_are_refused(
        self, wire: Wire, target: Target, acks: int
    ) -> None:
        request = messages.produce(target, messages.small_batch(), acks=acks)
        partition = wire.ask(request, PRODUCE).responses[0].partition_responses[0]
        assert partition.error_code == errors.InvalidRequiredAcks.code
        assert listed(wire, target, -1) == (0, -1, 0)

    def test_each_partition_of_a_request_fails_or_succeeds_by_itself(
        self, wire: Wire, target: Target
    ) -> None:
        request = messages.produce(target, messages.small_batch())
        data = ProduceRequest.TopicProduceData.PartitionProduceData
        for index in (-1, 1, 2**31 - 1):
            request.topic_data[0].partition_data.append(
                data(index=index, records=messages.small_batch())
            )
        other = messages.produce(Target(NOWHERE, UUID(int=7)), messages.small_batch())
        request.topic_data += other.topic_data
        for version, unknown in ((NAMED_PRODUCE, 3), (PRODUCE, 100)):
            ours, theirs = wire.ask(request, version).responses
            codes = [(item.index, item.error_code) for item in ours.partition_responses]
            assert codes == [(0, 0), (-1, 3), (1, 3), (2**31 - 1, 3)]
            assert [item.error_code for item in theirs.partition_responses] == [unknown]

    def test_a_batch_larger_than_max_message_bytes_is_refused(self, wire: Wire, topic: str) -> None:
        small = messages.create_topic(wire, topic, configs={"max.message.bytes": "200"})
        fits = batch_of(Record(value=bytes(100)))
        assert len(fits.data) <= 200
        assert write(wire, small, fits.data) == 0
        partition = produced(wire, small, batch_of(Record(value=bytes(200))).data)
        assert partition.error_code == errors.MessageTooLarge.code
        compressed = Batch(compress(4, encode_records([Record(value=bytes(100))] * 20)), 20)
        assert write(wire, small, replace(compressed, attributes=4).data) == 1
        # What comes out of it may be larger: also one record, as in Kafka.
        one = Batch(compress(4, encode_records([Record(value=bytes(3000))])), 1, attributes=4).data
        assert write(wire, small, one) == 21

    @pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
    def test_the_limit_of_a_topic_is_exact_for_every_codec(
        self, wire: Wire, topic: str, codec: int
    ) -> None:
        payload = encode_records([Record(value=b"a" * 300)])
        if codec:
            payload = compress(codec, payload)
        data = Batch(payload, 1, attributes=codec).data
        found = []
        for limit in (len(data) - 1, len(data), len(data) + 1):
            name = f"{topic}-{limit - len(data) + 1}"
            target = messages.create_topic(wire, name, configs={"max.message.bytes": str(limit)})
            found.append(produced(wire, target, data).error_code)
        assert found == [errors.MessageTooLarge.code, 0, 0]

    def test_zstd_is_refused_before_version_7(self, wire: Wire, target: Target) -> None:
        payload = encode_records([Record()])
        data = Batch(compress(4, payload), 1, attributes=4).data
        code = produced(wire, target, data, 6).error_code
        assert code == errors.UnsupportedCompressionType.code
        assert write(wire, target, data, 7) == 0

    @pytest.mark.parametrize("version", [3, 12])
    def test_a_batch_of_an_unknown_transaction_is_refused(
        self, wire: Wire, target: Target, version: int
    ) -> None:
        batch = replace(batch_of(Record()), attributes=0x10, producer_id=1, producer_epoch=0)
        request = messages.produce(target, replace(batch, base_sequence=0).data)
        request.transactional_id = "transaction"
        partition = wire.ask(request, version).responses[0].partition_responses[0]
        assert partition.error_code != 0
        assert listed(wire, target, -1) == (0, -1, 0)


class TestTimestamps:
    def test_log_append_time_is_answered_fetched_and_stored(
        self, restartable: BrokerProcess, topic: str
    ) -> None:
        broker = restartable
        with Wire(broker) as wire:
            configs = {"message.timestamp.type": "LogAppendTime"}
            target = messages.create_topic(wire, topic, configs=configs)
            before_ms = time.time_ns() // 1_000_000
            partition = produced(wire, target, batch_of(Record(0), Record(-7), Record(9)).data)
            after_ms = time.time_ns() // 1_000_000
            appended_ms = partition.log_append_time_ms
            assert before_ms <= appended_ms <= after_ms
            warm = read(wire, target, 0)
        broker.restart()
        with Wire(broker) as wire:
            cold = read(wire, target, 0)
            assert listed(wire, target, appended_ms) == (0, appended_ms, 0)
            assert listed(wire, target, appended_ms + 1) == (0, -1, -1)
        for answer in (warm, cold):
            (batch,) = batches(answer.records)
            assert (batch.timestamp_type, batch.max_timestamp) == (1, appended_ms)
            rows = rows_of(answer.records)
            assert {(row.timestamp_ms, row.timestamp_type) for row in rows} == {(appended_ms, 1)}
        (row,) = broker.sql(
            "SELECT groupUniqArray((timestamp_ms, timestamp_type)) AS kinds FROM messages"
            f" WHERE topic = '{topic}'"
        )
        assert row["kinds"] == [[appended_ms, "LogAppendTime"]]

    def test_any_int64_timestamp_comes_back_from_the_tail_and_from_the_table(
        self, restartable: BrokerProcess, topic: str
    ) -> None:
        extremes = [-(2**63), -(2**63) + 1, -(2**31), -2, -1, 0, 1, 2**31, 2**53 + 1]
        extremes += [2**62, INT64_MAX - 1, INT64_MAX]
        broker = restartable
        with Wire(broker) as wire:
            configs = {
                "message.timestamp.after.max.ms": str(INT64_MAX),
                "message.timestamp.before.max.ms": str(INT64_MAX),
            }
            target = messages.create_topic(wire, topic, configs=configs)
            for at in extremes:
                data = batch_of(Record(), base_timestamp=at, max_timestamp=at).data
                write(wire, target, data)
            warm = [row.timestamp_ms for row in rows_of(read(wire, target, 0).records)]
        broker.restart()
        with Wire(broker) as wire:
            cold = [row.timestamp_ms for row in rows_of(read(wire, target, 0).records)]
            assert listed(wire, target, -3) == (0, INT64_MAX, len(extremes) - 1)
        assert warm == cold == extremes

    def test_a_timestamp_too_far_from_now_is_refused(self, wire: Wire, topic: str) -> None:
        configs = {
            "message.timestamp.after.max.ms": "3600000",
            "message.timestamp.before.max.ms": "3600000",
        }
        target = messages.create_topic(wire, topic, configs=configs)
        now_ms = time.time_ns() // 1_000_000
        for at, code in (
            (now_ms + 3_500_000, 0),
            (now_ms - 3_500_000, 0),
            (-1, 0),
            (now_ms + 3_700_000, errors.InvalidTimestamp.code),
            (now_ms - 3_700_000, errors.InvalidTimestamp.code),
            (0, errors.InvalidTimestamp.code),
            (INT64_MAX, errors.InvalidTimestamp.code),
            (-(2**63), errors.InvalidTimestamp.code),
        ):
            data = batch_of(Record(), base_timestamp=at, max_timestamp=at).data
            assert produced(wire, target, data).error_code == code, at
