"""A first start copies the definitions of all tables, instead of having the engine make them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brokerhouse.storage import new_directory
from brokerhouse.storage.data_directory import DataDirectoryError, lock_directory
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.new_directory import begin_directory, definitions_in
from brokerhouse.storage.part_codecs import set_part_codecs
from brokerhouse.storage.schema import migrate, migrations
from tests.support.broker_process import BrokerProcess
from tests.support.server_process import PROJECT

SHIPPED = PROJECT / "sql" / "definitions.sql"


def definitions(data_dir: Path) -> dict[str, bytes]:
    folder = data_dir / "clickhouse" / "metadata" / "brokerhouse"
    return {path.name: path.read_bytes() for path in folder.glob("*.sql")}


@pytest.fixture
async def migrated(tmp_path: Path) -> Path:
    """A data directory whose tables were made by the files of sql/schema/."""
    engine = EmbeddedEngine(tmp_path / "migrated", 1, fsync=False)
    await migrate(engine)
    await set_part_codecs(engine)
    await engine.close()
    return tmp_path / "migrated"


async def test_the_copied_definitions_are_those_that_the_files_of_sql_schema_make(
    migrated: Path,
) -> None:
    assert definitions_in(migrated) == SHIPPED.read_text("utf-8"), "run `make definitions`"


async def test_migrations_and_codecs_change_no_copied_definition(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    assert begin_directory(data_dir)
    before = definitions(data_dir)
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    assert await migrate(engine) == migrations()
    await set_part_codecs(engine)
    await engine.close()
    assert definitions_in(data_dir) == SHIPPED.read_text("utf-8")
    tables = [name for name, text in before.items() if text.startswith(b"ATTACH TABLE")]
    assert len(tables) > 20
    after = definitions(data_dir)
    assert {name: after[name] for name in tables} == {name: before[name] for name in tables}


async def test_names_of_tables_are_links_to_their_rows_as_clickhouse_makes_them(
    migrated: Path, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    begin_directory(data_dir)
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    await engine.close()
    names = {path.name for path in (migrated / "clickhouse/data/brokerhouse").iterdir()}
    links = list((data_dir / "clickhouse/data/brokerhouse").iterdir())
    assert {link.name for link in links} == names
    definition = (data_dir / "clickhouse/metadata/brokerhouse/messages.sql").read_text()
    folder = (data_dir / "clickhouse/data/brokerhouse/messages").resolve(strict=True)
    assert f"UUID '{folder.name}'" in definition


def test_each_table_of_each_data_directory_has_an_id_of_its_own(tmp_path: Path) -> None:
    ids: list[str] = []
    for name in ("one", "other"):
        begin_directory(tmp_path / name)
        texts = [text.decode() for text in definitions(tmp_path / name).values()]
        ids += [text.partition("'")[2][:36] for text in texts]
        with_rows = {text.partition("'")[2][:36] for text in texts if "MergeTree" in text}
        folders = {path.name for path in (tmp_path / name / "clickhouse").glob("store/*/*")}
        database = (tmp_path / name / "clickhouse/metadata/brokerhouse").readlink().name
        assert folders == with_rows | {database}
    assert len(ids) == len(set(ids)) > 80


def test_a_directory_that_is_in_use_is_refused_and_not_written(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path / "data")
    with pytest.raises(DataDirectoryError, match="is in use by process"):
        begin_directory(tmp_path / "data")
    os.close(lock)
    assert os.listdir(tmp_path / "data") == ["LOCK"]


def test_tables_are_not_put_where_an_engine_or_a_journal_has_been(tmp_path: Path) -> None:
    (tmp_path / "engine" / "clickhouse").mkdir(parents=True)
    assert not begin_directory(tmp_path / "engine")
    assert os.listdir(tmp_path / "engine" / "clickhouse") == []
    begun = tmp_path / "journal"
    begun.mkdir()
    (begun / "journal.segments").write_bytes(b"")
    assert not begin_directory(begun)
    assert not (begun / "clickhouse").exists()


def test_a_disk_that_is_full_is_named_and_leaves_a_directory_that_can_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(new_directory, "_flush_one", _no_space)
        with pytest.raises(DataDirectoryError, match="cannot be written: No space left on device"):
            begin_directory(tmp_path / "data")
    assert not (tmp_path / "data" / "clickhouse").exists()
    assert begin_directory(tmp_path / "data")
    assert not (tmp_path / "data" / "clickhouse.new").exists()


def _no_space(path: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


_KILLED_AT = """
import os, signal, sys
from brokerhouse.broker import single
from brokerhouse.broker.cli.main import main
from brokerhouse.storage import new_directory

def end(*_):
    os.kill(os.getpid(), signal.SIGKILL)

setattr({"new_directory": new_directory, "single": single}[sys.argv[1]], sys.argv[2], end)
main(sys.argv[3:])
"""
"""A broker that is killed where it would call a function."""


@pytest.mark.parametrize(
    ("module", "function", "left"),
    [
        ("new_directory", "_flush", "clickhouse.new"),  # everything is written, nothing is named
        ("single", "record_applied", "clickhouse"),  # there are tables, and no note of it
    ],
)
def test_a_first_start_that_was_killed_is_made_up_for_by_the_next_start(
    tmp_path: Path, module: str, function: str, left: str
) -> None:
    broker = BrokerProcess(tmp_path / "data")
    serve = broker.command()[broker.command().index("serve") :]
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED_AT, module, function, *serve],
        cwd=PROJECT,
        env={**os.environ, **broker.environment()},
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "data").glob("clickhouse*")] == [left]
    try:
        broker.start()
        noted = broker.sql("SELECT count() AS files FROM brokerhouse.schema_migrations")
        assert noted == [{"files": len(migrations())}]
    finally:
        broker.stop()
    assert definitions_in(tmp_path / "data") == SHIPPED.read_text("utf-8")
