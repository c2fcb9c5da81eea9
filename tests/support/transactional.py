"""Transactional producers of real clients, with one common interface."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka import cimpl
from kafka.structs import OffsetAndMetadata

from tests.support.helper_process import HelperProcess
from tests.support.member import Member

LIMIT_S = 60.0
TIMEOUT_MS = 600_000
"""No test waits for this: a busy machine must not abort what a test is about."""
Result = TypeVar("Result")


class TransactionalProducer(ABC):
    """An instance of a transactional id; making one fences the instance before."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, value: str, partition: int = 0) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Returns when what was sent is stored. Raises the client's own error."""

    @abstractmethod
    def send_offset(self, group: str, topic: str, offset: int, partition: int = 0) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class ConfluentProducer(TransactionalProducer):
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._errors: list[Any] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(LIMIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        def told(error: Any, _: Any) -> None:
            if error is not None:
                self._errors.append(error)

        self._producer.produce(topic, value.encode(), partition=partition, on_delivery=told)

    def flush(self) -> None:
        assert self._producer.flush(LIMIT_S) == 0
        if self._errors:
            raise confluent_kafka.KafkaException(self._errors.pop())

    def send_offset(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        consumer = confluent_kafka.Consumer(
            {"group.id": group, "bootstrap.servers": "127.0.0.1:1", "log_level": 0}
        )
        try:
            self._producer.send_offsets_to_transaction(
                [cimpl.TopicPartition(topic, partition, offset)],
                consumer.consumer_group_metadata(),
                LIMIT_S,
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(LIMIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(LIMIT_S)
        self._errors.clear()

    def close(self) -> None:
        self._producer.purge()


class KafkaPythonProducer(TransactionalProducer):
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._sent: list[Any] = []
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self._sent.append(self._producer.send(topic, value.encode(), partition=partition))

    def flush(self) -> None:
        self._producer.flush(LIMIT_S)
        sent, self._sent = self._sent, []
        for one in sent:
            one.get(LIMIT_S)

    def send_offset(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        offsets = {kafka.TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._sent.clear()
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class AiokafkaProducer(TransactionalProducer):
    def __init__(self, address: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._sent: list[Any] = []
        self._producer = self._run(self._started(address, transactional_id, timeout_ms))

    async def _started(
        self, address: str, transactional_id: str, timeout_ms: int
    ) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        await producer.start()
        return producer

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        sending = self._producer.send(topic, value.encode(), partition=partition)
        self._sent.append(self._run(sending))

    def flush(self) -> None:
        async def all_sent() -> None:
            await asyncio.gather(*self._sent)

        self._run(all_sent())
        self._sent.clear()

    def send_offset(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        offsets = {aiokafka.TopicPartition(topic, partition): offset}
        self._run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        async def aborted() -> None:
            await self._producer.abort_transaction()
            await asyncio.gather(*self._sent, return_exceptions=True)  # some may not be sent

        self._run(aborted())
        self._sent.clear()

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)


class HelpedProducer(TransactionalProducer):
    """A client of another language, driven through its helper process.

    Java, Kafka's own, uses transaction version 2 where the broker has it. kafkajs initialises its
    producer when a transaction begins.
    """

    _opened = 0

    def __init__(
        self,
        helper: HelperProcess,
        address: str,
        transactional_id: str,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        HelpedProducer._opened += 1
        self._name = f"{transactional_id} {HelpedProducer._opened}"
        self._helper = helper
        self._ask(
            "open", bootstrap=address, transactional_id=transactional_id, timeout_ms=timeout_ms
        )

    def _ask(self, verb: str, **arguments: Any) -> None:
        self._helper.ask(f"transactions_{verb}", producer=self._name, **arguments)

    def begin(self) -> None:
        self._ask("begin")

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self._ask("send", topic=topic, partition=partition, value=value)

    def flush(self) -> None:
        self._ask("flush")

    def send_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        partition: int = 0,
        member: Member | None = None,
    ) -> None:
        """`member`: of the group, which sends its offsets (KIP-447); only Java does."""
        identity = (
            {}
            if member is None
            else {
                "member_id": member.member_id,
                "generation": member.generation,
                "instance_id": member.instance_id,
            }
        )
        self._ask(
            "offsets", group=group, topic=topic, partition=partition, offset=offset, **identity
        )

    def commit(self) -> None:
        self._ask("commit")

    def abort(self) -> None:
        self._ask("abort")

    def close(self) -> None:
        self._ask("close")
