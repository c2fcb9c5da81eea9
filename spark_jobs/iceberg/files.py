"""What one worker has written for one table since the last commit.

Rows are Arrow until a file has its size or the commit begins. Where rows change others, the last
one of each key in a commit is the row, and an equality delete removes those of earlier commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from errno import ENAMETOOLONG
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType

from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.events import WrittenFile
from brokerhouse.spark_jobs.iceberg.evolution import Evolution
from brokerhouse.spark_jobs.iceberg.rows import DoesNotFit, Row, RowFitter
from brokerhouse.spark_jobs.iceberg.settings import RowOperation, RowOperations, SinkTables

_FILE_BYTES = 128 << 20
"""Of Arrow, at most, before a file is written, so that memory is bounded."""
_SHORT_PATHS = {
    TableProperties.OBJECT_STORE_ENABLED: "true",
    TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS: "false",
}
"""For values of partitions that are too long for the name of a directory."""
_CONTENT, _EQUALITY_IDS = (
    [field.field_id for field in DATA_FILE_TYPE[tables.FORMAT_VERSION].fields].index(field_id)
    for field_id in (134, 135)
)
"""Places in a DataFile of the fields with these ids (https://iceberg.apache.org/spec/#manifests)."""


class TableReplaced(Exception):
    """What was written since the last commit does not fit the table that is there now."""


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
        lacks, refused = self._lacks(rows)
        left = [number for number in range(len(rows)) if number not in refused]
        try:
            errors = self._take([rows[number] for number in left], lacks)
        except (tables.TableUnusable, DoesNotFit) as error:
            errors = dict.fromkeys(range(len(left)), str(error))
        return refused | {left[number]: reason for number, reason in errors.items()}

    def finish(self) -> tuple[WrittenFile, ...]:
        """All files since the last call. From now on the table is as others have changed it.

        Raises TableReplaced if it is another one now: what waits was written for the old one.
        """
        now = tables.existing(self._catalog, self.name)
        if self._changes or self._files or any(one.num_rows for one in self._waiting):
            assert self._table is not None
            if now is None or now.metadata.table_uuid != self._table.metadata.table_uuid:
                raise TableReplaced(f"{self.name} was dropped: its records are read again")
        if self._changes:
            self._write_changes()
        self._write()
        files, self._files = tuple(self._files), []
        self._table = now
        self._fitter = None
        return files

    @property
    def table_uuid(self) -> str:
        """Of the table that the files of `finish` are for."""
        return "" if self._table is None else str(self._table.metadata.table_uuid)

    # --- rows

    def _lacks(self, rows: Sequence[Row]) -> tuple[bool, dict[int, str]]:
        """Whether the schema may have to change for the rows, and why it cannot for some."""
        evolve = self._settings.evolve
        table = self._current()
        if table is None:
            # Another worker may make it, by other rows.
            return evolve, Evolution(Schema(), {}).refusals(rows) if self._settings.create else {}
        if not evolve:
            return False, {}
        evolution = Evolution(table.schema(), table.properties, self._never_columns)
        if evolution.lacking(rows) is None:
            return False, {}
        return True, evolution.refusals(rows)

    def _take(self, rows: Sequence[Row], lacks: bool) -> dict[int, str]:
        """Raises TableUnusable, DoesNotFit."""
        if not rows:
            return {}
        table = self._fitting(rows, lacks)
        if table is None:
            reason = f"there is no table {self.name}"
            if self._settings.create:
                reason = f"there is no table {self.name} yet, and no value to make it by"
            return dict.fromkeys(range(len(rows)), reason)
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

    # --- the table

    @property
    def _never_columns(self) -> set[str]:
        """Fields that get no column by themselves."""
        operations = self._settings.operations
        return {*tables.METADATA_TYPES, *([operations.field] if operations else [])}

    def _current(self) -> Table | None:
        if self._table is None:
            self._table = tables.existing(self._catalog, self.name)
        return self._table

    def _fitting(self, rows: Sequence[Row], lacks: bool) -> Table | None:
        """The table, with a column for each field if that is wanted and it lacks some."""
        table = self._current()
        if table is None and self._settings.create:
            table = self._table = tables.made(self._catalog, self.name, rows, self._settings)
        if table is None:
            return None
        fitter = self._fitter or _fitter_of(table, table.schema())
        if lacks:
            before = table.metadata
            table = tables.changed(table, rows, self._never_columns)
            if table.schema() != before.schema():
                self._write(before)
                fitter = _fitter_of(table, table.schema())
        self._fitter = fitter
        return table

    # --- rows that change others

    def _change(self, rows: Sequence[Row], operations: RowOperations) -> dict[int, str]:
        """Keep the last row of each key. A change is a row, whether it is still there afterwards,
        and whether rows of earlier commits with its key are to go."""
        assert self._table is not None
        assert self._fitter is not None
        errors: dict[int, str] = {}
        _, unfit = self._fitter.fit(rows)
        keys, no_key = self._key_fitter(self._table).fit(rows)
        places = iter(keys.to_pylist())
        for number, row in enumerate(rows):
            place = None if number in no_key else _hashable(next(places))
            operation = operations.of(row)
            if operation is None:
                errors[number] = f"{operations.field}: {row.get(operations.field)} is no operation"
                continue
            is_deleted = operation is RowOperation.DELETE
            if place is None or (number in unfit and not is_deleted):
                errors[number] = no_key.get(number) or unfit[number]
                continue
            before = self._changes.pop(place, None)
            replaces = operation is not RowOperation.INSERT or (before is not None and before[2])
            self._changes[place] = (row, not is_deleted, replaces)
        return errors

    def _key_columns(self, table: Table) -> list[str]:
        """Raises TableUnusable."""
        names = list(table.schema().identifier_field_names()) or list(self._settings.id_columns)
        if not names:
            raise tables.TableUnusable(f"{self.name} has no identifier fields: give --id-column")
        if missing := [one for one in names if one not in table.schema().column_names]:
            raise tables.TableUnusable(f"{self.name} has no column {missing[0]}")
        return sorted(names)

    def _key_fitter(self, table: Table) -> RowFitter:
        """It refuses a key that is null."""
        fields = table.schema().select(*self._key_columns(table)).fields
        required = [field.model_copy(update={"required": True}) for field in fields]
        return _fitter_of(table, Schema(*required))

    def _write_changes(self) -> None:
        table = self._table
        assert table is not None
        assert self._fitter is not None
        changes, self._changes = list(self._changes.values()), {}
        rows = [row for row, stays, _ in changes if stays]
        fitted, errors = self._fitter.fit(rows)
        if errors:
            reason = next(iter(errors.values()))
            raise TableReplaced(f"{self.name} was changed: its records are read again: {reason}")
        self._waiting.append(fitted)
        self._write()
        replaced = [row for row, _, replaces in changes if replaces]
        if replaced:
            self._files.extend(self._deletes(table, replaced))

    def _deletes(self, table: Table, rows: Sequence[Row]) -> Iterator[WrittenFile]:
        """Equality deletes for the keys of these rows.

        One in a partition applies to the files of the same partition and spec. That is enough if
        the key says which partition, and the spec was never another. If not, there is one without
        partition as well, which applies to all files; but not every reader knows those.
        https://iceberg.apache.org/spec/#scan-planning
        """
        key = self._key_columns(table)
        schema, spec = table.schema(), table.spec()
        ids = [schema.find_field(name).field_id for name in key]
        sources = {field.source_id for field in spec.fields}
        keys, _ = self._key_fitter(table).fit(rows)
        if sources <= set(ids):
            yield from self._delete_files(table, schema.select(*key), keys, ids, spec.spec_id)
        else:
            # What is beside the key, for its partition, is not compared.
            needed = {schema.find_column_name(one) or "" for one in sources}
            narrow = schema.select(*key, *needed)
            fitted, _ = _fitter_of(table, narrow).fit(rows)
            yield from self._delete_files(table, narrow, fitted, ids, spec.spec_id)
        others = [one for one in table.metadata.partition_specs if one.fields]
        if spec.fields and (not sources <= set(ids) or len(others) > 1):
            everywhere = tables.unpartitioned_spec(table)
            yield from self._delete_files(table, schema.select(*key), keys, ids, everywhere)

    def _delete_files(
        self, table: Table, schema: Schema, rows: pa.Table, ids: list[int], spec_id: int
    ) -> Iterator[WrittenFile]:
        metadata = table.metadata.model_copy(update={"default_spec_id": spec_id})
        narrow = _with_schema(metadata, schema)
        for file in self._data_files(table, narrow, _labelled(rows, schema)):
            file[_CONTENT], file[_EQUALITY_IDS] = DataFileContent.EQUALITY_DELETES, ids
            yield tables.file_as_bytes(file, metadata)

    # --- files

    def _write(self, written_for: TableMetadata | None = None) -> None:
        """`written_for`: the table as it was when the rows were fitted, if it has changed since."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not any(one.num_rows for one in waiting):
            return
        table = self._table
        assert table is not None
        metadata = written_for or table.metadata
        files = self._data_files(table, metadata, pa.concat_tables(waiting))
        self._files += [tables.file_as_bytes(file, metadata) for file in files]

    def _data_files(self, table: Table, metadata: TableMetadata, rows: pa.Table) -> list[DataFile]:
        try:
            return list(_dataframe_to_data_files(metadata, rows, table.io, *self._names))
        except OSError as error:
            if error.errno != ENAMETOOLONG:
                raise
        short = {"properties": {**metadata.properties, **_SHORT_PATHS}}
        metadata = metadata.model_copy(update=short)
        return list(_dataframe_to_data_files(metadata, rows, table.io, *self._names))


def _fitter_of(table: Table, schema: Schema) -> RowFitter:
    """`schema`: all columns of the table, or some. PyIceberg finds no partition for NaN."""
    sources = {field.source_id for field in table.spec().fields}
    floats = [
        field.field_id
        for field in schema.fields
        if field.field_id in sources and isinstance(field.field_type, FloatType | DoubleType)
    ]
    return RowFitter(schema, table.properties, floats)


def _hashable(key: Row) -> tuple[Any, ...]:
    return tuple(repr(one) if isinstance(one, dict | list) else one for one in key.values())


def _labelled(rows: pa.Table, schema: Any) -> pa.Table:
    return rows.cast(schema_to_pyarrow(schema, include_field_ids=True))


def _with_schema(metadata: TableMetadata, schema: Any) -> TableMetadata:
    """The metadata as if the table had only these columns."""
    narrow = schema.model_copy(update={"schema_id": metadata.current_schema_id})
    others = [one for one in metadata.schemas if one.schema_id != metadata.current_schema_id]
    return metadata.model_copy(update={"schemas": [*others, narrow]})
