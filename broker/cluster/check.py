"""What is wrong with a cluster: the findings of `brokerhouse check`.

It only reads. Each server is queried once for everything that concerns it alone. What needs a
comparison of servers (macros, clocks, remote_servers) is worked out from their answers. A server
that does not answer, or whose ClickHouse is too old, has exactly one finding.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from brokerhouse.broker.cluster.config import ClusterConfig, ShardConfig
from brokerhouse.broker.cluster.registry_view import SESSION_PREFIX
from brokerhouse.broker.cluster.servers import layout, opened, registry_of
from brokerhouse.broker.slots.sessions import BrokerSession
from brokerhouse.common.clock import SECOND_MS, wall_ms
from brokerhouse.sql.queries import query
from brokerhouse.storage.clickhouse import ClickHouseServer
from brokerhouse.storage.cluster_schema import databases
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Registry
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.schema_files import REPLICATED_WINDOW
from brokerhouse.storage.slot_map import SLOTS_KEY, SlotMap

MIN_VERSION = (24, 8)
"""The first long-term support release that has everything that is used: strict mode of KeeperMap
(23.4), OPTIMIZE ... CLEANUP (24.1), the analyzer that the views need (24.3),
read_in_order_use_buffering (24.7)."""
MAX_CLOCK_MS = 1000
MAX_LAG_S = 60
MIN_WINDOW = {True: REPLICATED_WINDOW, False: 100_000}
"""Blocks that `messages` must remember, by whether it is replicated."""
MIN_WINDOW_S = 3600
FAILED_VIEWS_S = 86_400
"""How long a materialized view is named after it has failed."""

_WRONG_LOGIN = {192, 193, 194, 516}
_VERSION = re.compile(rb"(\d+)\.(\d+)[.\d]*\s*")
_VERSION_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Seen:
    """One server, and what it answered. `problem`: why there is no answer."""

    shard: ShardConfig
    url: str
    problem: str | None = None
    clock_ahead_ms: int = 0
    clock_error_ms: int = 0  # half of how long the answer took
    macros: dict[str, str] = field(default_factory=dict)
    cluster: list[tuple[int, str]] = field(default_factory=list)  # (shard, host)
    keeper: str = ""
    history: dict[str, set[int]] = field(default_factory=dict)
    registry: str = ""
    messages: str = ""
    replicas: list[tuple[str, bool, int]] = field(default_factory=list)  # (table, read-only, delay)
    views: list[tuple[str, int, str, str]] = field(default_factory=list)
    """Materialized views that have failed: name, how often, since when (UTC), the last error."""


async def findings(config: ClusterConfig) -> list[str]:
    """One sentence for each problem; none for a healthy cluster."""
    async with opened(config) as servers:
        seen = await asyncio.gather(
            *(
                _look(config, shard, server)
                for shard in config.shards
                for server in servers[shard.name]
            )
        )
        found = [f"{one.url}: {one.problem}" for one in seen if one.problem is not None]
        healthy = [one for one in seen if one.problem is None]
        for one in healthy:
            found += [f"{one.url}: {problem}" for problem in _of_one(config, one)]
        found += _of_all(config, healthy)
        if any(not one.registry for one in healthy):
            found += await _of_slots(config, servers)
            found += await _of_brokers(config, servers)
    return found


async def _look(config: ClusterConfig, shard: ShardConfig, server: ClickHouseServer) -> _Seen:
    seen = _Seen(shard, server.url)
    version = await _version(config, server.url)
    if isinstance(version, str):
        seen.problem = version
    elif version < MIN_VERSION:
        seen.problem = (
            f"runs ClickHouse {version[0]}.{version[1]}; "
            f"brokerhouse needs {MIN_VERSION[0]}.{MIN_VERSION[1]} or later"
        )
    else:
        try:
            await _ask(config, server, seen)
        except EngineError as error:
            seen.problem = _one_line(str(error).removeprefix(f"{server.url}: "))
    return seen


async def _version(config: ClusterConfig, url: str) -> tuple[int, int] | str:
    """Queried with a plain HTTP request, which a server of any version understands."""
    headers = {
        "X-ClickHouse-User": config.user,
        "X-ClickHouse-Key": config.password.get_secret_value(),
    }
    timeout = aiohttp.ClientTimeout(total=_VERSION_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, params={"query": "SELECT version()"}, ssl=_tls(config)) as response,
        ):
            body = await response.content.read(65_536)
    except TimeoutError:
        return f"does not answer within {_VERSION_TIMEOUT_S:.0f} s"
    except aiohttp.ClientConnectorError as error:
        code = error.errno
        reason = os.strerror(code) if code and code > 0 else error.strerror
        return f"does not answer ({reason})"
    except (aiohttp.ClientError, OSError) as error:
        return f"does not answer ({_one_line(str(error)) or type(error).__name__})"
    if match := _VERSION.fullmatch(body):
        return int(match[1]), int(match[2])
    told = re.match(rb"Code: (\d+)", body)
    if told and int(told[1]) in _WRONG_LOGIN:
        return f"rejects the login of user {config.user}: the user name or the password is wrong"
    answer = _one_line(body.decode(errors="replace"))[:200]
    return f"is not a ClickHouse server; its answer was: {answer}"


def _tls(config: ClusterConfig) -> bool | ssl.SSLContext:
    if config.tls_ca is None:
        return True
    context = ssl.create_default_context()
    context.load_verify_locations(config.tls_ca)
    return context


async def _ask(config: ClusterConfig, server: ClickHouseServer, seen: _Seen) -> None:
    before = time.time()
    [[now_ms]] = await server.rows("SELECT toUnixTimestamp64Milli(now64(3))")
    after = time.time()
    seen.clock_ahead_ms = round(now_ms - (before + after) / 2 * 1000)
    seen.clock_error_ms = round((after - before) / 2 * 1000)
    rows = await server.rows("SELECT macro, substitution FROM system.macros")
    seen.macros = {str(macro): str(value) for macro, value in rows}
    rows = await server.rows(
        "SELECT shard_num, host_name FROM system.clusters WHERE cluster = {name:String}",
        {"name": config.name},
    )
    seen.cluster = [(shard, str(host)) for shard, host in rows]
    seen.keeper = await _complaint(
        server, "SELECT name FROM system.zookeeper WHERE path = '/' LIMIT 1"
    )
    noted = await server.rows("SELECT database FROM system.tables WHERE name = 'schema_migrations'")
    for name in {str(database) for (database,) in noted} & set(databases(layout(config))):
        rows = await server.rows(f"SELECT number FROM {name}.schema_migrations")
        seen.history[name] = {number for (number,) in rows}
    seen.registry = await _complaint(
        server, f"SELECT key FROM {SHARD_DATABASE}.registry WHERE key = 'schema'"
    )
    rows = await server.rows(
        "SELECT engine_full FROM system.tables"
        " WHERE database = {database:String} AND name = 'messages'",
        {"database": SHARD_DATABASE},
    )
    seen.messages = str(rows[0][0]) if rows else ""
    rows = (
        await server.rows(
            "SELECT table, is_readonly, absolute_delay FROM system.replicas"
            " WHERE database = {database:String}",
            {"database": SHARD_DATABASE},
        )
        if config.replicated
        else []
    )
    seen.replicas = [(str(table), bool(ro), delay) for table, ro, delay in rows]
    seen.views = await _failed_views(server)


async def _failed_views(server: ClickHouseServer) -> list[tuple[str, int, str, str]]:
    """Of views on the log, what the server's log of views has of the last FAILED_VIEWS_S."""
    logged = await server.rows(
        "SELECT 1 FROM system.tables WHERE database = 'system' AND name = 'query_views_log'"
    )
    if not logged:
        return []
    rows = await server.rows(
        query("logged_view_errors"), {"database": SHARD_DATABASE, "seconds": FAILED_VIEWS_S}
    )
    return [(str(name), int(count), str(since), str(error)) for name, count, since, error in rows]


