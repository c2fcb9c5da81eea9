"""Messages that kafka-python does not have, in the format of its own: a JSON file for each.

A class finds its file by its own name. kafka-python has no types, so mypy cannot check the classes.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class UnregisterBrokerRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Forget a broker that is gone for good (KIP-631)."""


class UnregisterBrokerResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Whether the broker was forgotten."""


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """A member of a group of the consumer protocol joins, stays or leaves (KIP-848)."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """What the member reads."""


class ShareGroupHeartbeatRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """A member of a share group joins, stays or leaves (KIP-932)."""


class ShareGroupHeartbeatResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """What the member reads."""
