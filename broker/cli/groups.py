"""`brokerhouse groups`: list, describe and delete consumer groups; how far they are behind.

Ordinary client code (kafka-python): it works against any Kafka and never joins a group.
Resetting offsets has a file of its own, reset_offsets.py.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Group as Stacked
from rich.console import RenderableType
from rich.table import Table

from broker.cli.consumer_groups import (
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
from broker.cli.kafka_client import admin_client, bootstrap_option, explained, partition_ranges
from broker.cli.reset_offsets import reset_offsets
from broker.cli.watch import show, watch_option
from common.address import Address
from common.console import new_table, printable

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")


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
@bootstrap_option
def list_groups(states: tuple[str, ...], watch_s: float | None, bootstrap: Address) -> None:
    """Print every group with its state, its protocol and its number of members."""
    show(lambda: _draw_list(bootstrap, states), watch_s)


@groups.command("describe")
@group_argument
@click.option("--members", is_flag=True, help="Only the members and their assignments.")
@click.option("--offsets", is_flag=True, help="Only the offsets and the lag.")
@watch_option
@bootstrap_option
def describe_group(
    group: str, members: bool, offsets: bool, watch_s: float | None, bootstrap: Address
) -> None:
    """Print the state of GROUP, its members, and how far each partition is behind."""
    both = members == offsets
    show(lambda: _draw_group(bootstrap, group, members or both, offsets or both), watch_s)


@groups.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@bootstrap_option
@click.pass_context
def delete_groups(context: click.Context, names: tuple[str, ...], bootstrap: Address) -> None:
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


def _delete(admin: "KafkaAdminClient", group_id: str) -> str | None:
    """What is wrong, in a sentence, if the group could not be deleted."""
    from kafka import errors

    try:
        outcome = admin.delete_groups([group_id])[group_id]
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


def _draw_list(bootstrap: Address, states: Sequence[str]) -> RenderableType:
    with admin_client(bootstrap) as admin:
        from kafka.admin import GroupState

        wanted = [GroupState(state) for state in states]
        listed = {each["group_id"]: each for each in admin.list_groups(states_filter=wanted)}
        described = describe(admin, listed)
    table = new_table("group", "state", "protocol", "members", "coordinator", right=["members"])
    for group_id, each in sorted(listed.items()):
        group = described.get(group_id)
        table.add_row(
            as_text(group_id),
            group.state if group else each["group_state"],
            _protocol(group) if group else NONE,
            str(len(group.members)) if group else NONE,
            str(group.coordinator) if group else NONE,
        )
    return table


def _draw_group(
    bootstrap: Address, group_id: str, with_members: bool, with_offsets: bool
) -> RenderableType:
    with admin_client(bootstrap) as admin:
        group = find(admin, group_id)
        if group is None:
            raise click.ClickException(f"group {printable(group_id)} does not exist")
        offsets = _offset_table(admin, group) if with_offsets else None
        nodes = {node["broker_id"]: node for node in admin.describe_cluster()["brokers"]}
    node = nodes[group.coordinator]
    about = Table(box=None, show_header=False, pad_edge=False)
    about.add_row("group", as_text(group_id))
    about.add_row("state", group.state)
    about.add_row("protocol", _protocol(group))
    about.add_row("coordinator", f"{group.coordinator} ({node['host']}:{node['port']})")
    about.add_row("members", str(len(group.members)))
    sections: list[RenderableType] = [about]
    if with_members and group.members:
        sections += ["", _member_table(group.members)]
    if offsets is not None and offsets.row_count:
        sections += ["", offsets]
    return Stacked(*sections)


def _member_table(members: Sequence[ListedMember]) -> Table:
    table = new_table("member", "instance", "client", "host", "partitions")
    for member in sorted(members, key=lambda member: (member.client_id, member.member_id)):
        table.add_row(
            as_text(member.member_id),
            as_text(member.group_instance_id or NONE),
            as_text(member.client_id),
            as_text(member.client_host),
            as_text(partition_names(member.assigned)),
        )
    return table


def _offset_table(admin: "KafkaAdminClient", group: ListedGroup) -> Table:
    """Every partition that the group has committed or is assigned."""
    committed = committed_offsets(admin, group.group_id)
    owners = {part: member for member in group.members for part in member.assigned}
    wanted = committed.keys() | owners.keys()
    topics = admin.describe_topics(sorted({part.topic for part in wanted})) if wanted else []
    # A member may be assigned partitions that do not exist (any more).
    ranges = partition_ranges(admin, wanted & topic_partitions(topics))
    numbers = ("partition", "committed", "end", "lag")
    table = new_table("topic", *numbers, "owner", right=numbers)
    for part in sorted(wanted):
        offset, held, owner = committed.get(part), ranges.get(part), owners.get(part)
        table.add_row(
            as_text(part.topic),
            str(part.partition),
            NONE if offset is None else str(offset),
            NONE if held is None else str(held.end),
            NONE if held is None or offset is None else str(held.end - offset),
            as_text(NONE if owner is None else owner.member_id),
        )
    return table


def _protocol(group: ListedGroup) -> str:
    """Such as `consumer range`; a group that nobody ever joined has no protocol."""
    return printable(" ".join(filter(None, (group.protocol_type, group.protocol_name)))) or NONE
