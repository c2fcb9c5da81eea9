"""The data directory of a single broker becomes that of a shard, also if a start is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerhouse.storage.blocks import STRING, UINT64, Table, block
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.data_directory import DataDirectoryError
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import DATABASE, EngineError
from brokerhouse.storage.journal import JournalLimits, open_journal
from brokerhouse.storage.journal_files import STREAMS
from brokerhouse.storage.schema import migrate
from brokerhouse.storage.schema_files import SchemaError
from brokerhouse.storage.shard_directory import become_shard, refuse_shard
from tests.support.journal_engine import PATIENT

STATE = Table("cluster_state", (("key", STRING), ("version", UINT64), ("value", STRING)))
COLUMNS = "key, version, value"


class Killed(Exception):
    pass


@asynccontextmanager
async def shard_engine(data_dir: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(data_dir, STREAMS, False, database=SHARD_DATABASE)
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def single_engine(data_dir: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(data_dir, STREAMS, False)
    try:
        await migrate(engine)
        yield engine
    finally:
        await engine.close()


async def keys(engine: EmbeddedEngine) -> list[str]:
    rows = await engine.rows(f"SELECT key FROM {SHARD_DATABASE}.cluster_state ORDER BY key")
    return [key for (key,) in rows]


async def test_rows_of_the_tables_and_of_the_journal_are_in_the_shard(data_dir: Path) -> None:
    async with single_engine(data_dir) as single:
        await single.execute("INSERT INTO cluster_state VALUES ('in the table', 1, '')")
    limits = JournalLimits(1 << 20, PATIENT)
    engine = EmbeddedEngine(data_dir, STREAMS, False)
    opened = await open_journal(engine, limits, fsync=False, skip_damage=False)
    waiting = block(STATE, [("in the journal", 1, "")])
    await opened.insert_block(0, "cluster_state", COLUMNS, waiting, "token")
    await opened.close_files()  # as after a kill
    await engine.close()
    engine = EmbeddedEngine(data_dir, STREAMS, False, database=SHARD_DATABASE)
    assert await become_shard(engine)
    assert await keys(engine) == ["in the table"]
    shard = await open_journal(engine, limits, fsync=False, skip_damage=False)
    assert await keys(engine) == ["in the journal", "in the table"]
    await shard.close()

    async with shard_engine(data_dir) as again:
        assert not await become_shard(again)
        assert len(await keys(again)) == 2
    with pytest.raises(DataDirectoryError, match="run `brokerhouse engine` on it"):
        refuse_shard(data_dir)


@pytest.mark.parametrize("before", ["TRUNCATE TABLE", "RENAME DATABASE", "CREATE DATABASE"])
async def test_a_start_after_one_that_was_killed_finds_every_row(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    async with single_engine(data_dir) as single:
        await single.execute("INSERT INTO cluster_state VALUES ('kept', 1, '')")
    async with shard_engine(data_dir) as engine:
        execute = engine.execute

        async def until_killed(sql: str) -> None:
            if sql.startswith(before):
                raise Killed
            await execute(sql)

        monkeypatch.setattr(engine, "execute", until_killed)
        with pytest.raises(Killed):
            await become_shard(engine)
    if before == "RENAME DATABASE":
        refuse_shard(data_dir)  # it is that of a single broker, which makes its views again
        async with single_engine(data_dir) as single:
            assert await single.rows("SELECT key FROM cluster_state") == [["kept"]]
    async with shard_engine(data_dir) as engine:
        assert await become_shard(engine) is (before != "CREATE DATABASE")
        assert await keys(engine) == ["kept"]
        with pytest.raises(EngineError):
            await engine.rows(f"SELECT * FROM {DATABASE}.cluster_state")


async def test_damaged_parts_of_a_shard_are_found(data_dir: Path) -> None:
    async with single_engine(data_dir) as single:
        await single.execute("INSERT INTO cluster_state VALUES ('lost', 1, '')")
    async with shard_engine(data_dir) as engine:
        assert await become_shard(engine)
    [part] = (data_dir / "clickhouse/data" / SHARD_DATABASE / "cluster_state").glob("all_*")
    for name in ("columns.txt", "checksums.txt"):
        (part / name).write_text("garbage")
    async with shard_engine(data_dir) as engine:
        assert await keys(engine) == []
        [path] = await engine.damaged_parts()
        assert "broken-on-start" in path


async def test_tables_of_a_newer_version_and_views_of_people_are_refused(data_dir: Path) -> None:
    async with single_engine(data_dir) as single:
        await single.execute("CREATE DATABASE mine")
        await single.execute("CREATE TABLE mine.values (value Int64) ENGINE = Null")
        await single.execute(
            "CREATE MATERIALIZED VIEW mine.offsets TO mine.values AS SELECT offset AS value"
            f" FROM {DATABASE}.messages"
        )
        await single.execute("CREATE VIEW mine.harmless AS SELECT * FROM mine.values")
    async with shard_engine(data_dir) as engine:
        with pytest.raises(SchemaError, match=r"^mine\.offsets would not find the tables"):
            await become_shard(engine)
        await engine.execute("DROP VIEW mine.offsets")
        await engine.execute(
            f"INSERT INTO {DATABASE}.schema_migrations (number, name) VALUES (9999, 'later')"
        )
        with pytest.raises(SchemaError, match=r"9999.*start that version"):
            await become_shard(engine)


async def test_the_directory_of_a_shard_stays_as_it_is(data_dir: Path) -> None:
    async with shard_engine(data_dir) as engine:
        await engine.execute(f"CREATE DATABASE {SHARD_DATABASE}")
        assert not await become_shard(engine)
