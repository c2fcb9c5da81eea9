"""A process whose members consume in groups: `python -m tests.support.group_member CLIENT`.

A command per line on stdin (join, leave, seek), an event per line on stdout as it happens:
assigned, revoked, lost, processed, committed, commit_failed, sought, leaving, left, failed. An
event has left this process before the member continues, so that a kill loses no event. Times are of
CLOCK_MONOTONIC, which all processes of a machine share.

A member processes the records that it gets, reports them, commits, and polls again. With `commit`
set to "before" it makes a mistake on purpose: it commits first, and never processes the records.
"""

import asyncio
import json
import queue
import re
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

Partition = tuple[str, int]

POLL_S = 0.1
KAFKA_PYTHON_POLL_S = 10.0
"""Far longer than a rebalance. When new metadata makes kafka-python 3.0 join again and its poll
ends before the rebalance, the next poll does not continue it, and the member is stuck until its
group removes it. That happens with Kafka's own broker, too."""
MOST_RECORDS = 200
FATAL = -150
"""RD_KAFKA_RESP_ERR__FATAL: librdkafka gave up; the message says why."""
_output = threading.Lock()


class Stopped(Exception):
    """The client reported an error from which it cannot recover."""


class Member(ABC):
    """One consumer of a group, in a thread of its own."""

    def __init__(self, command: dict[str, Any]) -> None:
        self.command = command
        self.commit_mode: str = command["commit"]
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.uncommitted: dict[Partition, int] = {}
        self._thread = threading.Thread(target=self._live, name=command["member"], daemon=True)
        self._thread.start()

    @abstractmethod
    def consume(self) -> None:
        """Returns when the member has left because of the command `leave`."""

    def report(self, event: str, **facts: Any) -> None:
        line = {"event": event, "member": self.command["member"], "at": time.monotonic_ns()}
        with _output:
            sys.stdout.write(json.dumps(line | facts) + "\n")
            sys.stdout.flush()

    def report_processed(self, records: Iterable[tuple[str, int, int]]) -> None:
        """Topic, partition and offset of each record, in the order of delivery."""
        offsets: dict[Partition, list[int]] = {}
        for topic, partition, offset in records:
            offsets.setdefault((topic, partition), []).append(offset)
            self.uncommitted[topic, partition] = offset + 1
        if offsets:
            self.report("processed", offsets=_listed(offsets))

    def report_committed(self, offsets: dict[Partition, int]) -> None:
        self.report("committed", offsets=_listed(offsets))

    def report_assigned(self, partitions: Iterable[Partition], generation: int | None) -> None:
        self.report("assigned", partitions=sorted(partitions), generation=generation)

    def report_gone(self, event: str, partitions: Iterable[Partition]) -> None:
        gone = sorted(partitions)
        for partition in gone:
            self.uncommitted.pop(partition, None)
        self.report(event, partitions=gone)

    def never_get_to_the_work(self) -> None:
        """Wait until the process is killed."""
        threading.Event().wait()

    def _live(self) -> None:
        try:
            self.consume()
        except BaseException as error:
            traceback.print_exc()
            self.report("failed", name=type(error).__name__, error=str(error))
        else:
            self.report("left")


