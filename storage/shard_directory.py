"""The data directory of a single broker becomes that of a shard of a cluster.

A shard has the same tables as a single broker, in another database. So the database is renamed, and
no row is copied. What must hold:

* The rename is the only step that counts: the engine moves the definition of the database by one
  rename of a file. Before it the directory is that of a single broker, after it that of a shard. A
  start that is killed in between is repeated; links to rows are made again (definition_files.py).
* Before it, the history of migrations is emptied. So the first broker of the cluster makes all
  views again, which name the database of their tables. A single broker would do the same.
* A directory never goes back: a single broker refuses that of a shard.

What was in `cluster_state` moves to Keeper when the first broker starts
(broker/cluster/adoption.py).
"""

from __future__ import annotations

import logging
from pathlib import Path

from brokerhouse.sql.queries import query
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.data_directory import DataDirectoryError
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import DATABASE
from brokerhouse.storage.schema import history, migrations
from brokerhouse.storage.schema_files import SchemaError, tables_behind

log = logging.getLogger(__name__)


def refuse_shard(data_dir: Path) -> None:
    """Raises `DataDirectoryError` if the directory is that of a shard."""
    if (data_dir / "clickhouse" / "metadata" / f"{SHARD_DATABASE}.sql").exists():
        raise DataDirectoryError(
            f"{data_dir} has the data of a shard of a cluster: run `brokerhouse engine` on it, and"
            " give the brokers a configuration with [cluster]"
        )


async def become_shard(engine: EmbeddedEngine) -> bool:
    """Make the tables of a single broker those of a shard; False if there are none.

    The journal must not be open. Raises `SchemaError` and `EngineError`.
    """
    [[is_single]] = await engine.rows(
        query("is_single_directory", database=DATABASE, shard_database=SHARD_DATABASE)
    )
    if not is_single:
        return False
    newest = migrations()[-1].number
    if (applied := max(await history(engine, DATABASE), default=0)) > newest:
        raise SchemaError(
            "the data directory was written by a newer version of brokerhouse (its tables are at "
            f"{applied}, this version knows {newest}): start that version"
        )
    own = [*tables_behind(), "schema_migrations"]
    reading = query("readers_of_database", database=DATABASE)
    readers = [name for (name,) in await engine.rows(reading, {"own": own})]
    if readers:
        raise SchemaError(
            f"{', '.join(readers)} would not find the tables of {DATABASE} any more, which are in"
            f" {SHARD_DATABASE} on a shard: start the single broker again, drop what is named here,"
            f" stop the broker, and create it again on the shard, reading {SHARD_DATABASE}"
        )
    await engine.execute(f"TRUNCATE TABLE {DATABASE}.schema_migrations")
    await engine.execute(f"RENAME DATABASE {DATABASE} TO {SHARD_DATABASE}")
    await engine.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE} ENGINE = Atomic")
    log.info("changed the tables of a single broker into those of a shard")
    return True
