"""What one worker has written for one table since the last commit.

Rows are Arrow until a file has its size or the commit begins. Where rows change others, the last
one of each key in a commit is the row, and an equality delete removes those of earlier commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DATA_FILE_TYPE, DataFileContent
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata

from spark_jobs.iceberg import tables
from spark_jobs.iceberg.events import WrittenFile
from spark_jobs.iceberg.rows import Row, RowFitter
from spark_jobs.iceberg.settings import Operation, Operations, SinkTables

_FILE_BYTES = 128 << 20
"""Of Arrow, at most, before a file is written, so that memory is bounded."""
_CONTENT, _EQUALITY_IDS = (
    [field.field_id for field in DATA_FILE_TYPE[tables.FORMAT_VERSION].fields].index(field_id)
    for field_id in (134, 135)
)
"""Places in a DataFile of the fields with these ids (https://iceberg.apache.org/spec/#manifests)."""


class TableWriter:
    """Raises what the catalog and the storage raise; then nothing of it is committed."""

    def __init__(self, catalog: Catalog, name: str, settings: SinkTables) -> None:
        self.name = name
        self._catalog = catalog
        self._settings = settings
        self._table: Table | None = None
        self._fitter: RowFitter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._files: list[WrittenFile] = []
        self._changes: dict[tuple[Any, ...], tuple[Row, bool, bool]] = {}
        self._names = (uuid.uuid4(), count())

    @property
    def columns(self) -> list[str] | None:
        """Those that values without names fill, in their order; None if there is no table."""
        table = self._current()
        if table is None:
            return None
        names = [field.name for field in table.schema().fields]
        return [name for name in names if name not in tables.METADATA_TYPES]

    @property
    def wants_metadata(self) -> bool:
        """Whether columns take what Kafka says of a record."""
        table = self._current()
        if table is None:
            return self._settings.metadata_columns
        return not tables.METADATA_TYPES.keys().isdisjoint(table.schema().column_names)

    @property
    def buffered_rows(self) -> int:
        """Of changes, which wait in memory for the commit."""
        return len(self._changes)

    def add(self, rows: Sequence[Row]) -> dict[int, str]:
        """Take rows. Why some are not taken, by their number."""
        table = self._fitting(rows)
        if table is None:
            return {} if self._settings.create else dict.fromkeys(range(len(rows)), self._absent)
        assert self._fitter is not None
        operations = self._settings.operations
        if operations is not None:
            return self._change(rows, operations)
        fitted, errors = self._fitter.fit(rows)
        self._waiting.append(fitted)
        self._waiting_bytes += fitted.nbytes
        target = table.properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, _FILE_BYTES)
        if self._waiting_bytes >= min(int(target), _FILE_BYTES):
            self._write()
        return errors

    def finish(self) -> tuple[WrittenFile, ...]:
        """All files since the last call."""
        if self._changes:
            self._write_changes()
        self._write()
        files, self._files = tuple(self._files), []
        return files

    @property
    def _absent(self) -> str:
        return f"there is no table {self.name}"

    # --- the table

    def _current(self) -> Table | None:
        if self._table is None:
            self._table = tables.existing(self._catalog, self.name)
        return self._table

    def refresh(self) -> None:
        """See what others have changed."""
        if self._table is not None:
            self._table = tables.existing(self._catalog, self.name)
            self._fitter = None

    def _fitting(self, rows: Sequence[Row]) -> Table | None:
        """The table, with a column for each field if that is wanted."""
        table = self._current()
        if table is None and self._settings.create:
            table = self._table = tables.made(self._catalog, self.name, rows, self._settings)
        if table is None:
            return None
        fitter = self._fitter or RowFitter(table.schema(), table.properties)
        if self._settings.evolve:
            unknown = fitter.unknown(rows) - set(tables.METADATA_TYPES)
            if self._settings.operations is not None:
                unknown.discard(self._settings.operations.field)
            before = table.schema()
            table = tables.changed(table, rows, unknown)
            if table.schema() != before:
                self._write()
                self._table = table
                fitter = RowFitter(table.schema(), table.properties)
        self._fitter = fitter
        return table

    # --- rows that change others

    def _change(self, rows: Sequence[Row], operations: Operations) -> dict[int, str]:
        """Keep the last row of each key. A change is a row, whether it is still there afterwards,
        and whether rows of earlier commits with its key are to go."""
        assert self._table is not None
        assert self._fitter is not None
        key = self._key_columns(self._table)
        errors: dict[int, str] = {}
        _, unfit = self._fitter.fit(rows)
        for number, row in enumerate(rows):
            operation = operations.of(row)
            if operation is None:
                errors[number] = f"{operations.field}: {row.get(operations.field)} is no operation"
                continue
            is_deleted = operation is Operation.DELETE
            if number in unfit and not is_deleted:
                errors[number] = unfit[number]
                continue
            values = tuple(row.get(name) for name in key)
            if None in values:
                errors[number] = f"{key[values.index(None)]}: a key cannot be null"
                continue
            place = tuple(map(_hashable, values))
            before = self._changes.pop(place, None)
            replaces = operation is not Operation.INSERT or (before is not None and before[2])
            self._changes[place] = (row, not is_deleted, replaces)
        return errors

    def _key_columns(self, table: Table) -> list[str]:
        names = list(table.schema().identifier_field_names()) or list(self._settings.id_columns)
        if not names:
            raise ValueError(f"{self.name} has no identifier fields: give --id-column")
        return sorted(names)

    def _write_changes(self) -> None:
        table = self._table
        assert table is not None
        assert self._fitter is not None
        changes, self._changes = list(self._changes.values()), {}
        rows = [row for row, stays, _ in changes if stays]
        fitted, _ = self._fitter.fit(rows)
        self._waiting.append(fitted)
        replaced = [row for row, _, replaces in changes if replaces]
        if replaced:
            self._files.extend(self._deletes(table, replaced))

    def _deletes(self, table: Table, rows: Sequence[Row]) -> Iterator[WrittenFile]:
        """Equality deletes for the keys of these rows, in the partitions that the rows are in.

        https://iceberg.apache.org/spec/#equality-delete-files
        """
        schema, metadata = table.schema(), table.metadata
        key = self._key_columns(table)
        needed = set(key) | {
            schema.find_column_name(field.source_id) or "" for field in table.spec().fields
        }
        narrow = schema.select(*needed)
        keys, errors = RowFitter(narrow, table.properties).fit(rows)
        if errors:
            raise ValueError(f"a key of {self.name} does not fit: {next(iter(errors.values()))}")
        ids = [schema.find_field(name).field_id for name in key]
        # What is written beside the key, for its partition, is not compared.
        of_narrow = _with_schema(metadata, narrow)
        for file in _dataframe_to_data_files(
            of_narrow, _labelled(keys, narrow), table.io, *self._names
        ):
            file[_CONTENT], file[_EQUALITY_IDS] = DataFileContent.EQUALITY_DELETES, ids
            yield tables.file_as_bytes(file, metadata)

    # --- files

    def _write(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not any(one.num_rows for one in waiting):
            return
        table = self._table
        assert table is not None
        rows = pa.concat_tables(waiting)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io, *self._names):
            self._files.append(tables.file_as_bytes(file, table.metadata))


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, dict | list) else value


def _labelled(rows: pa.Table, schema: Any) -> pa.Table:
    return rows.cast(schema_to_pyarrow(schema, include_field_ids=True))


def _with_schema(metadata: TableMetadata, schema: Any) -> TableMetadata:
    """The metadata as if the table had only these columns."""
    narrow = schema.model_copy(update={"schema_id": metadata.current_schema_id})
    others = [one for one in metadata.schemas if one.schema_id != metadata.current_schema_id]
    return metadata.model_copy(update={"schemas": [*others, narrow]})
