"""Migrations: each is applied once and in order, and data of a newer version is not changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from brokerhouse.coordinator.tables import GROUPS, HEARTBEATS, MEMBERS, OFFSETS
from brokerhouse.protocol.columns import COLUMNS
from brokerhouse.storage import schema
from brokerhouse.storage.blocks import Table
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError, Parameter
from brokerhouse.storage.schema import Migration, migrate, migrations
from brokerhouse.storage.schema_files import SchemaError, SchemaFile, parse, replaced_unread

SMALL_TABLES = [GROUPS, MEMBERS, HEARTBEATS, OFFSETS]


class CountingEngine(EmbeddedEngine):
    """Knows every statement that was executed; fails one that contains `failing`."""

    statements: list[str]
    failing: str | None = None

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        self.statements.append(sql)
        if self.failing is not None and self.failing in sql:
            raise EngineError("scripted", 999)
        await super().execute(sql, params)


@pytest.fixture
async def empty(tmp_path: Path, alone: None) -> AsyncIterator[CountingEngine]:
    """An engine without tables."""
    engine = CountingEngine(tmp_path / "data", 1, fsync=False)
    engine.statements = []
    yield engine
    await engine.close()


@pytest.fixture
async def migrated(data_dir: Path) -> AsyncIterator[CountingEngine]:
    """An engine with the broker's tables."""
    engine = CountingEngine(data_dir, 1, fsync=False)
    engine.statements = []
    yield engine
    await engine.close()


async def tables(engine: EmbeddedEngine) -> set[object]:
    rows = await engine.rows("SELECT name FROM system.tables WHERE database = currentDatabase()")
    return {row[0] for row in rows}


async def definitions(engine: EmbeddedEngine) -> list[list[object]]:
    return await engine.rows(
        "SELECT name, create_table_query, engine_full FROM system.tables"
        " WHERE database = currentDatabase() ORDER BY name"
    )


async def applied(engine: EmbeddedEngine) -> list[list[object]]:
    return await engine.rows("SELECT number, name FROM schema_migrations ORDER BY number")


def test_numbers_of_migrations_are_unique_and_without_gaps() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


async def test_the_first_start_applies_every_migration_in_order(empty: CountingEngine) -> None:
    known = migrations()
    assert await migrate(empty) == known
    assert await applied(empty) == [[one.number, one.name] for one in known]
    made = [sql for sql in empty.statements if sql in {one.statement for one in known}]
    assert made == [one.statement for one in known if not one.replaced_by]
    assert {"messages", "topics", "topic_versions", "cluster_state"} < await tables(empty)


async def test_skipping_replaced_views_at_the_first_start_changes_no_definition(
    empty: CountingEngine,
) -> None:
    await migrate(empty)
    made = await definitions(empty)
    assert [one for one in migrations() if one.replaced_by]
    for one in migrations():
        await empty.execute(one.statement)
    assert await definitions(empty) == made


def test_a_view_that_is_read_before_it_is_replaced_is_not_skipped() -> None:
    def view(number: int, name: str, read: str) -> SchemaFile:
        first = f"-- view {name}; cluster: nothing\n"
        statement = f"CREATE OR REPLACE VIEW ${{{name}}} AS SELECT 1 FROM ${{{read}}};\n"
        return parse(number, name, first + statement)

    files = [
        view(1, "a", "t"),
        view(2, "b", "t"),
        view(3, "c", "a"),
        view(4, "a", "t"),
        view(5, "b", "t"),
        view(6, "b", "a"),
    ]
    assert replaced_unread(files) == {2: 5, 5: 6}


async def test_a_second_start_applies_no_migration(migrated: CountingEngine) -> None:
    assert await migrate(migrated) == []
    assert not any("INSERT" in sql for sql in migrated.statements)
    assert len(await applied(migrated)) == len(migrations())


