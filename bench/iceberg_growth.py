"""How an Iceberg table's metadata grows by the job's commits, and with it the time of one commit.

The job's own code writes files of one row and commits them, on local disk, without Kafka. A part of
`make bench-iceberg`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pyiceberg.table import Table

from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.coordinator import COMMIT_ID, OFFSETS, VALID_THROUGH
from brokerhouse.spark_jobs.iceberg.files import TableWriter
from brokerhouse.spark_jobs.iceberg.settings import SinkTables

_NAME = "db.events"
_AT = (10, 100, 500, 1000)
_MEDIAN_OF = 10
_MERGE = "commit.manifest-merge.enabled"
_DELETE = "write.metadata.delete-after-commit.enabled"
_VERSIONS = "write.metadata.previous-versions-max"

PROPERTIES: Mapping[str, Mapping[str, str]] = {
    "PyIceberg's defaults": {_MERGE: "false", _DELETE: "false"},
    "manifests merged": {_MERGE: "true", _DELETE: "false"},
    "the job's: merged, old metadata deleted": {},
    "and 10 old versions at most": {_VERSIONS: "10"},
}


def measure(commits: int) -> None:
    """Prints a Markdown table."""
    print(
        "| table properties | commit | commit ms | load ms | metadata.json KiB | manifests"
        " | manifests KiB | manifest list KiB | all metadata files | all metadata MiB |"
    )
    print("|---|" + "---:|" * 9, flush=True)
    for kind, properties in PROPERTIES.items():
        with tempfile.TemporaryDirectory(prefix="bench-iceberg-") as directory:
            _grow(kind, Path(directory), properties, commits)
    print()


def _grow(kind: str, directory: Path, properties: Mapping[str, str], commits: int) -> None:
    catalog = tables.open_catalog(tables.LOCAL_CATALOG, tables.local_catalog(str(directory)))
    sink = SinkTables({_NAME: ""}, "", None, True, False, (), (), properties, False, None)
    writer = TableWriter(catalog, _NAME, sink)
    offsets = f"{OFFSETS}.bench.{tables.LOCAL_CATALOG}"
    committing: list[float] = []
    loading: list[float] = []
    for number in range(1, commits + 1):
        writer.add([{"id": number, "text": "x" * 50}])
        files = writer.finish()
        began = time.perf_counter()
        table = catalog.load_table(_NAME)
        loading.append(time.perf_counter() - began)
        assert tables.stored_offsets(table, offsets).get(0, 0) == number - 1
        summary = {
            COMMIT_ID: f"{number:032x}",
            offsets: json.dumps({0: number}),
            VALID_THROUGH: str(time.time_ns() // 1_000_000),
        }
        tables.commit(table, [files], summary)
        committing.append(time.perf_counter() - began)
        if number in _AT:
            times = [f"{_median_ms(one):.0f}" for one in (committing, loading)]
            print(f"| {kind} | {number} | {' | '.join([*times, *_sizes(directory, table)])} |")


def _median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds[-_MEDIAN_OF:]) * 1000


def _sizes(directory: Path, table: Table) -> list[str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    every = [path.stat().st_size for path in directory.rglob("metadata/*")]
    return [
        f"{_size(table.metadata_location) / 1024:,.0f}",
        f"{len(manifests)}",
        f"{sum(one.manifest_length for one in manifests) / 1024:,.0f}",
        f"{_size(snapshot.manifest_list) / 1024:,.0f}",
        f"{len(every):,}",
        f"{sum(every) / 2**20:,.1f}",
    ]


def _size(uri: str) -> int:
    return Path(uri.removeprefix("file://")).stat().st_size
