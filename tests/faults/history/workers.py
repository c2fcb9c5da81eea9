"""The clients of a history: each repeats one operation in a thread, and records it.

All of them use confluent-kafka: librdkafka keeps its guarantees under faults, retries by itself,
and reports unknown outcomes. Time-outs are short, so that clients soon leave a broker that is
paused or cut off; a record never times out, so that it is retried until the faults are over.

An exception in a worker is a bug in the tests, and `Worker.close` raises it again. Errors of the
brokers are recorded in the history instead."""

import itertools
import random
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.faults.history.history import (
    NO_PARTITION,
    Acknowledged,
    Assigned,
    Committed,
    EndAsked,
    History,
    ProducerFailed,
    Read,
    ReaderFailed,
    Record,
    Refused,
    Sent,
    Stuck,
    Unknown,
    WholeGroup,
    WholeLog,
    now_ns,
    record_id,
)

KEYS = 200
CLOSE_LIMIT_S = 30.0
SESSION_TIMEOUT_MS = 3000
"""Of group members; brokers have to allow it."""

PASSING = frozenset((14, 15, 16, KafkaError._PARTITION_EOF, KafkaError._TIMED_OUT))
"""Errors that a consumer tells and overcomes: its coordinator loads, is away, is another now, or
was paused with a request of it (librdkafka tells of an OffsetFetch that it asks again itself).

What it does not overcome shows in the end, as records that it has not read."""