async def test_a_new_migration_is_applied_alone(
    migrated: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations()
    new = Migration(len(known) + 1, "more", "CREATE TABLE more (n UInt8) ENGINE = Memory")
    monkeypatch.setattr(schema, "migrations", lambda: [*known, new])
    assert await migrate(migrated) == [new]
    assert "more" in await tables(migrated)


async def test_a_migration_that_fails_is_tried_again_at_the_next_start(
    empty: CountingEngine,
) -> None:
    known = migrations()
    empty.failing = known[2].statement
    with pytest.raises(EngineError):
        await migrate(empty)
    assert len(await applied(empty)) == 2
    empty.failing = None
    assert await migrate(empty) == known[2:]


async def test_a_migration_that_was_applied_but_not_noted_is_applied_again(
    empty: CountingEngine,
) -> None:
    """Every statement has to bear that: nothing makes a statement and its note one."""
    for one in migrations():
        await empty.execute(one.statement)
        await empty.execute(one.statement)
    assert await migrate(empty) == migrations()


@pytest.mark.parametrize("newer", [[99], [99, 100], [100, 99, 101]])
async def test_tables_of_a_newer_version_are_refused_and_not_changed(
    migrated: CountingEngine, newer: list[int]
) -> None:
    for number in newer:
        await migrated.execute(
            "INSERT INTO schema_migrations (number, name) SELECT {n:UInt32}, 'later'",
            {"n": number},
        )
    before = await tables(migrated)
    with pytest.raises(SchemaError) as refused:
        await migrate(migrated)
    assert str(refused.value) == (
        "the data directory was written by a newer version of brokerhouse (its tables are at "
        f"{max(newer)}, this version knows {len(migrations())}): start that version"
    )
    assert await tables(migrated) == before
    assert len(await applied(migrated)) == len(migrations()) + len(newer)


async def test_the_log_has_the_columns_of_its_blocks(engine: EmbeddedEngine) -> None:
    rows = await engine.rows(
        "SELECT name, type FROM system.columns WHERE table = 'messages'"
        # The one with a default was added later.
        " AND default_kind IN ('', 'DEFAULT') ORDER BY default_kind, position"
    )
    assert [(str(name), str(kind).replace(", 'UTC'", "")) for name, kind in rows] == list(COLUMNS)


@pytest.mark.parametrize("table", SMALL_TABLES, ids=lambda table: str(table.name))
async def test_a_small_table_has_the_columns_of_its_blocks(
    engine: EmbeddedEngine, table: Table
) -> None:
    rows = await engine.rows(
        "SELECT name, type FROM system.columns WHERE table = {table:String}"
        " AND database = currentDatabase() AND default_kind = '' ORDER BY position",
        {"table": table.name},
    )
    # The engine makes few different texts of many by itself.
    plain = [[name, str(kind).replace("LowCardinality(String)", "String")] for name, kind in rows]
    assert plain == [[name, kind.name] for name, kind in table.columns]


async def test_every_table_that_takes_blocks_has_a_deduplication_window(
    engine: EmbeddedEngine,
) -> None:
    """However often one is repeated: an insert of unknown outcome has to be."""
    rows = await engine.rows(
        "SELECT name FROM system.tables WHERE database = currentDatabase()"
        " AND engine_full LIKE '%non_replicated_deduplication_window%'"
    )
    assert {"messages", *(table.name for table in SMALL_TABLES)} <= {name for (name,) in rows}


async def test_every_column_of_the_data_tables_has_a_comment(
    engine: EmbeddedEngine,
) -> None:
    rows = await engine.rows(
        "SELECT table, name FROM system.columns WHERE table IN {tables:Array(String)}"
        " AND default_kind != 'ALIAS' AND comment = '' AND database = currentDatabase()",
        {"tables": ["messages", *(table.name for table in SMALL_TABLES)]},
    )
    assert rows == []


async def test_offsets_and_times_of_the_log_have_codecs_that_decompress_fast(
    engine: EmbeddedEngine,
) -> None:
    rows = await engine.rows(
        "SELECT name, compression_codec FROM system.columns WHERE table = 'messages'"
        " AND database = currentDatabase() AND name IN ('offset', 'append_time', 'timestamp_ms')"
        " ORDER BY name"
    )
    assert [(row[0], row[1]) for row in rows] == [
        ("append_time", "CODEC(Delta(8), LZ4)"),
        ("offset", "CODEC(Delta(8), LZ4)"),
        ("timestamp_ms", "CODEC(Delta(8), ZSTD(1))"),
    ]


async def test_any_int64_timestamp_can_be_selected(engine: EmbeddedEngine) -> None:
    numbers = [-(2**63), -1, 0, 1_700_000_000_000, 2**63 - 1]
    for number in numbers:
        await engine.execute("INSERT INTO messages (timestamp_ms) SELECT {n:Int64}", {"n": number})
    rows = await engine.rows("SELECT timestamp_ms, timestamp FROM messages ORDER BY timestamp_ms")
    assert [row[0] for row in rows] == numbers
    assert rows[3][1] == "2023-11-14 22:13:20.000"
