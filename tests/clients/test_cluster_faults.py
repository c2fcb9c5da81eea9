"""Parts of a cluster stop, die and are cut off while real clients write and read.

Each test starts the parts again that it ended, so all tests share one cluster. They check that
every acknowledged record is in the shards exactly once.
"""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import kafka
import pytest
from aiokafka import AIOKafkaProducer
from kafka.protocol.admin import DescribeClusterRequest

from brokerhouse.protocol.errors import (
    FencedLeaderEpoch,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)
from brokerhouse.protocol.versions import ApiKey
from brokerhouse.storage.slot_map import slot_of_group, slot_of_partition
from tests.support import messages, samples
from tests.support.cluster_processes import SLOTS, Broker, Cluster
from tests.support.cluster_view import (
    LIMIT_S,
    NOBODY,
    Leader,
    await_leaders,
    await_settled,
    coordinators,
    counted,
    epoch_end,
    leaders,
    metadata,
    node,
    topic_on_all,
)
from tests.support.command_line import run
from tests.support.group_members import (
    Flow,
    Group,
    MemberProcesses,
    flowing,
    partitions_of,
)
from tests.support.log_parts import numbered
from tests.support.messages import Target
from tests.support.prometheus import get, value
from tests.support.server_process import PROJECT
from tests.support.waiting import until
from tests.support.wire import Wire

PARTITIONS = 6
NODES = {1, 2, 3}
SLACK_S = 15.0
"""What a busy machine may add to what a session lasts."""
TRIES = 5
DISTURBED = re.compile(
    r"session \d+ (?:has lost \d+ slots|is over): (?!the broker stops).*"
    r"|shard \S+ does not answer: no replica is reachable"
)
"""What a broker logs when it loses its session or a shard, and not when it is stopped."""
Found = TypeVar("Found")


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberProcesses]:
    members = MemberProcesses(tmp_path_factory.mktemp("members"))
    yield members
    members.close()


@pytest.fixture
def target(cluster: Cluster, topic: str) -> Target:
    return topic_on_all(cluster, topic, PARTITIONS)


@contextmanager
def written(cluster: Cluster, target: Target) -> Iterator[Flow]:
    """A flow into each partition; when it ends, each record of it is in the shards once."""
    places = partitions_of(target.name, PARTITIONS)
    with flowing(cluster.bootstrap, places) as flow:
        flow.await_more()
        yield flow
        acknowledged = flow.finish()
    expected = {partition: (records, records) for (_, partition), records in acknowledged.items()}
    assert counted(cluster, target.name) == expected
    # It writes to all of them in turn, so a record more is one that was stored twice.
    assert len(set(acknowledged.values())) == 1


@contextmanager
def away(broker: Broker, *, killed: bool = False) -> Iterator[None]:
    (broker.kill if killed else broker.stop)()
    try:
        yield
    finally:
        broker.start()


def undisturbed(cluster: Cluster, scenario: Callable[[], Found]) -> Found:
    """What a scenario finds while no broker that runs loses its session, nor a shard.

    On a busy machine a lease of a few seconds may run out at any time: then it is played again.
    """
    for _ in range(TRIES):
        await_settled(cluster)
        sizes = [(broker, broker.log_size()) for broker in cluster.brokers]
        found = scenario()
        said = [DISTURBED.search(broker.log(size, limit=1 << 24)) for broker, size in sizes]
        if not any(said):
            return found
        print("played again:", [match[0] for match in said if match])
    raise AssertionError(f"in each of {TRIES} tries a broker has lost its session, or a shard")


# Brokers


def test_the_others_lead_and_coordinate_when_the_session_of_a_killed_broker_is_over(
    cluster: Cluster, topic: str
) -> None:
    """Until then the killed one is named, and no longer."""
    victim, asked, _ = cluster.brokers
    keys = [f"group-{number}" for number in range(50)]
    targets = (topic_on_all(cluster, f"{topic}-{n}", PARTITIONS) for n in count())

    def have_taken_over(target: Target) -> bool:
        """Whether the others have everything. All answers agree about the victim."""
        answer = metadata(asked, target.name)
        named = {broker.node_id for broker in answer.brokers}
        partitions = answer.topics[0].partitions
        led = {partition.leader_id for partition in partitions}
        assert led - {NOBODY} <= named
        for partition in partitions:
            assert (partition.error_code == LeaderNotAvailable.code) == (
                partition.leader_id == NOBODY
            )
        if victim.node_id in named:
            return False
        with Wire(asked) as wire:
            described = wire.ask(DescribeClusterRequest(endpoint_type=1), 1).brokers
        assert victim.node_id not in {broker.broker_id for broker in described}
        found = set(coordinators(asked, keys).values())
        assert victim.node_id not in found
        return led == found == NODES - {victim.node_id}

    def scenario() -> float:
        target = next(targets)
        with written(cluster, target) as flow, away(victim, killed=True):
            took_s = until(
                lambda: have_taken_over(target), "the others lead, and the killed one is not named"
            )
            flow.await_more()
        return took_s

    took_s = undisturbed(cluster, scenario)
    assert took_s < 1.05 * cluster.session_timeout_s + SLACK_S


