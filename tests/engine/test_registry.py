"""Compare-and-set: of several changes of a key at once one succeeds; versions only grow."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from brokerhouse.broker.transactions.producer_ids import ProducerIds
from brokerhouse.storage.clickhouse import ClickHouseServer, ConnectionSettings
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.engine import Engine, EngineError, Parameter, Row
from brokerhouse.storage.registry import KeeperRegistry, Registry, TableRegistry, Versioned
from brokerhouse.storage.schema import migrate
from tests.support.engine_process import EngineProcess
from tests.support.zookeeper import Keeper

CALL_LIMIT_S = 6.0
"""The registry's own limit is 5 s."""
RECOVERY_LIMIT_S = 30.0
CHANGES_OF_A_RACE = 5


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    with Keeper(tmp_path_factory.mktemp("registry") / "keeper") as process:
        yield process


@pytest.fixture(scope="module")
def shard(keeper: Keeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    data_dir = tmp_path_factory.mktemp("registry") / "data"
    with EngineProcess(data_dir, replicas=2, keepers=[keeper.address]) as process:
        yield process


def server_of(shard: EngineProcess, replica: int = 0) -> ClickHouseServer:
    return ClickHouseServer(
        shard.urls[replica], ConnectionSettings(user="", password="", database="default")
    )


@pytest.fixture
async def server(shard: EngineProcess) -> AsyncIterator[ClickHouseServer]:
    connected = server_of(shard)
    yield connected
    await connected.close()


async def make_table(server: ClickHouseServer, test: str) -> str:
    """A KeeperMap table of a test's own."""
    name = re.sub(r"\W", "_", test)
    await server.execute(
        f"CREATE TABLE {name} (key String, value String)"
        f" ENGINE = KeeperMap('/{name}') PRIMARY KEY key"
    )
    return name


@pytest.fixture
async def table(request: pytest.FixtureRequest, server: ClickHouseServer) -> str:
    return await make_table(server, request.node.name)


@pytest.fixture
def keeper_registry(server: ClickHouseServer, table: str) -> KeeperRegistry:
    return KeeperRegistry(server, table)


@pytest.fixture
async def embedded(engine: EmbeddedEngine) -> TableRegistry:
    return TableRegistry(engine)


@pytest.fixture(params=["embedded", "cluster"])
def registry(request: pytest.FixtureRequest) -> Registry:
    fixture = "embedded" if request.param == "embedded" else "keeper_registry"
    found: Registry = request.getfixturevalue(fixture)
    return found


async def test_a_key_that_was_never_set_has_no_value(registry: Registry) -> None:
    assert await registry.get("key") is None


async def test_each_change_of_a_key_raises_its_version(registry: Registry) -> None:
    assert await registry.compare_and_set("key", None, "first")
    first = await registry.get("key")
    assert first == Versioned("first", 1)
    assert await registry.compare_and_set("key", first, "second")
    assert await registry.get("key") == Versioned("second", 2)


async def test_similar_keys_have_separate_values(registry: Registry) -> None:
    keys = ["a", "A", "a'", "a\\", "", "é"]
    for key in keys:
        assert await registry.compare_and_set(key, None, f"value of {key}")
    assert [await registry.get(key) for key in keys] == [
        Versioned(f"value of {key}", 1) for key in keys
    ]


@pytest.mark.parametrize(
    "expected",
    [None, Versioned("old", 1), Versioned("new", 1), Versioned("old", 2)],
)
async def test_a_change_that_expects_another_value_or_version_is_refused(
    registry: Registry, expected: Versioned | None
) -> None:
    await registry.compare_and_set("key", None, "old")
    await registry.compare_and_set("key", Versioned("old", 1), "new")
    assert not await registry.compare_and_set("key", expected, "mine")
    assert await registry.get("key") == Versioned("new", 2)


async def test_a_change_that_expects_a_missing_key_is_refused(registry: Registry) -> None:
    assert not await registry.compare_and_set("key", Versioned("old", 1), "mine")
    assert await registry.get("key") is None


async def test_a_change_that_expects_a_future_version_is_refused_by_a_single_broker(
    embedded: TableRegistry,
) -> None:
    await embedded.compare_and_set("key", None, "old")
    assert not await embedded.compare_and_set("key", Versioned("old", 2), "mine")
    assert await embedded.get("key") == Versioned("old", 1)


async def test_a_change_that_expects_a_version_newer_than_that_of_the_server_has_an_unknown_outcome(
    keeper_registry: KeeperRegistry,
) -> None:
    """The server may be behind, or the key was made again since: to be read again in any case."""
    await keeper_registry.compare_and_set("key", None, "old")
    with pytest.raises(EngineError, match="it is unknown whether"):
        await keeper_registry.compare_and_set("key", Versioned("old", 2), "mine")
    assert await keeper_registry.get("key") == Versioned("old", 1)


async def test_of_many_simultaneous_changes_of_a_key_one_succeeds(registry: Registry) -> None:
    for turn in range(5):
        before = await registry.get("key")
        won = await asyncio.gather(
            *(registry.compare_and_set("key", before, f"{turn}/{n}") for n in range(10))
        )
        assert won.count(True) == 1
        assert await registry.get("key") == Versioned(f"{turn}/{won.index(True)}", turn + 1)


@pytest.mark.usefixtures("alone")
async def test_a_value_survives_a_restart_and_merges(tmp_path: Path) -> None:
    for turn in range(4):
        engine = EmbeddedEngine(tmp_path / "data", 1, fsync=False)
        await migrate(engine)
        registry = TableRegistry(engine)
        before = await registry.get("key")
        assert before == (Versioned(str(turn - 1), turn) if turn else None)
        assert await registry.compare_and_set("key", before, str(turn))
        if turn == 2:
            await engine.execute("OPTIMIZE TABLE cluster_state FINAL")
        await engine.close()


async def test_producer_ids_are_given_once_by_brokers_that_share_a_registry(
    registry: Registry,
) -> None:
    """Two that share a registry, as brokers of a cluster will, and restarts between."""
    given: list[int] = []
    for _ in range(3):
        one, other = ProducerIds(registry), ProducerIds(registry)
        fresh_from = await one.load()
        now = await asyncio.gather(*((one, other)[n % 2].next() for n in range(50)))
        assert min(now) >= fresh_from
        given += now
    assert len(set(given)) == len(given)


async def test_producer_ids_continue_after_the_end_of_a_block(registry: Registry) -> None:
    ids = ProducerIds(registry)
    assert [await ids.next() for _ in range(1001)] == list(range(1001))
    assert await ids.load() == 2000


async def test_many_keys_are_created_in_one_change_except_those_that_exist(
    registry: Registry,
) -> None:
    assert await registry.compare_and_set("k3", None, "was there")
    wanted = {f"k{n}": f"value {n}, 'quoted' and {{braced}}" for n in range(300)}

    created = await registry.create(wanted)

    assert created.keys() == wanted.keys() - {"k3"}
    assert await registry.get("k3") == Versioned("was there", 1)
    for key in ("k0", "k299"):
        assert created[key] == await registry.get(key) == Versioned(wanted[key], 1)
        assert await registry.compare_and_set(key, created[key], "changed")
    assert await registry.create(wanted) == {}


async def test_of_several_brokers_that_create_the_same_keys_one_creates_each(
    registry: Registry,
) -> None:
    wanted = [{f"k{n}": f"by {who}" for n in range(who, who + 20)} for who in range(0, 50, 10)]
    created = await asyncio.gather(*(registry.create(some) for some in wanted))
    assert sorted(key for some in created for key in some) == sorted(await registry.list(""))
    for some in created:
        for key, stored in some.items():
            assert await registry.get(key) == stored


async def test_keys_are_listed_by_prefix(registry: Registry) -> None:
    for key in ["session/1", "session/2", "session", "slots", "sessions'%_"]:
        await registry.compare_and_set(key, None, f"value of {key}")
    await registry.compare_and_set("slots", Versioned("value of slots", 1), "new")
    assert await registry.list("session/") == {
        "session/1": Versioned("value of session/1", 1),
        "session/2": Versioned("value of session/2", 1),
    }
    assert set(await registry.list("sessions'%_")) == {"sessions'%_"}
    assert await registry.list("nothing") == {}
    assert len(await registry.list("")) == 5
    assert (await registry.list(""))["slots"] == Versioned("new", 2)


async def test_a_key_is_deleted_only_if_it_is_as_expected(registry: Registry) -> None:
    await registry.compare_and_set("key", None, "old")
    await registry.compare_and_set("key", Versioned("old", 1), "new")
    await registry.compare_and_set("other", None, "stays")
    assert not await registry.delete("key", Versioned("old", 1))
    assert await registry.get("key") == Versioned("new", 2)
    assert await registry.delete("key", Versioned("new", 2))
    assert await registry.get("key") is None
    assert await registry.list("") == {"other": Versioned("stays", 1)}


async def test_deleting_a_missing_key_succeeds(registry: Registry) -> None:
    assert await registry.delete("key", Versioned("old", 1))


async def test_a_deleted_key_can_be_created_again_but_not_changed(registry: Registry) -> None:
    await registry.compare_and_set("key", None, "old")
    await registry.delete("key", Versioned("old", 1))
    assert not await registry.compare_and_set("key", Versioned("old", 1), "changed")
    assert await registry.compare_and_set("key", None, "made again")
    assert await registry.get("key") == Versioned("made again", 1)


async def test_of_many_simultaneous_creations_of_a_key_one_succeeds(registry: Registry) -> None:
    won = await asyncio.gather(*(registry.compare_and_set("key", None, str(n)) for n in range(10)))
    assert won.count(True) == 1
    assert await registry.get("key") == Versioned(str(won.index(True)), 1)


async def test_keys_can_be_listed_while_others_are_created_and_deleted(registry: Registry) -> None:
    await registry.compare_and_set("a/stays", None, "here")

    async def come_and_go(key: str) -> None:
        for _ in range(3):
            assert await registry.compare_and_set(key, None, "here")
            assert await registry.delete(key, Versioned("here", 1))

    async def look() -> None:
        for _ in range(10):
            assert (await registry.list("a/"))["a/stays"] == Versioned("here", 1)

    await asyncio.gather(come_and_go("a/one"), come_and_go("a/other"), look())


async def test_every_increment_by_several_clients_of_two_servers_counts_once(
    shard: EngineProcess, table: str
) -> None:
    """Whoever is told that they won did win, and nobody else; through two servers."""
    servers = [server_of(shard, replica) for replica in (0, 1)]

    async def count(server: ClickHouseServer) -> int:
        registry, wins = KeeperRegistry(server, table), 0
        while wins < CHANGES_OF_A_RACE:
            found = await registry.get("counter")
            wins += await registry.compare_and_set(
                "counter", found, str(int(found.value) + 1 if found else 1)
            )
        return wins

    wins = await asyncio.gather(*(count(servers[n % 2]) for n in range(4)))
    final = await KeeperRegistry(servers[0], table).get("counter")
    assert final == Versioned(str(sum(wins)), sum(wins))
    for server in servers:
        await server.close()


class FaultyServer:
    """A server whose calls to the registry fail in a given way, call by call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.faults: list[Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]] = []
        self.old_answers: list[list[Row]] = []

    async def execute(self, sql: str, params: Mapping[str, Parameter] | None = None) -> None:
        async def run() -> None:
            await self._engine.execute(sql, params)

        if self.faults:
            await self.faults.pop(0)(run)
        else:
            await run()

    async def rows(self, sql: str, params: Mapping[str, Parameter] | None = None) -> list[Row]:
        if self.old_answers:
            return self.old_answers.pop(0)
        return await self._engine.rows(sql, params)


@pytest.fixture
def faulty(server: ClickHouseServer) -> FaultyServer:
    return FaultyServer(server)


@pytest.fixture
def shaken(faulty: FaultyServer, table: str) -> KeeperRegistry:
    """A registry behind `faulty`; `keeper_registry` is the same one without faults."""
    return KeeperRegistry(faulty, table)


async def never_arrives(_run: Callable[[], Awaitable[None]]) -> None:
    raise EngineError("the connection was refused")


async def answer_is_lost(run: Callable[[], Awaitable[None]]) -> None:
    await run()
    raise EngineError("no answer in time")


async def test_a_change_that_did_not_arrive_is_sent_again(
    shaken: KeeperRegistry, faulty: FaultyServer
) -> None:
    faulty.faults = [never_arrives]
    assert await shaken.compare_and_set("key", None, "first")
    faulty.faults = [never_arrives, never_arrives]
    assert await shaken.compare_and_set("key", Versioned("first", 1), "second")
    faulty.faults = [never_arrives]
    assert await shaken.delete("key", Versioned("second", 2))


async def test_a_change_whose_answer_was_lost_is_reported_as_made(
    shaken: KeeperRegistry, faulty: FaultyServer
) -> None:
    faulty.faults = [answer_is_lost]
    assert await shaken.compare_and_set("key", None, "first")
    faulty.faults = [answer_is_lost]
    assert await shaken.compare_and_set("key", Versioned("first", 1), "second")
    assert await shaken.get("key") == Versioned("second", 2)
    faulty.faults = [answer_is_lost]
    assert await shaken.delete("key", Versioned("second", 2))


@pytest.mark.parametrize("expected", [None, Versioned("before", 1)])
async def test_a_change_is_reported_as_made_even_if_others_changed_the_key_before_its_answer(
    shaken: KeeperRegistry,
    faulty: FaultyServer,
    keeper_registry: KeeperRegistry,
    expected: Versioned | None,
) -> None:
    if expected:
        await keeper_registry.compare_and_set("key", None, expected.value)

    async def overtaken(run: Callable[[], Awaitable[None]]) -> None:
        await run()
        for n in range(CHANGES_OF_A_RACE):
            assert await keeper_registry.compare_and_set(
                "key", await keeper_registry.get("key"), f"theirs {n}"
            )
        raise EngineError("no answer in time")

    faulty.faults = [overtaken]
    assert await shaken.compare_and_set("key", expected, "mine")


async def test_a_change_that_arrives_after_another_one_is_refused(
    shaken: KeeperRegistry, faulty: FaultyServer, keeper_registry: KeeperRegistry
) -> None:
    async def too_late(run: Callable[[], Awaitable[None]]) -> None:
        assert await keeper_registry.compare_and_set(
            "key", await keeper_registry.get("key"), "theirs"
        )
        await run()

    faulty.faults = [too_late]
    assert not await shaken.compare_and_set("key", None, "mine")
    faulty.faults = [too_late]
    assert not await shaken.compare_and_set("key", Versioned("theirs", 1), "mine")
    faulty.faults = [too_late]
    assert not await shaken.delete("key", Versioned("theirs", 2))
    assert await shaken.get("key") == Versioned("theirs", 3)


async def test_a_change_followed_by_too_many_others_has_an_unknown_outcome(
    shaken: KeeperRegistry, faulty: FaultyServer, keeper_registry: KeeperRegistry
) -> None:
    async def forgotten(run: Callable[[], Awaitable[None]]) -> None:
        await run()
        for n in range(10):
            await keeper_registry.compare_and_set(
                "key", await keeper_registry.get("key"), f"theirs {n}"
            )

    faulty.faults = [forgotten]
    with pytest.raises(EngineError, match="it is unknown whether"):
        await shaken.compare_and_set("key", None, "mine")


async def test_an_old_answer_of_a_lagging_server_does_not_change_the_outcome(
    shaken: KeeperRegistry, faulty: FaultyServer, server: ClickHouseServer, table: str
) -> None:
    """The write went through one server and the look through another, which does not know yet."""
    await shaken.compare_and_set("key", None, "first")
    before = await server.rows(f"SELECT value, _version FROM {table} WHERE key = 'key'")
    faulty.old_answers = [before]
    assert await shaken.compare_and_set("key", Versioned("first", 1), "second")
    faulty.old_answers = [before]  # older than what is expected
    assert await shaken.compare_and_set("key", Versioned("second", 2), "third")
    faulty.old_answers = [before]
    assert not await shaken.compare_and_set("key", Versioned("second", 2), "mine")
    faulty.old_answers = [before]
    assert not await shaken.delete("key", Versioned("second", 2))
    assert await shaken.get("key") == Versioned("third", 3)


async def until_answered(registry: KeeperRegistry) -> Versioned | None:
    deadline = time.monotonic() + RECOVERY_LIMIT_S
    while True:
        try:
            return await registry.get("key")
        except EngineError:
            assert time.monotonic() < deadline, "the registry does not come back"
            await asyncio.sleep(0.05)


async def assert_nobody_answers(registry: KeeperRegistry) -> None:
    """Each call, beside the others, ends in time and says so."""
    started = time.monotonic()
    outcomes = await asyncio.gather(
        registry.get("key"),
        registry.list(""),
        registry.compare_and_set("key", Versioned("kept", 1), "lost"),
        registry.compare_and_set("new", None, "lost"),
        registry.delete("key", Versioned("kept", 1)),
        return_exceptions=True,
    )
    assert time.monotonic() - started < CALL_LIMIT_S
    assert [type(outcome) for outcome in outcomes] == [EngineError] * len(outcomes)


async def test_calls_fail_while_keeper_is_down_and_find_all_keys_when_it_is_back(
    keeper_registry: KeeperRegistry, keeper: Keeper
) -> None:
    await keeper_registry.compare_and_set("key", None, "kept")
    keeper.kill()
    try:
        await assert_nobody_answers(keeper_registry)
    finally:
        keeper.start()
    assert await until_answered(keeper_registry) == Versioned("kept", 1)
    assert await keeper_registry.compare_and_set("key", Versioned("kept", 1), "changed")


async def test_calls_fail_in_time_while_keeper_hangs(
    server: ClickHouseServer, table: str, keeper: Keeper
) -> None:
    registry = KeeperRegistry(server, table)
    await registry.compare_and_set("key", None, "kept")
    with keeper.paused():
        await assert_nobody_answers(KeeperRegistry(server, table, timeout_ms=1000))
    found = await until_answered(registry)
    # The write in flight may arrive when it wakes: that is why the outcome is unknown.
    assert found in (None, Versioned("kept", 1), Versioned("lost", 2))


async def test_calls_fail_in_time_while_the_server_hangs(shard: EngineProcess, table: str) -> None:
    server = server_of(shard)
    registry = KeeperRegistry(server, table)
    await registry.compare_and_set("key", None, "kept")
    with shard.paused():
        await assert_nobody_answers(KeeperRegistry(server, table, timeout_ms=500))
    assert await until_answered(registry) is not None
    await server.close()


async def test_a_change_on_a_server_without_the_table_fails_with_the_code_of_the_server(
    server: ClickHouseServer,
) -> None:
    registry = KeeperRegistry(server, "nowhere")
    with pytest.raises(EngineError) as refused:
        await registry.compare_and_set("key", None, "value")
    assert refused.value.code == 60


async def test_small_statements_on_the_registry_of_a_cluster_succeed_and_fail_as_usual(
    server: ClickHouseServer,
) -> None:
    table = f"{SHARD_DATABASE}.registry"  # this name alone goes the short way through the engine
    await server.execute(f"CREATE DATABASE {SHARD_DATABASE}")
    await server.execute(
        f"CREATE TABLE {table} (key String, value String) ENGINE = KeeperMap('/r') PRIMARY KEY key"
    )
    registry = KeeperRegistry(server, table)
    assert await registry.compare_and_set("key", None, "old")
    assert not await registry.compare_and_set("key", Versioned("other", 1), "new")
    assert await registry.compare_and_set("key", Versioned("old", 1), "new")
    for wrong in ("UPDATE value = nowhere WHERE key = 'key'", "DELETE WHERE throwIf(1)"):
        with pytest.raises(EngineError):
            await server.execute(f"ALTER TABLE {table} {wrong}")
    with pytest.raises(EngineError, match="nowhere"):
        await server.rows(f"SELECT nowhere FROM {table}")
    assert await registry.list("") == {"key": Versioned("new", 2)}
    assert await server.rows(f"SELECT key, _version FROM {table}") == [["key", 1]]
    assert await registry.delete("key", Versioned("new", 2))
    assert await registry.get("key") is None
