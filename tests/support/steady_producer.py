"""An idempotent producer that writes again and again, whatever happens to the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka

from tests.support.repeating import repeated

_EVERY_S = 0.01
_AT_ONCE = 5
_LIMIT_S = 120.0


@contextmanager
def producing(
    bootstrap: str,
    topic: str,
    record: Callable[[], tuple[str, str | bytes]],
    at_once: int = _AT_ONCE,
    every_s: float = _EVERY_S,
) -> Iterator[None]:
    """`record()` returns the next key and value. At the end all are acknowledged.

    Raises AssertionError if a record was refused.
    """
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )

    def told(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    def write() -> None:
        for _ in range(at_once):
            key, value = record()
            data = value if isinstance(value, bytes) else value.encode()
            while True:
                try:
                    producer.produce(topic, data, key=key.encode(), on_delivery=told)
                    break
                except BufferError:  # the broker is away, and the queue is full
                    producer.poll(every_s)
        producer.poll(0)

    with repeated(write, every_s):
        yield
    assert producer.flush(_LIMIT_S) == 0
    assert not failures
