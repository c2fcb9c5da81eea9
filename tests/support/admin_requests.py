"""Sends the requests of admin clients in any version, and the error codes that answers may have."""

import socket
import struct
import uuid
from typing import Any

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey

LIMIT_S = 30.0
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
NO_ID = uuid.UUID(int=0)

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
UNSUPPORTED_VERSION = 35
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
REQUEST_TIMED_OUT = 7
UNKNOWN_TOPIC_ID = 100
MISMATCHED_ENDPOINT_TYPE = 114
UNSUPPORTED_ENDPOINT_TYPE = 115

CreateTopics = APIS[ApiKey.CreateTopics].request
DeleteTopics = APIS[ApiKey.DeleteTopics].request
CreatePartitions = APIS[ApiKey.CreatePartitions].request
Metadata = APIS[ApiKey.Metadata].request
DescribeConfigs = APIS[ApiKey.DescribeConfigs].request
AlterConfigs = APIS[ApiKey.AlterConfigs].request
IncrementalAlterConfigs = APIS[ApiKey.IncrementalAlterConfigs].request
DescribeTopicPartitions = APIS[ApiKey.DescribeTopicPartitions].request
DescribeLogDirs = APIS[ApiKey.DescribeLogDirs].request


class AdminWire:
    """One connection that sends requests in any version."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        self._correlation_id = 0

    def ask(self, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
        """Send one request in `version` (the newest unless given) and decode its answer."""
        api = APIS[key]
        version = api.max_version if version is None else version
        self._correlation_id += 1
        request = api.request(version=version, **fields)
        request.with_header(correlation_id=self._correlation_id, client_id="wire")
        self._socket.sendall(bytes(request.encode(header=True, framed=True)))
        answer = api.response.decode(self.receive(), version=version, header=True)
        assert answer.header.correlation_id == self._correlation_id
        return answer

    def send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


def new_topic(name: str, partitions: int = -1, factor: int = -1, **more: Any) -> Any:
    """A topic for CreateTopics; `configs` as a dict, `assignments` as lists of broker ids."""
    return CreateTopics.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreateTopics.CreatableTopic.CreatableReplicaAssignment(
                partition_index=index, broker_ids=brokers
            )
            for index, brokers in more.get("assignments", [])
        ],
        configs=[
            CreateTopics.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in more.get("configs", {}).items()
        ],
    )


def create(
    wire: AdminWire,
    *topics: Any,
    version: int = 7,
    validate_only: bool = False,
    timeout_ms: int = 10_000,
) -> list[Any]:
    answer = wire.ask(
        ApiKey.CreateTopics,
        version,
        topics=list(topics),
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    return list(answer.topics)


def codes(results: list[Any]) -> list[int]:
    return [result.error_code for result in results]


def asked(*names: str | None, topic_id: uuid.UUID | None = None) -> list[Any]:
    return [Metadata.MetadataRequestTopic(name=name, topic_id=topic_id) for name in names]


def metadata(wire: AdminWire, topics: list[Any] | None, version: int = 13, **fields: Any) -> Any:
    fields.setdefault("allow_auto_topic_creation", False)
    return wire.ask(ApiKey.Metadata, version, topics=topics, **fields)


def describe(
    wire: AdminWire, kind: int, name: str, keys: list[str] | None = None, **more: Any
) -> Any:
    resource = DescribeConfigs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return wire.ask(ApiKey.DescribeConfigs, resources=[resource], **more).results[0]


def values(wire: AdminWire, topic: str) -> dict[str, str]:
    """The overrides of a topic."""
    configs = describe(wire, TOPIC, topic).configs
    return {entry.name: entry.value for entry in configs if entry.config_source == 1}


def alter(
    wire: AdminWire, kind: int, name: str, *steps: tuple[str, int, str | None], **more: Any
) -> Any:
    resource = IncrementalAlterConfigs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigs.AlterConfigsResource.AlterableConfig(
                name=key, config_operation=operation, value=value
            )
            for key, operation, value in steps
        ],
    )
    more.setdefault("validate_only", False)
    return wire.ask(ApiKey.IncrementalAlterConfigs, resources=[resource], **more).responses[0]


def delete(
    wire: AdminWire, *topics: tuple[str | None, uuid.UUID | None], timeout_ms: int = 10_000
) -> list[Any]:
    states = [DeleteTopics.DeleteTopicState(name=name, topic_id=id_) for name, id_ in topics]
    return list(wire.ask(ApiKey.DeleteTopics, topics=states, timeout_ms=timeout_ms).responses)
