"""Loads the library of chDB, 500 MB.

A file of its own, so that a start can load it while Python imports the rest of the broker.

`chdb/__init__.py` is not run. Besides functions for notebooks it loads the library, as is done
here, and opens a temporary engine to ask for its version: 0.04 s of CPU, with the GIL held.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

# jemalloc gives free memory back to the system after this time instead of 5 s, so that inserts of
# some 100 MB, one after the other, use the same pages again: half the page faults at full speed,
# and at most some 100 MB more for this time (measured). jemalloc reads it when chDB is loaded.
_ALLOCATOR = ("JE_MALLOC_CONF", "dirty_decay_ms:30000")

_DEEPBIND = getattr(os, "RTLD_DEEPBIND", 0)  # Linux has it

_lock = threading.Lock()


def chdb_connect() -> Callable[[str], Any]:
    """`connect` of chDB, a native class without type stubs. Blocks while the library is loaded."""
    with _lock:
        os.environ.setdefault(*_ALLOCATOR)
        _prepare_package()
        from chdb import _chdb

    connect: Callable[[str], Any] = vars(_chdb)["connect"]
    return connect


def _prepare_package() -> None:
    """Make `chdb` a package without its functions, if its library is where chDB would find it."""
    spec = None if "chdb" in sys.modules else find_spec("chdb")
    if spec is None:
        return
    for folder in spec.submodule_search_locations or ():
        library = Path(folder) / "_chdb.abi3.so"
        if library.exists():
            # Its own symbols come before those of libraries that are loaded already.
            ctypes.CDLL(str(library), mode=sys.getdlopenflags() | _DEEPBIND)
            sys.modules["chdb"] = module_from_spec(spec)
            return


def load_library() -> None:
    """Begin to load it, in another thread: `chdb_connect` waits for it, or says why it failed."""
    threading.Thread(target=_load, name="load-chdb").start()


def _load() -> None:
    with suppress(ImportError):
        chdb_connect()
