"""The one table of Kafka APIs: which are served, with which message classes, in which versions.

What is in the table is answered by a handler in `broker/api/` and tested with real clients; what
is not is absent from ApiVersions too. The ranges are those of Apache Kafka 4 brokers: versions
that Kafka 4.0 dropped (KIP-896) are dropped here, versions that Kafka itself calls unstable
(InitProducerId 6) are not served. JoinGroup 0 and 1 are of the versions that 4.0.1 took back
(KAFKA-19444).

`advertised_min` differs from `min_version` for one API. librdkafka has long looked for
Produce versions 0 to 2 to find out what a broker can do, so Kafka 4 goes on listing them although
it answers none (KAFKA-18659), and so does this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.api_key import ApiKey
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

__all__ = ["APIS", "Api", "ApiKey", "served"]


@dataclass(frozen=True, slots=True)
class Api:
    """One row: message classes and the first and last version that is answered."""

    key: ApiKey
    request: type[ApiMessage]
    response: type[ApiMessage]
    min_version: int
    max_version: int
    advertised_min: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def has_error_code(self, version: int) -> bool:
        """Whether the response itself, not only its parts, has an error code in this version."""
        return any(
            field.name == "error_code" and field.for_version_q(version)
            for field in self.response._struct._fields
        )


def _api(
    key: ApiKey,
    request: type[ApiMessage],
    response: type[ApiMessage],
    versions: tuple[int, int],
    advertised_min: int | None = None,
) -> Api:
    first, last = versions
    return Api(
        key, request, response, first, last, first if advertised_min is None else advertised_min
    )


_TABLE = (
    _api(ApiKey.Produce, ProduceRequest, ProduceResponse, (3, 13), advertised_min=0),
    _api(ApiKey.Fetch, FetchRequest, FetchResponse, (4, 18)),
    _api(ApiKey.ListOffsets, ListOffsetsRequest, ListOffsetsResponse, (1, 11)),
    _api(ApiKey.Metadata, MetadataRequest, MetadataResponse, (0, 13)),
    _api(ApiKey.OffsetCommit, OffsetCommitRequest, OffsetCommitResponse, (2, 10)),
    _api(ApiKey.OffsetFetch, OffsetFetchRequest, OffsetFetchResponse, (1, 10)),
    _api(ApiKey.FindCoordinator, FindCoordinatorRequest, FindCoordinatorResponse, (0, 6)),
    _api(ApiKey.JoinGroup, JoinGroupRequest, JoinGroupResponse, (0, 9)),
    _api(ApiKey.Heartbeat, HeartbeatRequest, HeartbeatResponse, (0, 4)),
    _api(ApiKey.LeaveGroup, LeaveGroupRequest, LeaveGroupResponse, (0, 5)),
    _api(ApiKey.SyncGroup, SyncGroupRequest, SyncGroupResponse, (0, 5)),
    _api(ApiKey.DescribeGroups, DescribeGroupsRequest, DescribeGroupsResponse, (0, 6)),
    _api(ApiKey.ListGroups, ListGroupsRequest, ListGroupsResponse, (0, 5)),
    _api(ApiKey.ApiVersions, ApiVersionsRequest, ApiVersionsResponse, (0, 4)),
    _api(ApiKey.CreateTopics, CreateTopicsRequest, CreateTopicsResponse, (2, 7)),
    _api(ApiKey.DeleteTopics, DeleteTopicsRequest, DeleteTopicsResponse, (1, 6)),
    _api(ApiKey.DeleteRecords, DeleteRecordsRequest, DeleteRecordsResponse, (0, 2)),
    _api(ApiKey.InitProducerId, InitProducerIdRequest, InitProducerIdResponse, (0, 5)),
    _api(
        ApiKey.OffsetForLeaderEpoch,
        OffsetForLeaderEpochRequest,
        OffsetForLeaderEpochResponse,
        (2, 4),
    ),
    _api(ApiKey.DescribeConfigs, DescribeConfigsRequest, DescribeConfigsResponse, (1, 4)),
    _api(ApiKey.AlterConfigs, AlterConfigsRequest, AlterConfigsResponse, (0, 2)),
    _api(ApiKey.DescribeLogDirs, DescribeLogDirsRequest, DescribeLogDirsResponse, (1, 5)),
    _api(ApiKey.CreatePartitions, CreatePartitionsRequest, CreatePartitionsResponse, (0, 3)),
    _api(ApiKey.DeleteGroups, DeleteGroupsRequest, DeleteGroupsResponse, (0, 2)),
    _api(
        ApiKey.IncrementalAlterConfigs,
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResponse,
        (0, 1),
    ),
    _api(ApiKey.OffsetDelete, OffsetDeleteRequest, OffsetDeleteResponse, (0, 0)),
    _api(ApiKey.DescribeCluster, DescribeClusterRequest, DescribeClusterResponse, (0, 2)),
    _api(
        ApiKey.ListConfigResources, ListConfigResourcesRequest, ListConfigResourcesResponse, (0, 1)
    ),
    _api(
        ApiKey.DescribeTopicPartitions,
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        (0, 0),
    ),
)

APIS: Mapping[ApiKey, Api] = MappingProxyType({api.key: api for api in _TABLE})
"""By ascending key, as ApiVersions lists them."""


def served(api_key: int, api_version: int) -> Api | None:
    """The row for a request header's key, where that version of it is answered."""
    try:
        api = APIS.get(ApiKey(api_key))
    except ValueError:
        return None
    return api if api is not None and api.serves(api_version) else None
