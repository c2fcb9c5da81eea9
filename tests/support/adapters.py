"""Six unmodified Kafka clients with one common interface.

Every method makes a client of its own, with the client's defaults unless a test sets something
else, and closes it. Clients read an assigned partition; only kafkajs reads as a member of a group.
`can_send`, `as_sent` and `as_shown`, and nothing else, say what a client cannot send or show.
"""

import asyncio
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, cast

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.structs import OffsetAndMetadata

from tests.support import tools
from tests.support.helper_process import HelperProcess
from tests.support.records import Headers, Record, record_from_json, record_to_json

CLIENTS = ("kafka-python", "aiokafka", "confluent-kafka", "kcat", "kafkajs", "java")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT_S = 60.0
LINGER_MS = 20
"""Long enough for several records to share a batch."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, and a broker that knows it."""

    address: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Start:
    """The first record to read: the one at this offset, or the first at this time or later."""

    number: int
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class Sending:
    """How records are sent. None: as the client does by default."""

    codec: str
    acks: str | None
    idempotent: bool | None


class Client(ABC):
    """What tests call is written here once. A client implements `create_topic`, `_produce` and
    `_read`."""

    @abstractmethod
    def create_topic(self, address: str, topic: str, partitions: int) -> None: ...

    def produce(
        self,
        address: str,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str | None = None,
        idempotent: bool | None = None,
    ) -> None:
        """Returns when all are acknowledged, or with acks=0 when all are sent. `acks` and
        `idempotent` None mean the client's own default."""
        at = Place(address, topic, partition)
        self._produce(at, records, Sending(codec, acks, idempotent))

    def read_from_offset(
        self, address: str, topic: str, offset: int, count: int, *, partition: int = 0
    ) -> list[Record]:
        return self._read(Place(address, topic, partition), Start(offset), count)

    def read_from_timestamp(
        self, address: str, topic: str, timestamp_ms: int, count: int, *, partition: int = 0
    ) -> list[Record]:
        """Read from the first record whose timestamp is `timestamp_ms` or later."""
        return self._read(
            Place(address, topic, partition), Start(timestamp_ms, is_time=True), count
        )

    @abstractmethod
    def _produce(self, at: Place, records: Sequence[Record], how: Sending) -> None: ...

    @abstractmethod
    def _read(self, at: Place, start: Start, count: int) -> list[Record]: ...

    def can_send(self, record: Record) -> bool:
        return True

    def as_sent(self, record: Record) -> Record:
        """The record as this client sends it."""
        return record

    def as_shown(self, record: Record) -> Record:
        """The record as this client shows it to a reader."""
        return record


Committed = Mapping[int, tuple[int, str]]
"""Offset and metadata by partition, of one group and one topic."""


class CommittingClient(Client):
    """A client that commits offsets for a group; only kafkajs has to be a member for that."""

    @abstractmethod
    def commit(self, address: str, group: str, topic: str, offsets: Committed) -> None: ...

    @abstractmethod
    def committed(self, address: str, group: str, topic: str) -> Committed:
        """The committed offsets, for partitions that have one."""


GetClient = Callable[[str], Client]
"""Returns the client with this name, one of CLIENTS."""


class KafkaPython(CommittingClient):
    def can_send(self, record: Record) -> bool:
        return not (record.key is None and record.value is None) and not any(
            value is None for _, value in record.headers
        )

    def create_topic(self, address: str, topic: str, partitions: int) -> None:
        admin = kafka.KafkaAdminClient(bootstrap_servers=address)
        try:
            admin.create_topics({topic: {"num_partitions": partitions}})
        finally:
            admin.close()

    def _produce(self, at: Place, records: Sequence[Record], how: Sending) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=at.address, linger_ms=LINGER_MS, **_python_options(how)
        )
        try:
            sent = [
                producer.send(
                    at.topic,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=at.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(LIMIT_S)
            for acknowledgement in sent:
                acknowledgement.get(LIMIT_S)
        finally:
            producer.close(timeout=LIMIT_S)

    def _read(self, at: Place, start: Start, count: int) -> list[Record]:
        assigned = kafka.TopicPartition(at.topic, at.partition)
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=at.address, enable_auto_commit=False, auto_offset_reset="none"
        )
        try:
            consumer.assign([assigned])
            offset = start.number
            if start.is_time:
                offset = consumer.offsets_for_times({assigned: offset})[assigned].offset
            consumer.seek(assigned, offset)

            def poll() -> list[Record]:
                polled = consumer.poll(timeout_ms=500).get(assigned, [])
                return [_from_attributes(record) for record in polled]

            return _collect(poll, count)
        finally:
            consumer.close()

    def commit(self, address: str, group: str, topic: str, offsets: Committed) -> None:
        wanted = {
            kafka.TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata, -1)
            for partition, (offset, metadata) in offsets.items()
        }
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, group_id=group, enable_auto_commit=False
        )
        try:
            consumer.assign(list(wanted))
            consumer.commit(wanted)
        finally:
            consumer.close()

    def committed(self, address: str, group: str, topic: str) -> Committed:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, group_id=group, enable_auto_commit=False
        )
        try:
            found = {
                partition: consumer.committed(kafka.TopicPartition(topic, partition), metadata=True)
                for partition in consumer.partitions_for_topic(topic)
            }
            return {
                partition: (committed.offset, committed.metadata)
                for partition, committed in found.items()
                if committed is not None
            }
        finally:
            consumer.close()


