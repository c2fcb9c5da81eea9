"""The broker is stopped or killed while groups consume: after the start the groups are as before.

Members that return within their session time-out keep their partitions, in the same generation, and
no record is delivered after its commit was acknowledged.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.adapters import Committed, ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.group_history import Partition
from tests.support.group_members import (
    CLIENTS,
    STATIC,
    Flow,
    Group,
    MemberProcesses,
    flowing,
    generation,
    partitions_of,
)

PARTITIONS = 6
ENDS = 3
"""How often the broker ends in a test."""
LEAVING_TIMEOUT_MS = 10_000
"""Waited out when the broker did not hear that a member leaves."""

OwnBroker = Callable[..., BrokerProcess]

END = {"SIGTERM": BrokerProcess.stop, "SIGKILL": BrokerProcess.kill}
SIGNALS = ["SIGTERM", "SIGKILL"]
SLOW_SIGTERM = [
    pytest.param("SIGTERM", marks=pytest.mark.slow),
    pytest.param("SIGKILL", marks=pytest.mark.test_all),
]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[MemberProcesses]:
    members = MemberProcesses(tmp_path)
    yield members
    members.close()


@pytest.fixture
def broker(own_broker: OwnBroker) -> BrokerProcess:
    return own_broker(group_min_session_timeout_ms="500", group_initial_rebalance_delay_ms="0")


@pytest.fixture
def partitions(broker: BrokerProcess, topic: str) -> list[Partition]:
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    return partitions_of(topic, PARTITIONS)


def go_on(groups: Iterable[Group], flow: Flow) -> None:
    """What is written now is processed and committed."""
    written = flow.await_more()
    for group in groups:
        group.await_processed(written)
        group.await_committed(written)


def generations(broker: BrokerProcess, groups: Iterable[Group]) -> list[int]:
    return [generation(broker, group.name) for group in groups]


# kafkajs takes a lost connection for the end of its membership, with Kafka's own broker, too.
@pytest.mark.test_all
@pytest.mark.parametrize("end", SIGNALS)
def test_members_go_on_with_what_they_had_when_the_broker_comes_back(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    end: str,
) -> None:
    groups = {
        name: Group(processes, broker.kafka, f"{topic} {name}", partitions)
        for name in CLIENTS
        if name != "kafkajs"
    }
    with flowing(broker.kafka, partitions) as flow:
        for name, group in groups.items():
            group.join(name)
            group.join(name)
        owned = {name: group.await_settled() for name, group in groups.items()}
        go_on(groups.values(), flow)
        before, since_ns = generations(broker, groups.values()), time.monotonic_ns()

        for _ in range(ENDS):
            END[end](broker)
            broker.start()
            go_on(groups.values(), flow)

        assert {name: group.changes(since_ns) for name, group in groups.items()} == {
            name: [] for name in groups
        }
        assert {name: group.await_settled() for name, group in groups.items()} == owned
        assert generations(broker, groups.values()) == before
        produced = flow.finish()
        for group in groups.values():
            group.await_committed(produced)
    assert [group.violations(produced) for group in groups.values()] == [[]] * len(groups)


@pytest.mark.parametrize("end", SLOW_SIGTERM)
def test_kafkajs_reads_no_record_after_its_commit_when_the_broker_comes_back(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    end: str,
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)
    with flowing(broker.kafka, partitions) as flow:
        for _ in range(3):
            group.join("kafkajs")
        group.await_settled()
        for _ in range(ENDS):
            go_on([group], flow)
            END[end](broker)
            broker.start()
        go_on([group], flow)
        produced = flow.finish()
        group.await_committed(produced)

    assert group.violations(produced) == []


@pytest.mark.parametrize("end", SLOW_SIGTERM)
def test_a_group_of_all_clients_loses_and_repeats_nothing_when_the_broker_ends_as_it_rebalances(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    end: str,
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)
    with flowing(broker.kafka, partitions) as flow:
        members = [group.join(name, session_timeout_ms=LEAVING_TIMEOUT_MS) for name in CLIENTS]
        group.await_settled()
        go_on([group], flow)
        for member in members[:2]:
            group.tell_to_leave(member)
            END[end](broker)
            broker.start()
            go_on([group], flow)
        produced = flow.finish()
        group.await_committed(produced)

    assert group.violations(produced) == []


@pytest.mark.test_all
def test_members_that_do_not_come_back_with_the_broker_lose_what_they_had(
    broker: BrokerProcess, processes: MemberProcesses, topic: str, partitions: list[Partition]
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)
    with flowing(broker.kafka, partitions) as flow:
        staying = group.join("java")
        dying = group.join("kafka-python", alone=True, session_timeout_ms=4_000)
        group.await_settled()
        go_on([group], flow)

        broker.kill()
        group.kill(dying)
        broker.start()

        assert group.await_settled() == {staying: set(partitions)}
        go_on([group], flow)
        produced = flow.finish()
        group.await_committed(produced)
    assert group.violations(produced) == []


@pytest.mark.test_all
@pytest.mark.parametrize("end", SIGNALS)
def test_a_static_member_is_the_same_one_after_both_it_and_the_broker_ended(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    end: str,
) -> None:
    groups = {
        name: Group(processes, broker.kafka, f"{topic} {name}", partitions) for name in STATIC
    }

    def join(name: str, instance_id: str, *, alone: bool) -> str:
        return groups[name].join(name, instance_id=instance_id, alone=alone)

    with flowing(broker.kafka, partitions) as flow:
        staying = {name: join(name, "staying", alone=False) for name in groups}
        ending = {name: join(name, "ending", alone=True) for name in groups}
        owned = {name: group.await_settled() for name, group in groups.items()}
        go_on(groups.values(), flow)
        before, since_ns = generations(broker, groups.values()), time.monotonic_ns()

        for name, group in groups.items():
            group.kill(ending[name])
        END[end](broker)
        broker.start()
        returned = {name: join(name, "ending", alone=False) for name in groups}

        for name, group in groups.items():
            assert group.await_settled() == {
                staying[name]: owned[name][staying[name]],
                returned[name]: owned[name][ending[name]],
            }
        go_on(groups.values(), flow)
        for name, group in groups.items():
            assert group.changes(since_ns, member=staying[name]) == []
        assert generations(broker, groups.values()) == before
        produced = flow.finish()
        for group in groups.values():
            group.await_committed(produced)
    assert [group.violations(produced) for group in groups.values()] == [[]] * len(groups)


@pytest.mark.parametrize(
    "end", [pytest.param("SIGTERM", marks=pytest.mark.test_all), pytest.param("SIGKILL")]
)
def test_committed_offsets_and_their_metadata_survive_the_end_of_the_broker(
    restarted_broker: BrokerProcess, topic: str, end: str
) -> None:
    broker, client = restarted_broker, ConfluentKafka()
    client.create_topic(broker.kafka, topic, PARTITIONS)
    committed: Committed = {partition: (partition * 7, "") for partition in range(PARTITIONS)}
    client.commit(broker.kafka, topic, topic, committed)
    changed: Committed = {**committed, 3: (2, ""), 4: (2**62, "")}
    client.commit(broker.kafka, topic, topic, changed)

    END[end](broker)
    broker.start()

    assert client.committed(broker.kafka, topic, topic) == changed