async def _complaint(server: ClickHouseServer, statement: str) -> str:
    """The error of a statement; empty if it succeeds."""
    try:
        await server.rows(statement)
    except EngineError as error:
        return _one_line(str(error).removeprefix(f"{server.url}: "))[:300]
    return ""


def _of_one(config: ClusterConfig, seen: _Seen) -> Iterator[str]:
    yield from _of_keeper(config, seen)
    if config.replicated:
        for macro in ("shard", "replica"):
            if not seen.macros.get(macro):
                yield f"macro {{{macro}}} is not set: add <macros> to its configuration"
    yield from _of_tables(config, seen)
    for table, readonly, delay in seen.replicas:
        if readonly:
            yield f"its replica of {table} is read-only: see its log, and check whether Keeper runs"
        if delay > MAX_LAG_S:
            yield f"its replica of {table} is {delay} s behind"
    for name, count, since, error in seen.views:
        yield (
            f"view {name} lacks the rows of inserts into messages ({count} since {since} UTC):"
            f" {_one_line(error)[:300]}"
        )
    if abs(seen.clock_ahead_ms) - seen.clock_error_ms > MAX_CLOCK_MS:
        way = "ahead of" if seen.clock_ahead_ms > 0 else "behind"
        yield f"its clock is {abs(seen.clock_ahead_ms) / 1000:.1f} s {way} this machine's"


