"""What the HTTP interface needs to know: who may query, and what one statement may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """The settings `sql_*` of docs/configuration.md."""

    data_dir: Path
    """Where a result that is too long for memory waits (`wait_end_of_query`)."""
    limits: SqlLimits
    anonymous: Literal["loopback", "always", "never"]
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """`max_queries`: statements that run at once; the other limits are for one statement."""

    max_queries: int
    max_threads: int
    max_memory_bytes: int
