"""A broker that tests end and start again, and a cluster for applications."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.cluster_broker import ClusterBroker
from tests.support.cluster_processes import Cluster

SESSION_TIMEOUT_MS = 10_000
"""The applications keep both cores of a small machine busy."""


@pytest.fixture(scope="session")
def _restarted_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(
        tmp_path_factory.mktemp("restarted") / "data",
        {
            "retention_check_interval_ms": "100",
            "group_min_session_timeout_ms": "500",
            "group_initial_rebalance_delay_ms": "0",
        },
    )
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def restarted_broker(_restarted_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """One broker for all tests that end it, start it again, and use topics of their own."""
    yield _restarted_broker
    if not _restarted_broker.running:
        _restarted_broker.start()


@pytest.fixture
def app_cluster(tmp_path: Path) -> Iterator[ClusterBroker]:
    """Three brokers in front of two shards, of one test; `kafka` is the addresses of all three."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    made = Cluster(directory, session_timeout_ms=SESSION_TIMEOUT_MS)
    try:
        made.start()
        broker = ClusterBroker(made)
        broker.kafka = made.bootstrap
        yield broker
    finally:
        made.close()
