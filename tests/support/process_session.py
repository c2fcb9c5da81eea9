"""Processes of a session: the Python workers of Spark are in a process group of their own."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def processes_of(session: int) -> list[int]:
    """`session`: the process that was started with `start_new_session`."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def signal_session(session: int, number: int) -> None:
    for pid in processes_of(session):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
