"""What each broker of a cluster answers about the cluster, on a raw connection."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from brokerhouse.protocol.errors import RequestTimedOut
from brokerhouse.storage.slot_map import slot_of_group
from tests.support.cluster_processes import SLOTS, Broker, Cluster
from tests.support.messages import Target
from tests.support.prometheus import value
from tests.support.waiting import until
from tests.support.wire import Listening, Wire

LIMIT_S = 60.0
LOOK_AGAIN_S = 0.02
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Leader:
    node_id: int
    epoch: int


def metadata(broker: Listening, *topics: str) -> Any:
    asked = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=None) for name in topics]
    with Wire(broker) as wire:
        return wire.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12)


def leaders(broker: Broker, topic: str) -> dict[int, Leader]:
    """The leader of each partition by this broker; empty if it does not know the topic."""
    (described,) = metadata(broker, topic).topics
    return {
        partition.partition_index: Leader(partition.leader_id, partition.leader_epoch)
        for partition in described.partitions
    }


def coordinator(broker: Broker, group: str, version: int = 4) -> int:
    """The node that this broker sends members of the group to."""
    with Wire(broker) as wire:
        request = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
        answer = wire.ask(request, version)
    return int(answer.node_id if version < 4 else answer.coordinators[0].node_id)


def coordinators(broker: Broker, groups: Iterable[str]) -> dict[str, int]:
    """For each group the node that this broker sends its members to."""
    with Wire(broker) as wire:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=list(groups))
        answer = wire.ask(request, 4)
    return {found.key: int(found.node_id) for found in answer.coordinators}


def await_leaders(
    brokers: Iterable[Broker], topic: str, partitions: int, among: Collection[int] = ()
) -> dict[int, Leader]:
    """Wait until these brokers name the same leaders, and each of these nodes is a leader."""
    asked = list(brokers)
    agreed: dict[int, Leader] = {}

    def settled() -> bool:
        first, *others = [leaders(broker, topic) for broker in asked]
        agreed.clear()
        agreed.update(first)
        named = {leader.node_id for leader in first.values()}
        return (
            len(first) == partitions
            and NOBODY not in named
            and named.issuperset(among)
            and all(other == first for other in others)
        )

    until(settled, f"{topic} has leaders on which all agree, among them {sorted(among)}")
    return agreed


def await_settled(cluster: Cluster) -> None:
    """Wait until every broker serves its share of the slots, and all of them agree on it.

    They agree on an old map, too, when all have lost their sessions just now.
    """
    one_each = {slot_of_group(f"group-{n}", SLOTS): f"group-{n}" for n in range(20 * SLOTS)}
    assert len(one_each) == SLOTS

    def settled() -> bool:
        first, *others = [coordinators(broker, one_each.values()) for broker in cluster.brokers]
        shares = Counter(first.values())
        return (
            all(other == first for other in others)
            and shares.keys() == {broker.node_id for broker in cluster.brokers}
            and max(shares.values()) - min(shares.values()) <= 1
            and all(served(broker) == shares[broker.node_id] for broker in cluster.brokers)
        )

    def served(broker: Broker) -> float:
        return value(broker.http_url, "brokerhouse_cluster_slots", state="served")

    until(settled, "every broker serves its share of the slots")


def topic_on_all(cluster: Cluster, prefix: str, partitions: int) -> Target:
    """A topic that every broker knows, and of which each leads a part.

    Its partitions are in fewer slots than there are, and the slots lie anywhere once brokers have
    come and gone: not every topic has some of each broker's.
    """
    await_settled(cluster)
    everybody = {broker.node_id for broker in cluster.brokers}
    numbers = count()
    while True:
        made = _made(cluster.brokers[0], f"{prefix}-{next(numbers)}", partitions)
        if made is not None:
            led = await_leaders(cluster.brokers, made.name, partitions)
            if {leader.node_id for leader in led.values()} == everybody:
                return made


def _made(broker: Broker, name: str, partitions: int) -> Target | None:
    """A new topic. None if the registry did not answer in time: it may be there or not."""
    topic = CreateTopicsRequest.CreatableTopic
    asked = topic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[asked], timeout_ms=10_000, validate_only=False)
    with Wire(broker) as wire:
        (created,) = wire.ask(request, 7).topics
    if created.error_code == RequestTimedOut.code:
        return None
    assert created.error_code == 0, created.error_message
    return Target(name, created.topic_id)


def another(cluster: Cluster, node_id: int) -> Broker:
    """Another broker than this one."""
    return next(broker for broker in cluster.brokers if broker.node_id != node_id)


def node(cluster: Cluster, node_id: int) -> Broker:
    return next(broker for broker in cluster.brokers if broker.node_id == node_id)


def counted(cluster: Cluster, topic: str) -> dict[int, tuple[int, int]]:
    """For each partition that has rows: how many, and how many different offsets, on all shards."""
    found: dict[int, tuple[int, int]] = {}
    for engine in cluster.engines:
        for row in engine.sql(
            "SELECT partition, count() AS records, uniqExact(offset) AS offsets FROM messages"
            " WHERE topic = {topic:String} AND NOT control GROUP BY partition",
            {"topic": topic},
        ):
            records, offsets = found.get(row["partition"], (0, 0))
            found[row["partition"]] = records + row["records"], offsets + row["offsets"]
    return found


@contextmanager
def wires(cluster: Cluster) -> Iterator[list[Wire]]:
    """A connection to each broker, in order."""
    opened = [Wire(broker) for broker in cluster.brokers]
    try:
        yield opened
    finally:
        for wire in opened:
            wire.close()


def epoch_end(target: Target, epoch: int, partition: int = 0) -> OffsetForLeaderEpochRequest:
    """Asks where the log of a partition ended in an epoch."""
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = topic.OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=-1, leader_epoch=epoch
    )
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[topic(topic=target.name, partitions=[asked])]
    )