class KafkaPythonMember(Member):
    def consume(self) -> None:
        import kafka
        from kafka.consumer.subscription_state import ConsumerRebalanceListener
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        command, member = self.command, self
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=command["kafka"],
            group_id=command["group"],
            group_instance_id=command["instance_id"],
            session_timeout_ms=command["session_timeout_ms"],
            heartbeat_interval_ms=command["heartbeat_ms"],
            metadata_max_age_ms=command["metadata_max_age_ms"],
            reconnect_backoff_max_ms=250,
            auto_offset_reset="earliest",
            enable_auto_commit=self.commit_mode == "auto",
            auto_commit_interval_ms=200,
            fetch_max_wait_ms=100,
            partition_assignment_strategy=[assignors[name] for name in command["assignors"]],
        )

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                generation = consumer.group_metadata().generation_id
                member.report_assigned(_pairs(assigned), generation)

            def on_partitions_revoked(self, revoked: Any) -> None:
                member.report_gone("revoked", _pairs(revoked))

            def on_partitions_lost(self, lost: Any) -> None:
                member.report_gone("lost", _pairs(lost))

        consumer.subscribe(**_subscription(command), listener=Listener())
        while (asked := _next(self.commands)) is None or asked["verb"] != "leave":
            if asked is not None:
                consumer.seek(kafka.TopicPartition(asked["topic"], asked["partition"]), asked["to"])
                self.report("sought")
            try:
                polled = consumer.poll(
                    timeout_ms=int(KAFKA_PYTHON_POLL_S * 1000), max_records=MOST_RECORDS
                )
            except kafka.errors.RetriableError as error:
                print(f"{command['member']}: {error}", file=sys.stderr)
                polled = {}
            records = [record for some in polled.values() for record in some]
            places = [(record.topic, record.partition, record.offset) for record in records]
            if self.commit_mode == "before" and places:
                ends = {(topic, number): offset + 1 for topic, number, offset in places}
                self._commit(consumer, ends)
                self.never_get_to_the_work()
            self.report_processed(places)
            self._commit(consumer, dict(self.uncommitted))
        self.report("leaving")
        consumer.close()

    def _commit(self, consumer: Any, ends: dict[Partition, int]) -> None:
        import kafka
        from kafka.structs import OffsetAndMetadata

        if not ends or self.commit_mode == "auto":
            return
        offsets = {
            kafka.TopicPartition(topic, number): OffsetAndMetadata(end, "", -1)
            for (topic, number), end in ends.items()
        }
        if self.commit_mode == "async":

            def done(_: Any, response: Any) -> None:
                if isinstance(response, Exception):
                    self.report("commit_failed", error=repr(response))
                else:
                    self.report_committed(ends)

            consumer.commit_async(offsets, callback=done)
            self.uncommitted.clear()
            return
        try:
            consumer.commit(offsets)
        except (
            kafka.errors.CommitFailedError,
            kafka.errors.RebalanceInProgressError,
            kafka.errors.RetriableError,  # the broker is away: the next commit covers this one
        ) as error:
            self.report("commit_failed", error=repr(error))
        else:
            self.uncommitted.clear()
            self.report_committed(ends)


class AiokafkaMember(Member):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
        command, member = self.command, self
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=command["kafka"],
            group_id=command["group"],
            group_instance_id=command["instance_id"],
            session_timeout_ms=command["session_timeout_ms"],
            heartbeat_interval_ms=command["heartbeat_ms"],
            metadata_max_age_ms=command["metadata_max_age_ms"],
            auto_offset_reset="earliest",
            enable_auto_commit=self.commit_mode == "auto",
            auto_commit_interval_ms=200,
            fetch_max_wait_ms=100,
            partition_assignment_strategy=[assignors[name] for name in command["assignors"]],
        )
        # The client revokes partitions in a task of its own while the application may be processing
        # records: a lock keeps revoking apart from processing and committing. (It does not cover
        # getmany, which returns nothing while the group rebalances, however long that takes.)
        turn = asyncio.Lock()

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_assigned(self, assigned: Any) -> None:
                async with turn:
                    member.report_assigned(_pairs(assigned), consumer._coordinator.generation)

            async def on_partitions_revoked(self, revoked: Any) -> None:
                async with turn:
                    member.report_gone("revoked", _pairs(revoked))

        consumer.subscribe(**_subscription(command), listener=Listener())
        await consumer.start()
        try:
            while (asked := _next(self.commands)) is None or asked["verb"] != "leave":
                if asked is not None:
                    consumer.seek(
                        aiokafka.TopicPartition(asked["topic"], asked["partition"]), asked["to"]
                    )
                    self.report("sought")
                polled = await consumer.getmany(
                    timeout_ms=int(POLL_S * 1000), max_records=MOST_RECORDS
                )
                async with turn:
                    self.report_processed(
                        (record.topic, record.partition, record.offset)
                        for records in polled.values()
                        for record in records
                    )
                    await self._commit(consumer)
            self.report("leaving")
        finally:
            await consumer.stop()

    async def _commit(self, consumer: Any) -> None:
        import aiokafka
        import aiokafka.errors

        if not self.uncommitted or self.commit_mode == "auto":
            return
        ends = dict(self.uncommitted)
        try:
            await consumer.commit(
                {aiokafka.TopicPartition(*place): end for place, end in ends.items()}
            )
        except (aiokafka.errors.KafkaError, aiokafka.errors.IllegalStateError) as error:
            self.report("commit_failed", error=repr(error))
        else:
            self.uncommitted.clear()
            self.report_committed(ends)


