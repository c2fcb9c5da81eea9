"""Migration of a cluster, by any number of brokers at once, on every server that answers.

And what `brokerhouse migrate`, `check` and `slots` print. Two engines are two shards, with a real
Keeper.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from brokerhouse.broker.cli import cluster as cli_cluster
from brokerhouse.broker.cluster.config import ClusterConfig, load_cluster
from brokerhouse.broker.cluster.servers import layout, opened, registry_of
from brokerhouse.broker.log.mutations import MUTATION_SETTINGS
from brokerhouse.broker.log.producer_states import delete_states
from brokerhouse.broker.slots.sessions import BrokerSession
from brokerhouse.common.text_table import word_set
from brokerhouse.sql.queries import query
from brokerhouse.storage import cluster_schema
from brokerhouse.storage.clickhouse import ClickHouseServer
from brokerhouse.storage.cluster_schema import SCHEMA_KEY, Migrated, _Version, migrate_cluster
from brokerhouse.storage.cluster_sql import (
    SHARD_DATABASE,
    ClusterLayout,
    foundation,
    shard_migrations,
)
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import STATEMENT_LIMIT_MS, KeeperRegistry
from brokerhouse.storage.schema import migrations
from brokerhouse.storage.schema_files import SchemaError
from brokerhouse.storage.slot_map import SLOTS_KEY, SlotMap
from tests.support.engine_process import EngineProcess
from tests.support.sql_rows import SqlError
from tests.support.waiting import LIMIT_S, until_async
from tests.support.zookeeper import Keeper

NAMES = [one.name for one in migrations()]
PATIENT = {
    "patient.xml": "<clickhouse><zookeeper><session_timeout_ms>10000</session_timeout_ms>"
    "<operation_timeout_ms>10000</operation_timeout_ms></zookeeper></clickhouse>"
}
"""For an engine: a Keeper may be silent for longer than `cluster_place.xml` says."""
MUTATIONS = (
    delete_states(),
    query("remove_open_of_deleted_topics", settings=MUTATION_SETTINGS),
    query("remove_aborted", named=f"('{UUID(int=1)}', 0, 5)"),
)
"""Deletions of the housekeeping that look at other rows."""
NEWER = r"made by a newer version of brokerhouse \(they are at"
_numbers = count()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two shards, the first one with two addresses, and the file that describes them."""

    shards: tuple[EngineProcess, EngineProcess]
    path: Path

    @property
    def config(self) -> ClusterConfig:
        config = load_cluster(self.path, {})
        assert config is not None
        return config

    def forget(self) -> None:
        """A cluster with another name, on empty servers."""
        for shard in self.shards:
            shard.sql("DROP DATABASE IF EXISTS brokerhouse_shard SYNC")
        replicas = [[f'"{url}"' for url in shard.urls] for shard in self.shards]
        self.path.write_text(
            f"""
            [cluster]
            name = "cluster-{next(_numbers)}"
            slots = 8
            replicated = false
            distributed = false
            connect_timeout_ms = 30000  # servers that are away here refuse at once
            request_timeout_ms = 60000
            [[cluster.shards]]
            name = "one"
            slots = "0-3"
            replicas = [{", ".join(replicas[0])}]
            [[cluster.shards]]
            name = "two"
            slots = "4-7"
            replicas = [{", ".join(replicas[1])}]
            """
        )

    def run(self, *command: str) -> Result:
        *groups, name = command[: 2 if command[0] == "slots" else 1]
        commands = cli_cluster.slots.commands if groups else vars(cli_cluster)
        return CliRunner().invoke(
            commands[name], [*command[1 + len(groups) :], "--config", str(self.path)]
        )


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    directory = tmp_path_factory.mktemp("cluster")
    with (
        Keeper(directory / "keeper") as keeper,
        EngineProcess(
            directory / "one", replicas=2, keepers=[keeper.address], shard="1", config=PATIENT
        ) as one,
        EngineProcess(
            directory / "two", keepers=[keeper.address], shard="2", config=PATIENT
        ) as two,
    ):
        yield one, two


@pytest.fixture
def cluster(processes: tuple[EngineProcess, EngineProcess], tmp_path: Path) -> Cluster:
    """A cluster without tables."""
    made = Cluster(processes, tmp_path / "cluster.toml")
    made.forget()
    return made


