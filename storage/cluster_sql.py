"""The statements of sql/schema/, rendered for the servers of a cluster. Pure: text in, text out.

On every server the numbered files make two databases. `brokerhouse_shard` has the tables and views
as they are, for the brokers; where servers replicate, the engines are the replicated ones.
`brokerhouse` has the same names for people, and means the whole cluster: the first line of each
file says how (schema_files.py). Every name in a rendered statement has its database before it, so
that it does not matter where the statement runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from brokerhouse.storage.engine import DATABASE
from brokerhouse.storage.schema import Migration
from brokerhouse.storage.schema_files import (
    FileKind,
    Rendering,
    SchemaError,
    SchemaFile,
    Whole,
    schema_files,
    statement_of,
)

SHARD_DATABASE = "brokerhouse_shard"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """What the statements depend on.

    `name`: the cluster in `remote_servers`; `replicated`: a shard's servers replicate its tables;
    `distributed`: database `brokerhouse` is made.
    """

    name: str
    replicated: bool
    distributed: bool


@dataclass(frozen=True, slots=True)
class ClusterMigration(Migration):
    """A statement for the servers of a cluster.

    `target`: the database, or `DATABASE.NAME`, that it makes or changes; `replicated_table`: it
    makes a table that the replicas of a shard share.
    """

    target: str
    replicated_table: bool = False

    def on_cluster(self, cluster: str) -> str:
        """The same statement, for ClickHouse to run on every server of the cluster."""
        return self.statement.replace(self.target, f"{self.target} ON CLUSTER '{cluster}'", 1)


def foundation(layout: ClusterLayout) -> list[ClusterMigration]:
    """The databases, and the tables in Keeper: what must exist before anything is recorded."""
    found = []
    for file in files("brokerhouse.sql.schema").joinpath("cluster").iterdir():
        number, underscore, name = file.name.removesuffix(".sql").partition("_")
        if underscore and number.isdigit() and (layout.distributed or name != "database"):
            statement = _cluster_file(file.name, cluster=layout.name)
            target = statement.partition("EXISTS ")[2].partition("\n")[0]
            found.append(ClusterMigration(int(number), name, statement, target))
    return sorted(found, key=lambda one: one.number)


def shard_migrations(layout: ClusterLayout) -> list[ClusterMigration]:
    """Every numbered statement, for database `brokerhouse_shard`."""
    found = schema_files()
    known = _subjects(found)
    rendering = Rendering(SHARD_DATABASE, replicated=layout.replicated)
    return [
        ClusterMigration(
            file.number,
            file.name,
            rendering.fill_in(file, file.statement, known),
            rendering.subject(file),
            replicated_table=layout.replicated and file.kind is FileKind.TABLE,
        )
        for file in found
    ]


def people_migrations(layout: ClusterLayout) -> list[ClusterMigration]:
    """What the numbered statements come to in database `brokerhouse`; two where one needs both."""
    found = schema_files()
    known = _subjects(found)
    return [one for file in found for one in _for_people(file, layout, known)]


def _subjects(found: Sequence[SchemaFile]) -> set[str]:
    return {file.subject for file in found}


_WHOLE_CLUSTER = Rendering(DATABASE, spans_shards=True)
_ONE_SHARD = Rendering(SHARD_DATABASE, subject_database=DATABASE)


def _for_people(
    file: SchemaFile, layout: ClusterLayout, known: Collection[str]
) -> Iterator[ClusterMigration]:
    name = file.subject

    def made(name: str, statement: str) -> ClusterMigration:
        return ClusterMigration(file.number, file.name, statement, f"{DATABASE}.{name}")

    def distributed(name: str) -> ClusterMigration:
        values = {"cluster": layout.name, "name": name, "table": file.subject}
        return made(name, _cluster_file("distributed.sql", **values))

    match file.whole:
        case Whole.UNION:
            yield distributed(name)
        case Whole.OWN:
            yield distributed(f"shard_{name}")
            yield made(name, _cluster_file(f"{name}.sql"))
        case Whole.AGAIN:
            yield made(name, _WHOLE_CLUSTER.fill_in(file, file.statement, known))
        case Whole.LOCAL:
            yield made(name, _ONE_SHARD.fill_in(file, file.statement, known))
        case Whole.NOTHING:
            return


def _cluster_file(file: str, **values: str) -> str:
    """The statement of a file in sql/schema/cluster/. Raises `SchemaError`."""
    try:
        return Template(statement_of(_read(file))).substitute(values)
    except KeyError as error:
        raise SchemaError(
            f"cluster/{file} has the placeholder {error}, which does not exist"
        ) from error


@cache
def _read(name: str) -> str:
    return files("brokerhouse.sql.schema").joinpath("cluster", name).read_text(encoding="utf-8")
