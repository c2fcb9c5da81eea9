"""An Iceberg table on local disk, in the layout of Iceberg's Hadoop catalog."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pyiceberg.table import StaticTable, Table


def newest(warehouse: Path, namespace: str, table: str) -> StaticTable | None:
    """The table as it is now; None before it is made.

    The catalog renames each version of the metadata to the next number, which makes it the newest.
    """
    versions = (warehouse / namespace / table / "metadata").glob("v*.metadata.json")
    found = max(versions, key=lambda path: int(path.name[1:].partition(".")[0]), default=None)
    return None if found is None else _read(found)


def record_count(table: Table | None) -> int:
    """How many records its newest snapshot has."""
    snapshot = table.current_snapshot() if table is not None else None
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary["total-records"] or 0)


@cache
def _read(metadata: Path) -> StaticTable:
    return StaticTable.from_metadata(str(metadata))
