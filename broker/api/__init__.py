"""One function per ApiKey, found by this table. The versions served: `protocol/versions.py`."""

from __future__ import annotations

from collections.abc import Mapping

from broker.api import (
    cluster,
    configs,
    coordinator,
    fetch,
    group_admin,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    producer,
    records,
    topics,
)
from broker.api.context import Handler
from protocol.versions import APIS, ApiKey

HANDLERS: Mapping[ApiKey, Handler] = {
    ApiKey.Produce: produce.produce,
    ApiKey.Fetch: fetch.fetch,
    ApiKey.ListOffsets: offsets.list_offsets,
    ApiKey.Metadata: metadata.metadata,
    ApiKey.OffsetCommit: group_offsets.offset_commit,
    ApiKey.OffsetFetch: group_offsets.offset_fetch,
    ApiKey.FindCoordinator: coordinator.find_coordinator,
    ApiKey.JoinGroup: groups.join_group,
    ApiKey.Heartbeat: groups.heartbeat,
    ApiKey.LeaveGroup: groups.leave_group,
    ApiKey.SyncGroup: groups.sync_group,
    ApiKey.DescribeGroups: group_admin.describe_groups,
    ApiKey.ListGroups: group_admin.list_groups,
    ApiKey.ApiVersions: metadata.api_versions,
    ApiKey.CreateTopics: topics.create_topics,
    ApiKey.DeleteTopics: topics.delete_topics,
    ApiKey.DeleteRecords: records.delete_records,
    ApiKey.InitProducerId: producer.init_producer_id,
    ApiKey.OffsetForLeaderEpoch: offsets.offset_for_leader_epoch,
    ApiKey.DescribeConfigs: configs.describe_configs,
    ApiKey.AlterConfigs: configs.alter_configs,
    ApiKey.DescribeLogDirs: cluster.describe_log_dirs,
    ApiKey.CreatePartitions: topics.create_partitions,
    ApiKey.DeleteGroups: group_admin.delete_groups,
    ApiKey.IncrementalAlterConfigs: configs.incremental_alter_configs,
    ApiKey.OffsetDelete: group_offsets.offset_delete,
    ApiKey.DescribeCluster: cluster.describe_cluster,
    ApiKey.ListConfigResources: configs.list_config_resources,
    ApiKey.DescribeTopicPartitions: metadata.describe_topic_partitions,
}

assert HANDLERS.keys() == APIS.keys(), "every API that is advertised has a handler, and no other"