@pytest.fixture
def standing(processes: tuple[EngineProcess, EngineProcess], tmp_path: Path) -> Cluster:
    """A cluster with all tables: that of the test before, if it left them complete."""
    made = Cluster(processes, tmp_path / "cluster.toml")
    before = tmp_path.parent / "standing.toml"
    if before.exists() and all("messages" in tables(shard) for shard in processes):
        made.path.write_text(before.read_text())
    else:
        made.forget()
        done = made.run("migrate")
        assert done.exit_code == 0
        before.write_text(made.path.read_text())
        before.with_suffix(".printed").write_text(done.output)
    return made


async def migrated(config: ClusterConfig) -> Migrated:
    async with opened(config) as servers:
        registry = registry_of(servers, timeout_ms=config.request_timeout_ms)
        return await migrate_cluster(servers, layout(config), registry)


@asynccontextmanager
async def opened_registry(cluster: Cluster) -> AsyncIterator[KeeperRegistry]:
    config = cluster.config
    async with opened(config) as servers:
        yield registry_of(servers, timeout_ms=config.request_timeout_ms)


def tables(shard: EngineProcess) -> set[str]:
    rows = shard.sql("SELECT name FROM system.tables WHERE database = 'brokerhouse_shard'")
    return {row["name"] for row in rows}


@pytest.mark.test_all
async def test_a_migration_creates_all_tables_and_the_registry_on_every_shard(
    cluster: Cluster,
) -> None:
    assert await migrated(cluster.config) == Migrated(tuple(NAMES), ())
    for shard in cluster.shards:
        registries = {"registry", "topic_registry", "feed_registry"}
        assert {"messages", "consumer_lag"} | registries <= tables(shard)


@pytest.mark.parametrize("brokers", [2, pytest.param(4, marks=pytest.mark.test_all)])
async def test_when_many_brokers_migrate_at_once_every_statement_runs_once(
    cluster: Cluster, brokers: int
) -> None:
    done = await asyncio.gather(*(migrated(cluster.config) for _ in range(brokers)))
    assert sorted(len(one.applied) for one in done) == [*[0] * (brokers - 1), len(NAMES)]
    for shard in cluster.shards:
        assert {"messages", "consumer_lag", "registry", "topic_registry"} <= tables(shard)


async def test_a_server_that_was_away_gets_its_missing_tables_at_the_next_migration(
    cluster: Cluster,
) -> None:
    there = cluster.config
    nobody = there.shards[1].model_copy(update={"replicas": ("http://127.0.0.1:1",)})
    away = there.model_copy(update={"shards": (there.shards[0], nobody)})
    assert await migrated(away) == Migrated(tuple(NAMES), ("http://127.0.0.1:1",))
    assert tables(cluster.shards[1]) == set()
    assert await migrated(there) == Migrated(tuple(NAMES), ())
    assert "messages" in tables(cluster.shards[1])


async def test_a_migration_fails_if_no_server_answers(cluster: Cluster) -> None:
    shards = tuple(
        shard.model_copy(update={"replicas": (f"http://127.0.0.1:{port}",)})
        for port, shard in enumerate(cluster.config.shards, 1)
    )
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:1"):
        await migrated(cluster.config.model_copy(update={"shards": shards}))


