"""Old snapshots expire, and files are deleted that no snapshot refers to.

The sink finds in the history of a table up to where the control topic is in it (coordinator.py).
When a snapshot with such an offset expires, and no later one has it, a new snapshot without files
carries it on. Without it, the sink would commit files again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import pyarrow.fs as pa_fs
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from brokerhouse.spark_jobs.iceberg.coordinator import OFFSETS, VALID_THROUGH
from brokerhouse.spark_jobs.iceberg.replacing import ReplaceFiles
from brokerhouse.spark_jobs.iceberg.table_files import (
    Sizes,
    ancestors,
    files_in,
    manifests_of,
    path_of,
    referenced_paths,
)

CARRIED = "brokerhouse.carried"
"""Property of a snapshot that carries others' properties on. Its value is JSON: when the sink
committed each of them, in ms."""
_FOLDERS = ("data", "metadata")
"""Of a table's location. Tables of another namespace may be in folders beside these."""
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Expired:
    snapshots: int = 0
    files: Sizes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkProperty:
    """The newest value of a property that the sink needs, and when the sink committed it."""

    value: str
    snapshot_id: int
    time_ms: int


def sink_properties(metadata: TableMetadata) -> dict[str, SinkProperty]:
    current = metadata.current_snapshot()
    found: dict[str, SinkProperty] = {}
    for snapshot in ancestors(metadata, None if current is None else current.snapshot_id):
        if snapshot.summary is None:
            continue
        properties = snapshot.summary.additional_properties
        times = json.loads(properties.get(CARRIED, "{}"))
        for name, value in properties.items():
            if name.startswith(f"{OFFSETS}.") or name == VALID_THROUGH:
                time_ms = times.get(name, snapshot.timestamp_ms)
                found.setdefault(name, SinkProperty(value, snapshot.snapshot_id, time_ms))
    return found


# --- snapshots


def expired_ids(metadata: TableMetadata, before_ms: int, retain_last: int) -> set[int]:
    """Snapshots from before a time, without the newest of each branch, and without tags."""
    kept = {one.snapshot_id for one in metadata.snapshots if one.timestamp_ms >= before_ms}
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            least = max(retain_last, ref.min_snapshots_to_keep or 1)
        else:
            least = 1
        branch = ancestors(metadata, ref.snapshot_id)
        kept.update(snapshot.snapshot_id for snapshot, _ in zip(branch, range(least), strict=False))
    return {one.snapshot_id for one in metadata.snapshots} - kept


def expire(
    catalog: Catalog, name: str, before_ms: int, retain_last: int, *, dry_run: bool = False
) -> Expired:
    """Raises CommitFailedException, and what the catalog and the storage raise."""
    for _ in range(_ATTEMPTS):
        table = catalog.load_table(name)
        ids = expired_ids(table.metadata, before_ms, retain_last)
        if not ids:
            return Expired()
        files = _only_in(ids, table)
        if dry_run:
            return Expired(len(ids), files)
        try:
            _remove_snapshots(table, ids)
        except CommitFailedException:
            continue  # somebody has changed the table
        for location in files:
            _delete(table.io, location)
        return Expired(len(ids), files)
    raise CommitFailedException(f"{name} was changed by others {_ATTEMPTS} times")


def _remove_snapshots(table: Table, ids: set[int]) -> None:
    """What a table's history still needs of these is in a new snapshot. One commit."""
    before = table.metadata.current_snapshot()
    with table.transaction() as transaction:
        if lost := _lost(table.metadata, ids):
            times = json.dumps({name: one.time_ms for name, one in lost.items()})
            properties = {name: one.value for name, one in lost.items()} | {CARRIED: times}
            ReplaceFiles(transaction, (), (), None, properties).commit()
        current = None if before is None else before.snapshot_id
        requirement = AssertRefSnapshotId.model_validate(
            {"type": "assert-ref-snapshot-id", "ref": MAIN_BRANCH, "snapshot-id": current}
        )
        update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(ids)})
        transaction._updates += (update,)
        if not lost:
            transaction._requirements += (requirement,)


def _lost(metadata: TableMetadata, ids: set[int]) -> dict[str, SinkProperty]:
    """The sink's properties that cannot be reached any more once these snapshots are gone."""
    current = metadata.current_snapshot()
    reached = set()
    for snapshot in ancestors(metadata, None if current is None else current.snapshot_id):
        if snapshot.snapshot_id in ids:
            break
        reached.add(snapshot.snapshot_id)
    found = sink_properties(metadata)
    return {name: one for name, one in found.items() if one.snapshot_id not in reached}


def _only_in(ids: set[int], table: Table) -> Sizes:
    """Files that no other snapshot refers to."""
    metadata, io = table.metadata, table.io
    gone = [one for one in metadata.snapshots if one.snapshot_id in ids]
    left = manifests_of((one for one in metadata.snapshots if one.snapshot_id not in ids), io)
    manifests = manifests_of(gone, io) - left
    files = files_in(manifests, io, deleted=True)
    if files:
        for location in files_in(left, io):
            files.pop(location, None)
    files |= {one.manifest_path: one.manifest_length for one in manifests}
    files |= {one.manifest_list: len(io.new_input(one.manifest_list)) for one in gone}
    for statistics in chain(metadata.statistics, metadata.partition_statistics):
        if statistics.snapshot_id in ids:
            files[statistics.statistics_path] = statistics.file_size_in_bytes
    return files


# --- orphans


def orphans(catalog: Catalog, name: str, now_ms: int, age_ms: int) -> Sizes:
    """Files in the table's folders that no snapshot refers to, and that no sink will commit.

    The time in which the sink has committed nothing does not count for the age of a file: when it
    goes on, it commits what its workers have written before.
    """
    table = catalog.load_table(name)
    found = list(_listed(table))
    table = catalog.load_table(name)  # what was committed while files were listed
    if table.metadata.current_snapshot() is None:
        return {}
    committed = [
        one.time_ms
        for name, one in sink_properties(table.metadata).items()
        if name.startswith(OFFSETS)
    ]
    before_ms = min([now_ms, *committed]) - age_ms
    needed = referenced_paths(table.metadata, table.metadata_location, table.io)
    return {
        location: size
        for location, path, size, modified_ms in found
        if modified_ms < before_ms and path not in needed
    }


def _listed(table: Table) -> Iterator[tuple[str, str, int, float]]:
    """Location, `path_of` it, bytes, and when it was written, in ms."""
    io = PyArrowFileIO(table.io.properties)
    scheme, netloc, root = io.parse_location(table.metadata.location, io.properties)
    files = io.fs_by_scheme(scheme, netloc)
    prefix = table.metadata.location.removesuffix(root)
    for folder in _FOLDERS:
        wanted = pa_fs.FileSelector(f"{root}/{folder}", allow_not_found=True, recursive=True)
        for one in files.get_file_info(wanted):
            if one.is_file and one.mtime_ns and one.base_name != "version-hint.text":
                yield f"{prefix}{one.path}", path_of(one.path), one.size, one.mtime_ns / 1e6


def delete_files(catalog: Catalog, name: str, locations: Iterable[str]) -> None:
    io = catalog.load_table(name).io
    for location in locations:
        _delete(io, location)


def _delete(io: FileIO, location: str) -> None:
    """It may be gone already: another run deletes the same files."""
    with suppress(FileNotFoundError):
        io.delete(location)
