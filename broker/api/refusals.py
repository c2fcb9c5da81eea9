"""The error that a client gets when a change of topics or configs fails.

On a full disk the client gets KAFKA_STORAGE_ERROR and what to do. If ClickHouse or Keeper does not
answer in time, it gets REQUEST_TIMED_OUT, and asks again. If ClickHouse refuses a change for
another reason, the client gets UNKNOWN_SERVER_ERROR with that reason. Admin clients show this error
at once. With a retriable error they would repeat the request until their time is up.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from brokerhouse.common.counted_lines import counted
from brokerhouse.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
    UnknownServerError,
)
from brokerhouse.storage.disk_reserve import NOT_ENOUGH_SPACE
from brokerhouse.storage.engine import EngineError

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_ANSWER = frozenset({0, 159, 209, 210, 225, 999})
"""No answer at all; TIMEOUT_EXCEEDED, SOCKET_TIMEOUT, NETWORK_ERROR, NO_ZOOKEEPER, KEEPER_EXCEPTION
(https://clickhouse.com/docs, system.errors)."""
Refusal = KafkaError | EngineError
REFUSALS = (KafkaError, EngineError)
"""For `except`: errors of one topic or resource, which do not stop the rest of the request."""


async def in_time(timeout_ms: int, change: Awaitable[T]) -> T:
    """The result of a change of topics, which must go on if it is not awaited any more.

    Raises `RequestTimedOut` after `timeout_ms`. A client that does not want to wait sends 0.
    """
    try:
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            return await change
    except TimeoutError:
        raise RequestTimedOut(
            "The request timed out before the change was done. The change continues."
        ) from None


def as_kafka_error(error: Refusal) -> KafkaError:
    """The error to answer with."""
    if isinstance(error, KafkaError):
        return error
    log.error(
        "cannot store a change of topics or configs, or its outcome is unknown: %s",
        error,
        extra=counted(),
    )
    if error.code in _NO_ANSWER:
        return RequestTimedOut(str(error))
    if error.code == NOT_ENOUGH_SPACE:
        return KafkaStorageError(str(error))
    return UnknownServerError(f"ClickHouse refused the change: {error}")
