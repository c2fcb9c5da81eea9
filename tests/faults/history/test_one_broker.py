"""A single broker is killed, paused and stopped while many clients write and read."""

import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.faults.history.history import Record
from tests.faults.history.nemesis import Fault, play, schedule
from tests.faults.history.run import Workload, make_topic, shown
from tests.faults.history.workers import Place
from tests.support.broker_process import BrokerProcess

PARTITIONS = 4
FAULTS_S = 5.0

OwnBroker = Callable[..., BrokerProcess]


class BrokerSql:
    """The tables of a broker with the embedded engine."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def records(self, topic: str) -> Sequence[Record]:
        rows = self._broker.sql(
            "SELECT partition, offset, value AS id, leader_epoch FROM messages"
            " WHERE topic = {topic:String} ORDER BY partition, offset",
            {"topic": topic},
        )
        return [Record(**row) for row in rows]

    def committed(self, topic: str, group: str) -> dict[int, int]:
        rows = self._broker.sql(
            "SELECT partition, offset FROM current_offsets"
            " WHERE topic = {topic:String} AND group_id = {group:String}",
            {"topic": topic, "group": group},
        )
        return {row["partition"]: row["offset"] for row in rows}


def faults_of(broker: BrokerProcess) -> list[Fault]:
    def send(number: int) -> Callable[[], None]:
        return lambda: os.kill(broker.pid, number)

    return [
        Fault("kill the broker", broker.kill, broker.start, (0.0, 1.0)),
        Fault("stop the broker", broker.stop, broker.start, (0.0, 1.0)),
        Fault("pause the broker", send(signal.SIGSTOP), send(signal.SIGCONT), (0.5, 4.0)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [random.randrange(2**32)], ids=["random"])
def test_clients_of_a_broker_that_is_killed_and_paused_lose_double_and_swap_nothing(
    own_broker: OwnBroker, topic: str, tmp_path: Path, seed: int
) -> None:
    print("seed", seed)
    broker = own_broker(group_min_session_timeout_ms="500", group_initial_rebalance_delay_ms="0")
    make_topic([broker.kafka], topic, PARTITIONS)
    workload = Workload(Place(broker.kafka, topic, PARTITIONS), tmp_path / "history.jsonl", seed)
    try:
        workload.start()
        play(schedule(faults_of(broker), seed, FAULTS_S), workload.tell)
        findings = workload.finish(BrokerSql(broker))
    finally:
        workload.close()
    assert not findings, shown(findings, workload.path, seed)
