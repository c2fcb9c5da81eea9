"""Groups of real clients: members join, leave, die and return; no record is lost or read again.

Each client's members run in processes of their own and report which partitions they are assigned,
which records they process and which offsets they commit. `tests.support.group_history` checks these
reports.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.conftest import RunBroker
from tests.support.adapters import CommittingClient, ConfluentKafka, GetClient
from tests.support.broker_process import BrokerProcess
from tests.support.group_history import (
    Event,
    History,
    Partition,
    event_from_json,
    never_processed,
    violations,
)
from tests.support.group_member import ConfluentKafkaMember
from tests.support.group_members import (
    CLIENTS,
    COOPERATIVE,
    HEARTBEAT_MS,
    METADATA_MAX_AGE_MS,
    SESSION_TIMEOUT_MS,
    STATIC,
    Flow,
    Group,
    MemberProcesses,
    flowing,
    generation,
    partitions_of,
)
from tests.support.pairwise import also_in_test_all
from tests.support.records import Record
from tests.support.waiting import LIMIT_S, until

PARTITIONS = 10
RECORDS = [Record(b"key", b"value")] * 3
VICTIM_TIMEOUT_MS = 4_000
"""How long the group waits for a member that was killed."""


@pytest.fixture(scope="module")
def broker(run_broker: RunBroker) -> Iterator[BrokerProcess]:
    with run_broker("groups", group_min_session_timeout_ms="500") as process:
        yield process


@pytest.fixture(scope="module")
def member_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberProcesses]:
    members = MemberProcesses(tmp_path_factory.mktemp("members"))
    yield members
    members.close()


@pytest.fixture
def processes(member_processes: MemberProcesses) -> Iterator[MemberProcesses]:
    """The same processes for all tests; members end with their test."""
    yield member_processes
    member_processes.end_members()


@pytest.fixture
def partitions(broker: BrokerProcess, topic: str) -> list[Partition]:
    """The partitions of a new topic."""
    ConfluentKafka().create_topic(broker.kafka, topic, PARTITIONS)
    return partitions_of(topic, PARTITIONS)


@dataclass
class Step:
    """A change of the group, by who owned what before it and after it."""

    began_ns: int
    ended_ns: int
    before: dict[str, set[Partition]]
    after: dict[str, set[Partition]]


@dataclass
class Scaling:
    """A group whose members join and leave while producers write."""

    group: Group
    flow: Flow
    steps: list[Step] = field(default_factory=list)
    _owned: dict[str, set[Partition]] = field(default_factory=dict)
    _since_ns: int = field(default_factory=time.monotonic_ns)

    def settle(self) -> None:
        """What was written until now is processed, and each partition has found its member.

        The next step begins with what members own then: on a busy machine the group may change
        again meanwhile, as when a member that could not send heartbeats is removed and comes back.
        """
        self.group.await_settled()
        self.group.await_processed(self.flow.acknowledged())
        owned = self.group.await_stable()
        now_ns = time.monotonic_ns()
        self.steps.append(Step(self._since_ns, now_ns, self._owned, owned))
        self._owned, self._since_ns = owned, now_ns


def scale(group: Group, flow: Flow, clients: Sequence[str]) -> list[Step]:
    """From 1 to 5 members and back to 1. The fifth is killed; those who led before leave first."""
    scaling = Scaling(group, flow)
    first, second, third, fourth, victim = clients
    members = [group.join(first)]
    scaling.settle()
    members.append(group.join(second))
    scaling.settle()
    members += [group.join(third), group.join(fourth)]
    dying = group.join(victim, alone=True, session_timeout_ms=VICTIM_TIMEOUT_MS)
    scaling.settle()
    group.kill(dying)
    scaling.settle()
    for member in members[:-1]:
        group.leave(member)
        scaling.settle()
    return scaling.steps


def committing(client: GetClient, name: str) -> CommittingClient:
    found = client(name)
    assert isinstance(found, CommittingClient)
    return found


def finish(group: Group, flow: Flow) -> dict[Partition, int]:
    """All that was written is processed and committed. How many records each partition has."""
    produced = flow.finish()
    group.await_processed(produced)
    group.await_committed(produced)
    return produced


@pytest.mark.parametrize("name", also_in_test_all(["java"], CLIENTS))
def test_members_come_and_go_and_no_record_is_lost_or_read_after_its_commit(
    broker: BrokerProcess,
    processes: MemberProcesses,
    client: GetClient,
    topic: str,
    partitions: list[Partition],
    name: str,
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)

    with flowing(broker.kafka, partitions) as flow:
        scale(group, flow, [name] * 5)
        produced = finish(group, flow)

    assert group.violations(produced) == []
    assert committing(client, "confluent-kafka").committed(broker.kafka, topic, topic) == {
        partition: (count, "") for (_, partition), count in produced.items()
    }


@pytest.mark.parametrize("name", also_in_test_all(["confluent-kafka"], COOPERATIVE))
def test_members_keep_their_other_partitions_in_a_cooperative_rebalance(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    name: str,
) -> None:
    group = Group(processes, broker.kafka, topic, partitions, assignors=["cooperative-sticky"])

    with flowing(broker.kafka, partitions) as flow:
        steps = scale(group, flow, [name] * 5)
        produced = finish(group, flow)

    assert group.violations(produced) == []
    single = [step for step in steps if len(step.after.keys() - step.before.keys()) <= 1]
    assert len(single) == len(steps) - 1
    assert [lost_for_nothing(group, step) for step in single] == [[]] * len(single)


def lost_for_nothing(group: Group, step: Step) -> list[str]:
    """What was taken from a member that owned it before a step and after it.

    If several members join at once, that may be right: what was taken for the first of them is
    free when the second is there, and may go back.
    """
    found = []
    for event in group.changes(step.began_ns):
        kept = step.before.get(event.member, set()) & step.after.get(event.member, set())
        touched = sorted(kept & event.partitions)
        if event.at_ns < step.ended_ns and touched:
            found.append(f"{event.kind} {touched} of {event.member}")
    return found


MIXED = {
    "librdkafka and Java": ("range", ["java", "confluent-kafka", "java", "confluent-kafka"]),
    "librdkafka and Java, cooperative": (
        "cooperative-sticky",
        ["confluent-kafka", "java", "confluent-kafka", "java"],
    ),
    "kafka-python and Java": ("roundrobin", ["kafka-python", "java", "java", "kafka-python"]),
    "all": ("range", ["kafkajs", "aiokafka", "java", "confluent-kafka", "kafka-python"]),
}


@pytest.mark.test_all
@pytest.mark.parametrize(
    "mixture",
    [
        pytest.param(mixture, marks=pytest.mark.each_change)
        if mixture in ("all", "librdkafka and Java, cooperative")
        else mixture
        for mixture in MIXED
    ],
)
def test_different_clients_share_a_group(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    mixture: str,
) -> None:
    assignor, clients = MIXED[mixture]
    group = Group(processes, broker.kafka, topic, partitions, assignors=[assignor])

    with flowing(broker.kafka, partitions) as flow:
        scale(group, flow, [*clients, clients[0]][:5])
        produced = finish(group, flow)

    assert group.violations(produced) == []


COMMITS = [
    (name, commit)
    for name in CLIENTS
    for commit in ("sync", "async", "auto")
    if commit != "async" or name not in ("aiokafka", "kafkajs")
]


@pytest.mark.parametrize(("name", "commit"), COMMITS)
def test_a_member_continues_where_the_one_before_it_stopped(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    name: str,
    commit: str,
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)

    with flowing(broker.kafka, partitions) as flow:
        for _ in range(2):
            member = group.join(name, commit=commit)
            group.await_settled()
            group.await_processed(flow.acknowledged())
            group.leave(member)
        group.join(name, commit=commit)
        produced = flow.finish()
        group.await_processed(produced)

    assert group.violations(produced) == []
    assert times_processed(group.history.events()) == sum(produced.values())


def times_processed(events: Sequence[Event]) -> int:
    return sum(len(offsets) for event in events for offsets in event.offsets.values())


@pytest.mark.parametrize("name", CLIENTS)
def test_a_member_reads_again_from_where_it_seeks(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    name: str,
) -> None:
    place = partitions[1]
    group = Group(processes, broker.kafka, topic, partitions)
    member = group.join(name)
    with flowing(broker.kafka, partitions) as flow:
        group.await_processed(dict.fromkeys(partitions, 5))

        sought_ns = group.seek(member, place, 3)

        produced = flow.finish()
        group.await_processed(produced)
        wanted = list(range(3, produced[place]))
        group.await_events(
            lambda: len(offsets_of(group, place, since_ns=sought_ns)) >= len(wanted),
            f"processed {wanted}",
        )
    assert offsets_of(group, place, since_ns=sought_ns) == wanted
    assert never_processed(group.history.events(), produced) == []


def offsets_of(group: Group, place: Partition, *, since_ns: int) -> list[int]:
    return [
        offset
        for event in group.history.events("processed", since_ns=since_ns)
        for offset in event.offsets.get(place, ())
    ]


@pytest.mark.each_change
@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_offsets_that_one_client_commits_are_read_by_another(
    broker: BrokerProcess,
    client: GetClient,
    topic: str,
    partitions: list[Partition],
    writer: str,
    reader: str,
) -> None:
    """Without being a member, but for kafkajs, which commits as one."""
    for partition in (1, 9):  # kafkajs looks whether there is such an offset
        ConfluentKafka().produce(broker.kafka, topic, RECORDS, partition=partition)
    offsets = {1: (1, "where I was: на первой"), 2: (0, ""), 9: (len(RECORDS), "x" * 4000)}
    if reader == "confluent-kafka":  # it shows what lies behind a text in memory, or fails at it
        offsets = {partition: (offset, "") for partition, (offset, _) in offsets.items()}

    committing(client, writer).commit(broker.kafka, topic, topic, offsets)

    found = committing(client, reader).committed(broker.kafka, topic, topic)
    if writer == "confluent-kafka":  # it sends a text with the zero that ends it in C
        found = {
            partition: (offset, text.removesuffix("\0"))
            for partition, (offset, text) in found.items()
        }
    assert found == offsets


def test_a_consumer_that_chooses_its_partitions_begins_at_what_it_committed(
    broker: BrokerProcess, client: GetClient, topic: str, partitions: list[Partition]
) -> None:
    values = [b"%d" % n for n in range(5)]
    records = [Record(None, value) for value in values]
    ConfluentKafka().produce(broker.kafka, topic, records, partition=1)
    committing(client, "java").commit(broker.kafka, topic, topic, {1: (3, "")})
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": topic})
    consumer.assign([TopicPartition(topic, 1)])
    read = consumer.consume(2, timeout=LIMIT_S)
    consumer.close()
    assert [(message.offset(), message.value()) for message in read] == [(3, b"3"), (4, b"4")]


@pytest.mark.parametrize(
    ("name", "end"),
    also_in_test_all(
        [("java", "killed"), ("confluent-kafka", "closed")], product(STATIC, ["killed", "closed"])
    ),
)
def test_a_static_member_comes_back_without_a_rebalance(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    name: str,
    end: str,
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)
    with flowing(broker.kafka, partitions) as flow:
        staying = group.join(name, instance_id="staying")
        group.await_settled()
        leaving = group.join(name, instance_id="returning", alone=True)
        owned = group.await_settled()
        group.await_processed(flow.acknowledged())
        before, since_ns = generation(broker, topic), time.monotonic_ns()

        (group.kill if end == "killed" else group.leave)(leaving)
        returned = group.join(name, instance_id="returning", alone=True)

        assert group.await_settled() == {staying: owned[staying], returned: owned[leaving]}
        produced = finish(group, flow)
    assert group.changes(since_ns, member=staying) == []
    assert generation(broker, topic) == before
    assert group.violations(produced) == []


@pytest.mark.each_change
# aiokafka does not say in its heartbeats and commits which instance it is, so nobody can tell it.
@pytest.mark.parametrize(
    "name", also_in_test_all(["java"], [name for name in STATIC if name != "aiokafka"])
)
def test_a_static_member_is_fenced_when_another_one_with_its_id_joins(
    broker: BrokerProcess,
    processes: MemberProcesses,
    topic: str,
    partitions: list[Partition],
    name: str,
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)
    with flowing(broker.kafka, partitions) as flow:
        staying = group.join(name, instance_id="staying")
        group.await_settled()
        fenced = group.join(name, instance_id="twin")
        owned = group.await_settled()
        before, since_ns = generation(broker, topic), time.monotonic_ns()

        group.expect_failure(fenced)
        twin = group.join(name, instance_id="twin")

        assert re.search("(?i)fenced", group.await_failure(fenced).error)
        assert group.await_settled() == {staying: owned[staying], twin: owned[fenced]}
        group.await_processed(flow.acknowledged())
    assert group.changes(since_ns, member=staying) == []
    assert generation(broker, topic) == before


# kafkajs looks for matching topics once, when it subscribes; members of kafka-python 3.0 may get
# stuck when new metadata makes them join again (see group_member).
@pytest.mark.parametrize("name", ["aiokafka", "confluent-kafka", "java"])
def test_a_running_group_takes_new_topics_and_partitions(
    broker: BrokerProcess, processes: MemberProcesses, topic: str, name: str
) -> None:
    first, second = f"{topic}-first", f"{topic}-second"
    second_age_ms = 300_000 if name == "confluent-kafka" else METADATA_MAX_AGE_MS
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    ConfluentKafka().create_topic(broker.kafka, first, 2)
    group = Group(
        processes,
        broker.kafka,
        topic,
        partitions_of(first, 2),
        pattern=f"^{re.escape(topic)}-(first|second)$",
    )
    group.join(name)
    group.await_settled()
    # librdkafka joins before it has revoked if it sees a new topic during a rebalance, so that a
    # partition has two owners for a while. So only the leader looks for topics: the other cannot
    # see them while it rebalances because of the leader.
    group.join(name, metadata_max_age_ms=second_age_ms)
    group.await_settled()

    ConfluentKafka().create_topic(broker.kafka, second, 2)
    group.partitions.update(partitions_of(second, 2))
    group.await_settled()
    admin.create_partitions([NewPartitions(first, 4)])[first].result(LIMIT_S)
    broker.await_topic(first)
    group.partitions.update(partitions_of(first, 4))
    with flowing(broker.kafka, group.partitions) as flow:
        group.await_settled()
        produced = finish(group, flow)

    assert group.violations(produced) == []


def stable_generation(broker: BrokerProcess, group: str) -> int:
    """0 while the group rebalances, or does not exist yet."""
    rows = broker.sql(
        "SELECT generation FROM consumer_groups WHERE group_id = {group:String}"
        " AND state = 'Stable'",
        {"group": group},
    )
    return int(rows[0]["generation"]) if rows else 0


class LateMember(ConfluentKafkaMember):
    """A member in this process that polls for the first time when it may."""

    def __init__(self, command: dict[str, Any]) -> None:
        self.history = History()
        self.history.held["late"] = set()
        self.may_poll = threading.Event()
        super().__init__(command)

    def report(self, event: str, **facts: Any) -> None:
        line = {"event": event, "member": "late", "at": time.monotonic_ns(), **facts}
        self.history.add(event_from_json(line))

    def _process_some(self, consumer: Any) -> None:
        assert self.may_poll.wait(LIMIT_S)
        super()._process_some(consumer)


@pytest.mark.one_broker("is about librdkafka, whose metadata must change once")
def test_a_librdkafka_member_loses_an_assignment_that_another_one_replaces(
    broker: BrokerProcess, topic: str
) -> None:
    ConfluentKafka().create_topic(broker.kafka, topic, 2)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    late = LateMember(
        {
            "member": "late",
            "kafka": broker.kafka,
            "group": topic,
            "topics": [topic],
            "pattern": None,
            "assignors": ["range"],
            "instance_id": None,
            "commit": "auto",
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_ms": HEARTBEAT_MS,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        }
    )
    try:
        until(lambda: stable_generation(broker, topic) == 1)
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(LIMIT_S)
        until(lambda: stable_generation(broker, topic) == 2)
        late.may_poll.set()
        late.history.wait_for(lambda: len(late.history.held["late"]) == 3, "3 partitions", LIMIT_S)
    finally:
        late.may_poll.set()
        late.commands.put({"verb": "leave"})
    late.history.wait_for(lambda: bool(late.history.events("left")), "left", LIMIT_S)

    two, three = frozenset(partitions_of(topic, 2)), frozenset(partitions_of(topic, 3))
    none: frozenset[Partition] = frozenset()
    assert [(event.kind, event.partitions) for event in late.history.events()] == [
        ("assigned", two),
        ("lost", two),
        ("assigned", three),
        ("leaving", none),
        ("revoked", three),
        ("left", none),
    ]


PLACE = ("topic", 0)


def history(*facts: tuple[str, str, object]) -> list[Event]:
    """Events of kind, member and fact, one after the other."""
    events = []
    for at_ns, (kind, member, fact) in enumerate(facts):
        partitions = frozenset({PLACE} if kind in ("assigned", "revoked", "lost") else ())
        offsets = {PLACE: fact} if isinstance(fact, list) else {}
        ends = {PLACE: fact} if isinstance(fact, int) else {}
        events.append(Event(kind, member, at_ns, partitions, offsets, ends))
    return events


def test_offsets_that_were_read_late_do_not_undo_commits_that_were_reported_since() -> None:
    kept = History()
    kept.add(Event("committed", "a", 1, ends={PLACE: 41}))
    kept.add(Event("stored", "the group", 2, ends={PLACE: 1}))
    assert kept.committed == {PLACE: 41}

    kept.add(Event("committed", "a", 3, ends={PLACE: 7}))  # after a seek
    assert kept.committed == {PLACE: 7}


IN_ORDER = [
    ("assigned", "a", None),
    ("processed", "a", [0, 1]),
    ("committed", "a", 2),
    ("processed", "a", [2]),
    ("killed", "a", None),
    ("assigned", "b", None),
    ("processed", "b", [2, 3]),
    ("committed", "b", 4),
]
BROKEN: dict[str, tuple[Callable[[], list[Event]], str]] = {
    "a record was committed, and then its member died before the work": (
        lambda: history(IN_ORDER[0], ("committed", "a", 2), *IN_ORDER[4:]),
        "at 0 was never processed",
    ),
    "a record comes again after its commit": (
        lambda: history(*IN_ORDER, ("processed", "b", [3])),
        "b got ('topic', 0) at 3 after b had committed 4",
    ),
    "an old owner reads on": (
        lambda: history(*IN_ORDER, ("processed", "a", [4])),
        "a got ('topic', 0) at 4, which it does not own",
    ),
    "a partition has two owners": (
        lambda: history(*IN_ORDER, ("assigned", "c", None)),
        "c was assigned ('topic', 0) while b had it",
    ),
}


def test_a_history_in_order_has_no_violations() -> None:
    assert violations(history(*IN_ORDER), {PLACE: 4}) == []


@pytest.mark.parametrize("what", BROKEN)
def test_each_kind_of_violation_in_a_history_is_found(what: str) -> None:
    broken, found = BROKEN[what]

    assert found in violations(broken(), {PLACE: 4})[0]


def test_a_client_that_commits_before_it_processes_is_found(
    broker: BrokerProcess, processes: MemberProcesses, topic: str, partitions: list[Partition]
) -> None:
    group = Group(processes, broker.kafka, topic, partitions)

    with flowing(broker.kafka, partitions) as flow:
        hasty = group.join(
            "kafka-python", alone=True, commit="before", session_timeout_ms=VICTIM_TIMEOUT_MS
        )
        group.await_events(lambda: bool(group.history.committed), "committed")
        group.kill(hasty)
        group.join("kafka-python")
        group.await_settled()
        produced = flow.finish()
        group.await_committed(produced)

    assert "was never processed" in group.violations(produced)[0]
