"""Applies the statements of sql/schema/ to the embedded engine, each once and in order.

The table `schema_migrations` says which have been applied. ClickHouse servers: cluster_schema.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import DATABASE, Engine
from brokerhouse.storage.schema_files import (
    ROW_BYTES_BY_SIZES,
    Rendering,
    SchemaError,
    replaced_unread,
    schema_files,
    tables_behind,
)


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    statement: str
    replaced_by: int = field(default=0, kw_only=True)
    """The migration that makes this view again before another one reads it; 0: none."""


def migrations() -> list[Migration]:
    """Every numbered statement in sql/schema/, in order, for the embedded engine."""
    found = schema_files()
    known = {file.subject for file in found}
    replaced = replaced_unread(found)
    embedded = Rendering(row_bytes=ROW_BYTES_BY_SIZES)
    return [
        Migration(
            file.number,
            file.name,
            embedded.fill_in(file, file.text, known),
            replaced_by=replaced.get(file.number, 0),
        )
        for file in found
    ]


async def migrate(engine: Engine) -> list[Migration]:
    """Bring the tables up to this version; returns what was applied.

    Raises `SchemaError` when the data was written by a newer version, and `EngineError`.
    """
    await make_history(engine, DATABASE)
    applied = await history(engine, DATABASE)
    known = migrations()
    if unknown := applied - {migration.number for migration in known}:
        raise SchemaError(
            "the data directory was written by a newer version of brokerhouse (its tables are at "
            f"{max(unknown)}, this version knows {known[-1].number}): start that version"
        )
    pending = [migration for migration in known if migration.number not in applied]
    numbers = {migration.number for migration in pending}
    done: list[Migration] = []
    try:
        for migration in pending:
            if migration.replaced_by not in numbers:
                await engine.execute(migration.statement)
            done.append(migration)
    finally:
        if done:
            await record_applied(engine, DATABASE, done)
    await _check_all_there(engine)
    return pending


async def _check_all_there(engine: Engine) -> None:
    """Raises `SchemaError` if a table or view was removed after it was made."""
    rows = await engine.rows(f"SELECT name FROM system.tables WHERE database = '{DATABASE}'")
    missing = tables_behind().keys() - {name for (name,) in rows}
    if missing:
        raise SchemaError(
            f"the definition of {DATABASE}.{min(missing)} was removed, and its rows with it: put"
            f" clickhouse/metadata/{DATABASE}/{min(missing)}.sql back, or restore a backup into"
            " another directory"
        )


async def make_history(engine: Engine, database: str) -> None:
    """Create `schema_migrations`, if it does not exist yet."""
    await engine.execute(query("make_schema_migrations", database=database))


async def history(engine: Engine, database: str) -> set[int]:
    """The numbers of what has been applied."""
    rows = await engine.rows(f"SELECT number FROM {database}.schema_migrations")
    return {number for (number,) in rows}


async def record_applied(engine: Engine, database: str, done: Sequence[Migration]) -> None:
    """Record what was applied, in one insert: an insert takes longer than most of the statements.

    If the process ends before that insert, the next start applies the statements again, which every
    one of them allows.
    """
    await engine.execute(
        query("record_migrations", database=database),
        {
            "numbers": [str(migration.number) for migration in done],
            "names": [migration.name for migration in done],
        },
    )
