"""The command `brokerhouse jobs run iceberg-maintenance`: keeps Iceberg tables small and readable.

Bins of small files are tasks of Spark (rewriting.py); what is metadata is done by the driver
(expiry.py). Each step is a commit of its own, so a run that is killed has done some of them, and
leaves at most files that a later run deletes as orphans.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile

from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.iceberg import expiry, rewriting, tables
from brokerhouse.spark_jobs.iceberg.expiry import Expired
from brokerhouse.spark_jobs.iceberg.job import in_catalog, to_tables
from brokerhouse.spark_jobs.iceberg.rewriting import Bin, Replaced, RewriteTask, Rewritten
from brokerhouse.spark_jobs.job import Duration, JobFailure, JobReport, JobRun
from brokerhouse.spark_jobs.progress import counted

_MIB = 1 << 20
_DAY_S = 86_400
_COLUMNS = ("table", "what", "files", "bytes")

Rows = list[tuple[str, str, int, int]]


@job.command("iceberg-maintenance")
@in_catalog("A directory with tables and a catalog in SQLite")
@click.option(
    "--table",
    "names",
    metavar="NAMESPACE.TABLE",
    multiple=True,
    required=True,
    callback=to_tables,
    help="May be repeated.",
)
@job.number("--target-mib", 128, "Size that data files get; those below 3/4 of it are small.", 1)
@click.option(
    "--retain",
    type=Duration(),
    default=5 * _DAY_S,
    show_default="5d",
    help="Snapshots that are older expire.",
)
@job.number("--retain-last", 1, "So many snapshots of each branch stay, however old.", 1)
@click.option(
    "--orphans-older-than",
    type=Duration(),
    default=3 * _DAY_S,
    show_default="3d",
    help="Older files that no snapshot uses are deleted.",
)
def command(
    run: JobRun,
    /,
    catalog: str,
    catalog_options: dict[str, str],
    names: Mapping[str, str],
    target_mib: int,
    retain: int,
    retain_last: int,
    orphans_older_than: int,
) -> JobReport:
    """Rewrite small files of Iceberg tables, apply deletes, expire snapshots, delete orphans."""
    opened = opened_catalog(*tables.catalog_properties(catalog, catalog_options), list(names))
    rows: Rows = []
    for name in names:
        now_ms = time.time_ns() // 1_000_000
        try:
            rows += _rewrite(run, opened, name, target_mib * _MIB)
            expired = expiry.expire(
                opened, name, now_ms - retain * 1000, retain_last, dry_run=run.dry_run
            )
            rows += _expired_rows(name, expired)
            orphans = expiry.orphans(opened, name, now_ms, orphans_older_than * 1000)
            if not run.dry_run:
                expiry.delete_files(opened, name, orphans)
            rows += _row(name, "orphans deleted", orphans.values())
        except JobFailure:
            raise
        except Exception as error:  # of any catalog and storage
            raise JobFailure(f"{name}: {str(error) or type(error).__name__}") from error
    done = "nothing was written" if run.dry_run else "done"
    return JobReport(_COLUMNS, rows, f"{counted(len(names), 'table')}: {done}")


def opened_catalog(name: str, properties: Mapping[str, str], wanted: Sequence[str]) -> Catalog:
    """Raises JobFailure."""
    try:
        catalog = tables.open_catalog(name, properties)
        missing = [one for one in wanted if tables.existing(catalog, one) is None]
    except Exception as error:  # catalogs do not agree on an error
        raise JobFailure(f"the catalog {name} cannot be used: {error}") from error
    if missing:
        raise JobFailure(f"there is no table {missing[0]}")
    return catalog


def _rewrite(run: JobRun, catalog: Catalog, name: str, target_bytes: int) -> Rows:
    if run.dry_run:
        todo = rewriting.plan(catalog.load_table(name), target_bytes)
        files = [source.file for one in todo.bins for source in one]
        deletes = [one.file for one in todo.deletes]
        return _replaced_rows(name, Replaced(tuple(files), (), tuple(deletes)))

    def with_spark(task: RewriteTask, bins: Sequence[Bin]) -> Iterable[Rewritten]:
        if not bins:
            return []
        context = run.spark_context()
        run.progress.step(f"rewriting files of {name}")
        found: list[Rewritten] = context.parallelize(bins, len(bins)).map(task).collect()
        return found

    return _replaced_rows(name, rewriting.rewrite(catalog, name, target_bytes, with_spark))


# --- the report


def _replaced_rows(name: str, found: Replaced) -> Rows:
    return [
        *_row(name, "data files replaced", _sizes(found.before)),
        *_row(name, "data files written", _sizes(found.after)),
        *_row(name, "delete files applied", _sizes(found.deletes)),
    ]


def _expired_rows(name: str, found: Expired) -> Rows:
    if not found.snapshots:
        return []
    size = sum(found.files.values())
    return [(name, f"{counted(found.snapshots, 'snapshot')} expired", len(found.files), size)]


def _row(name: str, what: str, sizes: Iterable[int]) -> Rows:
    known = list(sizes)
    return [(name, what, len(known), sum(known))] if known else []


def _sizes(files: Iterable[DataFile]) -> list[Any]:
    return [file.file_size_in_bytes for file in files]


if __name__ == "__main__":
    command()