Settings = dict[str, str | int | float | bool | Callable[..., None]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a history happens: any of the brokers, one topic."""

    bootstrap: str
    topic: str
    partitions: int

    def settings(self, name: str) -> Settings:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": name,
            "socket.timeout.ms": 3000,
            "socket.connection.setup.timeout.ms": 1500,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 250,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 2000,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "log_level": 2,  # lost connections are what a history is about
            "error_cb": _ignore,  # of the same; what counts comes with its record or its poll
        }

    def consumer(self, name: str, **more: str | int | bool) -> Consumer:
        return Consumer(
            {
                **self.settings(name),
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                **{setting.replace("_", "."): value for setting, value in more.items()},
            }
        )


def _ignore(error: KafkaError) -> None:
    pass


class Worker(ABC):
    """`stop` makes the worker end, `close` waits for that."""

    def __init__(self, name: str, place: Place, history: History, seed: int) -> None:
        self.name = name
        self.place = place
        self.history = history
        self.chance = random.Random(f"{seed} {name}")
        self.stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def close(self, limit_s: float) -> None:
        """Call `stop` first. Raises what the worker raised."""
        self._thread.join(limit_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.name} did not end within {limit_s:.0f} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._error = error

    @abstractmethod
    def work(self) -> None: ...


class Sender(Worker):
    """An idempotent producer; every few seconds a new one replaces it, with records in flight."""

    def __init__(
        self,
        name: str,
        place: Place,
        history: History,
        seed: int,
        per_second: int,
        drain_limit_s: float,
        lifetime_s: tuple[float, float] = (4.0, 12.0),
    ) -> None:
        super().__init__(name, place, history, seed)
        self._pause_s = 1 / per_second
        self._lifetime_s = lifetime_s
        self._drain_limit_s = drain_limit_s
        self._failures: list[str] = []

    def work(self) -> None:
        for life in itertools.count(1):
            self._live(f"{self.name}.{life}")
            if self.stopping.is_set():
                return

    def _live(self, name: str) -> None:
        self._failures = []
        pending: set[str] = set()
        producer = Producer(
            {
                **self.place.settings(name),
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "request.timeout.ms": 2000,
                "linger.ms": 1,
                "batch.num.messages": 10,  # many requests: some are always in flight
                "queue.buffering.max.messages": 500,
                "error_cb": self._hear,
            }
        )
        ends = time.monotonic() + self.chance.uniform(*self._lifetime_s)
        number = 0
        while not (self._failures or self.stopping.is_set() or time.monotonic() > ends):
            self._send(producer, name, number, pending)
            number += 1
            self._poll(producer, self._pause_s)
        if self.stopping.is_set():
            self._drain(producer, pending)
        producer.purge()
        try:
            producer.flush(CLOSE_LIMIT_S)
        except KafkaException as error:
            self._failures.append(str(error))
        if self._failures:
            self.history.add(ProducerFailed(now_ns(), name, self._failures[0]))
        for id_ in sorted(pending):
            self.history.add(Unknown(now_ns(), id_, "left"))

    def _send(self, producer: Producer, name: str, number: int, pending: set[str]) -> None:
        id_ = record_id(name, number)
        keyed = self.chance.random() < 0.8
        key = f"key {self.chance.randrange(KEYS)}" if keyed else None
        partition = zlib.crc32(key.encode()) % self.place.partitions if key else NO_PARTITION

        def outcome(error: KafkaError | None, message: Message) -> None:
            pending.discard(id_)
            if error is not None:
                self.history.add(Unknown(now_ns(), id_, str(error)))
                return
            stored_in, offset = message.partition(), message.offset()
            assert stored_in is not None
            self.history.add(
                Acknowledged(now_ns(), id_, stored_in, -1 if offset is None else max(offset, -1))
            )

        self.history.add(Sent(now_ns(), name, number, key, partition))
        try:
            producer.produce(self.place.topic, id_, key, on_delivery=outcome, partition=partition)
        except BufferError as error:
            self.history.add(Refused(now_ns(), id_, str(error)))
            self._poll(producer, 0.1)
        except KafkaException as error:  # it has failed for ever
            self._failures.append(str(error))
            self.history.add(Refused(now_ns(), id_, str(error)))
        else:
            pending.add(id_)

    def _drain(self, producer: Producer, pending: set[str]) -> None:
        """Wait until every record has an outcome, after the faults."""
        deadline = time.monotonic() + self._drain_limit_s
        while pending and not self._failures:
            if time.monotonic() > deadline:
                what = f"{len(pending)} records unanswered for {self._drain_limit_s:.0f} s"
                self.history.add(Stuck(now_ns(), self.name, f"{what}: {sorted(pending)[:3]}"))
                return
            self._poll(producer, 0.1)

    def _poll(self, producer: Producer, limit_s: float) -> None:
        try:
            producer.poll(limit_s)
        except KafkaException as error:  # it has failed for ever
            self._failures.append(str(error))

    def _hear(self, error: KafkaError) -> None:
        if error.fatal():
            self._failures.append(str(error))


class Reader(Worker):
    """Reads every partition from its beginning until it has reached `until`."""

    def __init__(self, name: str, place: Place, history: History, seed: int) -> None:
        super().__init__(name, place, history, seed)
        self.positions = dict.fromkeys(range(place.partitions), 0)
        self._until: Mapping[int, int] = {}
        self._limit_s = 0.0

    def stop_at(self, until: Mapping[int, int], limit_s: float) -> None:
        self._until, self._limit_s = until, limit_s
        self.stop()

    def work(self) -> None:
        consumer = self.place.consumer(self.name)
        try:
            topic = self.place.topic
            consumer.assign([TopicPartition(topic, p, 0) for p in self.positions])
            while not self.stopping.is_set():
                self._poll(consumer)
            deadline = time.monotonic() + self._limit_s
            while behind := _behind(self.positions, self._until):
                if time.monotonic() > deadline:
                    self.history.add(Stuck(now_ns(), self.name, behind))
                    return
                self._poll(consumer)
        finally:
            consumer.close()

    def _poll(self, consumer: Consumer) -> None:
        for record in poll(consumer, self.name, self.history):
            self.positions[record.partition] = record.offset + 1


class Rereader(Worker):
    """Reads for a moment from somewhere behind the end, again and again: the cold path."""

    def work(self) -> None:
        reached = dict.fromkeys(range(self.place.partitions), 0)
        for life in itertools.count(1):
            name = f"{self.name}.{life}"
            consumer = self.place.consumer(name)
            try:
                begins = [
                    TopicPartition(self.place.topic, partition, self.chance.randint(0, end))
                    for partition, end in reached.items()
                ]
                consumer.assign(begins)
                ends = time.monotonic() + self.chance.uniform(0.5, 2.0)
                while time.monotonic() < ends:
                    for record in poll(consumer, name, self.history):
                        end = record.offset + 1
                        reached[record.partition] = max(reached[record.partition], end)
                    if self.stopping.is_set():
                        return
            finally:
                consumer.close()


class Member(Worker):
    """A member of a group: reads what it is assigned, and commits what it has read.

    It begins at 0 where nothing is committed, and not by `auto.offset.reset = earliest`: librdkafka
    2.x asks for the earliest offset again, and reads from there, when the answer to an earlier such
    question comes late, from a broker that led before (`rd_kafka_toppar_handle_Offset`). So an
    offset that a broker refuses shows here, too.
    """

    def __init__(self, name: str, place: Place, history: History, seed: int, group: str) -> None:
        super().__init__(name, place, history, seed)
        self.group = group
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    def work(self) -> None:
        consumer = self.place.consumer(
            self.name,
            group_id=self.group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=500,
        )
        try:
            consumer.subscribe(
                [self.place.topic],
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._revoked,
            )
            while not self.stopping.is_set():
                ends = time.monotonic() + self.chance.uniform(0.2, 1.0)
                while time.monotonic() < ends and not self.stopping.is_set():
                    for record in poll(consumer, self.name, self.history):
                        self._positions[record.partition] = record.offset + 1
                self._commit(consumer)
        finally:
            consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = tuple(one.partition for one in partitions)
        self._revoked(consumer, partitions)
        self.history.add(Assigned(now_ns(), self.group, self.name, numbers))
        consumer.assign(self._begins(consumer, partitions))

    def _begins(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where the group stands in each. Heartbeats go on meanwhile."""
        while not self.stopping.is_set():
            try:
                found = consumer.committed(partitions, timeout=1.0)
            except KafkaException:  # its coordinator is away
                continue
            if all(one.error is None for one in found):
                return [
                    TopicPartition(one.topic, one.partition, max(one.offset, 0)) for one in found
                ]
        return partitions

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._positions.pop(one.partition, None)
            self._committed.pop(one.partition, None)

    def _commit(self, consumer: Consumer) -> None:
        ends = {
            partition: position
            for partition, position in self._positions.items()
            if self._committed.get(partition) != position
        }
        if not ends:
            return
        from_ns = now_ns()
        offsets = [TopicPartition(self.place.topic, p, end) for p, end in ends.items()]
        try:
            answers = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # of unknown outcome, and tried again with what is read then
        done = {one.partition: one.offset for one in answers or () if one.error is None}
        if done:
            self._committed |= done
            self.history.add(Committed(from_ns, now_ns(), self.group, self.name, done))


class EndWatcher(Worker):
    """Asks for the end of one partition after the other; who cannot answer has said nothing."""

    def work(self) -> None:
        consumer = self.place.consumer(self.name)
        try:
            while not self.stopping.wait(0.05):
                partition = self.chance.randrange(self.place.partitions)
                ask_end(consumer, self.place, self.name, partition, self.history)
        finally:
            consumer.close()


def poll(consumer: Consumer, name: str, history: History) -> list[Record]:
    """What the consumer gives next, after it was written down."""
    records = []
    for message in consumer.consume(500, 0.1):
        error = message.error()
        if error is not None:
            if error.code() not in PASSING:
                history.add(ReaderFailed(now_ns(), name, str(error)))
            continue
        records.append(_record(message))
    if records:
        history.add(Read(now_ns(), name, tuple(records)))
    return records


def _record(message: Message) -> Record:
    partition, offset, epoch = message.partition(), message.offset(), message.leader_epoch()
    value = message.value()
    assert partition is not None
    assert offset is not None
    text = "" if value is None else bytes(value).decode(errors="replace")
    return Record(partition, offset, text, -1 if epoch is None else epoch)


def ask_end(
    consumer: Consumer, place: Place, name: str, partition: int, history: History
) -> int | None:
    from_ns = now_ns()
    try:
        answer = consumer.get_watermark_offsets(TopicPartition(place.topic, partition), timeout=2.0)
    except KafkaException:
        return None
    if answer is None:
        return None
    history.add(EndAsked(from_ns, now_ns(), name, partition, answer[1]))
    return int(answer[1])


def _behind(positions: Mapping[int, int], ends: Mapping[int, int]) -> str:
    return ", ".join(
        f"partition {partition} read to {positions.get(partition, 0)} of {end}"
        for partition, end in ends.items()
        if positions.get(partition, 0) < end
    )


def read_ends(place: Place, history: History, limit_s: float) -> dict[int, int] | None:
    """The end of every partition, once all have a leader; None when they have not by then."""
    consumer = place.consumer("ends")
    ends: dict[int, int] = {}
    deadline = time.monotonic() + limit_s
    try:
        while missing := [p for p in range(place.partitions) if p not in ends]:
            if time.monotonic() > deadline:
                what = f"no end of partitions {missing} for {limit_s:.0f} s"
                history.add(Stuck(now_ns(), "ends", what))
                return None
            for partition in missing:
                end = ask_end(consumer, place, "ends", partition, history)
                if end is not None:
                    ends[partition] = end
    finally:
        consumer.close()
    return ends


def read_whole_log(place: Place, ends: Mapping[int, int], history: History, limit_s: float) -> None:
    """By a new consumer, from the beginning."""
    consumer = place.consumer("whole")
    positions = dict.fromkeys(ends, 0)
    records: list[Record] = []
    deadline = time.monotonic() + limit_s
    try:
        begins = [TopicPartition(place.topic, p, OFFSET_BEGINNING) for p in ends]
        consumer.assign(begins)
        while behind := _behind(positions, ends):
            if time.monotonic() > deadline:
                history.add(Stuck(now_ns(), "whole", behind))
                return
            for record in poll(consumer, "whole", history):
                positions[record.partition] = record.offset + 1
                records.append(record)
    finally:
        consumer.close()
    history.add(WholeLog(now_ns(), "consumers", tuple(sorted(records))))


def read_whole_group(
    place: Place, group: str, ends: Mapping[int, int], history: History, limit_s: float
) -> None:
    """Waits until the group, whose members still run, has committed all there is."""
    consumer = place.consumer("whole group", group_id=group)
    partitions = [TopicPartition(place.topic, p) for p in ends]
    deadline = time.monotonic() + limit_s
    problem = ""
    try:
        while time.monotonic() < deadline:
            try:
                answers = consumer.committed(partitions, timeout=3.0)
            except KafkaException as error:
                problem = str(error)
                continue
            committed = {one.partition: one.offset for one in answers if one.offset >= 0}
            problem = _behind(committed, ends)
            if not problem:
                history.add(WholeGroup(now_ns(), "client", group, committed))
                return
            time.sleep(0.05)
    finally:
        consumer.close()
    history.add(Stuck(now_ns(), group, problem))
