"""What a client may do with a resource: the AclOperations of KIP-430, each a bit in the answer.

There is no authorizer yet, so everything is allowed. Kafka answers the same without an authorizer.
"""

from kafka.protocol.admin import ACLOperation

TOPIC_OPERATIONS: set[int] = {
    ACLOperation.READ,
    ACLOperation.WRITE,
    ACLOperation.CREATE,
    ACLOperation.DELETE,
    ACLOperation.ALTER,
    ACLOperation.DESCRIBE,
    ACLOperation.DESCRIBE_CONFIGS,
    ACLOperation.ALTER_CONFIGS,
}
CLUSTER_OPERATIONS: set[int] = {
    ACLOperation.CREATE,
    ACLOperation.ALTER,
    ACLOperation.DESCRIBE,
    ACLOperation.CLUSTER_ACTION,
    ACLOperation.DESCRIBE_CONFIGS,
    ACLOperation.ALTER_CONFIGS,
    ACLOperation.IDEMPOTENT_WRITE,
}
GROUP_OPERATIONS: set[int] = {
    ACLOperation.READ,
    ACLOperation.DESCRIBE,
    ACLOperation.DELETE,
    ACLOperation.DESCRIBE_CONFIGS,
    ACLOperation.ALTER_CONFIGS,
}
NOT_ASKED: set[int] = {31}
"""The bit that means "not requested": the field is -2147483648 on the wire."""
