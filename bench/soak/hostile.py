"""Clients that no broker wants: they never read, stop midway, or send compressed bombs.

They run in threads beside the soak. Whatever the broker does to them is right as long as everybody
else goes on, so the only thing they count is what they did.
"""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cache

from kafka.protocol.metadata import MetadataRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.support import messages
from tests.support.messages import Target
from tests.support.wire import Closed, Listening, Wire

_FETCH, _PRODUCE, _METADATA = 4, 9, 12
_SLOW_READERS = 30
_SLOW_READERS_STAY_S = 20.0
_BOMB_EVERY_S = 15.0
_BOMB_RECORDS, _BOMB_RECORD_BYTES = 50, 1_000_000
_CODECS = {
    "gzip": DefaultRecordBatchBuilder.CODEC_GZIP,
    "lz4": DefaultRecordBatchBuilder.CODEC_LZ4,
    "zstd": DefaultRecordBatchBuilder.CODEC_ZSTD,
}
_LIMIT_S = 60.0


class Hostile:
    """All of them. `close` ends them."""

    def __init__(self, broker: Listening, read: Target, bombed: Target, seed: int) -> None:
        """`read`: a topic with records; `bombed`: the topic that gets the bombs."""
        self.done: Counter[str] = Counter()
        self._broker = broker
        self._read = read
        self._bombed = bombed
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(what, every_s), daemon=True)
            for what, every_s in (
                (self._never_read, 1.0),
                (self._send_half_frames, 5.0),
                (self._send_bomb, _BOMB_EVERY_S),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(_LIMIT_S)

    def _repeat(self, what: Callable[[], None], every_s: float) -> None:
        while not self._stopped.wait(every_s):
            # The broker closes their connections, and is restarted.
            with suppress(OSError, Closed, AssertionError):
                what()

    def _never_read(self) -> None:
        """Each asks for much, several times, and reads nothing until it leaves."""
        with ExitStack() as open_ones:
            for n in range(_SLOW_READERS):
                wire = open_ones.enter_context(Wire(self._broker, receive_buffer_bytes=4096))
                for _ in range(n % 4 + 1):
                    fetch = messages.fetch(self._read, 0, partition_max_bytes=50 << 20)
                    wire.send_request(fetch, _FETCH)
                wire.send_request(MetadataRequest(topics=None), _METADATA)
                self.done["connections that read nothing"] += 1
            self._stopped.wait(_SLOW_READERS_STAY_S)

    def _send_half_frames(self) -> None:
        with ExitStack() as open_ones:
            for _ in range(_SLOW_READERS):
                wire = open_ones.enter_context(Wire(self._broker))
                wire.send(struct.pack(">i", 1 << 20) + bytes(self._chance.randrange(1 << 16)))
                self.done["connections with half a request"] += 1
            self._stopped.wait(_SLOW_READERS_STAY_S)

    def _send_bomb(self) -> None:
        """Batches of a few kilobytes; each holds 50 MB of zeros."""
        codec = self._chance.choice(sorted(_CODECS))
        with Wire(self._broker, limit_s=_LIMIT_S) as wire:
            request = messages.produce(self._bombed, bomb(codec))
            answer = wire.ask(request, _PRODUCE)
        code = answer.responses[0].partition_responses[0].error_code
        self.done[f"bombs answered with error {code}" if code else "bombs stored"] += 1


@cache
def bomb(codec: str) -> bytes:
    builder = DefaultRecordBatchBuilder(2, _CODECS[codec], False, -1, -1, -1, 1 << 30)
    for offset in range(_BOMB_RECORDS):
        builder.append(offset, 1_700_000_000_000, None, bytes(_BOMB_RECORD_BYTES), [])
    return bytes(builder.build())


def summary(done: Counter[str]) -> Sequence[str]:
    return [f"{count:,} {what}" for what, count in sorted(done.items())]
