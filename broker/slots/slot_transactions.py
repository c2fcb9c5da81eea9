"""The transactional ids of all slots, and what their coordinators ask other brokers to do.

Between brokers two of Kafka's requests are enough. The leader of a partition asks the coordinator
with AddPartitionsToTxn whether a transaction includes it; the coordinator ends transactions with
WriteTxnMarkers. The offsets of a group are named, as in Kafka, by a partition of
`__consumer_offsets`: the slot of the group. A broker that serves every slot asks nobody.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Collection, Mapping
from contextlib import suppress
from itertools import chain

from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.slots.peers import Peers
from brokerhouse.broker.topics.catalog import TopicCatalog
from brokerhouse.broker.transactions.transaction_markers import Marker, MarkerWriter
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.messages import OFFSETS_TOPIC
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.coordinator.transaction_coordinator import TransactionCoordinator
from brokerhouse.coordinator.transaction_states import Member, Producer, Transaction, offsets_member
from brokerhouse.protocol.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    KafkaError,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
    error_with_code,
)

_ADD_VERSION, _MARKERS_VERSION = 5, 2


class SlotTransactions:
    def __init__(self, slots: OwnSlots, coordinators: Mapping[str, TransactionCoordinator]) -> None:
        """`coordinators`: by the name of the shard that has the rows of their ids."""
        self._slots = slots
        self._coordinators = coordinators

    def coordinator_of(self, transactional_id: str) -> TransactionCoordinator:
        """Raises `NotCoordinator` and `CoordinatorLoadInProgress`."""
        return self._coordinators[self._slots.shard_of(transactional_id)]

    def all(self) -> list[Transaction]:
        return [found for one in self._coordinators.values() for found in one.all()]

    async def matching(self, pattern: str) -> list[Transaction]:
        """See `TransactionCoordinator.matching`."""
        some = [await one.matching(pattern) for one in self._coordinators.values()]
        return list(chain.from_iterable(some))

    def verify(self, transactional_id: str, producer: Producer, member: Member) -> None:
        """See `Transaction.verify`; also for the offsets of groups."""
        coordinator = self.coordinator_of(transactional_id)
        transaction = coordinator.get(transactional_id)
        if member.topic == OFFSETS_TOPIC and transaction is not None:
            for group_id in transaction.groups:
                if self._slots.of_group(group_id) == member.partition:
                    coordinator.verify_group(transactional_id, producer, group_id)
                    return
        coordinator.verify(transactional_id, producer, member)

    # The slots of this broker

    def start(self) -> None:
        for one in self._coordinators.values():
            one.start()

    async def load(self, slots: Collection[int]) -> None:
        """Coordinate the ids in these slots, which are owned. Raises `EngineError`."""
        for one in self._of(slots):
            await one.hosted.load(self._slots.has_group_in(slots))

    async def unload(self, slots: Collection[int]) -> None:
        """Returns when none of their rows is being stored."""
        await asyncio.gather(
            *(one.hosted.unload(self._slots.has_group_in(slots)) for one in self._of(slots))
        )

    def _of(self, slots: Collection[int]) -> Collection[TransactionCoordinator]:
        shards = self._slots.group_shards(slots)
        return [one for shard, one in self._coordinators.items() if shard in shards]

    def abandon(self) -> None:
        """The session of this broker is over."""
        for one in self._coordinators.values():
            one.hosted.abandon()

    @property
    def background(self) -> Collection[asyncio.Task[None]]:
        return [task for one in self._coordinators.values() for task in one.background]

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self._coordinators.values()))


class CoordinatorCalls:
    """Asks the coordinator of a transactional id, on whichever broker it is.

    Methods raise as those of `TransactionCoordinator`.
    """

    def __init__(
        self,
        slots: OwnSlots,
        transactions: SlotTransactions,
        leadership: SlotLeadership,
        peers: Peers,
    ) -> None:
        self._slots = slots
        self._transactions = transactions
        self._leadership = leadership
        self._peers = peers

    async def add(self, transactional_id: str, producer: Producer, member: Member) -> None:
        """Make the partition part of the producer's transaction of version 2."""
        with suppress(NotCoordinator):
            coordinator = self._transactions.coordinator_of(transactional_id)
            await coordinator.add(transactional_id, producer, (member,), version=2)
            return
        await self._ask(transactional_id, producer, member, verify_only=False)

    async def verify(self, transactional_id: str, producer: Producer, member: Member) -> None:
        with suppress(NotCoordinator):
            self._transactions.verify(transactional_id, producer, member)
            return
        await self._ask(transactional_id, producer, member, verify_only=True)

    async def add_group(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        """Make the offsets of the group part of it."""
        with suppress(NotCoordinator):
            coordinator = self._transactions.coordinator_of(transactional_id)
            await coordinator.add(transactional_id, producer, groups=(group_id,), version=2)
            return
        member = offsets_member(self._slots.of_group(group_id))
        await self._ask(transactional_id, producer, member, verify_only=False)

    async def verify_group(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        with suppress(NotCoordinator):
            coordinator = self._transactions.coordinator_of(transactional_id)
            coordinator.verify_group(transactional_id, producer, group_id)
            return
        member = offsets_member(self._slots.of_group(group_id))
        await self._ask(transactional_id, producer, member, verify_only=True)

    async def _ask(
        self, transactional_id: str, producer: Producer, member: Member, *, verify_only: bool
    ) -> None:
        broker = self._leadership.coordinator(transactional_id)
        if broker is None:
            raise CoordinatorNotAvailable(
                f"No broker coordinates the transactional id {transactional_id!r} at the moment."
            )
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            transactions=[
                transaction(
                    transactional_id=transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    verify_only=verify_only,
                    topics=[topic(name=member.topic, partitions=[member.partition])],
                )
            ]
        )
        response = await self._peers.ask(broker, request, AddPartitionsToTxnResponse, _ADD_VERSION)
        (result,) = response.results_by_transaction[0].topic_results
        (partition,) = result.results_by_partition
        if partition.partition_error_code:
            what = f"Broker {broker.node_id} refused the transaction of {transactional_id!r}."
            raise error_with_code(partition.partition_error_code, what)


class MarkersHere:
    """Ends transactions in the partitions and groups of this broker."""

    def __init__(self, writer: MarkerWriter, groups: SlotGroups, topics: TopicCatalog) -> None:
        self._writer = writer
        self._groups = groups
        self._topics = topics

    async def end(self, marker: Marker, member: Member) -> None:
        """Raises `KafkaError` and `EngineError`."""
        if member.topic == OFFSETS_TOPIC:
            await self._groups.end_transaction(member.partition, marker)
            return
        log = self._topics.logs.find(member.topic_id, member.partition)
        if log is None:
            self.check_deleted(member, NotLeaderOrFollower(f"The log of {member} is not open."))
            return
        # Otherwise a later marker has ended it, or the topic is deleted.
        with suppress(InvalidProducerEpoch, UnknownTopicOrPartition):
            await self._writer.write(log, marker)

    def check_deleted(self, member: Member, error: KafkaError) -> None:
        """Raises the error unless the topic has been deleted: then there is nothing to end."""
        if member.topic == OFFSETS_TOPIC or self._topics.by_id(member.topic_id) is not None:
            raise error

    def current(self, member: Member, since_ms: int) -> Member | None:
        """As this broker knows the topic now: it may be another one with the same name, which this
        broker did not know yet when the partition was added. None if it has been deleted.

        `since_ms`: when the end was decided. Raises `UnknownTopicOrPartition` if this broker may
        only not have read yet that the topic exists.
        """
        if member.topic == OFFSETS_TOPIC or self._topics.by_id(member.topic_id) is not None:
            return member
        late_max_ms = self._topics.late_max_ms
        if late_max_ms == 0:
            return None
        topic = self._topics.get(member.topic)
        if topic is not None and member.partition < topic.partitions:
            return member._replace(topic_id=topic.topic_id)
        is_gone = topic is not None or str(member.topic_id) in self._topics.gone
        if not is_gone and wall_ms() - since_ms < late_max_ms:
            raise UnknownTopicOrPartition(f"This broker does not know {member} yet.")
        return None


class MarkersEverywhere:
    """`Markers`: ends transactions in partitions and groups, on whichever broker they are."""

    def __init__(
        self,
        node_id: int,
        here: MarkersHere,
        slots: OwnSlots,
        leadership: SlotLeadership,
        peers: Peers,
    ) -> None:
        self._node_id = node_id
        self._here = here
        self._slots = slots
        self._leadership = leadership
        self._peers = peers

    async def write(self, transaction: Transaction) -> None:
        """Raises `KafkaError` and `EngineError`: then some may be written."""
        epoch = self._slots.epoch_of(transaction.transactional_id)
        if not self._slots.may_coordinate(transaction.transactional_id):
            raise NotCoordinator(
                "Another broker coordinates the transactional id"
                f" {transaction.transactional_id!r} now."
            )
        marker = Marker(
            Producer(transaction.producer_id, transaction.epoch),
            commit=transaction.commits,
            coordinator_epoch=epoch,
            raises_epoch=transaction.version >= 2,
        )
        slots = {self._slots.of_group(group_id) for group_id in transaction.groups}
        members = {offsets_member(slot) for slot in slots}
        for member in transaction.members:
            current = self._here.current(member, transaction.updated_ms)
            if current is not None:
                members.add(current)
        by_broker: defaultdict[BrokerEndpoint | None, list[Member]] = defaultdict(list)
        for member in members:
            by_broker[self._broker_of(member)].append(member)
        steps: list[Awaitable[None]] = []
        for broker, some in by_broker.items():
            if broker is not None and broker.node_id != self._node_id:
                steps.append(self._ask(broker, marker, some))
            elif broker is not None:
                steps += [self._here.end(marker, member) for member in some]
        ended = await asyncio.gather(*steps, return_exceptions=True)  # all, before the next attempt
        for failure in ended:
            if failure is not None:
                raise failure
        if None in by_broker:
            raise LeaderNotAvailable(f"No broker leads {by_broker[None][0]} at the moment.")

    def _broker_of(self, member: Member) -> BrokerEndpoint | None:
        if member.topic == OFFSETS_TOPIC:
            return self._leadership.owner_of(member.partition)
        return self._leadership.leading(member.topic_id, member.partition)

    async def _ask(
        self, broker: BrokerEndpoint, marker: Marker, members: Collection[Member]
    ) -> None:
        by_topic: defaultdict[str, dict[int, Member]] = defaultdict(dict)
        for member in members:
            by_topic[member.topic][member.partition] = member
        one = WriteTxnMarkersRequest.WritableTxnMarker
        request = WriteTxnMarkersRequest(
            markers=[
                one(
                    producer_id=marker.producer.producer_id,
                    producer_epoch=marker.producer.epoch,
                    transaction_result=marker.commit,
                    topics=[
                        one.WritableTxnMarkerTopic(name=topic, partition_indexes=list(some))
                        for topic, some in by_topic.items()
                    ],
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=2 if marker.raises_epoch else 1,
                )
            ]
        )
        response = await self._peers.ask(broker, request, WriteTxnMarkersResponse, _MARKERS_VERSION)
        for topic in response.markers[0].topics:
            for partition in topic.partitions:
                if partition.error_code not in (0, InvalidProducerEpoch.code):
                    member = by_topic[topic.name][partition.partition_index]
                    what = f"Broker {broker.node_id} did not write a marker to {member}."
                    self._here.check_deleted(member, error_with_code(partition.error_code, what))