class ConfluentKafkaMember(Member):
    def consume(self) -> None:
        import confluent_kafka

        command = self.command
        settings = {
            "bootstrap.servers": command["kafka"],
            "group.id": command["group"],
            "session.timeout.ms": command["session_timeout_ms"],
            "heartbeat.interval.ms": command["heartbeat_ms"],
            "topic.metadata.refresh.interval.ms": command["metadata_max_age_ms"],
            "reconnect.backoff.max.ms": 250,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": self.commit_mode == "auto",
            "auto.commit.interval.ms": 200,
            "fetch.wait.max.ms": 100,
            "partition.assignment.strategy": ",".join(command["assignors"]),
            "on_commit": self._on_commit,
        }
        if command["instance_id"] is not None:
            settings["group.instance.id"] = command["instance_id"]
        consumer = confluent_kafka.Consumer(settings)
        cooperative = command["assignors"] == ["cooperative-sticky"]

        def assigned(_: Any, partitions: Any) -> None:
            if cooperative:
                consumer.incremental_assign(partitions)
            else:
                self._report_replaced(consumer)
                consumer.assign(partitions)
            self.report_assigned(_pairs(partitions), None)

        def revoked(_: Any, partitions: Any) -> None:
            self._commit(consumer)
            self.report_gone("revoked", _pairs(partitions))

        def lost(_: Any, partitions: Any) -> None:
            self.report_gone("lost", _pairs(partitions))

        topics = command["topics"] if command["pattern"] is None else [command["pattern"]]
        consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
        try:
            while (asked := _next(self.commands)) is None or asked["verb"] != "leave":
                if asked is not None:
                    consumer.seek(
                        confluent_kafka.TopicPartition(
                            asked["topic"], asked["partition"], asked["to"]
                        )
                    )
                    self.report("sought")
                self._process_some(consumer)
                self._commit(consumer)
            self.report("leaving")
        finally:
            consumer.close()

    def _report_replaced(self, consumer: Any) -> None:
        """Partitions that the next assignment replaces, although nobody revoked them.

        If a topic changes while `assigned` waits for a poll, librdkafka joins again at once. It
        calls `assigned` twice then, and `revoked` not in between (librdkafka 2.16, its function
        rd_kafka_cgrp_revoke_all_rejoin).
        """
        replaced = _pairs(consumer.assignment())
        if replaced:
            self.report_gone("lost", replaced)

    def _process_some(self, consumer: Any) -> None:
        """One by one: a rebalance between two records may take the partition of the second."""
        wait_s = POLL_S
        for _ in range(MOST_RECORDS):
            message = consumer.poll(wait_s)
            if message is None:
                return
            error = message.error()
            if error is None:
                self.report_processed([(message.topic(), message.partition(), message.offset())])
                wait_s = 0
            elif error.fatal() or error.code() == FATAL:
                raise Stopped(error.str())
            else:
                print(f"{self.command['member']}: {error}", file=sys.stderr)

    def _commit(self, consumer: Any) -> None:
        import confluent_kafka

        if not self.uncommitted or self.commit_mode == "auto":
            return
        ends = dict(self.uncommitted)
        offsets = [confluent_kafka.TopicPartition(*place, end) for place, end in ends.items()]
        if self.commit_mode == "async":
            consumer.commit(offsets=offsets, asynchronous=True)
            self.uncommitted.clear()
            return
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            self.report("commit_failed", error=str(error))
            return
        failed = [str(one.error) for one in done if one.error is not None]
        if failed:
            self.report("commit_failed", error=", ".join(failed))
        else:
            self.uncommitted.clear()
            self.report_committed(ends)

    def _on_commit(self, error: Any, partitions: Any) -> None:
        if self.commit_mode != "async":
            return
        if error is not None:
            self.report("commit_failed", error=str(error))
        else:
            self.report_committed({(one.topic, one.partition): one.offset for one in partitions})


MEMBERS: dict[str, type[Member]] = {
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
    "confluent-kafka": ConfluentKafkaMember,
}


def _pairs(partitions: Iterable[Any]) -> list[Partition]:
    return [(one.topic, one.partition) for one in partitions]


def _listed(facts: dict[Partition, Any]) -> list[list[Any]]:
    return [[topic, partition, fact] for (topic, partition), fact in sorted(facts.items())]


def _subscription(command: dict[str, Any]) -> dict[str, Any]:
    if command["pattern"] is not None:
        return {"pattern": re.compile(command["pattern"]).pattern}
    return {"topics": command["topics"]}


def _next(commands: "queue.SimpleQueue[dict[str, Any]]") -> dict[str, Any] | None:
    try:
        return commands.get_nowait()
    except queue.Empty:
        return None


def main() -> None:
    kind = MEMBERS[sys.argv[1]]
    members: dict[str, Member] = {}
    for line in sys.stdin:
        command = json.loads(line)
        if command["verb"] == "join":
            members[command["member"]] = kind(command)
        else:
            members[command["member"]].commands.put(command)


if __name__ == "__main__":
    main()
