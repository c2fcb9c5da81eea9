"""Small data files become large ones, and deletes are applied.

Files of one partition are put into bins of the target size. A bin is read, its deleted rows are
left out, and one file is written; bins are independent, so that each is a task of Spark. The commit
replaces the files of all bins. Afterwards no delete is left of those that were there at the start,
and PyIceberg, which cannot apply equality deletes, reads the table.

What others commit meanwhile:
* New data files and new equality deletes stay, and the deletes apply (replacing.py).
* If files of a bin were removed, or position deletes were added, the rewrite fails: those name a
  file and a row in it. It begins again with the table as it is then.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from brokerhouse.spark_jobs.iceberg.replacing import ReplaceFiles
from brokerhouse.spark_jobs.iceberg.table_files import live_entries
from brokerhouse.spark_jobs.job import JobFailure

SMALL = 0.75
"""Of the target size: a smaller file is small."""
_ATTEMPTS = 10
_ONE_FILE = str(1 << 60)
_FORMATS = (1, 2)
"""Of version 3, row ids would have to be kept."""


class FilesChanged(Exception):
    """Others have changed the files that were rewritten. Nothing was committed."""


@dataclass(frozen=True, slots=True)
class Delete:
    """A delete file, and the sequence number that says to which data files it applies."""

    file: DataFile
    sequence_number: int

    @property
    def is_equality(self) -> bool:
        content: DataFileContent = self.file.content
        return content is DataFileContent.EQUALITY_DELETES


@dataclass(frozen=True, slots=True)
class FileWithDeletes:
    """A data file, and the deletes that may apply to its rows."""

    file: DataFile
    sequence_number: int
    deletes: tuple[Delete, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of a bin. If no file was replaced, none of its rows was deleted."""

    checked: tuple[DataFile, ...]
    replaced: tuple[DataFile, ...]
    added: tuple[DataFile, ...]


