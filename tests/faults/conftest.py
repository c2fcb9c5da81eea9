"""A cluster for the applications that run while its brokers are killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_broker import ClusterBroker
from tests.support.cluster_processes import Cluster

SESSION_TIMEOUT_MS = 10_000
"""The applications keep both cores of a small machine busy."""


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
