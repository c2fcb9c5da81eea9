"""The features of this broker: what ApiVersions lists and UpdateFeatures checks (KIP-584).

A feature has one level here and cannot be set to another: brokers of one version have no older
format to keep. The levels are those of Kafka 4.3, whose APIs this broker serves. Features of Kafka
that this broker does not have (the newer group protocols, share groups, eligible leader replicas)
are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METADATA = "metadata.version"
TRANSACTIONS = "transaction.version"

LEVELS: Mapping[str, int] = MappingProxyType(
    {
        METADATA: 30,  # 4.3-IV0
        TRANSACTIONS: 2,  # KIP-890: the epoch is bumped at the end of each transaction
    }
)
"""The level of each feature, which is the only one that is supported."""

EPOCH = 0
"""How often the levels have changed."""
