"""The error that a client gets when a change of topics or configs fails.

If ClickHouse refuses a change (because of a full disk, for example), the client gets
UNKNOWN_SERVER_ERROR with ClickHouse's reason. Admin clients show that error at once. With a
retriable error they would repeat the request until their time is up.
"""

import logging

from protocol.errors import KafkaError, UnknownServerError
from storage.engine import EngineError

log = logging.getLogger(__name__)

Refusal = KafkaError | EngineError
REFUSALS = (KafkaError, EngineError)
"""For `except`: errors of one topic or resource, which do not stop the rest of the request."""


def as_kafka_error(error: Refusal) -> KafkaError:
    """The error to answer with."""
    if isinstance(error, KafkaError):
        return error
    log.error("ClickHouse refused a change of topics or configs: %s", error)
    return UnknownServerError(f"ClickHouse refused the change: {error}")
