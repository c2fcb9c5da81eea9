"""Statements that delete rows of small tables, by a query on other rows.

The engine makes such a change in the background. Whoever waited for it would keep a reader from
others, for as long as disk space is low. Replicated tables take one with a query in it only if they
are told that each replica may find something else: so it must be right on a replica that lacks
rows.
"""

from __future__ import annotations

from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine

MUTATION_SETTINGS = "mutations_sync = 0, allow_nondeterministic_mutations = 1"


async def is_changing(engine: Engine, table: str) -> bool:
    """Whether an earlier statement is not done yet. Raises `EngineError`."""
    return bool(await engine.rows(query("is_changing"), {"table": table}))
