"""The statements of sql/schema/ for the servers of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brokerhouse.broker.cluster.check import MIN_VERSION
from brokerhouse.broker.cluster.config import load_cluster
from brokerhouse.storage.cluster_sql import (
    SHARD_DATABASE,
    ClusterLayout,
    ClusterMigration,
    foundation,
    people_migrations,
    shard_migrations,
)
from brokerhouse.storage.engine import DATABASE
from brokerhouse.storage.schema import migrations
from brokerhouse.storage.schema_files import Rendering, SchemaError, Whole, parse, schema_files

PROJECT = Path(__file__).resolve().parents[2]
REPLICATED = ClusterLayout("brokerhouse", replicated=True, distributed=True)
PLAIN = ClusterLayout("brokerhouse", replicated=False, distributed=True)
NAMES = {file.subject for file in schema_files()}


def everything(layout: ClusterLayout) -> list[ClusterMigration]:
    return [*foundation(layout), *shard_migrations(layout), *people_migrations(layout)]


def statements(layout: ClusterLayout) -> list[str]:
    return [one.statement for one in everything(layout)]


def migration(name: str, layout: ClusterLayout) -> str:
    (found,) = (one.statement for one in shard_migrations(layout) if one.name == name)
    return found


def rendered(content: str) -> str:
    """One file more than there are, for the embedded engine, a shard and the whole cluster."""
    file = parse(1, "new", content)
    for rendering in (
        Rendering(),
        Rendering(DATABASE, spans_shards=True),
        Rendering(SHARD_DATABASE, replicated=True),
    ):
        statement = rendering.fill_in(file, file.statement, NAMES)
    return statement


def test_every_table_of_rows_is_replicated_under_its_own_path() -> None:
    made = [one.statement for one in shard_migrations(REPLICATED)]
    tables = [one for one in made if one.startswith("CREATE TABLE")]
    places = [
        re.findall(r"^ENGINE = Replicated\w*MergeTree\('([^']+)', '{replica}'", one, re.M)
        for one in tables
    ]
    assert [len(place) for place in places] == [1] * len(tables)
    assert len({place for (place,) in places}) == len(tables)
    assert ["/clickhouse/tables/{shard}/brokerhouse/messages"] in places


def test_the_arguments_of_an_engine_follow_those_of_replication() -> None:
    (members,) = (
        one.statement for one in shard_migrations(REPLICATED) if one.name == "group_member_versions"
    )
    assert (
        "ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/brokerhouse/"
        "group_member_versions', '{replica}', version, removed)" in members
    )


def test_a_replicated_table_has_a_bounded_replicated_deduplication_window() -> None:
    for statement in statements(REPLICATED):
        assert "non_replicated" not in statement
        for window in re.findall(r"replicated_deduplication_window = (\d+)", statement):
            assert int(window) <= 10_000
    wide = migration("deduplication_window", REPLICATED)
    assert wide == (
        "ALTER TABLE brokerhouse_shard.messages MODIFY SETTING"
        " replicated_deduplication_window = 10000,"
        " replicated_deduplication_window_seconds = 86400"
    )


def test_without_replication_engines_and_settings_stay_as_they_are() -> None:
    of_files = [re.findall(r"^ENGINE = .*", one.statement, re.M) for one in migrations()]
    of_shard = [re.findall(r"^ENGINE = .*", one.statement, re.M) for one in shard_migrations(PLAIN)]
    assert [line.rstrip(";") for lines in of_files for line in lines] == [
        line for lines in of_shard for line in lines
    ]
    wide = migration("deduplication_window", PLAIN)
    assert "non_replicated_deduplication_window = 100000" in wide
    never = "ALTER TABLE brokerhouse_shard.messages MODIFY SETTING remove_empty_parts = 0"
    assert migration("no_empty_parts_removed", PLAIN) == never
    assert migration("no_empty_parts_removed", REPLICATED) == never


def test_every_name_has_its_database_so_that_it_does_not_matter_where_it_runs() -> None:
    names = "|".join(NAMES)
    for statement in statements(REPLICATED):
        bare = re.findall(rf"(?:FROM|(?<!ARRAY )JOIN|TABLE|VIEW|EXISTS) (?:{names})\b", statement)
        assert bare == []


OVER_ALL_SHARDS = [
    one
    for one in people_migrations(REPLICATED)
    if one.name
    in (
        "topic_stats",
        "consumer_lag",
        "table_feed_progress",
        "table_feed_progress_replayed",
        "table_feeds",
        "table_feeds_options",
        "consumer_lag_seconds",
    )
]


@pytest.mark.parametrize("view", OVER_ALL_SHARDS, ids=lambda view: str(view.name))
def test_a_view_over_all_shards_queries_other_shards_once(view: ClusterMigration) -> None:
    """A join or IN that is not GLOBAL would be looked up by every shard, on every shard."""
    statement = view.statement
    assert SHARD_DATABASE not in statement
    joins = r"(?<!GLOBAL )(?:ASOF LEFT|(?<!ASOF )LEFT|INNER) JOIN"
    assert len(re.findall(joins, statement)) == 0
    assert len(re.findall(r"(?<!GLOBAL )\bIN \(", statement)) == 0
    assert ("max(minute)" in statement) == ("GROUP BY _shard_num" in statement)


def test_every_view_over_all_shards_is_tested() -> None:
    declared = {file.name for file in schema_files() if file.whole is Whole.AGAIN}
    assert {view.name for view in OVER_ALL_SHARDS} == declared


def test_without_distributed_database_brokerhouse_is_not_made() -> None:
    layout = ClusterLayout("brokerhouse", replicated=True, distributed=False)
    assert not any(f"{DATABASE}." in one.statement for one in shard_migrations(layout))
    assert "CREATE DATABASE IF NOT EXISTS brokerhouse" not in statements_of_foundation(layout)
    assert "CREATE DATABASE IF NOT EXISTS brokerhouse" in statements_of_foundation(REPLICATED)


def statements_of_foundation(layout: ClusterLayout) -> list[str]:
    return [one.statement for one in foundation(layout)]


def test_every_statement_can_run_on_cluster() -> None:
    for one in everything(REPLICATED):
        head, found, tail = one.on_cluster("prod").partition(" ON CLUSTER 'prod'")
        assert found
        assert head + tail == one.statement
        assert re.fullmatch(r"[A-Z ]+ [a-z_.]+", head)


def test_the_registries_of_two_clusters_have_different_places() -> None:
    other = ClusterLayout("other", replicated=True, distributed=True)
    both = [
        set(re.findall(r"KeeperMap\('([^']+)'\)", "".join(statements_of_foundation(layout))))
        for layout in (REPLICATED, other)
    ]
    assert both[0] == {
        "/brokerhouse/brokerhouse/registry",
        "/brokerhouse/brokerhouse/topic_registry",
        "/brokerhouse/brokerhouse/feed_registry",
    }
    assert not both[0] & both[1]


def refused_migrations() -> Iterator[tuple[str, str, str]]:
    """Name, complaint and content of each case in the file."""
    _, *cases = (Path(__file__).parent / "cases/refused_migrations.txt").read_text().split("==== ")
    for case in cases:
        name, complaint, _, content = case.split("\n", 3)
        yield name, complaint, content.rstrip("\n") + "\n"


@pytest.mark.parametrize(
    ("complaint", "content"),
    [pytest.param(*case, id=name) for name, *case in refused_migrations()],
)
def test_a_migration_that_does_not_fit_a_cluster_is_refused(complaint: str, content: str) -> None:
    with pytest.raises(SchemaError) as refused:
        rendered(content)
    assert complaint in str(refused.value)


def test_an_index_changes_only_the_tables_of_the_shards() -> None:
    content = (
        "-- index of messages; cluster: nothing\n"
        "ALTER TABLE ${messages} ADD INDEX IF NOT EXISTS more key TYPE minmax;\n"
    )
    assert rendered(content) == (
        "ALTER TABLE brokerhouse_shard.messages ADD INDEX IF NOT EXISTS more key TYPE minmax"
    )
    assert not any(one.statement.startswith("ALTER") for one in people_migrations(REPLICATED))


def test_the_files_of_docker_compose_agree_on_names_and_numbers() -> None:
    """Names and numbers that stand in several places."""
    config = load_cluster(PROJECT / "docker/cluster.toml", {"CLICKHOUSE_PASSWORD": "x"})
    assert config is not None
    server = ElementTree.parse(PROJECT / "docker/clickhouse/cluster.xml").getroot()
    shards = server.findall(f"remote_servers/{config.name}/shard")
    hosts = [[host.text for host in shard.findall("replica/host")] for shard in shards]
    assert [[f"http://{host}:8123" for host in shard] for shard in hosts] == [
        list(shard.replicas) for shard in config.shards
    ]
    users = ElementTree.parse(PROJECT / "docker/clickhouse/users.xml").getroot()
    assert users.find(f"users/{config.user}") is not None
    compose = (PROJECT / "docker-compose.yml").read_text()
    keepers = [node.text for node in server.findall("zookeeper/node/host")]
    ours = ElementTree.parse(PROJECT / "docker/keeper.xml").getroot()
    assert keepers == [
        node.text for node in ours.findall("keeper_server/raft_configuration/server/hostname")
    ]
    for name in [*keepers, *(host for shard in hosts for host in shard)]:
        assert f"\n  {name}:\n" in compose
    images = re.findall(r"image: clickhouse/clickhouse-\w+:(.+)", compose)
    assert len(set(images)) == 1
    version = tuple(int(part) for part in images[0].split(".")[:2])
    assert version >= MIN_VERSION
