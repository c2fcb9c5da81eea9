"""A cluster in the place of one broker, for tests that use the broker only as a client does.

Such a test gets the address of one of the brokers, which tells its client about the others. `use`
chooses the broker: the tests take turns, and a test that runs alone gets the same broker as in a
full run.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import Broker, Cluster
from tests.support.cluster_view import leaders
from tests.support.wire import Wire

_TOPIC = 2
_LIMIT_S = 60.0
_LOOK_AGAIN_S = 0.02


class ClusterBroker(BrokerProcess):
    """A running cluster with the interface of `BrokerProcess`, except `data_dir` and `http`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kafka = cluster.brokers[0].kafka

    def use(self, test: str) -> None:
        brokers = self.cluster.brokers
        self.kafka = brokers[zlib.crc32(test.encode()) % len(brokers)].kafka

    @property
    def running(self) -> bool:
        return all(part.running for part in self.cluster.parts)

    @property
    def data_dir(self) -> Path:  # type: ignore[override]
        raise AssertionError("the brokers of a cluster keep nothing themselves")

    @property
    def http(self) -> str:  # type: ignore[override]
        raise AssertionError("the brokers of a cluster have no SQL interface")

    def restart(self) -> None:
        """One after the other, so that clients notice nothing."""
        for broker in self.cluster.brokers:
            broker.restart()

    def await_topic(self, topic: str) -> None:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource])

        def described(broker: Broker) -> tuple[int, dict[str, str], int]:
            with Wire(broker) as wire:
                (result,) = wire.ask(request, 4).results
            configs = {one.name: one.value for one in result.configs or ()}
            return result.error_code, configs, len(leaders(broker, topic))

        deadline = time.monotonic() + _LIMIT_S
        while True:
            first, *others = [described(broker) for broker in self.cluster.brokers]
            if all(other == first for other in others):
                return
            assert time.monotonic() < deadline, f"the brokers do not agree on {topic}: {first}"
            time.sleep(_LOOK_AGAIN_S)

    def coordinator(self, group: str) -> tuple[int, str]:
        request = FindCoordinatorRequest(key=group, key_type=0)
        with Wire(self.cluster.brokers[0]) as wire:
            found = wire.ask(request, 3)
        return found.node_id, f"{found.host}:{found.port}"

    def sql(
        self,
        query: str,
        parameters: Mapping[str, str | int] | None = None,
        *,
        user: str | None = None,
        password: str = "",
    ) -> list[dict[str, Any]]:
        """The rows of all shards, one shard after the other.

        Rows that every shard has, such as topics, are returned once. A query that counts returns
        a row for each shard; HAVING leaves out shards without rows.
        """
        assert user is None, "queries to shards have their own user"
        texts = {name: str(value) for name, value in (parameters or {}).items()}
        answers = [engine.sql(query, texts) for engine in self.cluster.engines]
        if all(answer == answers[0] for answer in answers):
            return answers[0]
        return [row for answer in answers for row in answer]
