"""Transactions of many producers while the broker is killed again and again, checked as a history.

Each transaction writes values that occur once to several partitions. The client knows that it was
committed, or aborted, or it does not know: then all of it must be there, or nothing. After a lost
connection a producer begins anew as the next instance of its transactional id, as clients do.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from protocol import errors
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.record_batches import Record, batch_of, decoded
from tests.support.transaction_history import History, Writer, Written, ended, violations
from tests.support.wire import Closed, Wire

TRANSACTIONAL = 0x10
TIMESTAMP = 1_700_000_000_000
"""That of every record."""
ABORT = b"\0\0\0\0"
"""The key of a marker."""
PARTITIONS = 3
PRODUCERS = 6
KILLS = 4
BETWEEN_KILLS_S = 2.0
RETRIABLE = {
    errors.ConcurrentTransactions.code,
    errors.CoordinatorNotAvailable.code,
    errors.NotEnoughReplicas.code,
    errors.NotLeaderOrFollower.code,
    errors.KafkaStorageError.code,
}


class Producer(Writer):
    """One transactional id, until `stopped`."""

    def __init__(
        self,
        broker: BrokerProcess,
        target: Target,
        number: int,
        seed: int,
        stopped: threading.Event,
    ) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._target = target
        self._id = f"id-{number}"
        self._random = random.Random(seed)
        self._stopped = stopped
        self._number = 0
        self.history = History()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    with Wire(self._broker) as wire:
                        self._one_instance(wire)
                except (OSError, Closed):
                    time.sleep(0.05)
        except BaseException as failure:
            self.failure = failure

    def _one_instance(self, wire: Wire) -> None:
        request = messages.init_producer(self._id)
        answer = self._answered(partial(wire.ask, request, 5), lambda one: int(one.error_code))
        producer_id, epoch = answer.producer_id, answer.producer_epoch
        while not self._stopped.is_set():
            written = Written()
            self.history.unknown.append(written)
            sequences: Counter[int] = Counter()
            for _ in range(self._random.randint(1, 4)):
                partition = self._random.randrange(PARTITIONS)
                some = [self._value() for _ in range(self._random.randint(1, 5))]
                written.values[partition] += some
                batch = batch_of(
                    *(Record(value=value) for value in some),
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequences[partition],
                    attributes=TRANSACTIONAL,
                    max_timestamp=TIMESTAMP,
                ).data
                sequences[partition] += len(some)
                produce = messages.produce(self._target, batch, partition=partition)
                produce.transactional_id = self._id
                self._answered(
                    partial(wire.ask, produce, 12),
                    lambda one: int(one.responses[0].partition_responses[0].error_code),
                )
            commit = self._random.random() < 0.7
            end = messages.end_transaction(self._id, producer_id, epoch, commit=commit)
            answer = self._answered(partial(wire.ask, end, 5), lambda one: int(one.error_code))
            producer_id, epoch = answer.producer_id, answer.producer_epoch
            self.history.unknown.remove(written)
            (self.history.committed if commit else self.history.aborted).append(written)

    def _value(self) -> bytes:
        self._number += 1
        return f"{self._id} {self._number}".encode()

    def _answered(self, ask: Callable[[], Any], code: Callable[[Any], int]) -> Any:
        while True:
            answer = ask()
            found = code(answer)
            if not found:
                return answer
            assert found in RETRIABLE, answer
            time.sleep(0.01)


@contextmanager
def producing(broker: BrokerProcess, target: Target, seed: int) -> Iterator[list[Producer]]:
    stopped = threading.Event()
    producers = [
        Producer(broker, target, number, seed * 1000 + number, stopped)
        for number in range(PRODUCERS)
    ]
    for one in producers:
        one.start()
    with ended(producers, stopped):
        yield producers


def test_transactions_are_whole_whatever_happens_to_the_broker(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"seed {seed}")
    broker = own_broker()
    with Wire(broker) as wire:
        target = messages.create_topic(wire, "events", PARTITIONS)
    with producing(broker, target, seed) as producers:
        for _ in range(KILLS):
            time.sleep(BETWEEN_KILLS_S)
            broker.kill()
            broker.start()
        time.sleep(BETWEEN_KILLS_S)
    end_what_is_open(broker, producers)
    read = {number: read_committed(broker, target, number) for number in range(PARTITIONS)}
    assert violations([one.history for one in producers], in_sql(broker), read) == []
    assert sum(len(one.history.committed) for one in producers) > 50


def end_what_is_open(broker: BrokerProcess, producers: list[Producer]) -> None:
    with Wire(broker) as wire:
        for number in range(len(producers)):
            assert wire.ask(messages.init_producer(f"id-{number}"), 5).error_code == 0


def in_sql(broker: BrokerProcess) -> dict[int, list[bytes]]:
    shown: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for row in broker.sql(
        "SELECT partition, value FROM messages_committed WHERE topic = 'events'"
        " ORDER BY partition, offset"
    ):
        shown[int(row["partition"])].append(str(row["value"]).encode())
    return shown


def read_committed(broker: BrokerProcess, target: Target, partition: int) -> list[bytes]:
    """What a consumer makes of fetches with isolation level 1, as clients do it."""
    values: list[bytes] = []
    offset = 0
    with Wire(broker) as wire:
        while True:
            request = messages.fetch(target, offset, partition=partition, isolation_level=1)
            part = wire.ask(request, 12).responses[0].partitions[0]
            assert part.error_code == 0
            assert part.last_stable_offset == part.high_watermark, "all transactions have ended"
            rows = [row for one in batches_in(bytes(part.records or b"")) for row in decoded(one)]
            if not rows:
                return values
            starts: defaultdict[int, list[int]] = defaultdict(list)
            for one in part.aborted_transactions or ():
                starts[one.producer_id].append(one.first_offset)
            aborted: set[int] = set()
            for row in rows:
                firsts = starts[row.producer_id]
                while firsts and min(firsts) <= row.offset:
                    firsts.remove(min(firsts))
                    aborted.add(row.producer_id)
                offset = row.offset + 1
                if row.control:
                    if row.key == ABORT:
                        aborted.discard(row.producer_id)
                elif not (row.transactional and row.producer_id in aborted):
                    assert row.value is not None
                    values.append(row.value)


def batches_in(records: bytes) -> Iterator[bytes]:
    while records:
        size = 12 + int.from_bytes(records[8:12])
        yield records[:size]
        records = records[size:]
