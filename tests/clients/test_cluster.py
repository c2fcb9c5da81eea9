"""Three brokers of one cluster, as clients see them: leaders and coordinators.

Raw requests go to each broker by itself; real clients show how clients use the answers.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import InitProducerIdRequest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    MessageTooLarge,
    NotCoordinator,
    NotLeaderOrFollower,
    TopicAlreadyExists,
)
from brokerhouse.protocol.versions import ApiKey
from tests.support import messages
from tests.support.adapters import GetClient
from tests.support.cluster_processes import Broker, Cluster
from tests.support.cluster_view import (
    another,
    await_leaders,
    await_settled,
    coordinator,
    epoch_end,
    leaders,
    metadata,
    node,
    topic_on_all,
    wires,
)
from tests.support.messages import Target
from tests.support.records import Record
from tests.support.transactional import ConfluentProducer
from tests.support.waiting import until
from tests.support.wire import Wire

PARTITIONS = 12
NODES = {1, 2, 3}
MAKING_TOPICS = [
    "kafka-python",
    "aiokafka",
    "confluent-kafka",
    pytest.param("kafkajs", marks=pytest.mark.test_all),
    pytest.param("java", marks=pytest.mark.test_all),
]
RECORDS = [Record(b"%d" % n, b"value %d" % n) for n in range(20)]


@pytest.fixture
def target(cluster: Cluster, topic: str) -> Target:
    return topic_on_all(cluster, topic, PARTITIONS)


def keys(records: list[Record]) -> list[bytes | None]:
    return [record.key for record in records]


# Who leads what


def test_every_broker_names_the_same_leader_of_each_partition_and_each_leads_some(
    cluster: Cluster, target: Target
) -> None:
    first, *others = [leaders(broker, target.name) for broker in cluster.brokers]

    assert others == [first, first]
    assert first.keys() == set(range(PARTITIONS))
    assert {leader.node_id for leader in first.values()} == NODES


def test_every_broker_names_the_same_brokers_and_one_controller(cluster: Cluster) -> None:
    await_settled(cluster)
    answers = [metadata(broker) for broker in cluster.brokers]

    expected = {(broker.node_id, broker.kafka) for broker in cluster.brokers}
    for answer in answers:
        named = {(broker.node_id, f"{broker.host}:{broker.port}") for broker in answer.brokers}
        assert named == expected
    assert len({(answer.controller_id, answer.cluster_id) for answer in answers}) == 1


REFUSED_PARTITIONS: dict[ApiKey, Callable[[Target], ApiMessage]] = {
    ApiKey.Produce: lambda target: messages.produce(target, messages.small_batch()),
    ApiKey.Fetch: lambda target: messages.fetch(target, 0),
    ApiKey.ListOffsets: lambda target: messages.list_offsets(target, -1),
    ApiKey.OffsetForLeaderEpoch: lambda target: epoch_end(target, 0),
    ApiKey.DeleteRecords: lambda target: messages.delete_records(target, 0),
}


def partition_error(answer: object) -> int:
    """Of the only partition in an answer, whatever its API calls it."""
    (topic,) = getattr(answer, "responses", None) or answer.topics  # type: ignore[attr-defined]
    (partition,) = getattr(topic, "partition_responses", None) or topic.partitions
    return int(partition.error_code)


@pytest.mark.parametrize("key", REFUSED_PARTITIONS, ids=lambda key: key.name)
def test_a_broker_answers_not_leader_for_partitions_of_others_in_every_version(
    cluster: Cluster, target: Target, key: ApiKey
) -> None:
    leader = leaders(cluster.brokers[0], target.name)[0].node_id

    with Wire(another(cluster, leader)) as wire:
        for version in range(APIS[key].min_version, APIS[key].max_version + 1):
            answer = wire.ask(REFUSED_PARTITIONS[key](target), version)
            assert partition_error(answer) == NotLeaderOrFollower.code, version


def test_a_batch_refused_by_a_broker_that_does_not_lead_is_not_in_the_log(
    cluster: Cluster, target: Target
) -> None:
    leader = leaders(cluster.brokers[0], target.name)[0].node_id
    with Wire(another(cluster, leader)) as wire:
        refused = wire.ask(messages.produce(target, messages.small_batch()), 9)
        assert partition_error(refused) == NotLeaderOrFollower.code

    with Wire(node(cluster, leader)) as wire:
        answer = wire.ask(messages.list_offsets(target, -1), 7)

    assert partition_error(answer) == 0
    assert answer.topics[0].partitions[0].offset == 0


# Groups


def test_groups_are_spread_and_every_broker_names_the_same_coordinator(
    cluster: Cluster,
) -> None:
    await_settled(cluster)
    groups = [f"spread-{n}" for n in range(48)]
    first, *others = [
        {group: coordinator(broker, group, version) for group in groups}
        for broker, version in zip(cluster.brokers, (3, 4, 6), strict=True)
    ]

    assert others == [first, first]
    assert Counter(first.values()).keys() == NODES


REFUSED_GROUPS: dict[ApiKey, Callable[[str, Target, int], ApiMessage]] = {
    ApiKey.JoinGroup: lambda group, _, __: messages.join(group),
    ApiKey.SyncGroup: lambda group, _, __: messages.sync(group, "member", 1),
    ApiKey.Heartbeat: lambda group, _, __: messages.heartbeat(group, "member", 1),
    ApiKey.LeaveGroup: lambda group, _, __: messages.leave(group, ("member", None)),
    ApiKey.OffsetCommit: lambda group, target, _: messages.commit(group, (target, {0: 1})),
    ApiKey.OffsetFetch: lambda group, target, version: messages.offset_fetch(
        version, {group: [(target, [0])]}
    ),
    ApiKey.OffsetDelete: lambda group, target, _: messages.offset_delete(group, (target.name, [0])),
    ApiKey.DeleteGroups: lambda group, _, __: DeleteGroupsRequest(groups_names=[group]),
}


def error_codes(answer: object) -> set[int]:
    """Every error code in an answer, at whatever depth."""
    found = set()
    for name in vars(type(answer)).keys() | getattr(answer, "__dict__", {}).keys():
        value = getattr(answer, name, None)
        if name == "error_code" and isinstance(value, int):
            found.add(value)
        elif isinstance(value, list):
            for each in value:
                found |= error_codes(each)
    return found


@pytest.mark.parametrize("key", REFUSED_GROUPS, ids=lambda key: key.name)
def test_a_broker_answers_not_coordinator_for_groups_of_others_in_every_version(
    cluster: Cluster, target: Target, key: ApiKey
) -> None:
    group = f"{target.name}.group"
    wrong = another(cluster, coordinator(cluster.brokers[0], group))

    with Wire(wrong) as wire:
        for version in range(APIS[key].min_version, APIS[key].max_version + 1):
            answer = wire.ask(REFUSED_GROUPS[key](group, target, version), version)
            assert NotCoordinator.code in error_codes(answer), (version, answer)


def joined(cluster: Cluster, group: str) -> None:
    """A member joins the group and is given its assignment."""
    with Wire(node(cluster, coordinator(cluster.brokers[0], group))) as wire:
        asked = wire.ask(messages.join(group, session_timeout_ms=120_000), 5)
        answer = wire.ask(
            messages.join(group, member_id=asked.member_id, session_timeout_ms=120_000), 5
        )
        assert answer.error_code == 0
        assignments = {answer.member_id: b"assignment"}
        synced = wire.ask(
            messages.sync(group, answer.member_id, answer.generation_id, assignments), 5
        )
        assert synced.error_code == 0


def test_any_broker_describes_any_group(cluster: Cluster, target: Target) -> None:
    groups = [f"{target.name}.{n}" for n in range(6)]
    for group in groups:
        joined(cluster, group)

    with wires(cluster) as connections:
        for wire in connections:
            until(partial(all_stable, wire, groups), "a broker describes all groups")


def all_stable(wire: Wire, groups: list[str]) -> bool:
    """Whether the broker describes each as having its one member."""
    answer = wire.ask(DescribeGroupsRequest(groups=groups), 5)
    assert {group.error_code for group in answer.groups} == {0}
    return all((group.group_state, len(group.members)) == ("Stable", 1) for group in answer.groups)


def test_all_brokers_together_list_each_group_once(cluster: Cluster, target: Target) -> None:
    groups = {f"{target.name}.{n}" for n in range(6)}
    for group in groups:
        joined(cluster, group)

    with wires(cluster) as connections:
        listed = Counter(
            group.group_id
            for wire in connections
            for group in wire.ask(ListGroupsRequest(states_filter=[]), 4).groups
        )

    assert {group: listed[group] for group in groups} == dict.fromkeys(groups, 1)


# Topics


@pytest.mark.parametrize("name", MAKING_TOPICS)
def test_a_topic_created_through_one_broker_is_used_through_the_others(
    cluster: Cluster, client: GetClient, topic: str, name: str
) -> None:
    first, second, third = cluster.brokers

    client(name).create_topic(first.kafka, topic, 3)
    for partition in range(3):
        client(name).produce(second.kafka, topic, RECORDS, partition=partition)

    for partition in range(3):
        read = client(name).read_from_offset(
            third.kafka, topic, 0, len(RECORDS), partition=partition
        )
        assert keys(read) == keys(RECORDS)


def test_a_topic_is_deleted_on_every_broker_and_empty_when_it_is_created_again(
    cluster: Cluster, client: GetClient, target: Target
) -> None:
    first, second, third = cluster.brokers
    confluent = client("confluent-kafka")
    confluent.produce(first.kafka, target.name, RECORDS)
    with Wire(second) as wire:
        deletion = DeleteTopicsRequest(topic_names=[target.name], timeout_ms=10_000)
        assert wire.ask(deletion, 5).responses[0].error_code == 0
    until(
        lambda: all(leaders(broker, target.name) == {} for broker in cluster.brokers),
        "the topic is gone everywhere",
    )

    with Wire(third) as wire:
        again = messages.create_topic(wire, target.name, PARTITIONS)
    await_leaders(cluster.brokers, target.name, PARTITIONS, NODES)
    confluent.produce(second.kafka, target.name, RECORDS[:1])

    assert again.topic_id != target.topic_id
    assert keys(confluent.read_from_offset(first.kafka, target.name, 0, 1)) == keys(RECORDS[:1])


def test_one_of_several_brokers_that_create_a_topic_at_once_succeeds(
    cluster: Cluster, topic: str
) -> None:
    with wires(cluster) as connections:
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=topic, num_partitions=2, replication_factor=1, assignments=[], configs=[]
                )
            ],
            timeout_ms=10_000,
            validate_only=False,
        )
        numbers = [wire.send_request(request, 7) for wire in connections]
        answers = [
            wire.receive_response(request, 7, number)
            for wire, number in zip(connections, numbers, strict=True)
        ]

    taken = TopicAlreadyExists.code
    assert sorted(answer.topics[0].error_code for answer in answers) == [0, taken, taken]


def test_a_setting_of_a_topic_that_is_changed_through_one_broker_acts_on_every_leader(
    cluster: Cluster, target: Target
) -> None:
    rows = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = rows(
        resource_type=2,
        resource_name=target.name,
        configs=[rows.AlterableConfig(name="max.message.bytes", config_operation=0, value="10")],
    )
    with Wire(cluster.brokers[0]) as wire:
        (changed,) = wire.ask(
            IncrementalAlterConfigsRequest(resources=[change], validate_only=False), 1
        ).responses
    assert changed.error_code == 0

    for partition, leader in leaders(cluster.brokers[0], target.name).items():
        with Wire(node(cluster, leader.node_id)) as wire:
            until(partial(takes_less, wire, target, partition), "the batch is too large")


def takes_less(wire: Wire, target: Target, partition: int) -> bool:
    answer = wire.ask(messages.produce(target, messages.small_batch(), partition=partition), 9)
    return partition_error(answer) == MessageTooLarge.code


def test_each_producer_gets_an_id_of_its_own_from_whichever_broker(cluster: Cluster) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    with wires(cluster) as connections:
        given = [wire.ask(request, 4) for _ in range(10) for wire in connections]

    assert {answer.error_code for answer in given} == {0}
    assert len({answer.producer_id for answer in given}) == len(given)


# Transactions


def test_transactions_include_partitions_and_groups_of_every_broker(
    cluster: Cluster, target: Target
) -> None:
    """Ids, partitions and groups have different owners; each broker shows the same."""
    names = [f"{target.name} {number}" for number in range(50)]
    by_node = {coordinator(cluster.brokers[0], name): name for name in names}
    assert by_node.keys() == NODES
    ids = list(by_node.values())
    expected = []
    for number, transactional_id in enumerate(ids):
        producer = ConfluentProducer(cluster.bootstrap, transactional_id)
        for commits in (True, False):
            producer.begin()
            for partition in range(PARTITIONS):
                producer.send(target.name, f"{number} {partition} {commits}", partition)
            producer.send_offset(f"{transactional_id} group", target.name, 7 if commits else 8)
            producer.flush()
            if commits:
                producer.commit()
                expected += [f"{number} {partition} True" for partition in range(PARTITIONS)]
            else:
                producer.abort()
    query = f"SELECT value FROM messages_committed WHERE topic = '{target.name}'"

    def in_sql() -> list[str]:
        return sorted(row["value"] for engine in cluster.engines for row in engine.sql(query))

    until(lambda: in_sql() == sorted(expected), "SQL has what was committed")
    for broker in cluster.brokers:
        for transactional_id in ids:
            until(partial(_is_at, broker.kafka, f"{transactional_id} group", target.name, 7))


def _is_at(address: str, group: str, topic: str, offset: int) -> bool:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], 30)
        return bool(found.offset == offset)
    finally:
        consumer.close()


# What administrators set


@pytest.mark.test_all
def test_quotas_and_configs_are_shared_and_a_restart_keeps_them(
    cluster: Cluster, target: Target
) -> None:
    row = IncrementalAlterConfigsRequest.AlterConfigsResource
    entity = AlterClientQuotasRequest.EntryData.EntityData(entity_type="user", entity_name="shared")

    def change(value: str | None) -> None:
        """Set the same at one broker for all, or remove it at another one."""
        config = row.AlterableConfig(
            name="message.max.bytes", config_operation=int(value is None), value=value
        )
        quota = AlterClientQuotasRequest.EntryData.OpData(
            key="producer_byte_rate", value=float(value or 0), remove=value is None
        )
        with Wire(cluster.brokers[0 if value else 1]) as wire:
            changed = wire.ask(
                IncrementalAlterConfigsRequest(
                    resources=[row(resource_type=4, resource_name="", configs=[config])],
                    validate_only=False,
                ),
                1,
            )
            assert changed.responses[0].error_code == 0
            entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=[quota])
            set_quota = AlterClientQuotasRequest(entries=[entry], validate_only=False)
            assert wire.ask(set_quota, 1).entries[0].error_code == 0

    def seen(broker: Broker) -> tuple[str, list[float]]:
        """The largest batch of a topic, and the quota, as this broker knows them."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name=target.name, configuration_keys=["max.message.bytes"]
        )
        with Wire(broker) as wire:
            described = wire.ask(DescribeConfigsRequest(resources=[resource]), 4)
            quotas = wire.ask(DescribeClientQuotasRequest(components=[], strict=False), 1)
        values = [value.value for one in quotas.entries for value in one.values]
        return described.results[0].configs[0].value, values

    change("5000")
    for broker in cluster.brokers:
        until(lambda broker=broker: seen(broker) == ("5000", [5000.0]))  # type: ignore[misc]
    cluster.brokers[2].restart()
    assert seen(cluster.brokers[2]) == ("5000", [5000.0])
    change(None)
    for broker in cluster.brokers:
        until(lambda broker=broker: seen(broker) == ("1048588", []))  # type: ignore[misc]
    await_settled(cluster)