@pytest.mark.test_all
def test_aiokafka_goes_on_with_brokers_that_are_back_while_the_last_one_it_knew_is_away(
    cluster: Cluster, target: Target
) -> None:
    """It asks only the brokers of the last Metadata answer, and never its bootstrap servers again.

    The last broker that is alive must still name those that were.
    """
    last, *others = cluster.brokers

    def leave_one() -> None:
        for broker in others:
            broker.kill()
        until(lambda: {at.node_id for at in leaders(last, target.name).values()} == {1}, "1 leads")

    def change_places() -> None:
        last.kill()
        for broker in others:
            broker.start()

    async def scenario() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, request_timeout_ms=int(LIMIT_S * 1000)
        )
        await producer.start()
        try:
            await producer.send_and_wait(target.name, b"before", partition=0)
            await asyncio.to_thread(leave_one)
            await producer.client.force_metadata_update()
            await asyncio.to_thread(change_places)
            await producer.send_and_wait(target.name, b"after", partition=0)
        finally:
            await producer.stop()

    try:
        asyncio.run(scenario())
    finally:
        for broker in cluster.brokers:
            if not broker.running:
                broker.start()


@pytest.mark.test_all
def test_the_next_leader_of_a_partition_has_a_new_epoch_and_knows_where_the_old_one_ended(
    cluster: Cluster, target: Target
) -> None:
    def scenario() -> tuple[Leader, int, Leader, Any, Any]:
        before = stored(cluster, target, NODES)
        with Wire(node(cluster, before.node_id)) as wire:
            asked = wire.ask(messages.list_offsets(target, -1), 7)
        end = asked.topics[0].partitions[0].offset
        with away(node(cluster, before.node_id)):
            after = stored(cluster, target, NODES - {before.node_id})
            with Wire(node(cluster, after.node_id)) as wire:
                answer = wire.ask(epoch_end(target, before.epoch), 4)
                fenced = wire.ask(messages.fetch(target, 0, leader_epoch=before.epoch), 11)
        return before, end, after, answer, fenced

    before, end, after, answer, fenced = undisturbed(cluster, scenario)
    assert after.epoch > before.epoch
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_epoch) == (0, before.epoch)
    assert partition.end_offset == end
    assert fenced.responses[0].partitions[0].error_code == FencedLeaderEpoch.code


@pytest.mark.test_all
def test_a_batch_after_one_that_was_refused_is_refused_as_not_leader_not_as_out_of_order(
    cluster: Cluster, target: Target
) -> None:
    """librdkafka would begin a new epoch, and send again what may be stored elsewhere."""

    def scenario() -> tuple[list[int], list[int]]:
        """The error codes while the first leader leads, and after that."""
        led = stored(cluster, target, NODES)
        others = [node(cluster, node_id) for node_id in sorted(NODES - {led.node_id})]
        with Wire(others[0]) as wire:
            producer_id = wire.ask(samples.sample(ApiKey.InitProducerId, 4, target), 4).producer_id

        def send(wire: Wire, sequence: int) -> int:
            batch = numbered(sequence, 1, producer_id).data
            answer = wire.ask(messages.produce(target, batch), 9)
            return int(answer.responses[0].partition_responses[0].error_code)

        with Wire(node(cluster, led.node_id)) as wire:
            first = [send(wire, 0)]
        with Wire(others[0]) as one, Wire(others[1]) as other:
            first += [send(wire, 1) for wire in (one, other)]
            with away(node(cluster, led.node_id)):
                successor = stored(cluster, target, NODES - {led.node_id})
                wire = one if successor.node_id == others[0].node_id else other
                then = [send(wire, sequence) for sequence in (2, 1, 2, 4)]
        return first, then

    first, then = undisturbed(cluster, scenario)
    assert first == [0, NotLeaderOrFollower.code, NotLeaderOrFollower.code]
    assert then == [NotLeaderOrFollower.code, 0, 0, OutOfOrderSequenceNumber.code]