class Aiokafka(CommittingClient):
    def can_send(self, record: Record) -> bool:
        return not (record.key is None and record.value is None)

    def create_topic(self, address: str, topic: str, partitions: int) -> None:
        async def create() -> None:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
            await admin.start()
            try:
                wanted = aiokafka.admin.NewTopic(topic, partitions, 1)
                response = await admin.create_topics([wanted])
                errors = [error for error in response.topic_errors if error[1] != 0]
                assert not errors, errors
            finally:
                await admin.close()

        asyncio.run(create())

    def _produce(self, at: Place, records: Sequence[Record], how: Sending) -> None:

        async def produce() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=at.address, linger_ms=LINGER_MS, **_python_options(how)
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        at.topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        partition=at.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
            finally:
                await producer.stop()

        asyncio.run(produce())

    def _read(self, at: Place, start: Start, count: int) -> list[Record]:
        return asyncio.run(self._read_async(at, start, count))

    async def _read_async(self, at: Place, start: Start, count: int) -> list[Record]:
        assigned = aiokafka.TopicPartition(at.topic, at.partition)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=at.address, enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        try:
            consumer.assign([assigned])
            offset = start.number
            if start.is_time:
                found = await consumer.offsets_for_times({assigned: offset})
                offset = found[assigned].offset
            consumer.seek(assigned, offset)
            records: list[Record] = []
            async with asyncio.timeout(LIMIT_S):
                while len(records) < count:
                    batch = await consumer.getmany(assigned, timeout_ms=500)
                    records += [_from_attributes(record) for record in batch.get(assigned, [])]
            return records[:count]
        finally:
            await consumer.stop()

    def commit(self, address: str, group: str, topic: str, offsets: Committed) -> None:
        wanted = {
            aiokafka.TopicPartition(topic, partition): committed
            for partition, committed in offsets.items()
        }

        async def commit() -> None:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address, group_id=group, enable_auto_commit=False
            )
            await consumer.start()
            try:
                consumer.assign(list(wanted))
                await consumer.commit(wanted)
            finally:
                await consumer.stop()

        asyncio.run(commit())

    def committed(self, address: str, group: str, topic: str) -> Committed:
        """Also uses the admin client: the consumer does not show metadata."""

        async def committed() -> Committed:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address, group_id=group, enable_auto_commit=False
            )
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
            await admin.start()
            try:
                listed = await admin.list_consumer_group_offsets(group)
            finally:
                await admin.close()
            found = {place: one for place, one in listed.items() if place.topic == topic}
            await consumer.start()
            try:
                consumer.assign(list(found))
                offsets = {place.partition: await consumer.committed(place) for place in found}
            finally:
                await consumer.stop()
            shown = {place.partition: (one.offset, one.metadata) for place, one in found.items()}
            assert offsets == {partition: offset for partition, (offset, _) in shown.items()}
            return shown

        return asyncio.run(committed())


