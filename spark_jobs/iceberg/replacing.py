"""Snapshots that replace files of a table without a change of its rows.

PyIceberg cannot replace delete files, and gives new data files the number of the new snapshot. Here
they get the number of the snapshot that they were read from: an equality delete that was committed
since applies to them as it did to the files before.
https://iceberg.apache.org/spec/#sequence-numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
)
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _SnapshotProducer

from brokerhouse.spark_jobs.iceberg.tables import DeleteManifest


class ReplaceFiles(_SnapshotProducer["ReplaceFiles"]):
    """It is not repeated on top of another commit, which may have removed the same files."""

    def __init__(
        self,
        transaction: Transaction,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        sequence_number: int | None,
        properties: Mapping[str, str],
    ) -> None:
        """`sequence_number`: of the added files; None where the format has none."""
        io = transaction._table.io
        super().__init__(Operation.OVERWRITE, transaction, io, snapshot_properties=dict(properties))
        self._sequence_number = sequence_number
        self._removed_paths = {file.file_path for file in removed}
        for file in added:
            self.append_data_file(file)
        for file in removed:
            self.delete_data_file(file)

    def _refresh_for_retry(self) -> None:
        raise CommitFailedException("the table has changed")

    def _deleted_entries(self) -> list[ManifestEntry]:
        return []  # they are in the manifests that they were in

    def _existing_manifests(self) -> list[ManifestFile]:
        assert self._parent_snapshot_id is not None
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
        assert parent is not None
        return [
            self._without_removed(manifest)
            for manifest in parent.manifests(self._io)
            if manifest.has_added_files() or manifest.has_existing_files()
        ]

    def _manifests(self) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = {}
        for file in self._added_data_files:
            by_spec.setdefault(file.spec_id, []).append(file)
        added = []
        for spec_id, files in by_spec.items():
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for file in files:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=self._snapshot_id,
                            sequence_number=self._sequence_number,
                            file_sequence_number=None,
                            data_file=file,
                        )
                    )
            added.append(writer.to_manifest_file())
        return added + self._existing_manifests()

    def _without_removed(self, manifest: ManifestFile) -> ManifestFile:
        entries = manifest.fetch_manifest_entry(self._io)
        if not any(entry.data_file.file_path in self._removed_paths for entry in entries):
            return manifest
        with self._writer_like(manifest) as writer:
            for entry in entries:
                is_removed = entry.data_file.file_path in self._removed_paths
                (writer.delete if is_removed else writer.existing)(entry)
        return writer.to_manifest_file()

    def _writer_like(self, manifest: ManifestFile) -> ManifestWriter:
        spec = self.spec(manifest.partition_spec_id)
        if manifest.content is ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        return DeleteManifest(
            spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        # PyIceberg adds up the totals only of snapshots that change rows.
        found = super()._summary(dict(snapshot_properties))
        return Summary(operation=Operation.REPLACE, **found.additional_properties)
