"""A cluster of two shards and three brokers loses parts while many clients write and read.

The short run is part of `make test-all`. The long one is by hand, `make history SEED=7
MINUTES=10`: with two faults at a time, and as long as you like. A failure names its seed and where
its history is; `python -m tests.faults.history.checker FILE` checks that again."""

import os
import random
from pathlib import Path

import pytest

from tests.faults.history.cluster_faults import ClusterSql, doubled, faults_of
from tests.faults.history.conftest import MakeCluster
from tests.faults.history.nemesis import Step, play, schedule
from tests.faults.history.run import Workload, make_topic, shown
from tests.faults.history.workers import Place
from tests.support.cluster_processes import Cluster

PARTITIONS = 8
FAULTS_S = 14.0
SEED = 7514
"""Parts are killed, paused beyond a lease and cut off, a broker, a replica and the Keeper."""
ENOUGH = 2000


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    cluster = make_cluster()
    cluster.start()
    return cluster


def play_history(cluster: Cluster, topic: str, path: Path, seed: int, steps: list[Step]) -> None:
    print("\n".join([f"seed {seed}", *map(str, steps)]))
    make_topic([broker.kafka for broker in cluster.brokers], topic, PARTITIONS)
    workload = Workload(Place(cluster.bootstrap, topic, PARTITIONS), path, seed)
    try:
        workload.start()
        play(steps, workload.tell)
        workload.await_acknowledged(ENOUGH)
        findings = workload.finish(ClusterSql(cluster.engines))
    finally:
        workload.close()
    assert not findings, shown(findings, path, seed)


@pytest.mark.slow
def test_a_cluster_that_loses_nothing_serves_as_one(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    play_history(cluster, topic, tmp_path / "history.jsonl", 0, [])


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(SEED, id="fixed", marks=pytest.mark.test_all),
        pytest.param(random.randrange(2**32), id="random", marks=pytest.mark.slow),
    ],
)
def test_clients_of_a_cluster_that_loses_parts_lose_double_and_swap_nothing(
    cluster: Cluster, topic: str, tmp_path: Path, seed: int
) -> None:
    steps = schedule(faults_of(cluster), seed, FAULTS_S)
    play_history(cluster, topic, tmp_path / "history.jsonl", seed, steps)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_clients_of_a_cluster_that_loses_two_parts_at_a_time_for_long(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("HISTORY_SEED") or random.randrange(2**32))
    minutes = float(os.environ.get("HISTORY_MINUTES") or 5)
    steps = schedule(doubled(cluster, seed), seed, minutes * 60)
    play_history(cluster, topic, tmp_path / "history.jsonl", seed, steps)
