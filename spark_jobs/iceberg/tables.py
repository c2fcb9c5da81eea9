"""Iceberg tables through PyIceberg: made, changed and committed to.

PyIceberg appends data files by itself. What it has no public way for is here: a commit with
equality deletes and with several snapshots, data files that travel between processes, and a commit
that is not repeated blindly when somebody else was faster.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer, resolve_reader
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    data_file_with_partition,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddPartitionSpecUpdate, AssertTableUUID, TableUpdate
from pyiceberg.table.update.snapshot import _MergeAppendFiles
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, StructType
from sqlalchemy.exc import OperationalError

from brokerhouse.spark_jobs.iceberg.events import WrittenFile
from brokerhouse.spark_jobs.iceberg.evolution import Evolution, inferred
from brokerhouse.spark_jobs.iceberg.local_files import LocalFileIO
from brokerhouse.spark_jobs.iceberg.rows import Row

if TYPE_CHECKING:
    from brokerhouse.spark_jobs.iceberg.settings import SinkTables

LOCAL_CATALOG = "local"
"""What the catalog of a directory is called: other programs must use the same name."""
FORMAT_VERSION: Literal[2] = 2
OF_NEW_TABLES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
"""A table with many commits needs both, or readers open one manifest for each commit that ever was,
and each commit leaves a metadata.json with all snapshots (figures: docs/iceberg.md)."""
_CHANGE_ATTEMPTS = 10
_TABLES_OF_CATALOG = 2  # that PyIceberg makes in a database
_PARTITION = re.compile(r"(?:(?P<transform>\w+)\()?(?P<column>[^(),\s]+)(?:,\s*(?P<width>\d+))?\)?")
METADATA_TYPES = {
    "_topic": pa.string(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": pa.timestamp("us", "UTC"),
    "_key": pa.binary(),
    "_headers": pa.map_(pa.string(), pa.binary()),
}


class TableUnusable(ValueError):
    """No row can be written to a table, or it cannot be made. One sentence says why."""


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Raises anything: catalogs do not agree on an error.

    A new catalog in SQLite gets its tables here. PyIceberg looks for them and makes them in two
    steps, so whoever opens it at the same moment may be told that one exists: once for each.
    """
    for _ in range(_TABLES_OF_CATALOG):
        try:
            return load_catalog(name, **properties)
        except OperationalError as error:
            if "already exists" not in str(error):
                raise
    return load_catalog(name, **properties)


def local_catalog(directory: str) -> dict[str, str]:
    """A catalog that needs nothing but a directory: SQLite, and data files beside it."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}",
        "py-io-impl": f"{LocalFileIO.__module__}.{LocalFileIO.__name__}",
    }


def catalog_properties(catalog: str, options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """PyIceberg's name of a catalog, and its properties. A directory is made if it is missing."""
    path = Path(catalog)
    if options or "/" not in catalog:
        return catalog, options
    path.mkdir(parents=True, exist_ok=True)
    return LOCAL_CATALOG, local_catalog(str(path.resolve()))


def existing(catalog: Catalog, name: str) -> Table | None:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


# --- tables by what rows have


def made(catalog: Catalog, name: str, rows: Sequence[Row], tables: SinkTables) -> Table | None:
    """A new table for rows like these; None as long as they have no values."""
    columns = inferred(rows)
    if not columns.names:
        return None
    if tables.metadata_columns:
        known = {field.name: field.type for field in columns}
        columns = pa.schema({**known, **METADATA_TYPES}.items())
    needed = [*tables.id_columns, *(partition_field(text)[0] for text in tables.partition_by)]
    if missing := [one for one in needed if one.partition(".")[0] not in columns.names]:
        raise TableUnusable(f"{name} cannot be made: its records have no field {missing[0]}")
    make_namespace(catalog, name.rpartition(".")[0])
    properties = {"format-version": str(FORMAT_VERSION), **OF_NEW_TABLES, **tables.properties}
    try:
        if not tables.id_columns and not tables.partition_by:
            return catalog.create_table(name, columns, properties=properties)
        with catalog.create_table_transaction(name, columns, properties=properties) as new:
            if tables.partition_by:
                with new.update_spec() as spec:
                    for text in tables.partition_by:
                        spec.add_field(*partition_field(text))
            if tables.id_columns:
                with new.update_schema(allow_incompatible_changes=True) as change:
                    for column in tables.id_columns:
                        change.update_column(column, required=True)
                    change.set_identifier_fields(*tables.id_columns)
    except (TableAlreadyExistsError, NamespaceAlreadyExistsError, CommitFailedException):
        pass  # another worker was faster
    except ValueError as error:  # of PyIceberg, as for a transform that the type does not have
        raise TableUnusable(f"{name} cannot be made: {error}") from error
    return catalog.load_table(name)


