"""The topics of a group's offsets, as OffsetCommit and OffsetFetch name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.api.topic_lookup import readable_topic
from brokerhouse.protocol.errors import OffsetMetadataTooLarge

BY_ID = 10
"""The version from which OffsetCommit and OffsetFetch name topics by id (KIP-848)."""
GROUP_DECIDES = frozenset({0, OffsetMetadataTooLarge.code})
"""Codes of partitions that exist. An error of the group takes their place in the answer to a
commit; the group is not asked about a commit without such a partition."""


async def look_for_topics(ctx: RequestContext, topics: Sequence[Any]) -> None:
    """Read the catalog again if a topic is unknown: another broker may just have created it.

    Some clients treat an unknown topic as a fatal error.
    """
    by_id = ctx.version >= BY_ID
    if any(
        readable_topic(ctx, topic.topic_id if by_id else topic.name) is None for topic in topics
    ):
        await ctx.broker.topics.look_again()
