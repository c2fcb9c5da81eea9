"""Consumer groups of real clients for tests: members in processes of their own, records that flow.

Members that share a client share a process, except those that a test kills: each of these has its
own, so that after a kill -9 nothing can still leave the group properly.
"""

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import confluent_kafka
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.group_history import Event, History, Partition, event_from_json, violations
from tests.support.waiting import until

CLIENTS = ("kafka-python", "aiokafka", "confluent-kafka", "kafkajs", "java")
COOPERATIVE = ("kafka-python", "confluent-kafka", "java")
"""Clients that have the cooperative-sticky assignor."""
STATIC = ("kafka-python", "aiokafka", "confluent-kafka", "java")
"""Clients that have static members."""

LIMIT_S = 60.0
SESSION_TIMEOUT_MS = 45_000
"""Long enough that no live member is removed on a busy machine."""
HEARTBEAT_MS = 250
METADATA_MAX_AGE_MS = 500
TICK_S = 0.2
"""Between two records of a partition. At each tick all members commit, and that takes processor
time of the broker: at 0.05 s it was busy with nothing else, and joining took longer."""

_numbers = itertools.count(1)


class MemberProcess:
    """A process of one client, for any number of members."""

    def __init__(self, client: str, log_path: Path) -> None:
        self._histories: dict[str, History] = {}
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                _command(client),
                cwd=tools.PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands = self._process.stdin
        self._pump = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._pump.start()

    def join(self, member: str, history: History, **settings: Any) -> None:
        self._histories[member] = history
        self.tell("join", member, **settings)

    def tell(self, verb: str, member: str, **arguments: Any) -> None:
        command = {"verb": verb, "member": member, **arguments}
        self._commands.write(json.dumps(command) + "\n")
        self._commands.flush()

    def kill(self) -> None:
        """Returns when all events that the members reported before are in their histories."""
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._pump.join(LIMIT_S)
        for member, history in self._histories.items():
            history.add(Event("killed", member, time.monotonic_ns()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._pump.join(LIMIT_S)
        self._commands.close()

    def _read(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                event = event_from_json(json.loads(line))
                self._histories[event.member].add(event)


class MemberProcesses:
    """Starts processes when the first member needs them, and ends them all."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._shared: dict[str, MemberProcess] = {}
        self._alone: list[MemberProcess] = []
        self._groups: list[Group] = []

    def shared(self, client: str) -> MemberProcess:
        if client not in self._shared:
            self._shared[client] = MemberProcess(client, self._logs / f"{client}.log")
        return self._shared[client]

    def alone(self, client: str) -> MemberProcess:
        process = MemberProcess(client, self._logs / f"{client}.log")
        self._alone.append(process)
        return process

    def began(self, group: "Group") -> None:
        self._groups.append(group)

    def end_members(self) -> None:
        """Tell all members to leave, and do not wait: who stays goes on asking the broker."""
        for group in self._groups:
            group.tell_all_to_leave()
        for process in self._alone:
            process.close()
        self._groups, self._alone = [], []

    def close(self) -> None:
        for process in [*self._shared.values(), *self._alone]:
            process.close()


class Group:
    """A group of members of any clients that subscribe to the same topics."""

    def __init__(
        self,
        processes: MemberProcesses,
        address: str,
        name: str,
        partitions: Iterable[Partition],
        *,
        assignors: Sequence[str] = ("range",),
        pattern: str | None = None,
    ) -> None:
        """`pattern`: subscribe to the topics that match it, instead of those of `partitions`."""
        self.name = name
        self.history = History()
        self._address = address
        self.partitions = set(partitions)
        self._processes = processes
        self._members: dict[str, MemberProcess] = {}
        processes.began(self)
        self._settings = {
            "kafka": address,
            "group": name,
            "topics": sorted({topic for topic, _ in self.partitions}),
            "pattern": pattern,
            "assignors": list(assignors),
            "heartbeat_ms": HEARTBEAT_MS,
        }

    def join(
        self,
        client: str,
        *,
        alone: bool = False,
        commit: str = "sync",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance_id: str | None = None,
        metadata_max_age_ms: int = METADATA_MAX_AGE_MS,
    ) -> str:
        """Start a member and return its name; it may still be joining.

        `alone`: in a process of its own, to be killed. `commit`: sync, async, auto or before.
        """
        member = f"{client}-{next(_numbers)}"
        process = self._processes.alone(client) if alone else self._processes.shared(client)
        self._members[member] = process
        self.history.held[member] = set()
        settings = {
            **self._settings,
            "commit": commit,
            "session_timeout_ms": session_timeout_ms,
            "instance_id": instance_id,
            "metadata_max_age_ms": metadata_max_age_ms,
        }
        process.join(member, self.history, **settings)
        return member

    def tell_to_leave(self, member: str) -> None:
        """Tell the member to leave; does not wait until it has."""
        self._members.pop(member).tell("leave", member)

    def tell_all_to_leave(self) -> None:
        for member in list(self._members):
            with suppress(BrokenPipeError):  # its process has ended
                self.tell_to_leave(member)

    def leave(self, member: str) -> None:
        self.tell_to_leave(member)
        self.await_events(
            lambda: bool(self.history.events("left", "failed", member=member)), f"left: {member}"
        )

    def kill(self, member: str) -> None:
        self._members.pop(member).kill()

    def expect_failure(self, member: str) -> None:
        """From now on a failure of the member is expected."""
        del self._members[member]

    def seek(self, member: str, partition: Partition, offset: int) -> int:
        """Returns the time of the seek. A member seeks once."""
        topic, number = partition
        self._members[member].tell("seek", member, topic=topic, partition=number, to=offset)
        self.await_events(
            lambda: bool(self.history.events("sought", member=member)), f"sought: {member}"
        )
        return self.history.events("sought", member=member)[0].at_ns

    def await_settled(self) -> dict[str, set[Partition]]:
        """Wait until each member has partitions and each partition one owner; return them."""
        held = self.history.held

        def settled() -> bool:
            owned = [held[member] for member in self._members]
            return all(owned) and sorted(itertools.chain(*owned)) == sorted(self.partitions)

        self.await_events(settled, f"settled: {sorted(self._members)}")
        return {member: set(held[member]) for member in self._members}

    def await_stable(self) -> dict[str, set[Partition]]:
        """`await_settled`, and the broker says the same: no rebalance is under way.

        Members may have all partitions while a rebalance is about to take some from them.
        """
        admin = AdminClient({"bootstrap.servers": self._address})
        owned: dict[str, set[Partition]] = {}

        def agreed() -> bool:
            owned.clear()
            owned.update(self.await_settled())
            found = admin.describe_consumer_groups([self.name])[self.name].result(LIMIT_S)
            told = [
                sorted((one.topic, one.partition) for one in member.assignment.topic_partitions)
                for member in found.members
            ]
            return found.state is ConsumerGroupState.STABLE and sorted(told) == sorted(
                map(sorted, owned.values())
            )

        until(agreed, f"the broker says the same of {self.name}", LIMIT_S, every_s=0.1)
        return owned

    def await_processed(self, produced: Mapping[Partition, int]) -> None:
        """Until the first that many records of each partition were processed."""
        processed = self.history.processed

        def caught_up() -> bool:
            return all(
                len(processed.get(partition, ())) >= count for partition, count in produced.items()
            )

        self.await_events(caught_up, f"processed {dict(produced)}")

    def await_committed(self, produced: Mapping[Partition, int]) -> None:
        """Until the first that many records of each partition were committed."""
        if self.history.events("killed"):
            self._add_unreported_commits()
        committed = self.history.committed

        def caught_up() -> bool:
            return all(
                committed.get(partition, 0) >= count for partition, count in produced.items()
            )

        self.await_events(caught_up, f"committed {dict(produced)}")

    def _add_unreported_commits(self) -> None:
        """A member may have been killed after the broker took its commit, before it said so."""
        with KafkaAdminClient(bootstrap_servers=self._address) as admin:
            offsets = admin.list_group_offsets({self.name: None})[self.name]
        stored = {tuple(partition): offset.offset for partition, offset in offsets.items()}
        self.history.add(Event("stored", self.name, time.monotonic_ns(), ends=stored))

    def await_failure(self, member: str) -> Event:
        self.await_events(
            lambda: bool(self.history.events("failed", member=member)), f"failed: {member}"
        )
        return self.history.events("failed", member=member)[0]

    def changes(self, since_ns: int, *, member: str | None = None) -> list[Event]:
        """The events that gave partitions to members or took them away."""
        found = self.history.events(
            "assigned", "revoked", "lost", "failed", member=member, since_ns=since_ns
        )
        return [event for event in found if event.partitions or event.kind == "failed"]

    def violations(self, produced: Mapping[Partition, int]) -> list[str]:
        failed = [f"{event.member} failed: {event.error}" for event in self._failures()]
        return failed + violations(self.history.events(), produced)

    def _failures(self) -> list[Event]:
        return [event for event in self.history.failures if event.member in self._members]

    def await_events(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds, checked after each event; fails when a member fails."""

        def done() -> bool:
            failures = self._failures()
            assert not failures, failures
            return condition()

        self.history.wait_for(done, what, LIMIT_S)


class Flow:
    """A producer that writes a record to each partition at every tick."""

    def __init__(self, address: str, partitions: Iterable[Partition]) -> None:
        self._partitions = sorted(partitions)
        self._changed = threading.Condition()
        self._acknowledged: dict[Partition, int] = dict.fromkeys(self._partitions, 0)
        self._failed: list[str] = []
        self._stop = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 250,
                "log_level": 2,  # brokers end in some tests on purpose
            }
        )
        self._thread = threading.Thread(target=self._work, name="flow", daemon=True)
        self._thread.start()

    def acknowledged(self) -> dict[Partition, int]:
        """How many records of each partition are acknowledged by now: the end of its log."""
        with self._changed:
            return dict(self._acknowledged)

    def await_more(self) -> dict[Partition, int]:
        """Wait until each partition has a record that was acknowledged after this call."""
        before = self.acknowledged()

        def all_got_more() -> bool:
            now = self._acknowledged
            return all(now[partition] > count for partition, count in before.items())

        with self._changed:
            assert self._changed.wait_for(all_got_more, LIMIT_S), f"nothing is written: {before}"
        return self.acknowledged()

    def finish(self) -> dict[Partition, int]:
        """Stop writing. Returns how many records each partition has."""
        self._stop.set()
        self._thread.join(LIMIT_S)
        left = self._producer.flush(LIMIT_S)
        assert left == 0, f"{left} records without a delivery report"
        assert not self._failed, self._failed
        return self.acknowledged()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        self._producer.purge()
        self._producer.close()

    def _work(self) -> None:
        while not self._stop.wait(TICK_S):
            for topic, partition in self._partitions:
                self._producer.produce(
                    topic, b"record", partition=partition, on_delivery=self._delivered
                )
            self._producer.poll(0)

    def _delivered(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        with self._changed:
            if error is not None or topic is None or partition is None:
                self._failed.append(str(error))
                return
            # Of a duplicate librdkafka only knows that it is stored; reports are in order.
            known = self._acknowledged[topic, partition] if offset is None else offset
            self._acknowledged[topic, partition] = known + 1
            self._changed.notify_all()


@contextmanager
def flowing(address: str, partitions: Iterable[Partition]) -> Iterator[Flow]:
    flow = Flow(address, partitions)
    try:
        yield flow
    finally:
        flow.close()


def partitions_of(topic: str, count: int) -> list[Partition]:
    return [(topic, number) for number in range(count)]


def generation(broker: BrokerProcess, group: str) -> int:
    (row,) = broker.sql(
        "SELECT generation FROM consumer_groups WHERE group_id = {group:String}", {"group": group}
    )
    return int(row["generation"])


def _command(client: str) -> list[str]:
    if client == "java":
        return [*tools.java_command(), "GroupMembers"]
    if client == "kafkajs":
        node, helper = tools.node_command()
        return [node, str(Path(helper).with_name("group_member.js"))]
    return [sys.executable, "-m", "tests.support.group_member", client]
