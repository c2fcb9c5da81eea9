"""Random requests, most of them almost valid, against a real broker.

A case is one frame: a valid request with extreme values in its fields, a valid frame with corrupted
bytes, a record batch with wrong contents and a right CRC, or garbage. The broker must answer or
close the connection; it must stay alive, log no bug, not use more memory, and serve another client.
The records that it accepted meanwhile must be a log without gaps that can be read.

Case `n` of seed `s` is always the same bytes. `FUZZ_SEED`, `FUZZ_FIRST` and `FUZZ_CASES` repeat a
part of a run; a failure prints them.
"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import DeleteTopicsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol._batches import check_crc, parse_headers
from brokerhouse.protocol.compression import compress
from brokerhouse.protocol.versions import ApiKey
from tests.conftest import OwnBrokers
from tests.faults.bystander import Bystander
from tests.support import messages, samples
from tests.support.broker_log import DEFECT
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.record_batches import Batch, Record, encode_records
from tests.support.wire import Closed, Wire, decode, frame, request_body

LOOK_EVERY = 500
WARM_CASES = 2_000
GROWTH_MAX_BYTES = 400 << 20
ANSWER_LIMIT_S = 0.25
PROBE_ID = 0x0BADCAFE

INT_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
SPOILT_BYTES = (b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")
NAMES = ("", ".", "..", "a" * 249, "a" * 250, "a b", "é", "\0", "'; DROP TABLE messages --", "1")


class Cases:
    """Makes the frames. `target` is the topic that they are about."""

    def __init__(self, seed: int, target: Target) -> None:
        self._seed = seed
        self._target = target
        self._versions = samples.every_version()
        self._kinds: list[tuple[int, Callable[[random.Random], bytes]]] = [
            (40, self._telling_values),
            (25, self._spoilt_frame),
            (25, self._wrong_batch),
            (5, self._garbage),
            (5, self._wrong_length),
        ]

    def case(self, number: int) -> bytes:
        rnd = random.Random(f"{self._seed}/{number}")
        weights = [weight for weight, _ in self._kinds]
        ((_, make),) = rnd.choices(self._kinds, weights)
        return make(rnd)

    def _sound(self, rnd: random.Random) -> tuple[ApiMessage, int]:
        key, version = rnd.choice(self._versions)
        return samples.sample(key, version, self._target), version

    def _telling_values(self, rnd: random.Random) -> bytes:
        request, version = self._sound(rnd)
        places = list(_places(request, request._struct, version))
        for message, field in rnd.sample(places, min(len(places), rnd.choice([1, 1, 2, 4]))):
            value = getattr(message, field.name)
            if field.nullable_for_version_q(version) and rnd.random() < 0.2:
                value = None
            else:
                value = self._telling(field, value, rnd)
            if ApiKey.DeleteTopics == request.API_KEY and value == self._target.name:
                value = messages.NOWHERE
            setattr(message, field.name, value)
        return frame(request_body(request, version, rnd.choice([0, -1, 7])))

    def _telling(self, field: Any, value: Any, rnd: random.Random) -> object:
        kind = field._type_str
        if field.is_array():
            return (value or []) * rnd.choice([0, 2, 3, 50])
        if bits := INT_BITS.get(kind):
            return _integer(bits, rnd)
        if kind == "bool":
            return rnd.random() < 0.5
        if kind == "uuid":
            return rnd.choice([UUID(int=0), UUID(int=1), UUID(int=rnd.getrandbits(128)), value])
        if kind == "string":
            return rnd.choice([*NAMES, messages.NOWHERE, self._target.name])
        if kind in ("bytes", "records"):
            return rnd.choice([b"", b"\0", value, _batch(rnd), rnd.randbytes(80)])
        return value

    def _spoilt_frame(self, rnd: random.Random) -> bytes:
        request, version = self._sound(rnd)
        return frame(_spoil(request_body(request, version), rnd))

    def _wrong_batch(self, rnd: random.Random) -> bytes:
        api = APIS[ApiKey.Produce]
        version = rnd.randint(api.min_version, api.max_version)
        request = messages.produce(self._target, _batch(rnd), acks=rnd.choice([-1, -1, -1, 0, 1]))
        return frame(request_body(request, version))

    def _garbage(self, rnd: random.Random) -> bytes:
        body = rnd.randbytes(rnd.choice([0, 1, 3, 8, 20, 100, 3000]))
        if rnd.random() < 0.5:
            key = rnd.choice([*APIS, 11, 12, 68, 999, -1])
            body = struct.pack(">hhih", int(key), rnd.randint(0, 14), 1, -1) + body
        return frame(body)

    def _wrong_length(self, rnd: random.Random) -> bytes:
        request, version = self._sound(rnd)
        body = request_body(request, version)
        claims = [0, 1, -1, -(2**31), 2**31 - 1, 104_857_600, 104_857_601]
        claims += [len(body) - 1, len(body) + 1, rnd.randrange(len(body))]
        return frame(body, rnd.choice(claims))


def _places(message: Any, struct_field: Any, version: int) -> Any:
    """Every (message, field) in a request that its version has."""
    for field in struct_field._fields:
        if not field.for_version_q(version):
            continue
        value = getattr(message, field.name)
        if not field.is_struct():
            yield message, field
        if field.is_struct_array():
            for element in value or ():
                yield from _places(element, field.array_of, version)
        elif field.is_struct() and value is not None:
            yield from _places(value, field, version)


def _integer(bits: int, rnd: random.Random) -> int:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    choice: int = rnd.choice([low, low + 1, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 5, high - 1, high])
    return choice


def _spoil(data: bytes, rnd: random.Random) -> bytes:
    spoilt = bytearray(data)
    for _ in range(rnd.choice([1, 1, 1, 2, 5])):
        at = rnd.randrange(len(spoilt) + 1)
        match rnd.randrange(6):
            case 0 if at < len(spoilt):
                spoilt[at] ^= 1 << rnd.randrange(8)
            case 1:
                del spoilt[at:]
            case 2:
                del spoilt[at : at + rnd.randint(1, 8)]
            case 3:
                spoilt[at:at] = rnd.randbytes(rnd.randint(1, 8))
            case 4:
                spoilt[at:at] = spoilt[at : at + rnd.randint(1, 40)]
            case _:
                telling = rnd.choice(SPOILT_BYTES)
                spoilt[at : at + len(telling)] = telling
    return bytes(spoilt)


def _batch(rnd: random.Random) -> bytes:
    """A record batch that is wrong in one or two ways, mostly under a CRC that is right."""
    records = [
        Record(
            rnd.choice([0, 1, -1, 10**6]),
            rnd.choice([None, b"", b"key"]),
            rnd.choice([None, b"", b"value" * rnd.randrange(20)]),
            rnd.choice([(), ((b"name", None),), ((b"", b"x"), (b"", b"y"))]),
        )
        for _ in range(rnd.choice([1, 1, 2, 5]))
    ]
    payload, count = encode_records(records), len(records)
    if rnd.random() < 0.4:
        payload = _spoil(payload, rnd)
    codec = rnd.choice([0, 0, 0, 1, 2, 3, 4])
    if codec:
        payload = compress(codec, payload)
        if rnd.random() < 0.4:
            payload = _spoil(payload, rnd)
    fields: dict[str, Any] = {"attributes": codec, "last_offset_delta": count - 1}
    lies: dict[str, int] = {
        "count": 32,
        "last_offset_delta": 32,
        "base_offset": 64,
        "leader_epoch": 32,
        "magic": 8,
        "attributes": 16,
        "base_timestamp": 64,
        "max_timestamp": 64,
        "producer_id": 64,
        "producer_epoch": 16,
        "base_sequence": 32,
    }
    for name in rnd.sample(list(lies), rnd.choice([0, 0, 1, 1, 2])):
        fields[name] = _integer(lies[name], rnd)
    if rnd.random() < 0.2:
        fields |= {"producer_id": rnd.randrange(50), "producer_epoch": rnd.randrange(2)}
        fields["base_sequence"] = rnd.choice([0, 0, 1, 2, 5, 2**31 - 1])
    data = dataclasses.replace(Batch(payload, count), **fields).data
    match rnd.randrange(12):
        case 0:
            return _spoil(data, rnd)
        case 1:
            return data + data
        case 2:
            return data[: rnd.randrange(len(data))]
        case _:
            return data


class Run:
    """Sends cases and watches the broker."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self._broker = broker
        self._seed = seed
        self._wire: Wire | None = None
        with Wire(broker) as wire:
            self.target = messages.create_topic(wire, "fuzz", partitions=2)
        self._cases = Cases(seed, self.target)
        self._probe = frame(request_body(ApiVersionsRequest(), 0, PROBE_ID))
        self._log_seen = broker.log_size()
        self.answered = self.closed = self.left = 0

    def run(self, first: int, count: int) -> None:
        """Raises AssertionError that names the cases, so that they can be run again."""
        warm_bytes = 0
        window = first
        for number in range(first, first + count):
            self._send(self._cases.case(number))
            if number - window == LOOK_EVERY - 1 or number == first + count - 1:
                self._look(window, number + 1 - window)
                window = number + 1
            if number - first == min(WARM_CASES, count // 2):
                warm_bytes = self._broker.rss_bytes()
        grown = self._broker.rss_bytes() - warm_bytes
        assert grown < GROWTH_MAX_BYTES, f"the broker grew by {grown >> 20} MB"
        if self._wire is not None:
            self._wire.close()

    def _send(self, data: bytes) -> None:
        """One frame, and behind it a request that shows when the broker is through with it."""
        wire = self._wire
        if wire is None:
            wire = self._wire = Wire(self._broker, limit_s=ANSWER_LIMIT_S)
        try:
            wire.send(data + self._probe)
            if int.from_bytes(data[:4], "big", signed=True) != len(data) - 4:
                wire.socket.shutdown(socket.SHUT_WR)
            while int.from_bytes(wire.receive()[:4], "big") != PROBE_ID:
                pass
        except Closed:
            self.closed += 1
        except TimeoutError:  # a long poll: leave in the middle of it
            self.left += 1
        except OSError as error:
            raise AssertionError(f"the connection broke: {error}") from error
        else:
            self.answered += 1
            return
        wire.close()
        self._wire = None

    def _look(self, first: int, count: int) -> None:
        again = f"FUZZ_SEED={self._seed} FUZZ_FIRST={first} FUZZ_CASES={count} runs it again"
        assert self._broker.running, f"the broker ended: {again}\n{self._broker.log()}"
        printed = self._broker.log(self._log_seen, 1 << 20)
        self._log_seen = self._broker.log_size()
        if defect := DEFECT.search(printed):
            at = defect.start()
            pytest.fail(f"{again}\n{printed[max(0, at - 500) : at + 4000]}", pytrace=False)
        self._forget_topics()

    def _forget_topics(self) -> None:
        """Delete what cases have made, so that the run stays about requests, not about topics."""
        with Wire(self._broker) as wire:
            listed = wire.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
            made = [t.name for t in listed.topics if t.name not in (self.target.name, "bystander")]
            for start in range(0, len(made), 100):
                state = DeleteTopicsRequest.DeleteTopicState
                names = [state(name=name, topic_id=None) for name in made[start : start + 100]]
                wire.ask(DeleteTopicsRequest(topics=names, timeout_ms=10_000), 6)


def check_log(broker: BrokerProcess, target: Target, partition: int) -> tuple[int, int]:
    """Where a partition starts and ends: dense, as rows too, and each batch's CRC is right.

    A case may have been a sound DeleteRecords; rows below the start may be there still.
    """
    with Wire(broker) as wire:
        asked = messages.list_offsets(target, -2, partition)
        start = position = wire.ask(asked, 7).topics[0].partitions[0].offset
        while True:
            asked = messages.fetch(target, position, partition=partition)
            answer = wire.ask(asked, 12).responses[0].partitions[0]
            assert answer.error_code == 0
            if not answer.records:
                break
            records = bytes(answer.records)
            for header in parse_headers(records):
                check_crc(records, header)
                end = header.base_offset + header.last_offset_delta + 1
                # Batches come whole: the first may begin before the start of the log.
                follows = header.base_offset == position
                assert follows or header.base_offset < position == start < end, "there is a gap"
                position = end
    assert position == answer.high_watermark
    (rows,) = broker.sql(
        "SELECT count() AS n, uniqExact(offset) AS offsets,"
        " if(n = 0, {start:Int64}, max(offset) + 1) AS end FROM messages"
        " WHERE topic = {topic:String} AND partition = {partition:Int32}"
        " AND offset >= {start:Int64}",
        {"topic": target.name, "partition": partition, "start": start},
    )
    assert rows == {"n": position - start, "offsets": position - start, "end": position}
    return start, position


def fuzz(own_broker: OwnBrokers, default_cases: int) -> None:
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(2**32))
    first = int(os.environ.get("FUZZ_FIRST") or 0)
    cases = int(os.environ.get("FUZZ_CASES") or default_cases)
    print(f"FUZZ_SEED={seed} FUZZ_FIRST={first} FUZZ_CASES={cases}")
    broker = own_broker(auto_create_topics="false")
    run = Run(broker, seed)
    began = time.monotonic()
    with Bystander(broker, "bystander") as bystander:
        run.run(first, cases)
    took_s = time.monotonic() - began
    print(
        f"{cases} cases in {took_s:.0f} s: {run.answered} answered, {run.closed} closed, "
        f"{run.left} left waiting; the bystander stored {bystander.stored} records and waited "
        f"{bystander.slowest_s:.2f} s at most"
    )
    stored = [check_log(broker, run.target, partition) for partition in (0, 1)]
    broker.restart()
    assert [check_log(broker, run.target, partition) for partition in (0, 1)] == stored
    assert any(end for _, end in stored), "no case was sound"
    with Wire(broker) as wire:
        version, body = 0, request_body(ApiVersionsRequest(), 0)
        wire.send(frame(body))
        decode(APIS[ApiKey.ApiVersions].response, version, wire.receive())


@pytest.mark.test_all
@pytest.mark.timeout(900)  # a minute on a quiet machine: it waits for answers, and computes
def test_ten_thousand_random_requests_do_no_harm(own_broker: OwnBrokers) -> None:
    """New ones at each run; `make fuzz` sends a million."""
    fuzz(own_broker, 10_000)


@pytest.mark.fuzz
def test_a_million_random_requests_do_no_harm(own_broker: OwnBrokers) -> None:
    fuzz(own_broker, 1_000_000)
