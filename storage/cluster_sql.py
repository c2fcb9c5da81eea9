"""The statements of sql/schema/, rendered for the servers of a cluster. Pure: text in, text out.

On every server the numbered files make two databases. `brokerhouse_shard` has the tables and views
as they are, for the brokers; where servers replicate, the engines are the replicated ones.
`brokerhouse` has the same names for people, and means the whole cluster: how each name gets there
is in `WHOLE_CLUSTER`, and a file whose name is not in it is an error, as is one that the few rules
here do not fit. Every name in a rendered statement has its database before it, so that it does not
matter where it is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from string import Template

from storage.schema import Migration, SchemaError, migrations

SHARD_DATABASE = "brokerhouse_shard"
DATABASE = "brokerhouse"

REPLICATED_WINDOW = 10_000
"""Blocks that a replicated table remembers at most: each is a node in Keeper."""
REPLICATED_WINDOW_S = 86_400
"""And for how long."""


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """What the statements depend on.

    `name`: the cluster in `remote_servers`; `replicated`: a shard's servers replicate its tables;
    `distributed`: database `brokerhouse` is made.
    """

    name: str
    replicated: bool
    distributed: bool


class Whole(Enum):
    """How a table or view of the shards becomes one of the whole cluster."""

    UNION = "the rows of all shards together"
    AGAIN = "the same view over the tables of the whole cluster"
    LOCAL = "the same view over this shard's tables, which every shard has alike"
    OWN = "a statement of its own in sql/schema/cluster/, over shard_NAME: the rows of all shards"
    NOTHING = "of no use to people"


# What belongs to a group is on one shard, so views of groups are whole on each. A partition may
# have rows on two. Topics are written to every shard. Each shard counts its own minutes, so what
# mixes counted minutes with rows of the log is worked out on the shards.
WHOLE_CLUSTER = {
    "messages": Whole.UNION,
    "topic_versions": Whole.NOTHING,
    "topics": Whole.LOCAL,
    "partition_checkpoints": Whole.UNION,
    "cluster_state": Whole.NOTHING,
    "consumer_group_versions": Whole.UNION,
    "group_member_versions": Whole.UNION,
    "group_heartbeats": Whole.UNION,
    "consumer_offsets": Whole.UNION,
    "consumer_groups": Whole.UNION,
    "group_members": Whole.UNION,
    "latest_offsets": Whole.UNION,
    "group_assignments": Whole.UNION,
    "partition_minutes": Whole.UNION,
    "partition_stats": Whole.OWN,
    "topic_minutes": Whole.UNION,
    "topic_stats": Whole.AGAIN,
    "current_offsets": Whole.UNION,
    "group_state": Whole.UNION,
    "consumer_lag": Whole.AGAIN,
    "messages_committed": Whole.UNION,
    "lag_history": Whole.UNION,
    "lag_alerts": Whole.UNION,
    "compaction_removals": Whole.UNION,
    "compaction_applied": Whole.UNION,
    "compaction_batches": Whole.UNION,
}

_HEADER = re.compile(
    r"(?P<verb>CREATE TABLE IF NOT EXISTS|CREATE OR REPLACE VIEW|ALTER TABLE) (?P<name>[a-z_]+)\b"
)
_PLACED = re.compile(
    r"(?:CREATE (?:DATABASE|TABLE) IF NOT EXISTS|CREATE OR REPLACE (?:TABLE|VIEW)|ALTER TABLE)"
    r" [a-z_.]+"
)
_COMMENT_LINE = re.compile(r"^--.*\n", re.MULTILINE)
_ENGINE = re.compile(r"^ENGINE = (\w*)MergeTree(?:\((.*)\))?$", re.MULTILINE)
_WINDOW = re.compile(r"\bnon_replicated_deduplication_window = (\d+)")
_SAME_EVERYWHERE = re.compile(r"MODIFY SETTING remove_empty_parts = \d$")
_SOURCE = re.compile(r"(?P<before>\b(?:FROM|(?<!ARRAY )JOIN)\s+)(?P<name>[A-Za-z_]\w*)\b")
_JOIN = re.compile(r"(?<!ARRAY )\b(?:ASOF LEFT|LEFT|INNER) JOIN\b")
_ANY_JOIN = re.compile(r"(?<!ARRAY )\bJOIN\b")
_IN = re.compile(r"\bIN \(SELECT\b")
_ANY_IN = re.compile(r"\bIN\b")
_COUNTED = "(SELECT max(minute) + INTERVAL 1 MINUTE FROM partition_minutes)"
# The shard that is furthest behind: what others have counted beyond it is read from their logs.
_COUNTED_BY_ALL = (
    "(SELECT min(until) FROM (SELECT max(minute) + INTERVAL 1 MINUTE AS until"
    " FROM partition_minutes GROUP BY _shard_num))"
)
_ALTERS_ROWS_NOBODY_SEES = re.compile(
    r"ALTER TABLE [a-z_]+ (?:ADD INDEX IF NOT EXISTS|MODIFY SETTING) [^,]*;?\s*", re.DOTALL
)


def foundation(layout: ClusterLayout) -> list[Migration]:
    """The databases, and the tables in Keeper: what must be there before anything is noted."""
    found = []
    for file in files("sql.schema").joinpath("cluster").iterdir():
        number, underscore, name = file.name.removesuffix(".sql").partition("_")
        if underscore and number.isdigit() and (layout.distributed or name != "database"):
            statement = _template(file.name, cluster=layout.name)
            found.append(Migration(int(number), name, statement))
    return sorted(found, key=lambda one: one.number)


def shard_migrations(layout: ClusterLayout) -> list[Migration]:
    """Every numbered statement, for database `brokerhouse_shard`."""
    return [Migration(one.number, one.name, _for_shard(one, layout)) for one in migrations()]


def people_migrations(layout: ClusterLayout) -> list[Migration]:
    """What the numbered statements come to in database `brokerhouse`; two where one needs both."""
    return [
        Migration(one.number, one.name, statement)
        for one in migrations()
        for statement in _for_people(one, layout)
    ]


def on_cluster(statement: str, cluster: str) -> str:
    """The same statement, for ClickHouse to run on every server of the cluster."""
    match = _PLACED.match(statement)
    if match is None:
        raise SchemaError(f"this cannot run on a cluster: {statement[:80]}")
    return f"{match[0]} ON CLUSTER '{cluster}'{statement[match.end() :]}"


def made_by(statement: str) -> str | None:
    """`DATABASE.NAME` of the table that it makes; None for all other statements."""
    match = re.match(r"CREATE TABLE IF NOT EXISTS ([a-z_.]+)", statement)
    return match[1] if match else None


def replicated(statement: str, name: str) -> str:
    """A CREATE TABLE or MODIFY SETTING for servers that replicate."""
    statement, windows = _WINDOW.subn(_replicated_window, statement)
    if statement.startswith("CREATE TABLE"):
        statement, engines = _ENGINE.subn(lambda match: _replicated_engine(match, name), statement)
        if engines != 1:
            raise SchemaError(f"table {name} has no line like: ENGINE = MergeTree")
    elif windows == 0 and "MODIFY SETTING" in statement and not _SAME_EVERYWHERE.search(statement):
        raise SchemaError(f"a setting of {name} that nobody knows how to replicate")
    return statement


def _replicated_window(match: re.Match[str]) -> str:
    window = min(int(match[1]), REPLICATED_WINDOW)
    return (
        f"replicated_deduplication_window = {window}"
        f", replicated_deduplication_window_seconds = {REPLICATED_WINDOW_S}"
    )


def _replicated_engine(match: re.Match[str], name: str) -> str:
    place = f"'/clickhouse/tables/{{shard}}/{DATABASE}/{name}', '{{replica}}'"
    arguments = f", {match[2]}" if match[2] else ""
    return f"ENGINE = Replicated{match[1]}MergeTree({place}{arguments})"


def _for_shard(one: Migration, layout: ClusterLayout) -> str:
    statement = _plain(one)
    name = _header(statement)["name"]
    if layout.replicated:
        statement = replicated(statement, name)
    return _placed(statement, SHARD_DATABASE)


def _for_people(one: Migration, layout: ClusterLayout) -> Iterator[str]:
    statement = _plain(one)
    header = _header(statement)
    name = header["name"]
    whole = WHOLE_CLUSTER.get(name)
    if whole is None:
        raise SchemaError(f"nobody has said what {name} is in a whole cluster")
    if header["verb"] == "ALTER TABLE":
        if not _ALTERS_ROWS_NOBODY_SEES.fullmatch(statement):
            raise SchemaError(
                f"{one.name} changes {name} in a way that its table of the whole misses"
            )
        return
    if header["verb"] == "CREATE TABLE IF NOT EXISTS" and whole in (Whole.AGAIN, Whole.LOCAL):
        raise SchemaError(f"{name} is a table, not a view")
    match whole:
        case Whole.UNION:
            yield _template("distributed.sql", cluster=layout.name, name=name, table=name)
        case Whole.OWN:
            yield _template(
                "distributed.sql", cluster=layout.name, name=f"shard_{name}", table=name
            )
            yield _template(f"{name}.sql", cluster=layout.name)
        case Whole.AGAIN:
            yield _placed(_across_shards(statement, name), DATABASE)
        case Whole.LOCAL:
            body = _placed(statement, SHARD_DATABASE)
            yield body.replace(f"VIEW {SHARD_DATABASE}.", f"VIEW {DATABASE}.", 1)
        case Whole.NOTHING:
            return


def _across_shards(statement: str, name: str) -> str:
    """A view whose sources are on several shards.

    What a join or IN looks up is fetched once, by the server that was asked, and sent along
    (GLOBAL): else every shard would ask all others for it.
    """
    if len(_JOIN.findall(statement)) != len(_ANY_JOIN.findall(statement)):
        raise SchemaError(f"view {name} has a join that is not INNER, LEFT or ASOF LEFT")
    if len(_IN.findall(statement)) != len(_ANY_IN.findall(statement)):
        raise SchemaError(f"view {name} has an IN without (SELECT")
    statement = statement.replace(_COUNTED, _COUNTED_BY_ALL)
    if re.search(r"max\(minute\)(?! \+ INTERVAL 1 MINUTE AS until)", statement):
        raise SchemaError(f"view {name} asks how far the log is counted in words of its own")
    statement = _JOIN.sub(lambda match: f"GLOBAL {match[0]}", statement)
    return _IN.sub("GLOBAL IN (SELECT", statement)


def _placed(statement: str, database: str) -> str:
    """With `database` before the name of every table and view."""
    known = {_header(_plain(one))["name"] for one in migrations()}

    def qualified(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in known:
            raise SchemaError(f"there is no table {name} to read from")
        return f"{match['before']}{database}.{name}"

    header = _header(statement)
    body = _SOURCE.sub(qualified, statement[header.end() :])
    return f"{header['verb']} {database}.{header['name']}{body}"


def _header(statement: str) -> re.Match[str]:
    match = _HEADER.match(statement)
    if match is None:
        raise SchemaError(f"this is not how a statement begins: {statement[:80]}")
    return match


def _plain(one: Migration) -> str:
    statement = _COMMENT_LINE.sub("", one.statement)
    if "--" in statement:
        raise SchemaError(f"{one.name} has a comment that is not a line of its own")
    if statement.find(";\n") != len(statement) - 2:
        raise SchemaError(f"{one.name} is not one statement that ends with ;")
    return statement.removesuffix(";\n")


@cache
def _read(name: str) -> str:
    return files("sql.schema").joinpath("cluster", name).read_text(encoding="utf-8")


def _template(file: str, **values: str) -> str:
    statement = _COMMENT_LINE.sub("", _read(file)).removesuffix(";\n")
    return Template(statement).substitute(values)
