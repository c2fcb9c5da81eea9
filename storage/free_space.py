"""Watches the free space on the disk, because chDB does not notice a full disk.

chDB 4.4 ignores a failed write() (in chdb-core's WriteBufferFromFileDescriptor.cpp the exception is
commented out). An insert or a merge on a full disk makes a part without its data and succeeds. But
chDB counts the writes that failed, and it refuses an insert that it cannot reserve space for. So:

* the engine never reserves the last `KEEP_FREE_BYTES` (engine_config.xml): inserts are refused,
  with an error, before the disk is full;
* merges stop below `LOW_BYTES`: other programs may fill the disk while a merge runs, and its result
  replaces the parts that it was made from. While deleting uses the reserve (disk_reserve.py), they
  stop below `KEEP_FREE_BYTES` only: rows leave the disk when parts are written without them;
* an insert that ends while the disk is low counts as stored only if no write failed meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from brokerhouse.storage.disk_reserve import KEEP_FREE_BYTES, LOW_BYTES, DiskReserve
from brokerhouse.storage.engine import StorageFault

log = logging.getLogger(__name__)

PEOPLE_KEEP_FREE_BYTES = 2 * LOW_BYTES
"""Free space that people's SQL leaves alone: the log stops merging below LOW_BYTES."""
_LOOK_EVERY_S = 1.0
_COUNT_EVERY_S = 10.0
FAILED_WRITES = (
    "SELECT sum(value) FROM system.events WHERE event = 'WriteBufferFromFileDescriptorWriteFailed'"
)
"""How many writes of an engine have failed since its start."""


class FreeSpace:
    """Watches the disk of one engine, in its own thread, until `close`."""

    def __init__(self, directory: Path, handle: Any, reserve: DiskReserve) -> None:
        """`handle`: a connection to the engine that nobody else uses."""
        self._directory = directory
        self._reserve = reserve
        self._handle = handle
        self._failed_writes = self._count_failed_writes(handle)
        self._count_at_s = 0.0
        self._merging = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="free-space", daemon=True)
        self._thread.start()

    def failed_writes(self, handle: Any) -> int:
        """How many writes have failed: exact on a low disk (0.8 ms), otherwise up to 10 s old."""
        return self._count_failed_writes(handle) if self._is_low() else self._failed_writes

    def check_insert(self, handle: Any, failed_before: int) -> None:
        """Raises `StorageFault` if a write of the insert that just ended may be lost."""
        if self._is_low() and self._count_failed_writes(handle) > failed_before:
            raise StorageFault(
                f"the disk of {self._directory} was full while a block was written: "
                "make room and start the broker again"
            )

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._handle.close()

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                self._look()
            except (OSError, RuntimeError):
                log.exception("bug: the broker no longer checks the free disk space; restart it")
                return

    def _look(self) -> None:
        self._hold_reserve()
        free = self._free_bytes()
        stop_below = LOW_BYTES if self._reserve.is_held else KEEP_FREE_BYTES
        start_above = 2 * LOW_BYTES if self._reserve.is_held else KEEP_FREE_BYTES
        if self._merging and free < stop_below:
            self._handle.query("SYSTEM STOP MERGES", "Null")
            self._merging = False
            log.error("%s has only %d MB left: merges stop", self._directory, free >> 20)
        elif not self._merging and free > start_above:
            self._handle.query("SYSTEM START MERGES", "Null")
            self._merging = True
            log.info("%s has space again: merges continue", self._directory)
        if free >= LOW_BYTES and time.monotonic() < self._count_at_s:
            return
        self._count_at_s = time.monotonic() + _COUNT_EVERY_S
        failed = self._count_failed_writes(self._handle)
        if failed > self._failed_writes:
            log.error("%d writes of the engine have failed", failed - self._failed_writes)
            self._failed_writes = failed

    def _hold_reserve(self) -> None:
        try:
            self._reserve.hold_again()
        except OSError as error:  # somebody else was faster: the next look tries again
            log.info("cannot allocate the reserve of %s: %s", self._directory, error.strerror)

    def _is_low(self) -> bool:
        return self._free_bytes() < LOW_BYTES

    def _free_bytes(self) -> int:
        return self._reserve.free_bytes()

    def _count_failed_writes(self, handle: Any) -> int:
        return int(handle.query(FAILED_WRITES, "TSV").bytes())
