"""The possible faults of each part of a cluster, for `nemesis.py`; and the cluster's tables."""

import random
import threading
from collections.abc import Sequence
from functools import partial

from tests.faults.history.history import Record
from tests.faults.history.nemesis import Fault, both
from tests.support.cluster_network import TESTS
from tests.support.cluster_processes import Broker, Cluster, Engine, Part

SOME_TIME_S = (0.5, 4.0)
SLOW_STOPPED_S, SLOW_RUNNING_S = 0.15, 0.03


def faults_of(cluster: Cluster) -> list[Fault]:
    """All that can be done to it, one at a time; the same for the same kind of network."""
    lease_s = cluster.session_timeout_s
    faults = [_end(cluster.keeper, weight=2), _pause(cluster.keeper, SOME_TIME_S, weight=2)]
    for engine in cluster.engines:
        faults += [_end(engine), _pause(engine, SOME_TIME_S), _slowness(engine)]
    for broker in cluster.brokers:
        own = frozenset({broker.name})
        faults += [
            _end(broker, brokers=own),
            _pause(broker, (1.5 * lease_s, 2.5 * lease_s), weight=2, brokers=own),
            Fault(f"stop {broker}", broker.stop, broker.start, SOME_TIME_S, brokers=own),
        ]
    everyone = frozenset(broker.name for broker in cluster.brokers)
    roll = partial(_roll, cluster.brokers)
    faults.append(Fault("rolling restart", roll, _nothing, (0.0, 0.0), brokers=everyone))
    if cluster.network.can_cut:
        faults += _cuts(cluster)
    return faults


def doubled(cluster: Cluster, seed: int) -> list[Fault]:
    """The faults, and as many again that are two at once; at most two brokers are down."""
    faults = faults_of(cluster)
    single = [fault for fault in faults if len(fault.brokers) < 2]
    chance = random.Random(seed)
    pairs: list[Fault] = []
    while len(pairs) < len(faults):
        one, other = chance.sample(single, 2)
        if not one.brokers & other.brokers and not _same_part(one, other):
            pairs.append(both(one, other))
    return [*faults, *pairs]


def _same_part(one: Fault, other: Fault) -> bool:
    """Whether both do something to one process, such as killing and pausing it."""
    return one.name.partition(" ")[2] == other.name.partition(" ")[2]


def _nothing() -> None:
    pass


def _end(part: Part, weight: int = 1, brokers: frozenset[str] = frozenset()) -> Fault:
    return Fault(f"kill {part}", part.kill, part.start, SOME_TIME_S, weight, brokers)


def _pause(
    part: Part,
    lasts_s: tuple[float, float],
    weight: int = 1,
    brokers: frozenset[str] = frozenset(),
) -> Fault:
    return Fault(f"pause {part}", part.pause, part.resume, lasts_s, weight, brokers)


def _slowness(part: Part) -> Fault:
    """Pause and resume the process repeatedly, so that it runs only for short times."""
    ended = threading.Event()
    thread: list[threading.Thread] = []

    def stutter() -> None:
        while not ended.is_set():
            part.pause()
            ended.wait(SLOW_STOPPED_S)
            part.resume()
            ended.wait(SLOW_RUNNING_S)

    def inject() -> None:
        ended.clear()
        thread.append(threading.Thread(target=stutter, daemon=True))
        thread[-1].start()

    def heal() -> None:
        ended.set()
        while thread:
            thread.pop().join()

    return Fault(f"slow {part}", inject, heal, SOME_TIME_S)


def _roll(brokers: Sequence[Broker]) -> None:
    for broker in brokers:
        broker.restart()


def _cuts(cluster: Cluster) -> list[Fault]:
    network = cluster.network
    lasts_s = (0.5, 2 * cluster.session_timeout_s)

    def cut(name: str, *pairs: tuple[str, str], both_ways: bool = True) -> Fault:
        def inject() -> None:
            for one, other in pairs:
                network.cut(one, other, both_ways=both_ways)

        return Fault(f"cut {name}", inject, network.heal, lasts_s)

    faults = []
    for engine in cluster.engines:
        keeper = cluster.keeper.host.name
        faults.append(cut(f"{engine} from the keeper", (engine.host.name, keeper)))
        first, second = [host.name for host in engine.hosts[:2]]
        for replica, host in (("first", first), ("second", second)):
            pairs = [(broker.host.name, host) for broker in cluster.brokers]
            faults.append(cut(f"the {replica} replica of {engine}", *pairs, both_ways=False))
        for broker in cluster.brokers:
            addresses = [(broker.host.name, host.name) for host in engine.hosts]
            answers = (engine.host.name, broker.host.name)
            faults.append(cut(f"{broker} from {engine}", *addresses))
            faults.append(cut(f"answers of {engine} to {broker}", answers, both_ways=False))
    for broker in cluster.brokers:
        own = broker.host.name
        faults.append(cut(f"clients from {broker}", (TESTS, own)))
        everybody = [(own, host.name) for engine in cluster.engines for host in engine.hosts]
        faults.append(cut(f"{broker} from everybody", (TESTS, own), *everybody))
    return faults


class ClusterSql:
    """The tables of all shards together."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    def records(self, topic: str) -> Sequence[Record]:
        rows = [
            Record(**row)
            for engine in self._engines
            for row in engine.sql(
                "SELECT partition, offset, value AS id, leader_epoch FROM messages"
                " WHERE topic = {topic:String}",
                {"topic": topic},
            )
        ]
        return sorted(rows)

    def committed(self, topic: str, group: str) -> dict[int, int]:
        return {
            row["partition"]: row["offset"]
            for engine in self._engines
            for row in engine.sql(
                "SELECT partition, offset FROM current_offsets"
                " WHERE topic = {topic:String} AND group_id = {group:String}",
                {"topic": topic, "group": group},
            )
        }
