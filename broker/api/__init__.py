"""One function per ApiKey, found by this table. The versions served: `protocol/versions.py`."""

from __future__ import annotations

from collections.abc import Mapping

from broker.api import (
    cluster,
    configs,
    coordinator,
    fetch,
    metadata,
    offsets,
    produce,
    producer,
    topics,
)
from broker.api.context import Handler
from protocol.versions import APIS, ApiKey

HANDLERS: Mapping[ApiKey, Handler] = {
    ApiKey.Produce: produce.produce,
    ApiKey.Fetch: fetch.fetch,
    ApiKey.ListOffsets: offsets.list_offsets,
    ApiKey.Metadata: metadata.metadata,
    ApiKey.FindCoordinator: coordinator.find_coordinator,
    ApiKey.ApiVersions: metadata.api_versions,
    ApiKey.CreateTopics: topics.create_topics,
    ApiKey.DeleteTopics: topics.delete_topics,
    ApiKey.InitProducerId: producer.init_producer_id,
    ApiKey.OffsetForLeaderEpoch: offsets.offset_for_leader_epoch,
    ApiKey.DescribeConfigs: configs.describe_configs,
    ApiKey.AlterConfigs: configs.alter_configs,
    ApiKey.DescribeLogDirs: cluster.describe_log_dirs,
    ApiKey.CreatePartitions: topics.create_partitions,
    ApiKey.IncrementalAlterConfigs: configs.incremental_alter_configs,
    ApiKey.DescribeCluster: cluster.describe_cluster,
    ApiKey.ListConfigResources: configs.list_config_resources,
    ApiKey.DescribeTopicPartitions: metadata.describe_topic_partitions,
}

assert HANDLERS.keys() == APIS.keys(), "every API that is advertised has a handler, and no other"
