"""A new data directory begins with every table and view: their definitions are copied into it.

To make them one by one takes the engine 0.3 s of CPU and 89 flushes, a quarter of a first start.
`sql/definitions.sql` has what the files of sql/schema/ and `set_part_codecs` make together, as the
engine writes it, each with its name in a line before it:

    -- topics
    ATTACH VIEW _ UUID '${uuid}'
    (

`make definitions` writes it, with `definitions_in`; tests/engine/test_new_directory.py says when it
has to be written again. Each data directory has UUIDs of its own.

The directory `clickhouse` appears whole and flushed, by a rename. Until `schema_migrations` has its
rows, a start applies the files of sql/schema/ to what is there: each allows to be applied again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from uuid import UUID, uuid4

from brokerhouse.storage.data_directory import DataDirectoryError, lock_directory
from brokerhouse.storage.engine import DATABASE
from brokerhouse.storage.journal_register import register_path

_UNFINISHED = "clickhouse.new"
_NAME = re.compile(r"^-- (\w+)\n", re.MULTILINE)
_OWN_UUID = re.compile(r"(?<= _ UUID ')[0-9a-f-]{36}(?=')")
_UUID = "${uuid}"
_HAS_FILES = re.compile(r"^ENGINE = \w*MergeTree\b", re.MULTILINE)
_FLUSHES_AT_ONCE = 16
"""A file system writes those that wait together."""
_HEAD = """\
-- The tables and views of a new data directory, as ClickHouse stores their definitions.
-- Written by `make definitions` from sql/schema/, where they are explained;
-- storage/new_directory.py says what for.

"""


def begin_directory(data_dir: Path) -> bool:
    """Give a new data directory its tables; False if it is not new. Raises `DataDirectoryError`.

    The engine must not be open.
    """
    lock = lock_directory(data_dir)
    try:
        if not _is_new(data_dir):
            return False
        unfinished = data_dir / _UNFINISHED
        if unfinished.exists():  # a start was killed
            shutil.rmtree(unfinished)
        _flush(_write(unfinished))
        unfinished.rename(data_dir / "clickhouse")
        _flush([data_dir])
        return True
    except OSError as error:
        raise DataDirectoryError(
            f"the data directory {data_dir} cannot be written: {error.strerror}"
        ) from error
    finally:
        os.close(lock)


def _is_new(data_dir: Path) -> bool:
    """Of a directory with a journal, the tables were removed: the engine's start refuses it."""
    return (
        not (data_dir / "clickhouse").exists() and not register_path(data_dir / "journal").exists()
    )


def _write(clickhouse: Path) -> list[str]:
    """Write the definitions into this directory; the paths of all files and directories."""
    store, metadata = f"{clickhouse}/store", f"{clickhouse}/metadata"
    written = [str(clickhouse), store, metadata]
    for folder in written:
        os.mkdir(folder)
    database = uuid4()
    definitions = _make_folders(store, database, written)
    os.symlink(f"../store/{_place(database)}", f"{metadata}/{DATABASE}")
    text = f"ATTACH DATABASE _ UUID '{database}'\nENGINE = Atomic\n"
    written.append(_write_file(f"{metadata}/{DATABASE}.sql", text))
    for name, definition in _shipped().items():
        table = uuid4()
        text = definition.replace(_UUID, str(table), 1)
        written.append(_write_file(f"{definitions}/{name}.sql", text))
        if _HAS_FILES.search(definition):
            _make_folders(store, table, written)
    return written


def _place(owner: UUID) -> str:
    """Where ClickHouse has the files of a table, or of a database, below `store`."""
    return f"{str(owner)[:3]}/{owner}"


def _make_folders(store: str, owner: UUID, written: list[str]) -> str:
    folder = f"{store}/{_place(owner)}"
    os.makedirs(folder)
    written += [os.path.dirname(folder), folder]
    return folder


def _write_file(path: str, text: str) -> str:
    with open(path, "xb", buffering=0) as file:
        file.write(text.encode())
    return path


def _flush(paths: Iterable[str | Path]) -> None:
    with ThreadPoolExecutor(_FLUSHES_AT_ONCE, thread_name_prefix="flush") as threads:
        for _ in threads.map(_flush_one, paths):
            pass


def _flush_one(path: str | Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _shipped() -> Mapping[str, str]:
    """The definitions by name."""
    text = (
        files("brokerhouse.sql").joinpath("definitions.sql").read_text("utf-8").removeprefix(_HEAD)
    )
    _, *parts = _NAME.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def definitions_in(data_dir: Path) -> str:
    """What `sql/definitions.sql` has to be, if a start has made this directory's tables."""
    return _HEAD + "".join(_named_definitions(data_dir))


def _named_definitions(data_dir: Path) -> Iterator[str]:
    for path in sorted((data_dir / "clickhouse" / "metadata" / DATABASE).glob("*.sql")):
        yield f"-- {path.stem}\n{_OWN_UUID.sub(_UUID, path.read_text('utf-8'), count=1)}"
