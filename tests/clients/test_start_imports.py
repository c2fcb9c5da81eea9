"""What a single broker imports: nothing of clusters, and nothing that feeds decode values with.

Imports are half of a start. What is imported later, the first client would wait for: so its
first records must find everything there.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from brokerhouse.common.text_table import word_set
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import until

NOT_IMPORTED = word_set("""
    brokerhouse.broker.cluster brokerhouse.storage.clickhouse brokerhouse.storage.shards
    clickhouse_connect fastavro google.protobuf kafka.admin kafka.consumer kafka.net kafka.producer
    msgpack pydantic_settings rich urllib3
""")
"""Packages and modules."""
LIMIT_S = 30

_MAIN = """
import json, os, signal, sys
def write_modules(*_):
    with open(path + ".new", "w") as file:
        json.dump(sorted(sys.modules), file)
    os.rename(path + ".new", path)
path = sys.argv.pop(1)
signal.signal(signal.SIGUSR1, write_modules)
from brokerhouse.broker.cli.main import main
main()
"""


class WatchedBroker(BrokerProcess):
    """Says which modules it has imported."""

    def command(self) -> Sequence[str]:
        whole = list(super().command())
        at = whole.index("-m")
        return [*whole[:at], "-c", _MAIN, str(self._modules), *whole[at + 2 :]]

    @property
    def _modules(self) -> Path:
        return self.data_dir.with_name("modules.json")

    def modules(self) -> set[str]:
        self._modules.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        until(self._modules.exists, "the list of modules")
        return set(json.loads(self._modules.read_text()))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedBroker]:
    broker = WatchedBroker(tmp_path / "data")
    broker.start()
    yield broker
    broker.stop()


def test_a_single_broker_imports_nothing_of_clusters_and_for_its_first_records_nothing_more(
    watched: WatchedBroker,
) -> None:
    at_start = watched.modules()
    parts_of = {
        name: [one for one in at_start if f"{one}.".startswith(f"{name}.")] for name in NOT_IMPORTED
    }
    assert {name: found for name, found in parts_of.items() if found} == {}
    with KafkaProducer(bootstrap_servers=watched.kafka) as producer:
        producer.send("first", b"record").get(timeout=LIMIT_S)
    with KafkaConsumer(
        "first", bootstrap_servers=watched.kafka, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        until(lambda: consumer.poll(1000), "the record", LIMIT_S)
    assert watched.modules() - at_start == set()
