"""Applies the statements in sql/, each file once and in order of its number.

A file is one statement and never changes once released: what comes later is a new file. Which ones
have been applied is in the table `schema_migrations`.
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
    """Every numbered statement in sql/, in order."""
    found = []
    for file in files("sql").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.number)


async def migrate(engine: Engine) -> list[Migration]:
    """Bring the tables up to this version; returns what was applied.

    Raises `SchemaError` when the data was written by a newer version, and `EngineError`.
    """
    await engine.execute(
        f"CREATE TABLE IF NOT EXISTS {DATABASE}.schema_migrations"
        " (number UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))"
        " ENGINE = MergeTree ORDER BY number"
    )
    rows = await engine.rows("SELECT number FROM schema_migrations")
    applied = {int(str(number)) for (number,) in rows}
    known = migrations()
    if unknown := applied - {migration.number for migration in known}:
        raise SchemaError(
            "the data directory was written by a newer version of brokerhouse (its tables are at "
            f"{max(unknown)}, this version knows {known[-1].number}): start that one"
        )
    pending = [migration for migration in known if migration.number not in applied]
    for migration in pending:
        await engine.execute(migration.statement)
        await engine.execute(
            "INSERT INTO schema_migrations (number, name) SELECT {number:UInt32}, {name:String}",
            {"number": migration.number, "name": migration.name},
        )
    return pending
