"""`/metrics` and health checks of the brokers of a cluster: what all of them say together."""

from functools import partial

import pytest
from confluent_kafka import Producer

from tests.clients.metrics_page import documented, shown
from tests.support import messages
from tests.support.cluster_processes import SLOTS, Broker, Cluster
from tests.support.cluster_view import coordinator, node, topic_on_all
from tests.support.messages import Target
from tests.support.prometheus import get, scraped, value
from tests.support.waiting import LIMIT_S, until
from tests.support.wire import Wire

PARTITIONS = 12
RECORDS = 2
"""In each partition."""
NODES = {1, 2, 3}


@pytest.fixture
def target(cluster: Cluster, topic: str) -> Target:
    """A topic with records in each partition; each broker leads some of them."""
    made = topic_on_all(cluster, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(PARTITIONS * RECORDS):
        producer.produce(made.name, b"value", partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0
    return made


def commit_nothing(cluster: Cluster, target: Target) -> None:
    """A group commits the first offset of each partition."""

    def committed() -> bool:
        with Wire(node(cluster, coordinator(cluster.brokers[0], "behind"))) as wire:
            offsets = dict.fromkeys(range(PARTITIONS), 0)
            answer = wire.ask(messages.commit("behind", (target, offsets)), 9)
        return {one.error_code for one in answer.topics[0].partitions} == {0}

    until(committed)
    expected = sorted((str(partition), RECORDS) for partition in range(PARTITIONS))
    until(lambda: lags(cluster, target.name) == expected, "each lag from one broker")


def lags(cluster: Cluster, topic: str) -> list[tuple[str, float]]:
    """The partition and the lag of each series that any broker shows."""
    return sorted(
        (dict(labels)["partition"], number)
        for broker in cluster.brokers
        for labels, number in scraped(broker.http_url)
        .get("brokerhouse_group_lag_records", {})
        .items()
        if dict(labels)["topic"] == topic
    )


def is_well(broker: Broker) -> bool:
    """A shard that answers nothing for a moment is away for a moment."""
    up = scraped(broker.http_url)["brokerhouse_cluster_shard_up"]
    return set(up.values()) == {1} and get(broker.http_url, "/ready").status == 200


def test_the_metrics_of_all_brokers_together_have_every_slot_and_every_record(
    cluster: Cluster, target: Target
) -> None:
    def of_all(name: str, **labels: str) -> float:
        return sum(value(broker.http_url, name, **labels) for broker in cluster.brokers)

    until(lambda: of_all("brokerhouse_cluster_slots", state="served") == SLOTS)
    for broker in cluster.brokers:
        until(partial(is_well, broker), f"{broker} is ready and has every shard")
        assert get(broker.http_url, "/live").status == 200
        found = scraped(broker.http_url)
        assert found["brokerhouse_cluster_slots_all"][()] == SLOTS
        assert found["brokerhouse_cluster_session_valid"][()] == 1
        assert 0 < found["brokerhouse_cluster_lease_seconds"][()] <= cluster.session_timeout_s
        assert found["brokerhouse_cluster_brokers"][()] == len(NODES)
        assert "brokerhouse_journal_waiting_rows" not in found
    records = PARTITIONS * RECORDS
    until(lambda: of_all("brokerhouse_partition_end_offset", topic=target.name) == records)


@pytest.mark.test_all
def test_the_leader_of_a_partition_shows_its_lag_whichever_broker_coordinates_the_group(
    cluster: Cluster, target: Target
) -> None:
    commit_nothing(cluster, target)


@pytest.mark.test_all
def test_every_metric_of_a_cluster_is_documented(cluster: Cluster, target: Target) -> None:
    commit_nothing(cluster, target)
    explained = documented("Every broker") | documented("A broker of a cluster")
    for broker in cluster.brokers:
        with Wire(broker) as wire:
            wire.ask(messages.fetch(target, 1000), 13)  # an error in any case
    pages = [shown(get(broker.http_url, "/metrics").text) for broker in cluster.brokers]
    assert all(page.keys() == explained.keys() for page in pages)
    # A metric without series has no labels.
    assert {name: max(page[name] for page in pages) for name in explained} == explained
