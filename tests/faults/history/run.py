"""One history from beginning to end: start clients, inject faults, heal them, read everything.

`Workload` starts the clients of `workers.py`, stops them after the faults, and then reads the log
through Kafka and through SQL. `checker.py` checks the history."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.faults.history.checker import Finding, check
from tests.faults.history.history import (
    Event,
    Fault,
    History,
    Record,
    WholeGroup,
    WholeLog,
    now_ns,
)
from tests.faults.history.workers import (
    EndWatcher,
    Member,
    Place,
    Reader,
    Rereader,
    Sender,
    Worker,
    read_ends,
    read_whole_group,
    read_whole_log,
)
from tests.support.adapters import ConfluentKafka

SENDERS = 4
MEMBERS = 2
GROUP = "history"
SETTLE_LIMIT_S = 60.0
"""How long after the last fault the cluster may take to recover completely."""


class Sql(Protocol):
    """The tables below the topic, all shards together."""

    def records(self, topic: str) -> Sequence[Record]: ...

    def committed(self, topic: str, group: str) -> dict[int, int]: ...


def make_topic(addresses: Sequence[str], topic: str, partitions: int) -> None:
    """Returns when every broker knows it, and who leads each of its partitions."""
    ConfluentKafka().create_topic(addresses[0], topic, partitions)
    deadline = time.monotonic() + SETTLE_LIMIT_S
    for address in addresses:
        admin = AdminClient({"bootstrap.servers": address, "log_level": 2})
        while not _is_led(admin, topic, partitions):
            assert time.monotonic() < deadline, f"{address} does not know who leads {topic}"
            time.sleep(0.05)


def _is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    try:
        found = admin.list_topics(topic, timeout=10.0).topics[topic].partitions
    except KafkaException:
        return False  # the client is still connecting
    return len(found) == partitions and all(one.leader >= 0 for one in found.values())


class Workload:
    """Clients of one topic. Use: start, inject and heal faults, finish, findings."""

    def __init__(self, place: Place, path: Path, seed: int, *, per_second: int = 400) -> None:
        self._place = place
        self._history = History(path)
        self.path = path
        common = (place, self._history, seed)
        self._senders = [
            Sender(f"sender{n}", *common, per_second // SENDERS, SETTLE_LIMIT_S)
            for n in range(1, SENDERS + 1)
        ]
        self._reader = Reader("reader", *common)
        self._members = [Member(f"member{n}", *common, GROUP) for n in range(1, MEMBERS + 1)]
        self._others = [Rereader("rereader", *common), EndWatcher("watcher", *common)]
        self._workers: list[Worker] = [
            *self._senders,
            self._reader,
            *self._members,
            *self._others,
        ]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def tell(self, fault: str) -> None:
        self._history.add(Fault(now_ns(), fault))

    def acknowledged(self) -> int:
        """How many records so far."""
        return self._history.acknowledged

    def await_acknowledged(self, count: int) -> None:
        """So many in all; what does not come is for `finish` to tell."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while self.acknowledged() < count and time.monotonic() < deadline:
            time.sleep(0.05)

    def stop_sending(self) -> None:
        """Returns when every record that was sent has its outcome."""
        _close(self._senders, SETTLE_LIMIT_S)

    def finish(self, sql: Sql) -> list[Finding]:
        """After the faults: let all clients finish, and return the findings."""
        self.stop_sending()
        ends = read_ends(self._place, self._history, SETTLE_LIMIT_S)
        self._reader.stop_at(ends or {}, SETTLE_LIMIT_S)
        if ends is not None:
            read_whole_group(self._place, GROUP, ends, self._history, SETTLE_LIMIT_S)
        _close([self._reader, *self._members, *self._others], SETTLE_LIMIT_S)
        if ends is not None:
            read_whole_log(self._place, ends, self._history, SETTLE_LIMIT_S)
        topic = self._place.topic
        self._history.add(WholeLog(now_ns(), "SQL", tuple(sql.records(topic))))
        committed = sql.committed(topic, GROUP)
        self._history.add(WholeGroup(now_ns(), "SQL", GROUP, committed))
        return check(self.events())

    def events(self) -> list[Event]:
        return self._history.events()

    def close(self) -> None:
        """Stop all clients and complete the file, after a failure too."""
        for worker in self._workers:
            worker.stop()
        self._history.close()


def _close(workers: Sequence[Worker], limit_s: float) -> None:
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.close(limit_s + 30)


def shown(findings: Sequence[Finding], path: Path, seed: int) -> str:
    """What a failed test says: the findings, and how to see them again."""
    return "\n".join([f"seed {seed}, history {path}", *map(str, findings)])
