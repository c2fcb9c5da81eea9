"""Changes of one topic, by the calls of a catalog that take many. They raise the error."""

from __future__ import annotations

from collections.abc import Mapping

from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.topics.catalog import NewTopic, TopicCatalog


async def create_topic(
    catalog: TopicCatalog, name: str, partitions: int, configs: Mapping[str, str]
) -> Topic:
    outcome = (await catalog.create_all([NewTopic(name, partitions, configs)]))[name]
    if not isinstance(outcome, Topic):
        raise outcome
    return outcome


async def delete_topic(catalog: TopicCatalog, topic: Topic) -> None:
    for error in (await catalog.delete_all([topic])).values():
        raise error


async def add_partitions(catalog: TopicCatalog, topic: Topic, total: int) -> Topic:
    outcome = (await catalog.add_partitions_to_all([(topic, total)]))[topic.topic_id]
    if not isinstance(outcome, Topic):
        raise outcome
    return outcome