def _of_keeper(config: ClusterConfig, seen: _Seen) -> Iterator[str]:
    """Checked through the registry, if it exists: Keeper is used for the registry."""
    if not seen.registry:
        return
    if "keeper_map_path_prefix" in seen.registry:
        yield "keeper_map_path_prefix is not set: add it to its configuration"
    elif "UNKNOWN_TABLE" not in seen.registry and "UNKNOWN_DATABASE" not in seen.registry:
        yield f"the registry does not answer; check whether Keeper runs ({seen.registry})"
    elif seen.keeper and "UNKNOWN_TABLE" not in seen.keeper:
        yield f"cannot reach Keeper: {seen.keeper}"
    elif seen.keeper and config.replicated:
        # The embedded engine never has system.zookeeper.
        yield "Keeper is not configured: add <zookeeper> to its configuration"


def _of_tables(config: ClusterConfig, seen: _Seen) -> Iterator[str]:
    for name, known in databases(layout(config)).items():
        wanted = {one.number for one in known}
        has = seen.history.get(name)
        if has is None:
            yield f"database {name} does not exist: run `brokerhouse migrate`"
        elif has - wanted and max(has) > max(wanted):
            yield f"database {name} was made by a newer version of brokerhouse: use that version"
        elif wanted - has:
            behind = len(wanted - has)
            yield f"database {name} is {behind} migrations behind: run `brokerhouse migrate`"
    if not seen.messages:
        return
    replicated = seen.messages.startswith("Replicated")
    if replicated != config.replicated:
        is_, says = ("", "false") if replicated else ("not ", "true")
        yield f"its tables are {is_}replicated, but the configuration has replicated = {says}"
    window = _setting(seen.messages, "deduplication_window")
    if window is None or window < MIN_WINDOW[replicated]:
        yield (
            f"table messages remembers {window or 'few'} blocks; {MIN_WINDOW[replicated]} are "
            "needed to detect an insert that arrives late: run `brokerhouse migrate`"
        )
    seconds = _setting(seen.messages, "deduplication_window_seconds")
    if replicated and (seconds is None or seconds < MIN_WINDOW_S):
        yield (
            f"table messages remembers blocks for {seconds or 'a few'} s; "
            f"{MIN_WINDOW_S} s are needed: run `brokerhouse migrate`"
        )


def _setting(engine: str, name: str) -> int | None:
    match = re.search(rf"replicated_{name} = (\d+)", engine)
    return int(match[1]) if match else None


def _of_all(config: ClusterConfig, healthy: Sequence[_Seen]) -> Iterator[str]:
    if config.replicated:
        yield from _of_macros(healthy)
    if config.replicated or config.distributed:
        yield from _of_remote_servers(config, healthy)
    for shard in config.shards:
        there = sum(one.shard == shard for one in healthy)
        if 0 < there < config.quorum:
            yield (
                f"shard {shard.name}: {there} of its replicas are healthy, but an insert needs "
                f"{config.quorum} (quorum)"
            )
    clocks = sorted(healthy, key=lambda one: one.clock_ahead_ms)
    if len(clocks) > 1:
        apart = clocks[-1].clock_ahead_ms - clocks[0].clock_ahead_ms
        if apart - clocks[0].clock_error_ms - clocks[-1].clock_error_ms > MAX_CLOCK_MS:
            yield (
                f"the clocks of {clocks[0].url} and {clocks[-1].url} are {apart / 1000:.1f} s apart"
            )


