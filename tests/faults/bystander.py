"""A well-behaved client beside clients that misbehave: it fails if they disturb it.

It writes one record after the other with acks=all and reads each back. Whatever other clients do,
its offsets must be dense, it must read its own records, and no answer may take long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.record_batches import Record, batch_of, decoded
from tests.support.wire import Wire

_PAUSE_S = 0.1
"""Far shorter than an answer that takes too long. Without a pause it takes half a processor."""


class Bystander:
    """Works in a thread during a `with` block; the end of the block raises its error."""

    def __init__(self, broker: BrokerProcess, topic: str, *, slowest_s: float = 5.0) -> None:
        """`slowest_s`: an answer that takes longer is an error."""
        self._wire = Wire(broker)
        self._target = messages.create_topic(self._wire, topic)
        self._allowed_s = slowest_s
        self._begun = threading.Event()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="bystander", daemon=True)
        self.stored = 0
        self.slowest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(30), "the bystander does not begin"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        self._wire.close()
        assert not self._thread.is_alive(), "the bystander hangs"
        if error is not None:
            return
        if self._error is not None:
            raise AssertionError(f"the bystander failed: {self._error!r}") from self._error

    def _work(self) -> None:
        try:
            self._write_and_read_in_time()
            self._begun.set()
            while not self._stop.wait(_PAUSE_S):
                self._write_and_read_in_time()
            self._write_and_read_in_time()
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()

    def _write_and_read_in_time(self) -> None:
        began = time.monotonic()
        self._write_and_read()
        took_s = time.monotonic() - began
        self.slowest_s = max(self.slowest_s, took_s)
        assert took_s < self._allowed_s, f"a write and a read took {took_s:.1f} s"

    def _write_and_read(self) -> None:
        value = b"record %d" % self.stored
        batch = batch_of(Record(value=value), max_timestamp=messages.TIME_MS).data
        written = self._wire.ask(messages.produce(self._target, batch), 9)
        partition = written.responses[0].partition_responses[0]
        assert partition.error_code == 0, f"error {partition.error_code}"
        assert partition.base_offset == self.stored, "offsets are not dense"
        read = self._wire.ask(messages.fetch(self._target, self.stored), 12)
        (row,) = decoded(read.responses[0].partitions[0].records)
        assert row.value == value, "read something that it did not write"
        self.stored += 1


@contextmanager
def undisturbed(broker: BrokerProcess, topic: str) -> Iterator[Bystander]:
    """A bystander with a topic of its own works meanwhile."""
    with Bystander(broker, f"{topic}-bystander") as bystander:
        yield bystander