def make_namespace(catalog: Catalog, name: str) -> None:
    """Unless it exists. Raises what the catalog raises."""
    try:
        catalog.create_namespace_if_not_exists(name)
    except Exception:
        # Catalogs in databases fail in ways of their own where another worker was faster.
        if not catalog.namespace_exists(name):
            raise


def partition_field(text: str) -> tuple[str, Any]:
    """`column`, `day(column)` or `bucket(column, 16)`. Raises ValueError with a sentence."""
    match = _PARTITION.fullmatch(text.strip())
    if match is None or text.count("(") != text.count(")"):
        raise ValueError(f"write COLUMN, day(COLUMN) or bucket(COLUMN, 16), not {text!r}")
    transform = match["transform"] or "identity"
    if match["width"]:
        transform = f"{transform}[{match['width']}]"
    try:
        return match["column"], parse_transform(transform)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error


def changed(table: Table, rows: Sequence[Row], ignored: Collection[str]) -> Table:
    """The table with what it lacks for the rows; `ignored` fields get no column.

    Raises TableUnusable.
    """
    for _ in range(_CHANGE_ATTEMPTS):
        lacking = Evolution(table.schema(), table.properties, ignored).lacking(rows)
        if lacking is None:
            return table
        try:
            with table.update_schema() as change:
                change.union_by_name(lacking)
        except CommitFailedException:
            pass  # another worker was faster; what is left is seen by looking again
        except ValueError as error:  # of PyIceberg, as for two columns of one name
            name = ".".join(table.name())
            raise TableUnusable(f"{name} cannot get columns for its records: {error}") from error
        table.refresh()
    raise CommitFailedException(f"the schema of {'.'.join(table.name())} changes all the time")


class _AssertPartitioned(AssertTableUUID):
    """That nobody has added the spec without fields: PyIceberg's catalogs would add it twice, and
    Iceberg's readers refuse such a table. A REST catalog sees to that itself."""

    def validate(  # type: ignore[override]  # as in PyIceberg, which hides one of pydantic
        self, base_metadata: TableMetadata | None
    ) -> None:
        super().validate(base_metadata)
        assert base_metadata is not None
        if any(not spec.fields for spec in base_metadata.partition_specs):
            raise CommitFailedException("the table has a partition spec without fields")


def unpartitioned_spec(table: Table) -> int:
    """The id of the partition spec without fields, which is added if the table has none."""
    for _ in range(_CHANGE_ATTEMPTS):
        specs = table.metadata.partition_specs
        if found := [spec.spec_id for spec in specs if spec.is_unpartitioned()]:
            return found[0]
        new = PartitionSpec(spec_id=max(spec.spec_id for spec in specs) + 1)
        needs = _AssertPartitioned(uuid=table.metadata.table_uuid)
        try:
            with table.transaction() as change:
                change._apply((AddPartitionSpecUpdate(spec=new),), (needs,))
        except CommitFailedException:
            pass  # another worker was faster
        table.refresh()
    raise CommitFailedException(f"{'.'.join(table.name())} changes all the time")


# --- data files between processes


def file_as_bytes(file: DataFile, metadata: TableMetadata) -> WrittenFile:
    """`file`, of the table's partition spec, as Iceberg's manifests have it."""
    out = io.BytesIO()
    spec_id, schema_id = metadata.default_spec_id, metadata.current_schema_id
    schema = _file_schema(metadata, spec_id, schema_id)
    construct_writer(schema).write(BinaryEncoder(out), file)
    return WrittenFile(spec_id, out.getvalue(), schema_id)


def file_from_bytes(written: WrittenFile, metadata: TableMetadata) -> DataFile:
    schema = _file_schema(metadata, written.spec_id, written.schema_id)
    enums: dict[int, Callable[..., Enum]] = {101: FileFormat, 134: DataFileContent}
    reader = resolve_reader(schema, schema, read_types={-1: DataFile}, read_enums=enums)
    file: DataFile = reader.read(new_decoder(written.data_file))
    file.spec_id = written.spec_id
    return file