@pytest.mark.test_all
async def test_a_migration_whose_lock_was_taken_over_stops(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrated(cluster.config)
    cluster.shards[0].sql("TRUNCATE TABLE brokerhouse_shard.schema_migrations")
    execute = ClickHouseServer.execute

    async def taken(self: ClickHouseServer, sql: str, *rest: object) -> None:
        if sql.startswith("CREATE OR REPLACE VIEW brokerhouse_shard.topics"):
            async with opened_registry(cluster) as registry:
                row = await registry.get(SCHEMA_KEY)
                other = replace(_Version.from_row(row), holder="another").to_text()
                assert await registry.compare_and_set(SCHEMA_KEY, row, other)
        await execute(self, sql, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ClickHouseServer, "execute", taken)
    with pytest.raises(SchemaError, match="another broker has taken over"):
        await migrated(cluster.config)
    rows = cluster.shards[0].sql(
        "SELECT max(number) AS last FROM brokerhouse_shard.schema_migrations"
    )
    assert rows == [{"last": 3}]


def test_check_names_servers_without_tables(cluster: Cluster) -> None:
    done = cluster.run("check")
    assert done.exit_code == 1
    urls = [url for shard in cluster.config.shards for url in shard.replicas]
    assert done.output.splitlines() == [
        f"{url}: database brokerhouse_shard does not exist: run `brokerhouse migrate`"
        for url in urls
    ]


def test_the_migrate_command_prints_each_migration_that_it_applied(
    standing: Cluster, tmp_path: Path
) -> None:
    printed = (tmp_path.parent / "standing.printed").read_text()
    assert printed.splitlines() == [f"applied {name}" for name in NAMES]
    assert standing.run("migrate").output == "nothing to do\n"


async def test_a_second_migration_changes_nothing(standing: Cluster) -> None:
    assert await migrated(standing.config) == Migrated((), ())


async def test_tables_of_a_newer_version_on_a_server_are_refused(standing: Cluster) -> None:
    table = "brokerhouse_shard.schema_migrations"
    standing.shards[1].sql(f"INSERT INTO {table} (number, name) VALUES (99, 'later')")
    try:
        with pytest.raises(SchemaError, match=NEWER):
            await migrated(standing.config)
    finally:
        standing.shards[1].sql(f"DELETE FROM {table} WHERE number = 99")


async def test_tables_of_a_newer_version_in_the_registry_are_refused(standing: Cluster) -> None:
    async with opened_registry(standing) as registry:
        row = await registry.get(SCHEMA_KEY)
        newer = replace(_Version.from_row(row), version=99).to_text()
        assert await registry.compare_and_set(SCHEMA_KEY, row, newer)
        try:
            with pytest.raises(SchemaError, match=NEWER):
                await migrated(standing.config)
        finally:
            assert row is not None
            now = await registry.get(SCHEMA_KEY)
            assert await registry.compare_and_set(SCHEMA_KEY, now, row.value)


async def test_the_lock_of_a_broker_that_died_is_taken_over(
    standing: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = len(NAMES)
    standing.shards[0].sql(f"DELETE FROM brokerhouse_shard.schema_migrations WHERE number = {last}")
    async with opened_registry(standing) as registry:
        row = await registry.get(SCHEMA_KEY)
        held = replace(_Version.from_row(row), holder="one that died").to_text()
        assert await registry.compare_and_set(SCHEMA_KEY, row, held)
        monkeypatch.setattr(cluster_schema, "TAKE_OVER_S", 0.5)
        begun = time.monotonic()
        assert (await migrated(standing.config)).applied == (NAMES[-1],)
        assert time.monotonic() - begun >= 0.5
        assert _Version.from_row(await registry.get(SCHEMA_KEY)).holder == ""


def test_check_finds_no_problem_in_a_healthy_cluster(standing: Cluster) -> None:
    done = standing.run("check")
    assert (done.exit_code, done.output) == (0, "no problems found: 2 shards, 3 servers\n")


def test_check_names_a_server_that_does_not_answer(standing: Cluster) -> None:
    url = standing.shards[1].urls[0]
    text = standing.path.read_text()
    standing.path.write_text(text.replace(url, "http://127.0.0.1:1"))
    done = standing.run("check")
    assert done.exit_code == 1
    assert done.output == "http://127.0.0.1:1: does not answer (Connection refused)\n"


def test_check_reports_where_the_configuration_and_the_tables_differ(standing: Cluster) -> None:
    text = standing.path.read_text().replace("replicated = false", "replicated = true")
    standing.path.write_text(text)
    lines = standing.run("check").output.splitlines()
    first = standing.shards[0].urls[0]
    assert (
        f"{first}: its tables are not replicated, but the configuration has replicated = true"
        in lines
    )
    name = standing.config.name
    assert f"{first}: remote_servers in its configuration has no cluster {name}" in lines
    other = standing.shards[0].urls[1]
    assert any(line.startswith(f"{other}: has the same macros as {first}") for line in lines)


def test_check_names_a_table_whose_deduplication_window_is_too_small(standing: Cluster) -> None:
    change = "ALTER TABLE brokerhouse_shard.messages MODIFY SETTING"
    standing.shards[1].sql(f"{change} non_replicated_deduplication_window = 500")
    done = standing.run("check")
    standing.shards[1].sql(f"{change} non_replicated_deduplication_window = 100000")
    assert "table messages remembers 500 blocks; 100000 are needed" in done.output


def test_check_names_a_view_that_a_server_could_not_fill(standing: Cluster) -> None:
    server = standing.shards[1]
    server.sql("CREATE TABLE default.ids (id UInt64) ENGINE = MergeTree ORDER BY id")
    server.sql(
        "CREATE MATERIALIZED VIEW default.typed TO default.ids AS SELECT"
        " toUInt64(assumeNotNull(value)) AS id FROM brokerhouse_shard.messages"
    )
    assert standing.run("check").exit_code == 0
    try:
        server.sql(
            "INSERT INTO brokerhouse_shard.messages (topic, offset, value) FORMAT Values"
            " ('bad', 1, 'no number')"
        )
        server.sql("SYSTEM FLUSH LOGS query_views_log")
        done = standing.run("check")
        stored = server.sql("SELECT count() AS n FROM brokerhouse_shard.messages")
    finally:
        server.sql("DROP TABLE default.typed")
        server.sql("TRUNCATE TABLE brokerhouse_shard.messages")
    assert [int(row["n"]) for row in stored] == [1], "the insert has not failed"
    assert done.exit_code == 1
    (line,) = done.output.splitlines()
    assert line.startswith(
        f"{server.urls[0]}: view default.typed lacks the rows of inserts into messages (1 since "
    )
    assert "Cannot parse string 'no number'" in line


async def set_slots(cluster: Cluster, slots: SlotMap) -> None:
    async with opened_registry(cluster) as registry:
        row = await registry.get(SLOTS_KEY)
        assert await registry.compare_and_set(SLOTS_KEY, row, slots.to_text())


async def forget_slots(cluster: Cluster) -> None:
    async with opened_registry(cluster) as registry:
        row = await registry.get(SLOTS_KEY)
        assert row is None or await registry.delete(SLOTS_KEY, row)


async def set_session(cluster: Cluster, session: BrokerSession) -> None:
    async with opened_registry(cluster) as registry:
        await registry.create({f"session/{session.session_id}": session.to_text()})


async def until_slots_move(cluster: Cluster) -> None:
    async with opened_registry(cluster) as registry:

        async def moving() -> bool:
            row = await registry.get(SLOTS_KEY)
            assert row is not None
            return any(slot.behind for slot in SlotMap.from_text(row.value).slots)

        await until_async(moving)


def test_check_reports_slots_of_a_shard_that_is_not_in_the_configuration(standing: Cluster) -> None:
    asyncio.run(set_slots(standing, SlotMap.first([("gone", range(16))], 16)))
    checked = standing.run("check")
    asyncio.run(forget_slots(standing))
    assert checked.output.splitlines() == [
        "the cluster has 16 slots, but the configuration has slots = 8: "
        "the number is fixed when a cluster is created",
        "slots of the cluster are on shard gone, which is not in the configuration",
    ]


def test_the_slots_show_command_prints_ranges_of_slots_with_their_owners(standing: Cluster) -> None:
    asyncio.run(set_session(standing, BrokerSession(7, 3, "kafka-3", 9092, None, 4000)))
    asyncio.run(
        set_slots(standing, standing.config.first_map().claim(range(2), 7).claim(range(2, 3), 8))
    )
    printed = standing.run("slots", "show").output
    assert [line.split()[0] for line in printed.splitlines()] == ["slots", "0-1", "2", "3", "4-7"]
    assert "0-1    broker 3 (kafka-3:9092) " in printed
    assert "2      a broker that is gone (session 8) " in printed
    first, *_ = json.loads(standing.run("slots", "show", "--json").output)
    assert first == {
        "slots": "0-1",
        "broker": 3,
        "address": "kafka-3:9092",
        "session": 7,
        "session_is_over": False,
        "epoch": 1,
        "shards": ["one"],
        "moving_to": None,
    }
    asyncio.run(set_slots(standing, standing.config.first_map()))
    rows = [line.split() for line in standing.run("slots", "show").output.splitlines()]
    assert rows == [
        ["slots", "owner", "epoch", "shards"],
        ["0-3", "-", "0", "one"],
        ["4-7", "-", "0", "two"],
    ]


def test_slots_without_an_owner_move_at_once(standing: Cluster) -> None:
    asyncio.run(set_slots(standing, standing.config.first_map()))
    done = standing.run("slots", "move", "--slots", "1-2", "--to", "two")
    assert (done.exit_code, done.output) == (0, "new records of 2 slots go to two\n")
    again = standing.run("slots", "move", "--slots", "1-2", "--to", "two")
    assert (again.exit_code, again.output) == (0, done.output)
    shown = [line.split() for line in standing.run("slots", "show").output.splitlines()]
    assert ["1-2", "-", "0", "one,", "two"] in shown


def test_the_slots_move_command_waits_until_the_owner_writes_to_the_new_shard(
    standing: Cluster,
) -> None:
    asyncio.run(set_slots(standing, standing.config.first_map().claim(range(8), 7)))
    done: list[Result] = []
    command = threading.Thread(
        target=lambda: done.append(standing.run("slots", "move", "--slots", "0-1", "--to", "two"))
    )
    command.start()
    # Each command takes sys.stdout and gives it back, so this one has to run while that one waits.
    asyncio.run(until_slots_move(standing))
    assert "moving to two" in standing.run("slots", "show").output
    assert command.is_alive()
    asyncio.run(
        set_slots(standing, standing.config.first_map().move(range(2), "two").claim(range(8), 7))
    )
    command.join(LIMIT_S)
    assert done[0].output.splitlines()[-1] == "new records of 2 slots go to two"


def test_a_command_waits_for_slow_servers_as_long_as_the_configuration_allows(
    standing: Cluster,
) -> None:
    """As long as the file says, which is longer than a broker waits."""
    asyncio.run(set_slots(standing, standing.config.first_map()))
    slow = threading.Timer(2 * STATEMENT_LIMIT_MS / 1000, lambda: resume(standing))
    for one in standing.shards:
        one.pause()
    slow.start()
    try:
        shown = standing.run("slots", "show")
    finally:
        slow.join()
    assert shown.exit_code == 0, shown.output


def resume(cluster: Cluster) -> None:
    for one in cluster.shards:
        one.resume()


REFUSED = {
    "no such slot": (("--slots", "3-8", "--to", "two"), "slot 8 does not exist: the last one is 7"),
    "no such shard": (("--slots", "3", "--to", "x"), "the file has no shard 'x', only one, two"),
    "no slots": (("--slots", "three", "--to", "two"), 'write slots like "0-31" or "0-15,40"'),
}


@pytest.mark.parametrize(("options", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_move_of_unknown_slots_or_to_an_unknown_shard_is_refused(
    standing: Cluster, options: tuple[str, ...], sentence: str
) -> None:
    asyncio.run(set_slots(standing, standing.config.first_map()))
    done = standing.run("slots", "move", *options)
    assert done.exit_code != 0
    assert sentence in done.output


def test_the_slots_show_command_fails_before_a_broker_has_created_the_slot_map(
    standing: Cluster,
) -> None:
    asyncio.run(forget_slots(standing))
    done = standing.run("slots", "show")
    assert done.exit_code == 1
    assert "the cluster has no slot map yet: the first broker that starts creates it" in done.output


def test_a_configuration_without_a_cluster_is_refused(cluster: Cluster) -> None:
    cluster.path.write_text("node_id = 3\n")
    done = cluster.run("check")
    assert done.exit_code == 2
    assert "has no table [cluster]: see docs/cluster.md" in done.output


def test_replicated_tables_can_be_created_with_a_real_keeper(tmp_path: Path) -> None:
    """In a process that is killed: an engine that takes no part in replication cannot drop them.

    For the same reason statements that change a replicated table are only parsed.
    """
    replicated = ClusterLayout("brokerhouse", replicated=True, distributed=True)
    with Keeper(tmp_path / "keeper") as keeper:
        engine = EngineProcess(
            tmp_path / "data", keepers=[keeper.address], shard="one", config=PATIENT
        )
        engine.start()
        try:
            for one in [*foundation(replicated), *shard_migrations(replicated)]:
                statement = one.statement
                alters = statement.startswith("ALTER")
                engine.sql(f"EXPLAIN AST {statement}" if alters else statement)
            rows = engine.sql(
                f"SELECT name FROM system.tables WHERE database = '{SHARD_DATABASE}'"
                " AND engine LIKE 'Replicated%MergeTree'"
            )
            for statement in MUTATIONS:
                # As far as this engine can do it: before, it checks what replicated tables accept.
                with pytest.raises(SqlError, match="Cannot assign mutation because shutdown"):
                    engine.sql(statement, {"param_since_ms": "1"}, database=SHARD_DATABASE)
        finally:
            engine.kill()
    assert {row["name"] for row in rows} == word_set("""
        messages topic_versions partition_checkpoints leader_epochs cluster_state
        consumer_group_versions group_member_versions group_heartbeats consumer_offsets
        partition_minutes partition_seconds lag_history lag_alerts compaction_removals
        compaction_applied transaction_versions transaction_offsets aborted_transactions
        open_transaction_versions failed_view_versions failed_view_offsets view_doubts
        table_feed_versions table_feed_blocks dead_letter_versions producer_states
    """)
