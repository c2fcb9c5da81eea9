"""What the HTTP interface needs to know: who may query, and what one statement may use."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from brokerhouse.storage.engine import PeopleBounds


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """The settings `sql_*` of docs/configuration.md."""

    data_dir: Path
    """Where a result that is too long for memory waits (`wait_end_of_query`)."""
    limits: SqlLimits
    anonymous: Literal["loopback", "always", "never"]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    max_connections: int = sys.maxsize
    """Of the listener: requests with SQL never take all of them."""
    hosts: frozenset[str] = frozenset()
    """Names of this server, besides those that no other site can have (refuse_web_pages.py)."""


@dataclass(frozen=True, slots=True)
class SqlQueue:
    """Statements that wait for their turn: so many of each role, each for so long."""

    max_waiting: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What the statements of people may use, together and each.

    `max_queries` run at once; `kept_for_writer` of them are only for the user with a password.
    """

    max_queries: int
    kept_for_writer: int
    bounds: PeopleBounds
    queue: SqlQueue

    @property
    def memory_bytes(self) -> int:
        """What the statements that run may use together."""
        return self.max_queries * self.bounds.max_memory_bytes
