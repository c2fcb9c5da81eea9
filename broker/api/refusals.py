"""What stops a change of topics or configs, as the answer that the client gets.

A change that ClickHouse refuses (a full disk, for one) is answered with UNKNOWN_SERVER_ERROR and
ClickHouse's reason: admin clients show that to a person at once, while a code that stands for
something passing would have them repeat the request until their time is up.
"""

import logging

from protocol.errors import KafkaError, UnknownServerError
from storage.engine import EngineError

log = logging.getLogger(__name__)

Refusal = KafkaError | EngineError
REFUSALS = (KafkaError, EngineError)
"""For `except`: what one topic or resource fails with while the rest of the request goes on."""


def as_kafka_error(error: Refusal) -> KafkaError:
    """The error to answer with."""
    if isinstance(error, KafkaError):
        return error
    log.error("a change to the topics was refused by ClickHouse: %s", error)
    return UnknownServerError(f"ClickHouse refused the change: {error}")