def _of_macros(healthy: Sequence[_Seen]) -> Iterator[str]:
    places: dict[tuple[str, str], str] = {}
    shards: dict[str, _Seen] = {}
    for one in healthy:
        shard, replica = one.macros.get("shard", ""), one.macros.get("replica", "")
        if not shard or not replica:
            continue
        if (other := places.setdefault((shard, replica), one.url)) != one.url:
            yield f"{one.url}: has the same macros as {other}: give each its own {{replica}}"
        first = shards.setdefault(shard, one)
        if first.shard != one.shard:
            yield (
                f"{one.url}: its macro {{shard}} is that of {first.url}, a server of another shard"
            )
    for name in {one.shard.name for one in healthy}:
        macros = {one.macros.get("shard", "") for one in healthy if one.shard.name == name} - {""}
        if len(macros) > 1:
            yield f"shard {name}: its servers have different macros {{shard}}: " + ", ".join(
                sorted(macros)
            )


def _of_remote_servers(config: ClusterConfig, healthy: Sequence[_Seen]) -> Iterator[str]:
    wanted = sorted(len(shard.replicas) for shard in config.shards)
    for one in healthy:
        if not one.cluster:
            yield f"{one.url}: remote_servers in its configuration has no cluster {config.name}"
        elif (has := sorted(Counter(shard for shard, _ in one.cluster).values())) != wanted:
            yield (
                f"{one.url}: cluster {config.name} in remote_servers has shards of "
                f"{_counts(has)} replicas, but the configuration has shards of {_counts(wanted)}"
            )
    told = {frozenset(one.cluster): one.url for one in healthy if one.cluster}
    if len(told) > 1:
        first, second, *_ = told.values()
        yield f"{first} and {second} have different clusters {config.name} in remote_servers"


def _counts(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _registry(config: ClusterConfig, servers: Mapping[str, list[ClickHouseServer]]) -> Registry:
    return registry_of(servers, timeout_ms=config.request_timeout_ms)


async def _of_slots(
    config: ClusterConfig, servers: Mapping[str, list[ClickHouseServer]]
) -> list[str]:
    try:
        row = await _registry(config, servers).get(SLOTS_KEY)
        slots = SlotMap.from_text(row.value).slots if row else None
    except EngineError as error:
        return [f"the slot map cannot be read: {_one_line(str(error))}"]
    except MalformedState as error:
        return [f"the slot map in the registry is malformed: {error}"]
    if slots is None:
        return []  # the first broker creates it
    found = []
    if len(slots) != config.slots:
        found.append(
            f"the cluster has {len(slots)} slots, but the configuration has slots = "
            f"{config.slots}: the number is fixed when a cluster is created"
        )
    known = {shard.name for shard in config.shards}
    unknown = sorted({name for slot in slots for name in slot.shards} - known)
    return found + [
        f"slots of the cluster are on shard {name}, which is not in the configuration"
        for name in unknown
    ]


async def _of_brokers(
    config: ClusterConfig, servers: Mapping[str, list[ClickHouseServer]]
) -> list[str]:
    """Servers that have failed for brokers within the last minutes, and work now."""
    found = []
    try:
        rows = await _registry(config, servers).list(SESSION_PREFIX)
        for row in rows.values():
            session = BrokerSession.from_text(row.value)
            if session.is_over:
                continue
            for url, at_ms in sorted(session.failures_ms.items()):
                ago_s = max(wall_ms() - at_ms, 0) // SECOND_MS
                found.append(
                    f"{url}: failed for broker {session.node_id} {ago_s} s ago, or did not"
                    " answer in time: see the log of that broker"
                )
    except EngineError as error:
        found.append(f"the sessions of brokers cannot be read: {_one_line(str(error))}")
    except MalformedState as error:
        found.append(f"a session of a broker in the registry is malformed: {error}")
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())
