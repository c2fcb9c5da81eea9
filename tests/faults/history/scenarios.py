"""What may happen to one owner, step by step; each scenario returns the findings of its history.

Broker 1 reaches the engines through gates (`gate.py`), which delay an insert, its answer, or all
requests to the registry. The same scenarios show that the broker is correct, and that the checker
detects brokers that were broken on purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.faults.history.checker import Finding, Kind
from tests.faults.history.cluster_faults import ClusterSql
from tests.faults.history.gate import Gates, Held
from tests.faults.history.run import Workload, make_topic
from tests.faults.history.workers import Place
from tests.support.cluster_network import TESTS
from tests.support.cluster_processes import Broker, Cluster
from tests.support.waiting import until

PARTITIONS = 12
SEED = 1
LIMIT_S = 60.0
ENOUGH = 200
"""So many acknowledgements show that the clients are at work."""


@dataclass
class Stage:
    """A cluster whose first broker is behind gates, and clients at work on it."""

    cluster: Cluster
    gates: Gates
    workload: Workload
    topic: str

    @property
    def owner(self) -> Broker:
        """The broker behind the gates."""
        return self.cluster.brokers[0]

    @property
    def sql(self) -> ClusterSql:
        return ClusterSql(self.cluster.engines)

    def leaders(self) -> list[int]:
        """Of each partition, by a broker that is not the first; empty when it does not say."""
        admin = AdminClient({"bootstrap.servers": self.cluster.brokers[1].kafka, "log_level": 2})
        try:
            topics = admin.list_topics(self.topic, timeout=5.0).topics
        except KafkaException:
            return []
        partitions = topics[self.topic].partitions
        return [partitions[number].leader for number in sorted(partitions)]

    def await_progress(self) -> None:
        before = self.workload.acknowledged()
        until(lambda: self.workload.acknowledged() > before + ENOUGH, "acknowledged more")

    def await_owner(self) -> None:
        until(lambda: self.owner.node_id in self.leaders(), "led by the first broker, in part")

    def await_succession(self) -> None:
        """Wait until other brokers lead all partitions and acknowledge records."""

        def taken_over() -> bool:
            leaders = self.leaders()
            return bool(leaders) and not {self.owner.node_id, -1} & set(leaders)

        until(taken_over, "taken over by other brokers")
        self.await_progress()

    def hold_insert(self, *, answer: bool = False) -> Held:
        self.gates.hold_next(answers=answer)
        return self.gates.await_held()

    def findings(self) -> list[Finding]:
        return self.workload.finish(self.sql)


def a_late_insert(stage: Stage) -> list[Finding]:
    """The zombie: it wakes after its lease, and its insert arrives after the succession."""
    held = stage.hold_insert()
    stage.owner.pause()
    stage.await_succession()
    stage.workload.stop_sending()
    before = stage.sql.records(stage.topic)
    stage.owner.resume()
    held.release()
    held.await_answer()
    stage.await_owner()
    after = stage.sql.records(stage.topic)
    late = [
        Finding(Kind.PHANTOM, f"{record} came after the succession")
        for record in after
        if record not in before
    ]
    return [*late, *stage.findings()]


def an_insert_while_asleep(stage: Stage) -> list[Finding]:
    """The insert arrives before the succession, while its owner sleeps beyond its lease."""
    held = stage.hold_insert()
    stage.owner.pause()
    held.release()
    held.await_answer()
    stage.await_succession()
    stage.owner.resume()
    stage.await_owner()
    return stage.findings()


def a_late_answer(stage: Stage) -> list[Finding]:
    """The insert is stored, and its owner gets the answer when it wakes after its lease."""
    held = stage.hold_insert(answer=True)
    stage.owner.pause()
    held.await_answer()
    stage.await_succession()
    stage.owner.resume()
    held.release()
    stage.await_owner()
    return stage.findings()


def a_lost_answer(stage: Stage) -> list[Finding]:
    """The insert is stored, its owner gets no answer in time, and retries."""
    held = stage.hold_insert(answer=True)
    held.await_answer()
    held.await_given_up()
    stage.await_progress()
    stage.await_owner()
    stage.await_progress()
    held.release()
    return stage.findings()


def a_lost_insert(stage: Stage) -> list[Finding]:
    """Its owner dies, and nothing of the insert has arrived."""
    held = stage.hold_insert()
    # An acknowledgement that is sent too early leaves the broker meanwhile.
    stage.await_progress()
    while held.is_given_up():  # on a busy machine: the block was sent again, and has arrived
        held.drop()
        held = stage.hold_insert()
        stage.await_progress()
    stage.owner.kill()
    held.drop()
    stage.await_succession()
    stage.owner.start()
    return stage.findings()


def an_owner_without_registry(stage: Stage) -> list[Finding]:
    """The owner cannot renew its session, but could insert and answer."""
    stage.gates.hold_registry()
    stage.await_succession()
    stage.await_progress()
    stage.gates.release_registry()
    stage.await_owner()
    return stage.findings()


Scenario: TypeAlias = Callable[[Stage], list[Finding]]

SCENARIOS: list[Scenario] = [
    a_late_insert,
    an_insert_while_asleep,
    a_late_answer,
    a_lost_answer,
    a_lost_insert,
    an_owner_without_registry,
]


@contextmanager
def gated(cluster: Cluster, tree: Path) -> Iterator[Gates]:
    """Starts a cluster whose first broker is behind gates. `tree`: the code of its brokers."""
    gates = Gates(cluster.network.host(TESTS).address)
    try:
        urls = {url: gates.open_for(url) for engine in cluster.engines for url in engine.urls}
        config = cluster.write_config("gated.toml", replace=urls)
        cluster.brokers[0] = cluster.make_broker(1, config, tree=tree)
        cluster.start()
        yield gates
    finally:
        cluster.close()
        gates.close()


@contextmanager
def staged(cluster: Cluster, gates: Gates, topic: str, path: Path) -> Iterator[Stage]:
    """Clients at work on a topic of their own."""
    make_topic([broker.kafka for broker in cluster.brokers], topic, PARTITIONS)
    place = Place(cluster.bootstrap, topic, PARTITIONS)
    workload = Workload(place, path, SEED)
    try:
        workload.start()
        stage = Stage(cluster, gates, workload, topic)
        stage.await_progress()
        stage.await_owner()
        yield stage
    finally:
        workload.close()
