"""Which errors of Kafka pass by themselves, how long they are waited for, and how they read."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5


def repeated(
    attempt: Callable[[], T],
    timeout_s: float,
    before_retry: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `attempt` returns, tried again while it fails in a way that may pass.

    When `timeout_s` is over the last error is raised; `last_broker_error` finds what a broker said.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    said: BaseException | None = None
    while True:
        try:
            return attempt()
        except Exception as error:
            if not may_pass(error):
                raise
            if _says_something(error):
                said = error
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise as_kafka_error(said or error) from error
        sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        before_retry()


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later, or at another broker."""
    from kafka import errors

    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return False
    # A broker is unknown while nobody leads a partition: its leader is -1 then.
    passing = (errors.RetriableError, errors.UnknownBrokerIdError, OSError)
    return isinstance(error, passing)


def is_of_coordinator(error: Any) -> bool:
    """Whether a class of errors says that another broker coordinates the group, or soon will."""
    from kafka import errors

    moved = (
        errors.NotCoordinatorError,
        errors.CoordinatorNotAvailableError,
        errors.CoordinatorLoadInProgressError,
    )
    return isinstance(error, type) and issubclass(error, moved)


def _says_something(error: Exception) -> bool:
    """Not that a broker is not asked again yet, or that it is none."""
    from kafka import errors

    return not isinstance(error, errors.NodeNotReadyError | errors.UnknownBrokerIdError)


def as_kafka_error(error: BaseException) -> BaseException:
    """The error, or the same as one of Kafka's client's."""
    from kafka.errors import KafkaConnectionError

    return KafkaConnectionError(str(error)) if isinstance(error, OSError) else error


def last_broker_error(error: BaseException) -> BaseException:
    """The error of a broker among an error and its causes; the error itself if there is none."""
    from kafka.errors import BrokerResponseError

    found: BaseException | None = error
    while found is not None and not isinstance(found, BrokerResponseError):
        found = found.__cause__
    return found or error


def explained(error: Any, said: str | None = None) -> str:
    """What a broker said of an error, or else Kafka's description of it, and its name."""
    return f"{(said or error.description or '').rstrip('.')} ({error.message})"