@pytest.mark.test_all
def test_the_next_leader_knows_a_producer_whose_records_were_deleted(
    cluster: Cluster, target: Target
) -> None:
    def scenario() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Error code and base offset of batches: those of the first leader, those of the next."""
        led = stored(cluster, target, NODES)
        first, others = node(cluster, led.node_id), NODES - {led.node_id}
        with Wire(first) as wire:
            producer_id = wire.ask(samples.sample(ApiKey.InitProducerId, 4, target), 4).producer_id

            def send(wire: Wire, sequence: int, producer_id: int = producer_id) -> tuple[int, int]:
                request = messages.produce(target, numbered(sequence, 1, producer_id).data)
                answer = wire.ask(request, 9).responses[0].partition_responses[0]
                return int(answer.error_code), int(answer.base_offset)

            before = [send(wire, sequence) for sequence in range(3)]
            (deleted,) = wire.ask(messages.delete_records(target, -1, 0), 2).topics
            assert [one.error_code for one in deleted.partitions] == [0]
        for engine in cluster.engines:
            engine.sql(
                "DELETE FROM messages WHERE topic = {topic:String} AND partition = 0",
                {"topic": target.name},
            )
        with away(first, killed=True):
            successor = stored(cluster, target, others)
            with Wire(node(cluster, successor.node_id)) as wire:
                after = [send(wire, sequence) for sequence in (1, 2, 4, 3)]
                after.append(send(wire, 5, producer_id + 1))
        return before, after

    before, after = undisturbed(cluster, scenario)
    gap = OutOfOrderSequenceNumber.code, -1
    assert [error for error, _ in before] == [0, 0, 0]
    assert after[:3] == [*before[1:], gap]
    assert after[3][0] == 0
    assert after[3][1] > before[2][1]
    assert after[4] == gap


def stored(cluster: Cluster, target: Target, among: set[int]) -> Leader:
    """Stores a batch in the first partition, as soon as one of these brokers leads it."""
    alive = [node(cluster, node_id) for node_id in sorted(among)]
    found: list[Leader] = []

    def taken() -> bool:
        leader = leaders(alive[0], target.name)[0]
        if leader.node_id in among:
            with Wire(node(cluster, leader.node_id)) as wire:
                answer = wire.ask(messages.produce(target, messages.small_batch()), 9)
            if answer.responses[0].partition_responses[0].error_code == 0:
                found.append(leader)
        return bool(found)

    until(taken, f"one of {among} leads {target.name}")
    return found[0]


def generation(cluster: Cluster, group: str) -> int:
    """How often the group has rebalanced."""
    found = [
        row["generation"]
        for engine in cluster.engines
        for row in engine.sql(
            "SELECT generation FROM consumer_groups WHERE group_id = {group:String}",
            {"group": group},
        )
    ]
    return int(max(found))


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param(["confluent-kafka", "aiokafka"], marks=pytest.mark.test_all),
        pytest.param(["java", "kafka-python", "confluent-kafka"], marks=pytest.mark.slow),
        pytest.param(["kafkajs", "kafkajs"], marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_brokers_are_restarted_one_by_one_and_clients_go_on(
    cluster: Cluster, processes: MemberProcesses, target: Target, clients: list[str]
) -> None:
    places = partitions_of(target.name, PARTITIONS)
    assignor = "range" if "kafkajs" not in clients else "roundrobin"
    group = Group(processes, cluster.bootstrap, target.name, places, assignors=[assignor])
    waits_s: dict[str, float] = {}
    """Until each partition had taken a record more; Python itself takes a second to start."""

    with written(cluster, target) as flow:
        for client in clients:
            group.join(client)
        group.await_settled()
        before = generation(cluster, target.name)
        for broker in cluster.brokers:
            began = time.monotonic()
            broker.stop()
            flow.await_more()
            waits_s[f"{broker} stops"] = time.monotonic() - began
            began = time.monotonic()
            broker.start()
            flow.await_more()
            waits_s[f"{broker} starts"] = time.monotonic() - began
            group.await_processed(flow.acknowledged())
        rebalances = generation(cluster, target.name) - before
        produced = flow.finish()
        group.await_processed(produced)
        group.await_committed(produced)

    print({step: round(took_s, 2) for step, took_s in waits_s.items()}, f"{rebalances=}")
    assert group.violations(produced) == []
    assert rebalances <= 1


@pytest.mark.test_all
def test_a_broker_with_the_node_id_of_a_running_one_ends_with_an_error(cluster: Cluster) -> None:
    broker = cluster.brokers[1]
    command = [sys.executable, "-m", "brokerhouse", "serve", "--config", str(cluster.config_path)]
    command += ["--node-id", "1", "--kafka", f"{broker.host.address}:0", "--http", "127.0.0.1:0"]

    ended = subprocess.run(
        [*broker.host.prefix, *command],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (1, "")
    complaints = [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
    assert len(complaints) == 1
    assert complaints[0].startswith(
        f"Error: node id 1 is used by the broker at {cluster.brokers[0].kafka}, which runs"
    )
    assert "Traceback" not in ended.stderr


# Shards


def places_by_shard(target: Target) -> tuple[list[int], list[int]]:
    """The partitions of the first shard, and of the second."""
    found: tuple[list[int], list[int]] = ([], [])
    for partition in range(PARTITIONS):
        slot = slot_of_partition(target.topic_id, partition, SLOTS)
        found[slot * len(found) // SLOTS].append(partition)
    return found


def group_on(shard: int, prefix: str) -> str:
    """A name of a group whose rows are on this shard."""
    names = (f"{prefix}-{n}" for n in count())
    return next(name for name in names if slot_of_group(name, SLOTS) * 2 // SLOTS == shard)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("paused", marks=pytest.mark.test_all),
        pytest.param("killed", marks=pytest.mark.slow),
    ],
)
def test_only_the_partitions_of_a_shard_stop_when_it_does_not_answer(
    cluster: Cluster, target: Target, end: str
) -> None:
    lost, kept = places_by_shard(target)
    assert lost
    assert kept
    shard = cluster.engines[0]

    def led(broker: Broker) -> set[int]:
        at = leaders(broker, target.name)
        return {partition for partition, leader in at.items() if leader.node_id != NOBODY}

    def told_everywhere() -> bool:
        # A client that asks one which has not read of it yet writes to what is lost, and waits.
        return all(led(broker) == set(kept) for broker in cluster.brokers)

    with (
        flowing(cluster.bootstrap, [(target.name, one) for one in lost]) as stuck,
        flowing(cluster.bootstrap, [(target.name, one) for one in kept]) as going_on,
    ):
        stuck.await_more()
        (shard.pause if end == "paused" else shard.kill)()
        try:
            until(told_everywhere, "the partitions of the shard have no leader")
            going_on.await_more()
            keyless = send_keyless(cluster, target.name)
            assert set(keyless) <= set(kept)
            before = stuck.acknowledged()
            going_on.await_more()
            assert stuck.acknowledged() == before
        finally:
            (shard.resume if end == "paused" else shard.start)()
        stuck.await_more()
        acknowledged = stuck.finish()
        going_on.finish()

    found = counted(cluster, target.name)
    for (_, partition), records in acknowledged.items():
        assert found[partition] == (records, records)
    # What two producers wrote here has one offset each.
    assert all(found[partition][0] == found[partition][1] for partition in kept)


def send_keyless(cluster: Cluster, topic: str) -> list[int]:
    """Where records without a key were stored by a client that came while a shard was away."""
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), acks="all")
    try:
        sent = [producer.send(topic, b"keyless") for _ in range(30)]
        return [one.get(LIMIT_S).partition for one in sent]
    finally:
        producer.close(timeout=LIMIT_S)


@pytest.mark.slow
def test_a_group_goes_on_while_the_other_shard_does_not_answer(
    cluster: Cluster, processes: MemberProcesses, topic: str
) -> None:
    await_settled(cluster)
    place = topic_on(cluster, 1, topic)
    group = Group(processes, cluster.bootstrap, group_on(1, topic), [(place, 0)])
    with flowing(cluster.bootstrap, [(place, 0)]) as flow:
        group.join("confluent-kafka")
        group.await_settled()
        group.await_processed(flow.await_more())
        since_ns = time.monotonic_ns()

        with cluster.engines[0].paused():
            began = time.monotonic()
            while time.monotonic() < began + 2 * cluster.session_timeout_s:
                group.await_processed(flow.await_more())
        produced = flow.finish()
        group.await_processed(produced)
        group.await_committed(produced)

    assert group.changes(since_ns) == []
    assert group.violations(produced) == []


def topic_on(cluster: Cluster, shard: int, prefix: str) -> str:
    """A new topic whose only partition is on this shard."""
    with Wire(cluster.brokers[0]) as wire:
        for n in count():
            made = messages.create_topic(wire, f"{prefix}-{n}")
            if slot_of_partition(made.topic_id, 0, SLOTS) * 2 // SLOTS == shard:
                break
    until(
        lambda: all(NOBODY not in _nodes(broker, made.name) for broker in cluster.brokers),
        "every broker knows the topic",
    )
    return made.name


def _nodes(broker: Broker, topic: str) -> set[int]:
    return {at.node_id for at in leaders(broker, topic).values()} or {NOBODY}


@pytest.mark.test_all
def test_clients_go_on_and_leaders_stay_while_a_replica_is_cut_off(
    cluster: Cluster, target: Target
) -> None:
    assert cluster.network.can_cut, "run as root: connections are cut here"

    def scenario() -> tuple[dict[int, Leader], dict[int, Leader]]:
        before = await_leaders(cluster.brokers, target.name, PARTITIONS)
        with written(cluster, target) as flow:
            for host in cluster.engines[0].hosts:
                for broker in cluster.brokers:
                    cluster.network.cut(broker.host.name, host.name, both_ways=False)
                try:
                    for _ in range(3):
                        flow.await_more()
                finally:
                    cluster.network.heal()
                flow.await_more()
        return before, leaders(cluster.brokers[0], target.name)

    before, after = undisturbed(cluster, scenario)
    assert after == before


# Keeper


@pytest.mark.test_all
def test_without_a_keeper_owners_serve_to_the_end_of_their_lease_and_no_longer(
    cluster: Cluster, target: Target
) -> None:
    with written(cluster, target) as flow:
        flow.await_more()
        cluster.keeper.kill()
        began = time.monotonic()
        try:
            last = began
            while time.monotonic() < last + 2 * cluster.session_timeout_s:
                assert time.monotonic() < began + LIMIT_S, "it is acknowledged all the time"
                if grows(flow):
                    last = time.monotonic()
        finally:
            cluster.keeper.start()
        flow.await_more()

    assert last - began < cluster.session_timeout_s + SLACK_S


def grows(flow: Flow, within_s: float = 0.5) -> bool:
    """Whether anything is acknowledged in that time."""
    before = flow.acknowledged()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if flow.acknowledged() != before:
            return True
        time.sleep(0.02)
    return False


# What monitoring says


@pytest.mark.test_all
def test_a_broker_without_a_session_is_live_and_not_ready(cluster: Cluster) -> None:
    def ready(broker: Broker) -> tuple[int, str]:
        return get(broker.http_url, "/ready")[:2]

    await_settled(cluster)
    broker = cluster.brokers[0]
    until(lambda: ready(broker)[0] == 200)
    sessions = value(broker.http_url, "brokerhouse_cluster_sessions_total")
    with cluster.keeper.paused():
        until(lambda: ready(broker) == (503, "this broker has no session\n"))
        assert get(broker.http_url, "/live").status == 200
        assert value(broker.http_url, "brokerhouse_cluster_session_valid") == 0
        assert value(broker.http_url, "brokerhouse_cluster_lease_seconds") == 0
    until(lambda: ready(broker)[0] == 200)
    assert value(broker.http_url, "brokerhouse_cluster_sessions_total") > sessions


@pytest.mark.test_all
def test_a_shard_that_does_not_answer_is_shown_by_metrics_and_by_check(cluster: Cluster) -> None:
    def shard_up(name: str) -> float:
        return value(cluster.brokers[0].http_url, "brokerhouse_cluster_shard_up", shard=name)

    engine, other = cluster.engines
    sizes = {broker.node_id: broker.log_size() for broker in cluster.brokers}
    began = time.monotonic()
    with engine.paused():
        until(lambda: shard_up(engine.name) == 0)
        until(lambda: shard_up(other.name) == 1)
    until(lambda: shard_up(engine.name) == 1)
    # It answers again, but it did not lately, and somebody has to know.
    failed = re.compile(r"(\S+): failed for broker (\d) (\d+) s ago, or .*")

    def has_said_so(node_id: int, url: str, ago_s: int, since_s: float) -> bool:
        start = sizes[node_id] if ago_s + 1 < since_s else 0
        said = cluster.brokers[node_id - 1].log(start, limit=1 << 24)
        return f"<ClickHouseServer {url}> is not used for" in said

    def failed_for() -> set[int]:
        """Brokers that have told of it. On a busy machine the other engine fails at times, too:
        for brokers that have said so in their logs, or for the check itself, which is repeated."""
        since_s = time.monotonic() - began  # it looks later than this
        checked = run("check", "--config", str(cluster.commands_path))
        told = set()
        for line in checked.stdout.splitlines():
            match = failed.fullmatch(line)
            if match and match[1] == engine.urls[0]:
                told.add(int(match[2]))
            elif match and match[1] in other.urls:
                assert has_said_so(int(match[2]), match[1], int(match[3]), since_s), checked
            elif any(url in line for url in other.urls):
                return set()
        assert checked.returncode == 1 or not told, checked
        return told

    until(lambda: failed_for() == NODES, "all brokers have told of it")
