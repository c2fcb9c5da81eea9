"""Loads the library of chDB, 500 MB, which also opens a temporary engine.

A file of its own, so that a start can load it while Python imports the rest of the broker: chDB
needs 0.1 s, for most of which it does not hold the GIL (measured).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# jemalloc gives free memory back to the system after this time instead of 5 s, so that inserts of
# some 100 MB, one after the other, use the same pages again: half the page faults at full speed,
# and at most some 100 MB more for this time (measured). jemalloc reads it when chDB is loaded.
_ALLOCATOR = ("JE_MALLOC_CONF", "dirty_decay_ms:30000")

_lock = threading.Lock()


def chdb_connect() -> Callable[[str], Any]:
    """`connect` of chDB, a native class without type stubs. Blocks while the library is loaded."""
    with _lock:
        os.environ.setdefault(*_ALLOCATOR)
        from chdb import _chdb

    connect: Callable[[str], Any] = vars(_chdb)["connect"]
    return connect


def load_library() -> None:
    """Begin to load it, in another thread: `chdb_connect` waits for it, or says why it failed."""
    threading.Thread(target=_load, name="load-chdb").start()


def _load() -> None:
    with suppress(ImportError):
        chdb_connect()
