"""`brokerhouse groups`: list, describe and delete consumer groups; how far they are behind.

Ordinary client code (kafka-python): it works against any Kafka and never joins a group.
Resetting offsets has a file of its own, reset_offsets.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from brokerhouse.broker.cli.consumer_groups import (
    NONE,
    ListedGroup,
    ListedMember,
    as_text,
    committed_offsets,
    describe,
    find,
    group_argument,
    partition_names,
    topic_partitions,
)
from brokerhouse.broker.cli.ctrl_c import CtrlC, ctrl_c
from brokerhouse.broker.cli.kafka_client import admin_client, partition_ranges
from brokerhouse.broker.cli.options import (
    Bootstrap,
    bootstrap_option,
    if_given,
    json_option,
    print_json,
)
from brokerhouse.broker.cli.reset_offsets import reset_offsets
from brokerhouse.broker.cli.retries import explained, is_of_coordinator
from brokerhouse.common.console import console, new_table, printable

if TYPE_CHECKING:
    from kafka import KafkaAdminClient
    from rich.console import RenderableType
    from rich.table import Table

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")


DEFAULT_WATCH_S = "2"
MIN_WATCH_S, MAX_WATCH_S = 0.1, 86_400.0


def _to_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        # The option's value is optional: click reads a group's name that follows it as the value.
        raise click.BadParameter(
            f"{text!r} is not a number of seconds; to give no number, write --watch last"
        ) from None
    if not MIN_WATCH_S <= seconds <= MAX_WATCH_S:
        raise click.BadParameter(f"write {MIN_WATCH_S} to {MAX_WATCH_S:.0f} seconds")
    return seconds


watch_option = click.option(
    "--watch",
    "watch_s",
    metavar="[SECONDS]",
    callback=if_given(_to_seconds),
    is_flag=False,
    flag_value=DEFAULT_WATCH_S,
    help=f"Draw again at this interval ({DEFAULT_WATCH_S} s if not given) until Ctrl-C. "
    "While the broker does not answer, keep retrying.",
)


def show(draw: Callable[[], RenderableType], watch_s: float | None) -> None:
    """Draws once; or, with a time between two drawings, until Ctrl-C."""
    if watch_s is None:
        console().print(draw())
        return
    with suppress(KeyboardInterrupt), ctrl_c() as stop:
        frames = _frames(draw, watch_s, stop)
        if not sys.stdout.isatty():
            for frame in frames:
                console().print(frame, "")
            return
        from rich.live import Live

        with Live(next(frames), console=console(), auto_refresh=False) as live:
            for frame in frames:
                live.update(frame, refresh=True)


def _frames(
    draw: Callable[[], RenderableType], watch_s: float, stop: CtrlC
) -> Iterator[RenderableType]:
    """The first drawing must succeed. When a later one fails, its error is shown instead."""
    from rich.console import Group as Stacked
    from rich.text import Text

    seen = draw()
    while True:
        yield Stacked(Text(datetime.now(UTC).isoformat(timespec="seconds")), seen)
        if stop.wait(watch_s):
            return
        try:
            seen = draw()
        except click.ClickException as error:
            seen = Text(f"{error.message}; retrying")


@click.group()
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


groups.add_command(reset_offsets)


@groups.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state; may be repeated.",
)
@watch_option
@json_option
@bootstrap_option
def list_groups(
    states: tuple[str, ...], watch_s: float | None, as_json: bool, bootstrap: Bootstrap
) -> None:
    """Print every group with its state, its protocol and its number of members."""
    if as_json:
        _refuse_watch(watch_s)
        print_json(_listed(bootstrap, states))
    else:
        show(lambda: _draw_list(_listed(bootstrap, states)), watch_s)


@groups.command("describe")
@group_argument
@click.option("--members", is_flag=True, help="Only the members and their assignments.")
@click.option("--offsets", is_flag=True, help="Only the offsets and the lag.")
@watch_option
@json_option
@bootstrap_option
def describe_group(
    group: str,
    members: bool,
    offsets: bool,
    watch_s: float | None,
    as_json: bool,
    bootstrap: Bootstrap,
) -> None:
    """Print the state of GROUP, its members, and the lag of each partition."""
    both = members == offsets
    wanted = (bootstrap, group, members or both, offsets or both)
    if as_json:
        _refuse_watch(watch_s)
        print_json(_described(*wanted))
    else:
        show(lambda: _draw_group(_described(*wanted)), watch_s)


def _refuse_watch(watch_s: float | None) -> None:
    if watch_s is not None:
        raise click.UsageError("--watch draws tables: leave out --json")


@groups.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@bootstrap_option
@click.pass_context
def delete_groups(context: click.Context, names: tuple[str, ...], bootstrap: Bootstrap) -> None:
    """Delete groups that have no members, with the offsets they committed."""
    failed = False
    with admin_client(bootstrap) as admin:
        # One request each: a name that the broker refuses does not stop the others.
        for name in dict.fromkeys(names):
            complaint = _delete(admin, name)
            if complaint is None:
                click.echo(f"deleted {printable(name)}")
            else:
                click.echo(f"Error: {complaint}", err=True)
                failed = True
    context.exit(1 if failed else 0)


def _delete(admin: KafkaAdminClient, group_id: str) -> str | None:
    """What is wrong, in a sentence, if the group could not be deleted."""
    from kafka import errors

    try:
        outcomes = admin.repeated(lambda: _raised_if_moved(admin.delete_groups([group_id])))
        outcome = outcomes[group_id]
    except errors.BrokerResponseError as error:
        outcome = type(error).__name__
    match outcome:
        case "OK":
            return None
        case "GroupIdNotFoundError":
            return f"group {printable(group_id)} does not exist"
        case "NonEmptyGroupError":
            return f"group {printable(group_id)} has active members: stop them first"
        case _:
            return f"group {printable(group_id)}: {explained(getattr(errors, outcome))}"


def _raised_if_moved(outcomes: dict[str, str]) -> dict[str, str]:
    """The outcomes by group, as names of errors. Raises one that says to ask another broker."""
    from kafka import errors

    for outcome in outcomes.values():
        if is_of_coordinator(error := getattr(errors, outcome, errors.NoError)):
            raise error
    return outcomes


Row = dict[str, Any]
"""What a row of a table shows, by heading; None where there is no value."""


def _listed(bootstrap: Bootstrap, states: Sequence[str]) -> list[Row]:
    with admin_client(bootstrap) as admin:
        from kafka.admin import GroupState

        wanted = [GroupState(state) for state in states]
        listed = {each["group_id"]: each for each in admin.list_groups(states_filter=wanted)}
        described = describe(admin, listed)
    rows = []
    for group_id, each in sorted(listed.items()):
        group = described.get(group_id)
        rows.append(
            {
                "group": group_id,
                "state": group.state if group else each["group_state"],
                "protocol": _protocol(group) if group else None,
                "members": len(group.members) if group else None,
                "coordinator": group.coordinator if group else None,
            }
        )
    return rows


def _draw_list(rows: list[Row]) -> Table:
    return _table(("group", "state", "protocol", "members", "coordinator"), rows, ["members"])


def _table(columns: Sequence[str], rows: list[Row], right: Collection[str] = ()) -> Table:
    table = new_table(*columns, right=right)
    for row in rows:
        table.add_row(*(as_text(NONE if row[name] is None else str(row[name])) for name in columns))
    return table


def _described(
    bootstrap: Bootstrap, group_id: str, with_members: bool, with_offsets: bool
) -> dict[str, Any]:
    with admin_client(bootstrap) as admin:
        group = find(admin, group_id)
        if group is None:
            raise click.ClickException(f"group {printable(group_id)} does not exist")
        offsets = _offset_rows(admin, group) if with_offsets else None
        nodes = {node["broker_id"]: node for node in admin.describe_cluster()["brokers"]}
    node = nodes[group.coordinator]
    about: dict[str, Any] = {
        "group": group_id,
        "state": group.state,
        "protocol": _protocol(group),
        "coordinator": group.coordinator,
        "coordinator_address": f"{node['host']}:{node['port']}",
        "members": len(group.members),
    }
    if with_members:
        about["assignments"] = _member_rows(group.members)
    if offsets is not None:
        about["offsets"] = offsets
    return about


def _draw_group(group: dict[str, Any]) -> RenderableType:
    from rich.console import Group as Stacked
    from rich.table import Table

    about = Table(box=None, show_header=False, pad_edge=False)
    about.add_row("group", as_text(group["group"]))
    about.add_row("state", group["state"])
    about.add_row("protocol", group["protocol"] or NONE)
    about.add_row("coordinator", f"{group['coordinator']} ({group['coordinator_address']})")
    about.add_row("members", str(group["members"]))
    sections: list[RenderableType] = [about]
    if members := group.get("assignments"):
        rows = [{**row, "partitions": row["partitions"] or NONE} for row in members]
        sections += ["", _table(("member", "instance", "client", "host", "partitions"), rows)]
    if offsets := group.get("offsets"):
        numbers = ("partition", "committed", "end", "lag")
        sections += ["", _table(("topic", *numbers, "owner"), offsets, numbers)]
    return Stacked(*sections)


def _member_rows(members: Sequence[ListedMember]) -> list[Row]:
    return [
        {
            "member": member.member_id,
            "instance": member.group_instance_id or None,
            "client": member.client_id,
            "host": member.client_host,
            "partitions": partition_names(member.assigned) if member.assigned else "",
        }
        for member in sorted(members, key=lambda member: (member.client_id, member.member_id))
    ]


def _offset_rows(admin: KafkaAdminClient, group: ListedGroup) -> list[Row]:
    """Every partition that the group has committed or is assigned."""
    committed = committed_offsets(admin, group.group_id)
    owners = {part: member for member in group.members for part in member.assigned}
    wanted = committed.keys() | owners.keys()
    topics = admin.describe_topics(sorted({part.topic for part in wanted})) if wanted else []
    # A member may be assigned partitions that do not exist (any more).
    ranges = partition_ranges(admin, wanted & topic_partitions(topics))
    rows = []
    for part in sorted(wanted):
        offset, held, owner = committed.get(part), ranges.get(part), owners.get(part)
        rows.append(
            {
                "topic": part.topic,
                "partition": part.partition,
                "committed": offset,
                "end": None if held is None else held.end,
                "lag": None if held is None or offset is None else held.end - offset,
                "owner": None if owner is None else owner.member_id,
            }
        )
    return rows


def _protocol(group: ListedGroup) -> str | None:
    """Such as `consumer range`; a group that nobody ever joined has no protocol."""
    return printable(" ".join(filter(None, (group.protocol_type, group.protocol_name)))) or None
