"""Definitions of tables that a full disk has emptied or cut, at a start and behind statements."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerhouse.storage.data_directory import DataDirectoryError
from brokerhouse.storage.definition_files import DefinitionError, DefinitionFiles, file_name
from brokerhouse.storage.definition_guard import DefinitionGuard, names_changed
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.merge_pace import SETTING

CHANGE = f"ALTER TABLE messages MODIFY SETTING {SETTING} = 100"


@asynccontextmanager
async def opened(data_dir: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def engine(own_engine: EmbeddedEngine) -> EmbeddedEngine:
    """These tests damage its files."""
    return own_engine


def definition(data_dir: Path, table: str, database: str = "brokerhouse") -> Path:
    return data_dir / "clickhouse" / "metadata" / database / f"{file_name(table)}.sql"


def copies(data_dir: Path) -> list[str]:
    return [path.name for path in (data_dir / "definitions").glob("*.sql")]


def set_aside(data_dir: Path) -> list[str]:
    return sorted(path.name for path in (data_dir / "definitions" / "damaged").glob("*"))


def write(path: Path, text: bytes) -> None:
    """As the engine does, which renames a new file over the old one."""
    part = path.with_suffix(".sql.tmp")
    part.write_bytes(text)
    part.replace(path)


def empty(path: Path) -> None:
    write(path, b"")


def cut_in_a_line(path: Path) -> None:
    write(path, path.read_bytes()[:1024])


def cut_behind_a_line(path: Path) -> None:
    """Only the end of a block is where such a cut can be."""
    text = path.read_bytes()
    end = text.index(b"ENGINE = ")
    filled = text[:end].replace(b"(\n", b"(" + b" " * (-end % 512) + b"\n", 1)
    assert len(filled) % 512 == 0
    write(path, filled)


async def query_of(engine: EmbeddedEngine, table: str) -> str:
    ((found,),) = await engine.rows(
        "SELECT create_table_query FROM system.tables"
        " WHERE database = currentDatabase() AND name = {table:String}",
        {"table": table},
    )
    return str(found)


# --- A start after a kill in the middle of a change ---


@pytest.mark.parametrize("damage", [empty, cut_in_a_line, cut_behind_a_line])
async def test_a_damaged_definition_is_replaced_by_the_one_before_the_change(
    data_dir: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(data_dir) as engine:
        before = await query_of(engine, "messages")
    path = definition(data_dir, "messages")
    DefinitionFiles(data_dir).keep(path)
    damage(path)
    async with opened(data_dir) as engine:
        assert await query_of(engine, "messages") == before
        await engine.execute(CHANGE)
    assert "definition of brokerhouse.messages" in caplog.text
    assert copies(data_dir) == []


async def test_a_start_keeps_a_changed_definition_that_is_complete(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = definition(data_dir, "messages")
    DefinitionFiles(data_dir).keep(path)
    write(path, path.read_bytes().replace(b"SETTINGS ", f"SETTINGS {SETTING} = 100, ".encode()))
    async with opened(data_dir) as engine:
        assert SETTING in await query_of(engine, "messages")
    assert copies(data_dir) == []
    assert not caplog.records


async def test_a_table_whose_replacement_was_not_written_keeps_its_rows(data_dir: Path) -> None:
    async with opened(data_dir) as engine:
        await engine.execute("CREATE TABLE default.orders (n Int64) ENGINE = MergeTree ORDER BY n")
        await engine.execute("INSERT INTO default.orders VALUES (7)")
        path = definition(data_dir, "orders", "default")
        old = path.read_bytes()
        await engine.execute(
            "CREATE OR REPLACE TABLE default.orders (n Int64) ENGINE = MergeTree ORDER BY n"
        )
    write(path, old)  # the copy of it
    DefinitionFiles(data_dir).keep(path)
    empty(path)
    dropped = data_dir / "clickhouse" / "metadata_dropped"
    assert len(list(dropped.iterdir())) == 1
    async with opened(data_dir) as engine:
        assert await engine.rows("SELECT n FROM default.orders") == [[7]]
        assert list(dropped.iterdir()) == []  # the engine would remove the rows eight minutes later


# --- A start without a copy ---


@pytest.mark.parametrize("damage", [empty, cut_in_a_line])
def test_a_start_without_a_definition_of_the_log_fails_and_names_the_file(
    data_dir: Path, damage: Callable[[Path], None]
) -> None:
    path = definition(data_dir, "messages")
    damage(path)
    with pytest.raises(DataDirectoryError) as refused:
        EmbeddedEngine(data_dir, 1, fsync=False)
    assert str(refused.value) == (
        "the definition of brokerhouse.messages is damaged and there is no copy of it: restore a"
        f" backup, or put the definition into {path}"
    )
    assert path.exists()


async def test_a_start_fails_if_the_definition_of_a_table_with_rows_is_damaged(
    data_dir: Path,
) -> None:
    async with opened(data_dir) as engine:
        await engine.execute("CREATE TABLE default.`a.b` (n Int64) ENGINE = MergeTree ORDER BY n")
        await engine.execute("INSERT INTO default.`a.b` VALUES (7)")
    empty(definition(data_dir, "a.b", "default"))
    with pytest.raises(DataDirectoryError, match=r"the definition of default\.a\.b is damaged"):
        EmbeddedEngine(data_dir, 1, fsync=False)


async def test_a_start_knows_the_rows_of_a_table_whose_link_leads_elsewhere(
    data_dir: Path,
) -> None:
    """The engine was killed within DROP: it renames the definition and removes the link after."""
    async with opened(data_dir) as engine:
        await engine.execute("CREATE DATABASE shop")
        await engine.execute("CREATE TABLE shop.items (id UInt8) ENGINE = MergeTree ORDER BY id")
        await engine.execute("INSERT INTO shop.items VALUES (1)")
    link = data_dir / "clickhouse/data/shop/items"
    rows = link.resolve()
    link.unlink()
    link.symlink_to("../../store/abc/abc00000-0000-4000-8000-000000000000")
    DefinitionFiles(data_dir).recover()
    assert link.resolve() == rows
    empty(definition(data_dir, "items", "shop"))
    with pytest.raises(DefinitionError, match=r"the definition of shop\.items is damaged"):
        DefinitionFiles(data_dir).recover()


async def test_a_table_that_was_being_created_is_set_aside_and_can_be_created_again(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    statements = [
        "CREATE TABLE default.`a.b` (n Int64) ENGINE = MergeTree ORDER BY n",
        "CREATE VIEW default.v AS SELECT 1 AS one",
        "CREATE DATABASE shop",
    ]
    async with opened(data_dir) as engine:
        for sql in statements:
            await engine.execute(sql)
    empty(definition(data_dir, "a.b", "default"))
    empty(definition(data_dir, "v", "default"))
    empty(data_dir / "clickhouse" / "metadata" / "shop.sql")
    async with opened(data_dir) as engine:
        for sql in statements:
            await engine.execute(sql)
        await engine.execute("INSERT INTO default.`a.b` VALUES (7)")
    async with opened(data_dir) as engine:
        assert await engine.rows("SELECT n FROM default.`a.b`") == [[7]]
    assert set_aside(data_dir) == ["default.a%2Eb.sql", "default.v.sql", "shop.sql"]
    assert "disk full while creating default.a.b, so it does not exist" in caplog.text


async def test_an_engine_starts_although_the_inner_table_of_a_view_was_not_completely_created(
    data_dir: Path,
) -> None:
    async with opened(data_dir) as engine:
        await engine.execute(
            "CREATE MATERIALIZED VIEW default.v ENGINE = MergeTree ORDER BY topic"
            " AS SELECT topic FROM messages"
        )
    (inner,) = definition(data_dir, "v", "default").parent.glob("%2Einner*.sql")
    empty(inner)
    async with opened(data_dir) as engine:
        await engine.execute("DROP VIEW default.v")


async def test_a_start_fails_if_the_definition_of_a_database_with_tables_is_damaged(
    data_dir: Path,
) -> None:
    empty(data_dir / "clickhouse" / "metadata" / "brokerhouse.sql")
    with pytest.raises(DataDirectoryError, match="the definition of brokerhouse is damaged"):
        EmbeddedEngine(data_dir, 1, fsync=False)


async def test_an_empty_format_version_file_of_a_table_is_written_again_at_the_start(
    data_dir: Path,
) -> None:
    async with opened(data_dir) as engine:
        await engine.execute("CREATE TABLE default.orders (n Int64) ENGINE = MergeTree ORDER BY n")
    table = data_dir / "clickhouse" / "data" / "default" / "orders"
    whole = (table / "format_version.txt").read_text()
    (table / "format_version.txt").write_text("")
    async with opened(data_dir) as engine:
        assert await engine.rows("SELECT n FROM default.orders") == []
    assert (table / "format_version.txt").read_text() == whole


@pytest.mark.parametrize("size", [0, 40, -1])
async def test_an_incomplete_mutation_file_is_set_aside(
    data_dir: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(data_dir) as engine:
        await engine.execute("INSERT INTO messages (offset) SELECT number FROM numbers(10)")
        await engine.execute("DELETE FROM messages WHERE offset = 3")
    (mutation,) = (data_dir / "clickhouse" / "data" / "brokerhouse" / "messages").glob("mutation_*")
    mutation.write_bytes(mutation.read_bytes()[:size])
    async with opened(data_dir) as engine:
        await engine.execute("DELETE FROM messages WHERE offset = 4")
        assert await engine.rows("SELECT count() FROM messages") == [[8]]
    assert set_aside(data_dir) == [f"brokerhouse.messages.{mutation.name}"]
    assert "a change of rows of brokerhouse.messages: the change was not made" in caplog.text


# --- Statements ---


class NoSpace:
    """A connection to the engine whose files are damaged as on a full disk."""

    def __init__(self, engine: EmbeddedEngine, damage: Callable[[], None]) -> None:
        self._handle = vars(engine.handle())["_handle"]
        self._damage = damage

    def query(self, sql: str, *args: Any, **options: Any) -> Any:
        result = self._handle.query(sql, *args, **options)
        self._damage()
        return result


def change(engine: EmbeddedEngine, sql: str, damage: Callable[[], None]) -> None:
    guard: DefinitionGuard = vars(engine)["_guard"]
    guard.wrap(NoSpace(engine, damage)).query(sql, "Null")


async def test_definitions_are_copied_only_while_they_change(engine: EmbeddedEngine) -> None:
    path = definition(engine.data_dir, "messages")
    copy = engine.data_dir / "definitions" / "brokerhouse.messages.sql"
    copied: list[bytes] = []
    for sql in (CHANGE, f"ALTER TABLE messages RESET SETTING {SETTING}"):
        before = path.read_bytes()
        change(engine, sql, lambda: copied.append(copy.read_bytes()))
        assert copied.pop() == before
        assert copied == []
        assert path.read_bytes() != before
        assert copies(engine.data_dir) == []
    with pytest.raises(EngineError):
        await engine.execute("ALTER TABLE messages MODIFY SETTING no_such_setting = 1")
    assert copies(engine.data_dir) == []


async def test_a_change_of_a_definition_without_disk_space_is_undone_at_once(
    engine: EmbeddedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    path = definition(engine.data_dir, "messages")
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match=r"Code: 243.*definition of brokerhouse\.messages"):
        change(engine, CHANGE, lambda: empty(path))
    assert path.read_bytes() == before
    assert "definition of brokerhouse.messages" in caplog.text
    await engine.execute(CHANGE)  # the engine reads the file first
    assert path.read_bytes() != before


async def test_undoing_a_change_keeps_the_change_that_another_statement_made_before_it(
    engine: EmbeddedEngine,
) -> None:
    path = definition(engine.data_dir, "messages")
    left = b""

    def meanwhile() -> None:
        nonlocal left
        handle = engine.handle()
        handle.query("ALTER TABLE messages ADD COLUMN note String", "Null")
        handle.close()
        left = path.read_bytes()
        empty(path)

    with pytest.raises(RuntimeError, match="Code: 243"):
        change(engine, CHANGE, meanwhile)
    assert b"`note` String" in left
    assert path.read_bytes() == left
    assert copies(engine.data_dir) == []


async def test_a_table_created_without_disk_space_does_not_exist(engine: EmbeddedEngine) -> None:
    path = definition(engine.data_dir, "orders", "default")
    create = "CREATE TABLE default.orders (n Int64) ENGINE = MergeTree ORDER BY n"
    with pytest.raises(RuntimeError, match="Code: 243"):
        change(engine, create, lambda: empty(path))
    assert not path.exists()
    await engine.execute(create)
    await engine.execute("INSERT INTO default.orders VALUES (7)")
    with pytest.raises(RuntimeError, match="Code: 243"):
        change(engine, create.replace("CREATE", "CREATE OR REPLACE"), lambda: empty(path))
    assert await engine.rows("EXISTS TABLE default.orders") == [[0]]
    with pytest.raises(RuntimeError, match="Code: 243"):
        change(
            engine,
            "CREATE DATABASE shop",
            lambda: empty(engine.data_dir / "clickhouse" / "metadata" / "shop.sql"),
        )
    assert await engine.rows("EXISTS DATABASE shop") == [[0]]


async def test_a_view_whose_inner_table_cannot_be_created_does_not_exist(
    engine: EmbeddedEngine,
) -> None:
    folder = definition(engine.data_dir, "v", "default").parent

    def damage() -> None:
        (inner,) = folder.glob("%2Einner*.sql")
        empty(inner)

    with pytest.raises(RuntimeError, match=r"definition of default\.v"):
        change(
            engine,
            "CREATE MATERIALIZED VIEW default.v ENGINE = MergeTree ORDER BY topic"
            " AS SELECT topic FROM messages",
            damage,
        )
    assert list(folder.glob("*.sql")) == []


async def test_a_view_that_cannot_be_replaced_keeps_its_old_definition(data_dir: Path) -> None:
    path = definition(data_dir, "v", "default")
    async with opened(data_dir) as engine:
        await engine.execute("CREATE VIEW default.v AS SELECT 1 AS one")
        with pytest.raises(RuntimeError, match="Code: 243"):
            change(engine, "CREATE OR REPLACE VIEW default.v AS SELECT 2", lambda: empty(path))
    async with opened(data_dir) as engine:
        assert await engine.rows("SELECT * FROM default.v") == [[1]]


async def test_a_table_that_a_statement_only_mentions_is_never_dropped(
    engine: EmbeddedEngine,
) -> None:
    await engine.execute("INSERT INTO messages (offset) VALUES (7)")
    path = definition(engine.data_dir, "messages")
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match=r"definition of brokerhouse\.messages"):
        change(engine, "CREATE VIEW default.v AS SELECT * FROM messages", lambda: empty(path))
    assert path.read_bytes() == before
    assert await engine.rows("SELECT offset FROM messages") == [[7]]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM messages WHERE offset = 3 SETTINGS lightweight_deletes_sync = 0",
        "ALTER TABLE messages DELETE WHERE offset = 3 SETTINGS mutations_sync = 0",
    ],
)
async def test_a_deletion_that_cannot_be_stored_fails_and_can_be_repeated(
    engine: EmbeddedEngine, sql: str
) -> None:
    await engine.execute("INSERT INTO messages (offset) SELECT number FROM numbers(10)")
    await engine.execute("SYSTEM STOP MERGES")
    table = engine.data_dir / "clickhouse" / "data" / "brokerhouse" / "messages"

    def damage() -> None:
        for mutation in table.glob("mutation_*.txt"):
            os.truncate(mutation, 0)

    with pytest.raises(RuntimeError, match=r"a change of rows of brokerhouse\.messages"):
        change(engine, sql, damage)
    assert list(table.glob("mutation_*.txt")) == []
    assert await engine.rows("SELECT count() FROM system.mutations") == [[0]]
    await engine.execute("SYSTEM START MERGES")
    await engine.execute("DELETE FROM messages WHERE offset = 3")
    assert await engine.rows("SELECT count() FROM messages") == [[9]]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE DICTIONARY default.x (k UInt64, v String) PRIMARY KEY k"
        " SOURCE(CLICKHOUSE(TABLE 'y')) LAYOUT(FLAT()) LIFETIME(0)",
        "CREATE TABLE default.x (k UInt64) ENGINE = Memory COMMENT 'of five\n\nlines\n'",
        "CREATE TABLE default.x (k UInt64) ENGINE = Log",
        "CREATE MATERIALIZED VIEW default.x REFRESH EVERY 1 HOUR APPEND ENGINE = MergeTree"
        " ORDER BY topic AS SELECT topic FROM brokerhouse.messages",
        "CREATE DATABASE x ENGINE = Memory",
        "CREATE DATABASE x COMMENT 'of nobody'",
    ],
)
async def test_a_complete_definition_of_any_kind_is_not_set_aside(data_dir: Path, sql: str) -> None:
    async with opened(data_dir) as engine:
        await engine.execute(sql)
    async with opened(data_dir):
        assert set_aside(data_dir) == []


async def test_a_definition_that_cannot_be_copied_is_not_changed(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device", "definitions")

    before = definition(engine.data_dir, "messages").read_bytes()
    monkeypatch.setattr(Path, "hardlink_to", no_space)
    with pytest.raises(EngineError, match=r"cannot be copied .*No space left") as refused:
        await engine.execute(CHANGE)
    assert refused.value.code == 243
    assert definition(engine.data_dir, "messages").read_bytes() == before


async def test_definitions_are_restored_from_real_copies_on_a_file_system_without_hard_links(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    path = definition(engine.data_dir, "messages")
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="Code: 243"):
        change(engine, CHANGE, lambda: empty(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT 1", set()),
        ("INSERT INTO t VALUES ('ALTER TABLE t')", set()),
        ("CREATE TEMPORARY TABLE t (n Int8)", set()),
        ("create or replace temporary table t (n Int8)", set()),
        ("/* CREATE */ -- ALTER\n alter TABLE shop.orders", {"TABLE", "shop", "orders"}),
        (b"DELETE FROM `a``b\\`c`", {"FROM", "a`b`c"}),
        ('CREATE VIEW "a""b"', {"VIEW", 'a"b'}),
        ("ALTER TABLE {t:Identifier}", {"TABLE", "t", "Identifier", "orders"}),
    ],
)
def test_statements_that_change_definitions_are_recognised(
    sql: str | bytes, names: set[str]
) -> None:
    assert names_changed(sql, {"t": "orders"}) == names


def test_comments_do_not_make_a_statement_slow_to_read() -> None:
    assert names_changed("/* */ " * 100_000 + "SELECT 1", {}) == set()


def test_names_of_definition_files_are_escaped_as_the_engine_does() -> None:
    assert file_name("o.r d-é_1") == "o%2Er%20d%2D%C3%A9_1"
