"""What a broker logs about bad input: one line per connection that it closes, and no errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.broker_process import BrokerProcess
from tests.support.wire import Wire

DEFECT = re.compile(r"Traceback|\[(error|critical) |never (retrieved|awaited)")
_SHOWN_BYTES = 1 << 20


@contextmanager
def no_defects(broker: BrokerProcess) -> Iterator[None]:
    """Asserts that the broker logs no error of its own meanwhile."""
    before = broker.log_size()
    yield
    printed = broker.log(before, _SHOWN_BYTES)
    assert not DEFECT.search(printed), printed


def closing_reason(broker: BrokerProcess, data: bytes) -> str:
    """Send `data` on a new connection, which the broker must close; returns the reason it logs."""
    before = broker.log_size()
    with Wire(broker) as wire:
        host, port = wire.socket.getsockname()
        wire.send(data)
        assert wire.frames_until_closed() == []
    log = broker.log(before, _SHOWN_BYTES)
    (line,) = [line for line in log.splitlines() if f"{host}:{port} " in line]
    assert " closed: " in line
    return line.split(" closed: ")[1]