class ConfluentKafka(CommittingClient):
    """librdkafka, through its Python binding."""

    def can_send(self, record: Record) -> bool:
        return record.timestamp_ms != 0  # 0 asks librdkafka for the current time

    def create_topic(self, address: str, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        wanted = NewTopic(topic, partitions, 1)
        for created in admin.create_topics([wanted]).values():
            created.result(LIMIT_S)

    def _produce(self, at: Place, records: Sequence[Record], how: Sending) -> None:
        options = {"enable.idempotence": how.idempotent, "acks": how.acks}
        reports: list[str] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": at.address,
                "compression.type": how.codec,
                "linger.ms": LINGER_MS,
                **{name: value for name, value in options.items() if value is not None},
            }
        )
        try:
            for record in records:
                producer.produce(
                    at.topic,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=at.partition,
                    timestamp=record.timestamp_ms or 0,
                    on_delivery=lambda error, _: reports.append(str(error or "delivered")),
                )
            left = producer.flush(LIMIT_S)
            assert left == 0, f"{left} records without a delivery report"
            assert reports == ["delivered"] * len(records), set(reports)
        finally:
            producer.purge()  # otherwise a failed test would wait for unsent records
            producer.close()

    def _read(self, at: Place, start: Start, count: int) -> list[Record]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": at.address,
                "group.id": "required, and not used by an assignment",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        try:
            assigned = confluent_kafka.TopicPartition(at.topic, at.partition, start.number)
            if start.is_time:
                (assigned,) = consumer.offsets_for_times([assigned], LIMIT_S)
            consumer.assign([assigned])
            return _collect(lambda: _from_librdkafka(consumer.consume(count, 0.5)), count)
        finally:
            consumer.close()

    def commit(self, address: str, group: str, topic: str, offsets: Committed) -> None:
        wanted = [
            confluent_kafka.TopicPartition(topic, partition, offset, metadata)
            if metadata
            else confluent_kafka.TopicPartition(topic, partition, offset)
            for partition, (offset, metadata) in offsets.items()
        ]
        consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
        try:
            done = consumer.commit(offsets=wanted, asynchronous=False)
            errors = [str(one.error) for one in done or () if one.error is not None]
            assert not errors, errors
        finally:
            consumer.close()

    def committed(self, address: str, group: str, topic: str) -> Committed:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
        try:
            partitions = consumer.list_topics(topic, LIMIT_S).topics[topic].partitions
            wanted = [confluent_kafka.TopicPartition(topic, partition) for partition in partitions]
            found = consumer.committed(wanted, LIMIT_S)
            return {
                one.partition: (one.offset, one.metadata or "") for one in found if one.offset >= 0
            }
        finally:
            consumer.close()


