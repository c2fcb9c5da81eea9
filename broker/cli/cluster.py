"""`brokerhouse migrate`, `check` and `slots`: commands for the administrator of a cluster.

They talk to ClickHouse, not to brokers, and read the file that the brokers are started with. They
change the slot map as brokers do, by one compare-and-set, so they may run beside brokers and beside
each other.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import click

from brokerhouse.broker.cli.options import json_option, print_json
from brokerhouse.broker.cli.settings import WrongSettings, settings_errors
from brokerhouse.broker.cluster.config import ClusterConfig, load_cluster, parse_slots
from brokerhouse.broker.cluster.registry_view import SESSION_PREFIX
from brokerhouse.broker.settings.config_sources import CONFIG_FILE_ENV
from brokerhouse.broker.slots.sessions import BrokerSession
from brokerhouse.common.address import Address
from brokerhouse.common.console import console, new_table
from brokerhouse.storage.engine import EngineError
from brokerhouse.storage.registry import Registry
from brokerhouse.storage.registry_values import MalformedState
from brokerhouse.storage.schema_files import SchemaError
from brokerhouse.storage.slot_map import NOBODY, SLOTS_KEY, Slot, SlotMap

POLL_S = 0.5
MOVE_TIMEOUT_S = 120.0

T = TypeVar("T")


def _to_cluster(_context: click.Context, _parameter: click.Parameter, path: Path) -> ClusterConfig:
    with settings_errors():
        config = load_cluster(path)
    if config is None:
        raise WrongSettings(f"{path} has no table [cluster]: see docs/cluster.md")
    return config


config_option = click.option(
    "--config",
    "config",
    metavar="FILE",
    required=True,
    envvar=CONFIG_FILE_ENV,
    show_envvar=True,
    type=click.Path(path_type=Path),
    callback=_to_cluster,
    help="TOML file with the table [cluster].",
)


@click.command()
@config_option
def migrate(config: ClusterConfig) -> None:
    """Create or update the tables of a cluster.

    Brokers also do this when they start. Several processes may do it at the same time: each
    change is made once.
    """
    from brokerhouse.broker.cluster import servers as cluster_servers

    done = _run(cluster_servers.migrate(config))
    for name in done.applied:
        click.echo(f"applied {name}")
    if not done.applied:
        click.echo("nothing to do")
    for url in done.away:
        click.echo(f"Error: {url} does not answer: run this command again when it does", err=True)
    if done.away:
        raise click.exceptions.Exit(1)


@click.command()
@config_option
def check(config: ClusterConfig) -> None:
    """Print what is wrong with a cluster, one line for each finding. Changes nothing."""
    from brokerhouse.broker.cluster.check import findings

    found = _run(findings(config))
    for finding in found:
        click.echo(finding)
    if found:
        raise click.exceptions.Exit(1)
    servers = sum(len(shard.replicas) for shard in config.shards)
    click.echo(f"no problems found: {len(config.shards)} shards, {servers} servers")


@click.group()
def slots() -> None:
    """Show which shard and which broker owns which slots, and move them."""


@slots.command()
@json_option
@config_option
def show(as_json: bool, config: ClusterConfig) -> None:
    """Print ranges of slots that have the same owner, epoch and shards.

    New records go to the last shard of a slot; its groups are stored on its first shard.
    """

    async def read() -> tuple[SlotMap, dict[int, BrokerSession]]:
        async with _registry(config) as registry:
            found = await registry.list(SESSION_PREFIX)
            sessions = [BrokerSession.from_text(row.value) for row in found.values()]
            return await _slot_map(registry), {one.session_id: one for one in sessions}

    slot_map, sessions = _run(read())
    ranges = list(_ranges(slot_map))
    if as_json:
        print_json(
            [
                {
                    "slots": name,
                    **_owner(slot, sessions),
                    "epoch": slot.epoch,
                    "shards": list(slot.shards),
                    "moving_to": slot.shards[-1] if slot.behind else None,
                }
                for name, slot in ranges
            ]
        )
        return
    table = new_table("slots", "owner", "epoch", "shards", "", right=["epoch"])
    for name, slot in ranges:
        owner = _owner_text(slot, sessions)
        moving = f"moving to {slot.shards[-1]}" if slot.behind else ""
        table.add_row(name, owner, str(slot.epoch), ", ".join(slot.shards), moving)
    console().print(table)


def _owner(slot: Slot, sessions: Mapping[int, BrokerSession]) -> dict[str, Any]:
    """The broker that serves a slot; null where nobody does, or its session is not known."""
    session = sessions.get(slot.owner)
    return {
        "broker": session and session.node_id,
        "address": session and str(Address(session.host, session.port)),
        "session": None if slot.owner == NOBODY else slot.owner,
        "session_is_over": slot.owner != NOBODY and (session is None or session.is_over),
    }


def _owner_text(slot: Slot, sessions: Mapping[int, BrokerSession]) -> str:
    if slot.owner == NOBODY:
        return "-"
    owner = _owner(slot, sessions)
    if owner["broker"] is None:
        return f"a broker that is gone (session {slot.owner})"
    over = ", its session is over" if owner["session_is_over"] else ""
    return f"broker {owner['broker']} ({owner['address']}{over})"


def _to_slots(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    try:
        ranges = parse_slots(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not ranges:
        raise click.BadParameter('write slots like "0-31" or "0-15,40"')
    return sorted({slot for each in ranges for slot in each})


@slots.command()
@config_option
@click.option(
    "--slots",
    "numbers",
    metavar="RANGES",
    required=True,
    callback=_to_slots,
    help="Slots to move, such as 0-15 or 0-7,20.",
)
@click.option(
    "--to", "shard", metavar="SHARD", required=True, help="Name of the shard in the file."
)
def move(config: ClusterConfig, numbers: list[int], shard: str) -> None:
    """Write the new records of some slots to another shard.

    Records that are stored stay where they are and can still be read; groups stay as well. Returns
    when all brokers that own these slots write to the new shard. May be run again at any time.
    """
    if config.shard(shard) is None:
        names = ", ".join(each.name for each in config.shards)
        raise click.BadParameter(
            f"the file has no shard {shard!r}, only {names}", param_hint="--to"
        )
    _run(_move(config, numbers, shard))


async def _move(config: ClusterConfig, numbers: list[int], shard: str) -> None:
    async with _registry(config) as registry:
        await _write_move(registry, numbers, shard)
        deadline = time.monotonic() + MOVE_TIMEOUT_S
        told = -1
        while waiting := _behind(await _slot_map(registry), numbers):
            if len(waiting) != told:
                told = len(waiting)
                click.echo(f"{told} of {len(numbers)} slots still write to another shard")
            if time.monotonic() > deadline:
                raise click.ClickException(
                    f"the owners of slots {_as_ranges(waiting)} still write to another shard "
                    f"after {MOVE_TIMEOUT_S:.0f} s; see `brokerhouse slots show`"
                )
            await asyncio.sleep(POLL_S)
    click.echo(f"new records of {len(numbers)} slots go to {shard}")


@asynccontextmanager
async def _registry(config: ClusterConfig) -> AsyncIterator[Registry]:
    from brokerhouse.broker.cluster.servers import opened, registry_of

    async with opened(config) as servers:
        yield registry_of(servers, timeout_ms=config.request_timeout_ms)


async def _write_move(registry: Registry, numbers: list[int], shard: str) -> None:
    while True:
        row = await registry.get(SLOTS_KEY)
        current = await _slot_map(registry) if row is None else SlotMap.from_text(row.value)
        if numbers[-1] >= len(current.slots):
            raise click.ClickException(
                f"slot {numbers[-1]} does not exist: the last one is {len(current.slots) - 1}"
            )
        wanted = current.move(numbers, shard)
        if wanted == current or await registry.compare_and_set(SLOTS_KEY, row, wanted.to_text()):
            return


async def _slot_map(registry: Registry) -> SlotMap:
    row = await registry.get(SLOTS_KEY)
    if row is None:
        raise click.ClickException(
            "the cluster has no slot map yet: the first broker that starts creates it"
        )
    return SlotMap.from_text(row.value)


def _behind(current: SlotMap, numbers: Iterable[int]) -> list[int]:
    """The slots whose owner does not write to the new shard yet."""
    return [number for number in numbers if current.slots[number].behind]


def _ranges(current: SlotMap) -> Iterator[tuple[str, Slot]]:
    for slot, run in groupby(enumerate(current.slots), key=lambda each: each[1]):
        yield _as_ranges([number for number, _ in run]), slot


def _as_ranges(numbers: list[int]) -> str:
    """Such as `0-15,20`. `numbers` are in order and without repeats."""
    runs = groupby(enumerate(numbers), key=lambda each: each[1] - each[0])
    parts = []
    for _, run in runs:
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Turns every error of the servers into one sentence."""
    # Log lines of the parts below would only repeat what is printed.
    logging.getLogger("brokerhouse.storage").addHandler(logging.NullHandler())
    try:
        return asyncio.run(work)
    except (SchemaError, EngineError, MalformedState) as error:
        raise click.ClickException(" ".join(str(error).split())) from error
