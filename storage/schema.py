"""Applies the statements in sql/schema/, each file once and in order of its number.

A file is one statement and never changes once released: what comes later is a new file. Which ones
have been applied is in the table `schema_migrations`. For ClickHouse servers: cluster_schema.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from storage.engine import DATABASE, Engine


class SchemaError(Exception):
    """The tables on disk do not fit this version of the program."""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    statement: str


def migrations() -> list[Migration]:
    """Every numbered statement in sql/schema/, in order."""
    found = []
    for file in files("sql.schema").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.number)


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
            f"{max(unknown)}, this version knows {known[-1].number}): start that one"
        )
    pending = [migration for migration in known if migration.number not in applied]
    done: list[Migration] = []
    try:
        for migration in pending:
            await engine.execute(migration.statement)
            done.append(migration)
    finally:
        if done:
            await note(engine, DATABASE, done)
    return pending


async def make_history(engine: Engine, database: str) -> None:
    """The table of what has been applied, where there is none yet."""
    await engine.execute(
        f"CREATE TABLE IF NOT EXISTS {database}.schema_migrations"
        " (number UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))"
        " ENGINE = MergeTree ORDER BY number"
    )


async def history(engine: Engine, database: str) -> set[int]:
    """The numbers of what has been applied."""
    rows = await engine.rows(f"SELECT number FROM {database}.schema_migrations")
    return {number for (number,) in rows}


async def note(engine: Engine, database: str, done: list[Migration]) -> None:
    """All in one insert: each makes a part, which takes longer than most of the statements.

    An end before it applies them again, which every statement bears.
    """
    await engine.execute(
        f"INSERT INTO {database}.schema_migrations (number, name)"
        " SELECT toUInt32(one.1), one.2 FROM"
        " (SELECT arrayJoin(arrayZip({numbers:Array(String)}, {names:Array(String)})) AS one)",
        {
            "numbers": [str(migration.number) for migration in done],
            "names": [migration.name for migration in done],
        },
    )
