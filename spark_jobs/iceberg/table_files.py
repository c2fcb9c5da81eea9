"""Which files a table's snapshots refer to.

The same file may be written in two ways, such as file:/a and /a, and is compared by `path_of`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

Sizes = dict[str, int]
"""Files by their location, with their bytes."""


def path_of(location: str) -> str:
    """The location without its scheme."""
    _, _, path = PyArrowFileIO.parse_location(location)
    return posixpath.normpath(path)


def ancestors(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """The snapshot and those before it, as far as they have not expired."""
    while snapshot_id is not None and (found := metadata.snapshot_by_id(snapshot_id)) is not None:
        yield found
        snapshot_id = found.parent_snapshot_id


def live_entries(snapshot: Snapshot, io: FileIO) -> list[ManifestEntry]:
    """Its data files and delete files, with their sequence numbers."""
    manifests = snapshot.manifests(io)
    return [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(io)]


def manifests_of(snapshots: Iterable[Snapshot], io: FileIO) -> set[ManifestFile]:
    return {manifest for snapshot in snapshots for manifest in snapshot.manifests(io)}


def files_in(manifests: Iterable[ManifestFile], io: FileIO, *, deleted: bool = False) -> Sizes:
    """Data files and delete files. `deleted`: also those that a manifest says are gone."""
    return {
        entry.data_file.file_path: entry.data_file.file_size_in_bytes
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=not deleted)
    }


def referenced_paths(metadata: TableMetadata, metadata_location: str, io: FileIO) -> set[str]:
    """`path_of` all files that the table needs, and of its older metadata."""
    manifests = manifests_of(metadata.snapshots, io)
    statistics = [*metadata.statistics, *metadata.partition_statistics]
    locations = [
        metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(snapshot.manifest_list for snapshot in metadata.snapshots),
        *(manifest.manifest_path for manifest in manifests),
        *(one.statistics_path for one in statistics),
        *files_in(manifests, io),
    ]
    return set(map(path_of, locations))