class Kcat(Client):
    """The command line tool: one run per method, and per group of records that one run can send.

    kcat splits keys and values by delimiters, sends the same headers with every record of a run,
    and sets the timestamps itself.
    """

    _KEY_END = b"\x1eK\x1e"
    _RECORD_END = b"\x1eR\x1e"
    _SHOWN = "%T %o %K %S "

    def can_send(self, record: Record) -> bool:
        # An argument cannot hold a zero byte, nor -H a header without a name.
        if any(name == "" or (value and b"\x00" in value) for name, value in record.headers):
            return False
        # It skips an empty line; with -Z, which makes null of what is empty, a key is never empty.
        if record.key is None:
            return bool(record.value)
        return record.key != b"" or record.value is not None

    def as_sent(self, record: Record) -> Record:
        return replace(record, timestamp_ms=None)

    def as_shown(self, record: Record) -> Record:
        """kcat shows a header's value up to the first zero byte."""
        headers = ((name, value and value.split(b"\0")[0]) for name, value in record.headers)
        return replace(record, headers=tuple(headers))

    def create_topic(self, address: str, topic: str, partitions: int) -> None:
        """kcat cannot create topics: it asks for the topic, and the broker creates it."""
        assert partitions == 1
        self._run(["-L", "-b", address, "-t", topic, "-X", "allow.auto.create.topics=true"])

    def _produce(self, at: Place, records: Sequence[Record], how: Sending) -> None:
        options = ["-P", "-b", at.address, "-t", at.topic, "-p", str(at.partition), "-z", how.codec]
        options += ["-K", self._KEY_END.decode(), "-D", self._RECORD_END.decode()]
        options += ["-X", f"linger.ms={LINGER_MS}"]
        if how.acks is not None:
            options += ["-X", f"acks={how.acks}"]
        if how.idempotent is not None:
            options += ["-X", f"enable.idempotence={str(how.idempotent).lower()}"]

        def run_of(record: Record) -> tuple[bool, Headers]:
            return record.value is None, record.headers

        for (nulls, headers), group in groupby(records, run_of):
            arguments = [*options, *(["-Z"] if nulls else [])]
            for name, value in headers:
                arguments += ["-H", name if value is None else f"{name}={value.decode()}"]
            self._run(arguments, self._RECORD_END.join(self._line(record) for record in group))

    def _line(self, record: Record) -> bytes:
        key = b"" if record.key is None else record.key + self._KEY_END
        return key + (record.value or b"")

    def _read(self, at: Place, start: Start, count: int) -> list[Record]:
        first = f"s@{start.number}" if start.is_time else str(start.number)
        options = ["-C", "-b", at.address, "-t", at.topic, "-p", str(at.partition), "-o", first]
        options += ["-c", str(count), "-e", "-q", "-f", self._SHOWN + "%k%s%h\x1e"]
        output = self._run(options)
        records = []
        while output:
            timestamp, offset, key_size, value_size, output = output.split(b" ", 4)
            key, output = _cut(output, int(key_size))
            value, output = _cut(output, int(value_size))
            headers, _, output = output.partition(b"\x1e")
            records.append(Record(key, value, _headers(headers), int(timestamp), int(offset)))
        return records

    def _run(self, arguments: Iterable[str], standard_input: bytes = b"") -> bytes:
        result = subprocess.run(
            # -m: for metadata it waits only 5 s of itself. It ends first, and says what is wrong.
            [tools.program("kcat"), "-m", str(int(LIMIT_S) - 10), *arguments],
            input=standard_input,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert result.returncode == 0, result.stderr.decode(errors="replace")
        return result.stdout


class Helped(CommittingClient):
    """A client of another language, driven through its helper process."""

    def __init__(self, helper: HelperProcess) -> None:
        self.helper = helper

    def create_topic(self, address: str, topic: str, partitions: int) -> None:
        self.helper.ask("create_topic", kafka=address, topic=topic, partitions=partitions)

    def _produce(self, at: Place, records: Sequence[Record], how: Sending) -> None:
        self.helper.ask(
            "produce",
            kafka=at.address,
            topic=at.topic,
            partition=at.partition,
            records=[record_to_json(record) for record in records],
            **asdict(how),
        )

    def _read(self, at: Place, start: Start, count: int) -> list[Record]:
        answer = self.helper.ask(
            "read",
            kafka=at.address,
            topic=at.topic,
            partition=at.partition,
            count=count,
            offset=None if start.is_time else start.number,
            timestamp_ms=start.number if start.is_time else None,
        )
        return [record_from_json(record) for record in answer]

    def commit(self, address: str, group: str, topic: str, offsets: Committed) -> None:
        listed = [[partition, *committed] for partition, committed in offsets.items()]
        self.helper.ask("commit", kafka=address, group=group, topic=topic, offsets=listed)

    def committed(self, address: str, group: str, topic: str) -> Committed:
        found = self.helper.ask("committed", kafka=address, group=group, topic=topic)
        return {partition: (offset, metadata) for partition, offset, metadata in found}


class Java(Helped):
    """Kafka's own client."""


class Kafkajs(Helped):
    """kafkajs has headers as an object: one entry per name, in the order of first use."""

    def can_send(self, record: Record) -> bool:
        return (
            all(value is not None for _, value in record.headers)
            and self.as_shown(record) == record
        )

    def as_shown(self, record: Record) -> Record:
        names = list(dict.fromkeys(name for name, _ in record.headers))
        return replace(
            record, headers=tuple(sorted(record.headers, key=lambda header: names.index(header[0])))
        )


def _python_options(how: Sending) -> dict[str, Any]:
    """Of kafka-python and aiokafka."""
    options: dict[str, Any] = {} if how.codec == "none" else {"compression_type": how.codec}
    if how.idempotent is not None:
        options["enable_idempotence"] = how.idempotent
    if how.acks is not None:
        options["acks"] = how.acks if how.acks == "all" else int(how.acks)
    return options


def _collect(poll: Callable[[], list[Record]], count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + LIMIT_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"read {len(records)} of {count} in {LIMIT_S} s"
        records += poll()
    return records[:count]


def _from_attributes(record: Any) -> Record:
    """kafka-python's and aiokafka's records look the same."""
    return Record(record.key, record.value, tuple(record.headers), record.timestamp, record.offset)


def _from_librdkafka(messages: Sequence[confluent_kafka.Message]) -> list[Record]:
    records = []
    for message in messages:
        assert message.error() is None, message.error()
        offset = message.offset()
        assert offset is not None
        headers = cast(list[tuple[str, bytes | None]], message.headers() or [])
        records.append(
            Record(message.key(), message.value(), tuple(headers), message.timestamp()[1], offset)
        )
    return records


def _cut(output: bytes, size: int) -> tuple[bytes | None, bytes]:
    """kcat shows the size of null as -1."""
    return (None, output) if size < 0 else (output[:size], output[size:])


def _headers(shown: bytes) -> Headers:
    """kcat shows headers as name=value,name=value, and a value that is null as NULL."""
    pairs = (header.split(b"=", 1) for header in shown.split(b",") if header)
    return tuple((name.decode(), None if value == b"NULL" else value) for name, value in pairs)