Bin = tuple[FileWithDeletes, ...]


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """`sequence_number`: of the snapshot that was looked at; None where the format has none."""

    sequence_number: int | None
    bins: tuple[Bin, ...]
    deletes: tuple[Delete, ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """Data files before and after, and delete files that are no longer needed."""

    before: tuple[DataFile, ...] = ()
    after: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()


# --- what to do


def plan(table: Table, target_bytes: int) -> RewritePlan:
    """Raises JobFailure if the table's format cannot be rewritten."""
    metadata = table.metadata
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return RewritePlan(None, (), ())
    if metadata.format_version not in _FORMATS:
        raise JobFailure(
            f"{'.'.join(table.name())} is of format version {metadata.format_version},"
            " whose files cannot be rewritten"
        )
    data, deletes = _sorted_out(live_entries(snapshot, table.io))
    groups: dict[Any, list[FileWithDeletes]] = {}
    for entry in data:
        file = entry.data_file
        applying = tuple(one for one in deletes if _may_apply(one, entry, metadata))
        source = FileWithDeletes(file, entry.sequence_number or 0, applying)
        groups.setdefault((file.spec_id, file.partition), []).append(source)
    bins = [one for group in groups.values() for one in _bins(group, target_bytes)]
    number = snapshot.sequence_number if metadata.format_version > 1 else None
    return RewritePlan(number, tuple(bins), deletes)


def _sorted_out(
    entries: Iterable[ManifestEntry],
) -> tuple[list[ManifestEntry], tuple[Delete, ...]]:
    data, deletes = [], []
    for entry in entries:
        if entry.data_file.content is DataFileContent.DATA:
            data.append(entry)
        else:
            deletes.append(Delete(entry.data_file, entry.sequence_number or 0))
    return data, tuple(deletes)


def _may_apply(delete: Delete, data: ManifestEntry, metadata: TableMetadata) -> bool:
    """https://iceberg.apache.org/spec/#scan-planning"""
    number = data.sequence_number or 0
    if delete.is_equality:
        if delete.sequence_number <= number:
            return False
        if metadata.specs()[delete.file.spec_id].is_unpartitioned():
            return True
    elif delete.sequence_number < number:
        return False
    file = data.data_file
    return bool((delete.file.spec_id, delete.file.partition) == (file.spec_id, file.partition))


def _bins(group: Iterable[FileWithDeletes], target_bytes: int) -> list[Bin]:
    """Small files together, in their order, and large files with deletes alone."""
    bins: list[Bin] = []
    together: list[FileWithDeletes] = []
    size = 0
    for source in sorted(group, key=lambda one: (one.sequence_number, one.file.file_path)):
        found = source.file.file_size_in_bytes
        if found >= SMALL * target_bytes:
            bins.append((source,))
            continue
        if together and size + found > target_bytes:
            bins.append(tuple(together))
            together, size = [], 0
        together.append(source)
        size += found
    bins.append(tuple(together))
    return [one for one in bins if len(one) > 1 or any(source.deletes for source in one)]


# --- a bin


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """What Spark runs for each bin."""

    metadata: TableMetadata
    io: FileIO

    def __call__(self, sources: Bin) -> Rewritten:
        parts, deleted = [], 0
        for source in sources:
            rows = self._rows(source)
            parts.append(rows)
            deleted += source.file.record_count - rows.num_rows
        files = tuple(source.file for source in sources)
        if len(files) == 1 and not deleted:
            return Rewritten(files, (), ())
        rows = pa.concat_tables(parts, promote_options="permissive")
        if not rows.num_rows:
            return Rewritten(files, files, ())
        properties = {
            **self.metadata.properties,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES: _ONE_FILE,
        }
        metadata = self.metadata.model_copy(update={"properties": properties})
        added = tuple(_dataframe_to_data_files(metadata, rows, self.io, uuid.uuid4(), count()))
        for file in added:
            file.spec_id = metadata.default_spec_id
        return Rewritten(files, files, added)

    def _rows(self, source: FileWithDeletes) -> pa.Table:
        """Those that are not deleted."""
        schema = self.metadata.schema()
        equality = [one for one in source.deletes if one.is_equality]
        positions = {one.file for one in source.deletes if not one.is_equality}
        keys = {tuple(one.file.equality_ids or ()) for one in equality}
        dropped = {number for key in keys for number in key} - set(schema.field_ids)
        wanted = Schema(*schema.fields, *map(self._key_field, sorted(dropped)))
        rows = self._read(wanted, FileScanTask(source.file, positions))
        for key in sorted(keys):
            fields = [self._key_field(number) for number in key]
            files = [one.file for one in equality if tuple(one.file.equality_ids or ()) == key]
            narrow = Schema(*fields)
            deleted = pa.concat_tables(self._read(narrow, FileScanTask(one)) for one in files)
            names = [wanted.find_field(field.field_id).name for field in fields]
            rows = without(rows, names, deleted.rename_columns(names))
        return rows.select([field.name for field in schema.fields])

    def _key_field(self, number: int) -> NestedField:
        """A column of a key, which may have been dropped since."""
        current = self.metadata.schema()
        for schema in (current, *reversed(self.metadata.schemas)):
            for field in schema.fields:
                if field.field_id == number:
                    name = field.name if schema is current else f"dropped-{number}"
                    return NestedField(number, name, field.field_type, required=False)
        raise JobFailure(f"an equality delete names field {number}, which is no column")

    def _read(self, schema: Schema, task: FileScanTask) -> pa.Table:
        return ArrowScan(self.metadata, self.io, schema, AlwaysTrue()).to_table([task])


def without(rows: pa.Table, names: Sequence[str], deleted: pa.Table) -> pa.Table:
    """The rows whose `names` have values that no row of `deleted` has. Null equals null."""
    encoded = [_as_numbers(rows[name], deleted[name]) for name in names]
    of_rows = pa.table({name: one for name, (one, _) in zip(names, encoded, strict=True)})
    of_keys = pa.table({name: one for name, (_, one) in zip(names, encoded, strict=True)})
    numbered = of_rows.append_column("row number", pa.array(np.arange(rows.num_rows)))
    left = numbered.join(of_keys, list(names), join_type="left anti")["row number"]
    stays = np.zeros(rows.num_rows, dtype=bool)
    stays[left.to_numpy()] = True
    return rows.filter(pa.array(stays))


def _as_numbers(one: pa.ChunkedArray, other: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Equal values, also nulls, become equal numbers: joins know neither nulls nor all types."""
    arrays = [_plain(found.combine_chunks()) for found in (one, other)]
    both = pa.chunked_array([array.cast(arrays[0].type) for array in arrays])
    encoded = pc.dictionary_encode(both.combine_chunks(), null_encoding="encode")
    numbers = encoded.indices if isinstance(encoded, pa.DictionaryArray) else None
    assert numbers is not None
    return numbers[: len(one)], numbers[len(one) :]


def _plain(array: pa.Array) -> pa.Array:
    found = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    return found.storage if isinstance(found, pa.ExtensionArray) else found


# --- the whole


Run = Callable[[RewriteTask, Sequence[Bin]], Iterable[Rewritten]]


def rewrite(catalog: Catalog, name: str, target_bytes: int, run: Run) -> Replaced:
    """`run`: runs a task for each bin, in any processes.

    Raises JobFailure, and what the catalog and the storage raise.
    """
    for _ in range(_ATTEMPTS):
        table = catalog.load_table(name)
        todo = plan(table, target_bytes)
        if not todo.bins and not todo.deletes:
            return Replaced()
        done = list(run(RewriteTask(table.metadata, table.io), todo.bins))
        try:
            return _commit(catalog, name, todo, done)
        except FilesChanged:
            continue
    raise JobFailure(f"{name}: others changed the files that were rewritten, {_ATTEMPTS} times")


def _commit(catalog: Catalog, name: str, todo: RewritePlan, done: Sequence[Rewritten]) -> Replaced:
    """Raises FilesChanged. The files that were written are deleted unless they may be in use."""
    before = [file for one in done for file in one.replaced]
    after = [file for one in done for file in one.added]
    checked = {file.file_path for one in done for file in one.checked}
    table = catalog.load_table(name)
    try:
        for _ in range(_ATTEMPTS):
            unneeded = _unneeded_deletes(table, todo, before, checked)
            if not before and not unneeded:
                return Replaced()
            try:
                with table.transaction() as transaction:
                    removed = [*before, *unneeded]
                    ReplaceFiles(transaction, after, removed, todo.sequence_number, {}).commit()
                return Replaced(tuple(before), tuple(after), tuple(unneeded))
            except (CommitFailedException, ValidationException):
                table = catalog.load_table(name)
        raise FilesChanged
    except FilesChanged:
        for file in after:
            table.io.delete(file.file_path)
        raise


def _unneeded_deletes(
    table: Table, todo: RewritePlan, before: Sequence[DataFile], checked: set[str]
) -> list[DataFile]:
    """Deletes that apply to no data file any more. Raises FilesChanged."""
    metadata = table.metadata
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        raise FilesChanged
    data, deletes = _sorted_out(live_entries(snapshot, table.io))
    live = {entry.data_file.file_path for entry in data}
    if any(file.file_path not in live for file in before):
        raise FilesChanged
    known = {one.file.file_path for one in todo.deletes}
    gone = {file.file_path for file in before}
    replaced = [entry for entry in data if entry.data_file.file_path in gone]
    left = [entry for entry in data if entry.data_file.file_path not in checked]
    for delete in deletes:
        if delete.file.file_path in known or delete.is_equality:
            continue
        if any(_may_apply(delete, entry, metadata) for entry in replaced):
            raise FilesChanged
    return [
        delete.file
        for delete in deletes
        if delete.file.file_path in known
        and not any(_may_apply(delete, entry, metadata) for entry in left)
    ]
