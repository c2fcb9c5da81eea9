"""An Iceberg table that changes as by the job `iceberg`, without Kafka and without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import POSITIONAL_DELETE_SCHEMA, DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.coordinator import OFFSETS
from brokerhouse.spark_jobs.iceberg.events import WrittenFile
from brokerhouse.spark_jobs.iceberg.files import TableWriter
from brokerhouse.spark_jobs.iceberg.rewriting import Bin, RewriteTask, Rewritten
from brokerhouse.spark_jobs.iceberg.settings import (
    DEBEZIUM,
    RowOperation,
    RowOperations,
    SinkTables,
)
from brokerhouse.spark_jobs.iceberg.table_files import live_entries

NAME = "db.t"
OFFSETS_PROPERTY = f"{OFFSETS}.iceberg-test.topic-id"
OPERATIONS = RowOperations("op", {**DEBEZIUM, **{one.value: one for one in RowOperation}})


class ChangingTable:
    """Rows are of `id` and whatever else; with `keyed`, `op` says what a row does."""

    def __init__(
        self, directory: Path, *, keyed: bool = False, partition_by: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self._settings = SinkTables(
            {NAME: ""},
            "",
            None,
            True,
            False,
            ("id",) if keyed else (),
            tuple(partition_by),
            {},
            False,
            OPERATIONS if keyed else None,
        )
        self._commits = 0

    @property
    def catalog(self) -> Catalog:
        return tables.open_catalog(tables.LOCAL_CATALOG, tables.local_catalog(str(self.directory)))

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    @property
    def location(self) -> Path:
        return Path(self.table.location().removeprefix("file://"))

    def written(self, *rows: Mapping[str, Any]) -> tuple[WrittenFile, ...]:
        """Files that are not committed."""
        writer = TableWriter(self.catalog, NAME, self._settings)
        errors = writer.add([dict(row) for row in rows])
        assert not errors, errors
        return writer.finish()

    def commit(self, *rows: Mapping[str, Any], properties: Mapping[str, str] | None = None) -> int:
        """One snapshot, as of the coordinator. Returns its id."""
        files = self.written(*rows)
        self._commits += 1
        found = {OFFSETS_PROPERTY: json.dumps({"0": self._commits})}
        return tables.commit(self.table, [files], found if properties is None else properties)

    def rows(self) -> list[dict[str, Any]]:
        """By PyIceberg."""
        found: list[dict[str, Any]] = self.table.scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row["id"] is None, row["id"]))

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def stored_offsets(self) -> dict[int, int]:
        return tables.stored_offsets(self.table, OFFSETS_PROPERTY)

    def live_files(self, content: DataFileContent = DataFileContent.DATA) -> list[str]:
        table = self.table
        snapshot = table.current_snapshot()
        assert snapshot is not None
        entries = live_entries(snapshot, table.io)
        return [one.data_file.file_path for one in entries if one.data_file.content is content]

    def stored_files(self) -> set[Path]:
        """In the table's folders."""
        return {path for path in self.location.rglob("*") if path.is_file()}


def in_turn(task: RewriteTask, bins: Sequence[Bin]) -> Iterable[Rewritten]:
    """What Spark does, in this process."""
    return [task(one) for one in bins]


def add_position_deletes(changing: ChangingTable, location: str, positions: Sequence[int]) -> None:
    """As other writers delete rows: by their file and their number in it."""
    table = changing.table
    rows = pa.table(
        [pa.array([location] * len(positions)), pa.array(positions, pa.int64())],
        schema=schema_to_pyarrow(POSITIONAL_DELETE_SCHEMA),
    )
    path = f"{table.location()}/data/deletes-{uuid4().hex}.parquet"
    with table.io.new_output(path).create() as out:
        pq.write_table(rows, out)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        spec_id=0,
        file_size_in_bytes=len(table.io.new_input(path)),
    )
    tables.commit(table, [[tables.file_as_bytes(file, table.metadata)]], {})
