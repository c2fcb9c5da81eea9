"""Transactional producers, good and bad, that speak Kafka's protocol themselves.

No client does what these do: they repeat what was answered, go on after their time is up, and send
for an instance that has a successor, or for a transaction that has ended. Every second one uses the
older flow (transaction version 1). What each of them knows is its history (transaction_history.py).

Beside them a read_committed consumer follows the log, and someone asks SQL again and again.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import URLError

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    TxnOffsetCommitRequest,
)

from brokerhouse.coordinator.transaction_states import Producer as ProducerId
from brokerhouse.protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.record_batches import Record, batch_of, decoded
from tests.support.sql_rows import SqlError
from tests.support.transaction_history import NO_OFFSET, History, Writer, Written, ended, violations
from tests.support.waiting import until
from tests.support.wire import Closed, Wire

TOPIC = "events"
PARTITIONS = 3
PRODUCERS = 6
TIMEOUT_MS = 1500
"""Of most producers. On a busy machine few of their transactions end in that time."""
AMPLE_TIMEOUT_MS = 60_000
"""Of the others, whose transactions end all the same."""
LONGER_S = 3.0
"""Long enough that a transaction is over: the broker looks every second."""
END_LIMIT_S = 30.0
NO_MORE_S = 3.0

_TRANSACTIONAL = 0x10
_TIMESTAMP = 1_700_000_000_000
_ABORT = b"\0\0\0\0"
"""The key of a marker."""
_RETRIABLE = {
    errors.ConcurrentTransactions.code,
    errors.CoordinatorNotAvailable.code,
    errors.CoordinatorLoadInProgress.code,
    errors.NotEnoughReplicas.code,
    errors.NotLeaderOrFollower.code,
    errors.KafkaStorageError.code,
    errors.UnstableOffsetCommit.code,
}
_ENDS_IT = {
    errors.InvalidProducerEpoch.code,
    errors.InvalidProducerIdMapping.code,
    errors.InvalidTxnState.code,
    errors.ProducerFenced.code,
    errors.TransactionAbortable.code,
}


class Refused(Exception):
    """The transaction is over, as far as the broker is concerned."""


class Strange(Exception):
    """No client expects this answer."""


class WireProducer(Writer):
    """One transactional id, until `stopped`. `is_older`: it uses transaction version 1."""

    def __init__(
        self,
        broker: BrokerProcess,
        target: Target,
        number: int,
        seed: int,
        stopped: threading.Event,
    ) -> None:
        super().__init__(daemon=True, name=f"id-{number}")
        self.is_older = number % 2 == 1
        self.history = History()
        self.strange: list[str] = []
        self._broker = broker
        self._target = target
        self._random = random.Random(seed)
        self._stopped = stopped
        self._is_to_pause = number < 4
        self._timeout_ms = TIMEOUT_MS if number < 4 else AMPLE_TIMEOUT_MS
        self._number = 0
        self._sent_offset = 0
        self._producer = ProducerId(-1, -1)
        self._sequences: Counter[int] = Counter()
        self._added: set[int] = set()

    @property
    def group(self) -> str:
        return f"group-{self.name}"

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    with Wire(self._broker) as wire:
                        self._one_instance(wire)
                except Refused:
                    pass
                except (OSError, Closed):
                    time.sleep(0.05)
        except Strange as strange:
            self.strange.append(f"{self.name}: {strange}")
        except BaseException as failure:
            self.failure = failure

    def _one_instance(self, wire: Wire) -> None:
        """Returns when a new one is to follow; raises `Refused`, `Closed`, `OSError`."""
        before = self._producer
        self._begin(wire)
        self._look_at_offset(wire)
        if before.producer_id >= 0 and self._random.random() < 0.5:
            self._as_zombie(wire, before)
        for _ in range(self._random.randint(5, 30)):
            if self._stopped.is_set():
                return
            self._one_transaction(wire)

    def _begin(self, wire: Wire) -> None:
        request = messages.init_producer(self.name, self._timeout_ms)
        answer = self._answered(partial(wire.ask, request, 5), lambda one: int(one.error_code))
        self._producer = ProducerId(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    def _one_transaction(self, wire: Wire) -> None:
        written = Written()
        is_asked_to_commit = False
        self._added.clear()
        try:
            for _ in range(self._random.randint(1, 4)):
                self._send_some(wire, written)
            if self._random.random() < 0.5:
                self._send_offset(wire, written)
            if self._is_to_pause or self._random.random() < 0.01:
                self._is_to_pause = False
                self._stopped.wait(LONGER_S)
                self._send_some(wire, written, elsewhere=True)
            is_asked_to_commit = self._random.random() < 0.7
            producer = self._producer
            self._end(wire, commit=is_asked_to_commit)
        except Refused:
            self.history.aborted.append(written)
            raise
        except BaseException:
            known = self.history.unknown if is_asked_to_commit else self.history.aborted
            known.append(written)
            raise
        (self.history.committed if is_asked_to_commit else self.history.aborted).append(written)
        if self._random.random() < 0.1:
            self._send_late(wire, producer, written)
        if written.offset >= 0 and self._random.random() < 0.5:
            self._look_at_offset(wire)

    def _send_some(self, wire: Wire, written: Written, *, elsewhere: bool = False) -> None:
        """One batch; sometimes it is sent again, though it was answered.

        `elsewhere`: to a partition that is not part of the transaction, if there is one.
        """
        others = sorted(set(range(PARTITIONS)) - set(written.values))
        if not elsewhere or not others:
            others = list(range(PARTITIONS))
        partition = self._random.choice(others)
        some = [self._value() for _ in range(self._random.randint(1, 5))]
        written.values[partition] += some
        if self.is_older and partition not in self._added:
            self._add_partition(wire, partition)
        batch = self._batch(self._producer, self._sequences[partition], some)
        self._produce(wire, partition, batch)
        self._sequences[partition] += len(some)
        if self._random.random() < 0.1:
            self._produce(wire, partition, batch)

    def _as_zombie(self, wire: Wire, before: ProducerId) -> None:
        """The instance before sends into the transaction of this one, and tries to end it."""
        written = Written()
        self.history.unknown.append(written)
        self._added.clear()
        self._send_some(wire, written)
        partition = next(iter(written.values))
        self._refused_batch(wire, before, partition, self._random.choice((0, 1, 7)))
        end = messages.end_transaction(self.name, *before, commit=True)
        code = int(wire.ask(end, 4).error_code)
        if code not in _ENDS_IT | _RETRIABLE:
            raise Strange(f"a zombie ended a transaction: {code}")
        self._end(wire, commit=True)
        self.history.unknown.remove(written)
        self.history.committed.append(written)

    def _send_late(self, wire: Wire, producer: ProducerId, written: Written) -> None:
        """A batch as if of the transaction that has ended, to a partition that is not part of it.

        Where it has records, a batch that comes before the marker is one more of them.
        """
        others = sorted(set(range(PARTITIONS)) - set(written.values))
        if others:
            partition = self._random.choice(others)
            sequence = self._sequences[partition] if self.is_older else 0
            self._refused_batch(wire, producer, partition, sequence)

    def _refused_batch(
        self, wire: Wire, producer: ProducerId, partition: int, sequence: int
    ) -> None:
        """If it is stored all the same, nobody may see it."""
        value = self._value()
        request = messages.produce(
            self._target, self._batch(producer, sequence, [value]), partition=partition
        )
        request.transactional_id = self.name
        wire.ask(request, 11)
        written = Written()
        written.values[partition].append(value)
        self.history.aborted.append(written)

    def _value(self) -> bytes:
        self._number += 1
        return f"{self.name} {self._number}".encode()

    def _batch(self, producer: ProducerId, sequence: int, values: Sequence[bytes]) -> bytes:
        return batch_of(
            *(Record(value=value) for value in values),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            attributes=_TRANSACTIONAL,
            max_timestamp=_TIMESTAMP,
        ).data

    # Requests

    def _add_partition(self, wire: Wire, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self._producer.producer_id,
            v3_and_below_producer_epoch=self._producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=self._target.name, partitions=[partition]
                )
            ],
        )
        self._answered(
            partial(wire.ask, request, 3),
            lambda one: int(
                one.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )
        self._added.add(partition)

    def _produce(self, wire: Wire, partition: int, batch: bytes) -> None:
        request = messages.produce(self._target, batch, partition=partition)
        request.transactional_id = self.name
        self._answered(
            partial(wire.ask, request, 11 if self.is_older else 12),
            lambda one: int(one.responses[0].partition_responses[0].error_code),
        )

    def _send_offset(self, wire: Wire, written: Written) -> None:
        self._sent_offset += 1
        written.offset = self._sent_offset
        if self.is_older:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self._producer.producer_id,
                producer_epoch=self._producer.epoch,
                group_id=self.group,
            )
            self._answered(partial(wire.ask, add, 3), lambda one: int(one.error_code))
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                topic(
                    name=self._target.name,
                    partitions=[
                        topic.TxnOffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=self._sent_offset,
                            committed_leader_epoch=-1,
                            committed_metadata="",
                        )
                    ],
                )
            ],
        )
        self._answered(
            partial(wire.ask, request, 3 if self.is_older else 5),
            lambda one: int(one.topics[0].partitions[0].error_code),
        )

    def _look_at_offset(self, wire: Wire) -> None:
        """The group must be where the last transaction that was committed has put it."""
        request = messages.offset_fetch(9, {self.group: [(self._target, [0])]})

        def part_of(answer: Any) -> Any:
            return answer.groups[0].topics[0].partitions[0]

        answer = self._answered(
            partial(wire.ask, request, 9),
            lambda one: int(one.groups[0].error_code or part_of(one).error_code),
        )
        found = part_of(answer).committed_offset
        committed = max((one.offset for one in self.history.committed), default=NO_OFFSET)
        dropped = {one.offset for one in self.history.aborted if one.offset >= 0}
        if found < committed or found in dropped:
            self.strange.append(f"{self.group} is at {found}, and committed {committed}")

    def _end(self, wire: Wire, *, commit: bool) -> None:
        request = messages.end_transaction(self.name, *self._producer, commit=commit)
        version = 4 if self.is_older else 5
        answer = self._answered(
            partial(wire.ask, request, version), lambda one: int(one.error_code)
        )
        if not self.is_older:
            self._producer = ProducerId(answer.producer_id, answer.producer_epoch)
            self._sequences.clear()

    def _answered(self, ask: Callable[[], Any], code: Callable[[Any], int]) -> Any:
        """Raises `Refused` and `Strange`."""
        deadline = time.monotonic() + END_LIMIT_S
        while True:
            answer = ask()
            found = code(answer)
            if not found:
                return answer
            if found in _ENDS_IT:
                raise Refused
            if found not in _RETRIABLE or time.monotonic() > deadline:
                raise Strange(f"{answer}")
            time.sleep(0.01)


class CommittedReader(threading.Thread):
    """A read_committed consumer that follows one partition over all restarts, as clients do it."""

    def __init__(self, broker: BrokerProcess, target: Target, partition: int) -> None:
        super().__init__(daemon=True, name=f"reader-{partition}")
        self.values: list[bytes] = []
        self.failure: BaseException | None = None
        self._broker = broker
        self._target = target
        self._partition = partition
        self._offset = 0
        self._aborted: set[int] = set()
        self._until = float("inf")
        self._end_seen_at = 0.0

    def run(self) -> None:
        try:
            while not self._is_over():
                try:
                    with Wire(self._broker) as wire:
                        while not self._is_over():
                            self._fetch(wire)
                except (OSError, Closed):
                    time.sleep(0.05)
        except BaseException as failure:
            self.failure = failure

    def begin_to_end(self) -> None:
        """Read for a moment, and what is there then."""
        self._until = time.monotonic() + NO_MORE_S

    def has_read_all(self) -> bool:
        """Whether that was all: no transaction is open. Returns when it has ended."""
        self.join(NO_MORE_S + 3 * END_LIMIT_S)
        return not self.is_alive() and self.failure is None and self._end_seen_at > self._until

    def _is_over(self) -> bool:
        return self._end_seen_at > self._until or time.monotonic() > self._until + END_LIMIT_S

    def _fetch(self, wire: Wire) -> None:
        request = messages.fetch(
            self._target,
            self._offset,
            partition=self._partition,
            isolation_level=1,
            max_wait_ms=100,
            min_bytes=1,
        )
        began = time.monotonic()
        part = wire.ask(request, 12).responses[0].partitions[0]
        if part.error_code:
            time.sleep(0.05)
            return
        if part.last_stable_offset == part.high_watermark == self._offset:
            self._end_seen_at = began
        starts: defaultdict[int, list[int]] = defaultdict(list)
        for one in part.aborted_transactions or ():
            starts[one.producer_id].append(one.first_offset)
        rows = [row for one in _batches_in(bytes(part.records or b"")) for row in decoded(one)]
        for row in rows:
            if row.offset < self._offset:
                continue
            firsts = starts[row.producer_id]
            while firsts and min(firsts) <= row.offset:
                firsts.remove(min(firsts))
                self._aborted.add(row.producer_id)
            self._offset = row.offset + 1
            if row.control:
                if row.key == _ABORT:
                    self._aborted.discard(row.producer_id)
            elif not (row.transactional and row.producer_id in self._aborted):
                assert row.value is not None
                self.values.append(row.value)


def _batches_in(records: bytes) -> Iterator[bytes]:
    while records:
        size = 12 + int.from_bytes(records[8:12])
        yield records[:size]
        records = records[size:]


class SqlWatcher(threading.Thread):
    """`shown`: every value that SQL has ever shown as committed."""

    def __init__(self, broker: BrokerProcess, stopped: threading.Event) -> None:
        super().__init__(daemon=True, name="watcher")
        self.shown: set[bytes] = set()
        self.failure: BaseException | None = None
        self._broker = broker
        self._stopped = stopped

    def run(self) -> None:
        try:
            while not self._stopped.wait(0.3):
                try:
                    some = committed_in_sql(self._broker)
                except (SqlError, URLError, HTTPException, OSError):  # the broker is away
                    continue
                self.shown.update(value for values in some.values() for value in values)
        except BaseException as failure:
            self.failure = failure


def committed_in_sql(broker: BrokerProcess) -> dict[int, list[bytes]]:
    shown: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for row in broker.sql(
        "SELECT partition, value FROM messages_committed WHERE topic = {topic:String}"
        " ORDER BY partition, offset",
        {"topic": TOPIC},
    ):
        shown[int(row["partition"])].append(str(row["value"]).encode())
    return shown


@contextmanager
def _running(
    broker: BrokerProcess, target: Target, seed: int
) -> Iterator[tuple[list[WireProducer], SqlWatcher]]:
    stopped = threading.Event()
    producers = [
        WireProducer(broker, target, number, seed * 1000 + number, stopped)
        for number in range(PRODUCERS)
    ]
    watcher = SqlWatcher(broker, stopped)
    for one in (*producers, watcher):
        one.start()
    with ended(producers, stopped):
        yield producers, watcher
    watcher.join(END_LIMIT_S)
    if watcher.failure is not None:
        raise watcher.failure


def play(
    broker: BrokerProcess, seed: int, *, kills: int, between_s: float, commits: int = 0
) -> tuple[list[str], Sequence[History]]:
    """What is wrong after all of it, and what the producers know. `broker` runs.

    Before each kill and at the end `commits` more transactions are awaited, unless an answer was
    strange, and then `between_s`.
    """
    with Wire(broker) as wire:
        target = messages.create_topic(wire, TOPIC, PARTITIONS)
    readers = [CommittedReader(broker, target, number) for number in range(PARTITIONS)]
    for one in readers:
        one.start()
    with _running(broker, target, seed) as (producers, watcher):
        for _ in range(kills):
            _await_commits(producers, commits)
            time.sleep(between_s)
            broker.kill()
            broker.start()
        _await_commits(producers, commits)
        time.sleep(between_s)
    wrong = [strange for one in producers for strange in one.strange]
    _end_what_is_open(broker, producers)
    for one in readers:
        one.begin_to_end()
    wrong += [f"{one.name} is stuck" for one in readers if not one.has_read_all()]
    read = {number: one.values for number, one in enumerate(readers)}
    shown = committed_in_sql(broker)
    histories = [one.history for one in producers]
    wrong += violations(histories, shown, read)
    found = {value for some in shown.values() for value in some}
    if not watcher.shown <= found:
        wrong.append(f"SQL has shown {sorted(watcher.shown - found)[:3]}, which nobody committed")
    wrong += _wrong_offsets(broker, target, producers, found)
    return wrong, histories


def _await_commits(producers: Sequence[WireProducer], count: int) -> None:
    """Wait for so many more, by all together."""

    def committed() -> int:
        return sum(len(one.history.committed) for one in producers)

    wanted = committed() + count
    until(
        lambda: committed() >= wanted or any(one.strange for one in producers),
        f"{count} more transactions are committed",
    )


def _end_what_is_open(broker: BrokerProcess, producers: Sequence[WireProducer]) -> None:
    with Wire(broker) as wire:
        deadline = time.monotonic() + END_LIMIT_S
        for one in producers:
            while wire.ask(messages.init_producer(one.name), 5).error_code in _RETRIABLE:
                if time.monotonic() > deadline:
                    return  # the readers are stuck, then
                time.sleep(0.05)


def _wrong_offsets(
    broker: BrokerProcess, target: Target, producers: Sequence[WireProducer], found: set[bytes]
) -> list[str]:
    groups: Mapping[str, Any] = {one.group: [(target, [0])] for one in producers}
    with Wire(broker) as wire:
        answer = wire.ask(messages.offset_fetch(9, groups), 9)
    committed = {
        one.group_id: (part.committed_offset, part.error_code)
        for one in answer.groups
        for topic in one.topics
        for part in topic.partitions
    }
    return [
        f"{one.group} is at {committed[one.group]}, and committed {one.history.last_offset(found)}"
        for one in producers
        if committed[one.group] != (one.history.last_offset(found), 0)
    ]