# Replicas: each partition has one, on its leader


def test_a_partition_cannot_be_moved_to_another_broker(cluster: Cluster, target: Target) -> None:
    leader = leaders(cluster.brokers[0], target.name)[0].node_id
    other = min(NODES - {leader})
    row = AlterPartitionReassignmentsRequest.ReassignableTopic

    def reassigned(replicas: list[int], *, may_change: bool = True) -> int:
        partition = row.ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=1000,
            allow_replication_factor_change=may_change,
            topics=[row(name=target.name, partitions=[partition])],
        )
        with Wire(cluster.brokers[0]) as wire:
            (topic,) = wire.ask(request, 1).responses
        return int(topic.partitions[0].error_code)

    assert reassigned([leader]) == 0
    assert reassigned([other]) == InvalidReplicaAssignment.code
    assert reassigned([leader, other]) == InvalidReplicaAssignment.code
    assert reassigned([leader, other], may_change=False) == InvalidReplicationFactor.code


@pytest.mark.test_all
def test_only_the_leader_has_a_partition_in_its_directory(cluster: Cluster, target: Target) -> None:
    leader = leaders(cluster.brokers[0], target.name)[0].node_id
    row = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topic = row.AlterReplicaLogDirTopic(name=target.name, partitions=[0])
    for broker, code in ((node(cluster, leader), 0), (another(cluster, leader), 9)):
        with Wire(broker) as wire:
            described = wire.ask(DescribeLogDirsRequest(topics=None), 4)
            path = described.results[0].log_dir
            request = AlterReplicaLogDirsRequest(dirs=[row(path=path, topics=[topic])])
            (result,) = wire.ask(request, 2).results
        assert result.partitions[0].error_code == code


def test_every_broker_describes_the_same_quorum(cluster: Cluster) -> None:
    await_settled(cluster)
    row = DescribeQuorumRequest.TopicData
    partition = row.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(
        topics=[row(topic_name="__cluster_metadata", partitions=[partition])]
    )
    epochs, ends = set(), []
    for broker in cluster.brokers:
        with Wire(broker) as wire:
            answer = wire.ask(request, 2)
        (found,) = answer.topics[0].partitions
        voters = [one.replica_id for one in found.current_voters]
        observers = [one.replica_id for one in found.observers]
        assert (found.leader_id, voters, observers) == (1, [1], [2, 3])
        epochs.add(found.leader_epoch)
        ends.append(found.high_watermark)
        assert {one.node_id for one in answer.nodes} == NODES
    assert len(epochs) == 1
    assert min(epochs) >= 1
    assert 0 < ends[0] <= ends[1] <= ends[2]
