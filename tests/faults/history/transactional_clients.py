"""Transactional producers of librdkafka, each in a process of its own.

librdkafka ends its process when it finds itself in a state that it does not expect, and that of the
tests must not end with it. What a producer had begun then is unknown to it, and another goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.cimpl import TopicPartition

from tests.support.transaction_history import History, Writer, Written, ended

CALL_S = 10.0
_REPEATED_S = 30.0
_EVENT_S = 0.1
_ENDS_S = 30.0
_CLIENT_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


class _Place(NamedTuple):
    bootstrap: str
    topic: str
    partitions: int


class _State(NamedTuple):
    """Of an id, when its process begins: how many values and offsets it has sent."""

    name: str
    seed: int
    values: int
    offsets: int


class _Begun(NamedTuple):
    """A transaction, and the offset that it will send for its group."""

    offset: int


class _Sent(NamedTuple):
    partition: int
    value: bytes


class _Dropped(NamedTuple):
    """The client has told that this value is not part of its transaction."""

    partition: int
    value: bytes


class _Ended(NamedTuple):
    committed: bool


class _Failed(NamedTuple):
    error: str


class Producer(Writer):
    """One transactional id, until `stopped`; every instance but the first is fencing the last."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, seed: int, stopped: threading.Event
    ) -> None:
        super().__init__(daemon=True, name=f"id-{seed}")
        self._place = _Place(bootstrap, topic, partitions)
        self._seed = seed
        self._stopped = stopped
        self._number = 0
        self._offset = 0
        self._open: Written | None = None
        self._written_by_value: dict[bytes, Written] = {}
        self.history = History()
        self.crashes = 0

    @property
    def group(self) -> str:
        return _group(self.name)

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._one_process()
        except BaseException as failure:
            self.failure = failure

    def _one_process(self) -> None:
        """Until `stopped`, or until the client crashes."""
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        state = _State(self.name, self._seed + self.crashes, self._number, self._offset)
        process = context.Process(target=_produce, args=(theirs, self._place, state), daemon=True)
        process.start()
        theirs.close()
        try:
            with suppress(EOFError, ConnectionResetError):
                self._listen(connection)
            process.join(_ENDS_S)
        finally:
            process.kill()
            connection.close()
        self._open = None
        if process.exitcode in _CLIENT_CRASHES:
            self.crashes += 1
        elif process.exitcode != 0:
            raise RuntimeError(f"the process of {self.name} ended with {process.exitcode}")

    def _listen(self, connection: Connection) -> None:
        is_told = False
        while True:
            if self._stopped.is_set() and not is_told:
                connection.send(None)
                is_told = True
            if connection.poll(_EVENT_S):
                self._note(connection.recv())

    def _note(self, event: _Begun | _Sent | _Dropped | _Ended | _Failed) -> None:
        match event:
            case _Begun():
                self._offset = event.offset
                self._open = Written(offset=event.offset)
                self.history.unknown.append(self._open)
            case _Sent():
                assert self._open is not None
                self._number += 1
                self._open.values[event.partition].append(event.value)
                self._written_by_value[event.value] = self._open
            case _Dropped():
                self._written_by_value[event.value].values[event.partition].remove(event.value)
            case _Ended():
                assert self._open is not None
                self.history.unknown.remove(self._open)
                ends = self.history.committed if event.committed else self.history.aborted
                ends.append(self._open)
            case _Failed():
                raise RuntimeError(f"{self.name} failed: {event.error}")


@contextmanager
def producing(
    bootstrap: str, topic: str, partitions: int, producers: int, seed: int
) -> Iterator[list[Producer]]:
    """So many of them, each with an id of its own."""
    stopped = threading.Event()
    all_of_them = [
        Producer(bootstrap, topic, partitions, seed % 100_000 * 10 + number, stopped)
        for number in range(producers)
    ]
    for one in all_of_them:
        one.start()
    with ended(all_of_them, stopped):
        yield all_of_them
    print("crashes of librdkafka:", sum(one.crashes for one in all_of_them))


def _group(name: str) -> str:
    return f"group-{name}"


def _produce(connection: Connection, place: _Place, state: _State) -> None:
    """What the process does."""
    try:
        _Instances(connection, place, state).run()
    except BaseException as failure:
        connection.send(_Failed(repr(failure)))
    connection.close()
    os._exit(0)  # a call of the client that hangs would hold up the interpreter's own end


class _Instances:
    """One instance of the producer after another, in its process."""

    def __init__(self, connection: Connection, place: _Place, state: _State) -> None:
        self._connection = connection
        self._place = place
        self._name = state.name
        self._random = random.Random(state.seed)
        self._number = state.values
        self._offset = state.offsets

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"group.id": _group(self._name), "bootstrap.servers": "127.0.0.1:1", "log_level": 0}
        )
        metadata = consumer.consumer_group_metadata()
        while not self._is_stopped():
            with suppress(confluent_kafka.KafkaException):
                self._one_instance(metadata)
        consumer.close()

    def _is_stopped(self) -> bool:
        return self._connection.poll()

    def _one_instance(self, metadata: Any) -> None:
        """Returns or raises when only a new instance can go on."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._place.bootstrap,
                "transactional.id": self._name,
                "transaction.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 250,
                "log_level": 0,
            }
        )
        producer.init_transactions(CALL_S)
        while not self._is_stopped():
            try:
                self._write(producer, metadata)
                is_committed = self._random.random() >= 0.3
                _repeated(
                    producer.commit_transaction if is_committed else producer.abort_transaction
                )
            except confluent_kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                _repeated(producer.abort_transaction)
                is_committed = False
            self._connection.send(_Ended(is_committed))

    def _write(self, producer: Any, metadata: Any) -> None:
        self._offset += 1
        self._connection.send(_Begun(self._offset))
        producer.begin_transaction()
        for _ in range(self._random.randint(1, 8)):
            self._number += 1
            value = f"{self._name} {self._number}".encode()
            partition = self._random.randrange(self._place.partitions)
            self._connection.send(_Sent(partition, value))
            producer.produce(self._place.topic, value, partition=partition, on_delivery=self._told)
        offset = TopicPartition(self._place.topic, 0, self._offset)
        _repeated(partial(_send_offset, producer, offset, metadata))

    def _told(self, error: Any, message: Any) -> None:
        """When a call to abort is repeated, librdkafka may drop the first records of the next
        transaction, and then commit the rest; it says so.
        """
        if error is not None:
            self._connection.send(_Dropped(message.partition(), message.value()))


def _repeated(call: Any) -> None:
    """Repeat what may be repeated. Raises `KafkaException`."""
    deadline = time.monotonic() + _REPEATED_S
    while True:
        try:
            call(CALL_S)
            return
        except confluent_kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


class _Hangs(confluent_kafka.KafkaException):
    """A call of the client does not return."""


def _send_offset(producer: Any, offset: TopicPartition, metadata: Any, limit_s: float) -> None:
    """librdkafka 2.16 may wait for ever when a coordinator has gone (its issues 5456 and 5511)."""
    outcome: list[BaseException | None] = []

    def send() -> None:
        try:
            producer.send_offsets_to_transaction([offset], metadata, limit_s)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(limit_s + 1)
    if not outcome:
        raise _Hangs(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))
    if outcome[0] is not None:
        raise outcome[0]