def _file_schema(metadata: TableMetadata, spec_id: int, schema_id: int) -> Schema:
    """A column may have been dropped or changed since: so it is the schema of the file."""
    spec = metadata.specs()[spec_id]
    schema = next(one for one in metadata.schemas if one.schema_id == schema_id)
    partition = spec.partition_type(schema)
    return Schema(*data_file_with_partition(partition, FORMAT_VERSION).fields)


# --- commits


_EQUALITY_IDS = ListType(element_id=136, element_type=IntegerType(), element_required=True)


class DeleteManifest(ManifestWriterV2):
    """A manifest of delete files. https://iceberg.apache.org/spec/#manifests"""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """Equality ids are `int`. PyIceberg writes `long`, which Iceberg's library refuses."""
        entry = super()._with_partition(format_version)
        file = entry.find_field("data_file")
        assert isinstance(file.field_type, StructType)
        fields = [
            one.model_copy(update={"field_type": _EQUALITY_IDS}) if one.field_id == 135 else one
            for one in file.field_type.fields
        ]
        files = file.model_copy(update={"field_type": StructType(*fields)})
        return Schema(*(files if one is file else one for one in entry.fields))

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_MergeAppendFiles):
    """A snapshot that adds data files and equality delete files, of any partition spec.

    It is not repeated on top of another commit: that one may have added the same files.
    """

    def _refresh_for_retry(self) -> None:
        raise CommitFailedException("the table has changed")

    def _manifests(self) -> list[ManifestFile]:
        by_kind: dict[tuple[bool, int], list[DataFile]] = {}
        for file in self._added_data_files:
            is_data = file.content == DataFileContent.DATA
            by_kind.setdefault((is_data, file.spec_id), []).append(file)
        added = [
            self._manifest(is_data, spec_id, files) for (is_data, spec_id), files in by_kind.items()
        ]
        return self._process_manifests(added + self._existing_manifests())

    def _schema_of(self, spec: PartitionSpec) -> Schema:
        """The newest that has the columns of a spec: they may have been dropped since."""
        sources = {field.source_id for field in spec.fields}
        schemas = [self.schema(), *reversed(self._transaction.table_metadata.schemas)]
        return next((one for one in schemas if sources <= set(one.field_ids)), self.schema())

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        """For manifests that are merged, too: PyIceberg takes the schema of now for all specs."""
        return self._writer(ManifestWriterV2, spec)

    def _writer(self, kind: type[ManifestWriterV2], spec: PartitionSpec) -> ManifestWriterV2:
        schema, output = self._schema_of(spec), self.new_manifest_output()
        return kind(spec, schema, output, self._snapshot_id, self._compression)

    def _manifest(self, is_data: bool, spec_id: int, files: Sequence[DataFile]) -> ManifestFile:
        writer = self._writer(ManifestWriterV2 if is_data else DeleteManifest, self.spec(spec_id))
        with writer:
            for file in files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return writer.to_manifest_file()


class _Transaction(Transaction):
    """PyIceberg copies all of the metadata whenever it is looked at, 19 times in a commit: with
    1,000 snapshots that took seconds. Here it is copied once for each change."""

    _seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        if not updates:
            return base
        seen = self._seen
        if seen is None or seen[0] is not base or seen[1] is not updates:
            seen = self._seen = base, updates, super().table_metadata
        return seen[2]


def commit(
    table: Table, snapshots: Iterable[Sequence[WrittenFile]], properties: Mapping[str, str]
) -> int:
    """Add snapshots, all or none. `properties`: of each snapshot. Returns the id of the last.

    Raises CommitFailedException if the table has changed since it was loaded: then nothing has
    happened. After any other error it is unknown whether it has.
    """
    metadata = table.metadata
    with _Transaction(table) as transaction:
        for files in snapshots:
            found = [file_from_bytes(one, metadata) for one in files]
            deletes = any(file.content != DataFileContent.DATA for file in found)
            delta = _RowDelta(
                Operation.OVERWRITE if deletes else Operation.APPEND,
                transaction,
                table.io,
                snapshot_properties=dict(properties),
            )
            for file in found:
                delta.append_data_file(file)
            delta.commit()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def in_history(table: Table, name: str) -> str | None:
    """The newest value of a property of snapshots, on the branch that readers see."""
    metadata = table.metadata
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and (value := snapshot.summary.get(name)) is not None:
            return str(value)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    return None


def stored_offsets(table: Table, name: str) -> dict[int, int]:
    """Up to where the table has the control topic, by partition."""
    text = in_history(table, name)
    return {} if text is None else {int(key): one for key, one in json.loads(text).items()}
