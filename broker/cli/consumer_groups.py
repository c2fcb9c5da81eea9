"""What the commands of groups read: groups, their members, their committed offsets.

What clients chose themselves (group, member and client ids) is escaped before it is printed.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from brokerhouse.common.console import printable

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, TopicPartition
    from rich.text import Text

NONE = "-"
"""Stands in a table where there is no value."""


@dataclass(frozen=True, slots=True)
class ListedMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    coordinator: int
    members: tuple[ListedMember, ...]


def _to_group_id(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not text:
        raise click.BadParameter("the name of a group must not be empty")
    return text


group_argument = click.argument("group", callback=_to_group_id)


def describe(admin: KafkaAdminClient, group_ids: Collection[str]) -> dict[str, ListedGroup]:
    """The groups that exist among these, by id.

    kafka-python's own `describe_groups` is not used: it fails for all groups if it cannot read one
    member's assignment, and does not name the coordinator (kafka-python 3.0.12).
    """
    from kafka import errors
    from kafka.protocol.admin import DescribeGroupsRequest

    async def ask() -> list[tuple[int, Any]]:
        by_coordinator: dict[int, list[str]] = defaultdict(list)
        for group_id, node_id in (await admin._find_coordinator_ids(group_ids)).items():
            by_coordinator[node_id].append(group_id)
        answers = [
            (node_id, described)
            for node_id, ids in by_coordinator.items()
            for described in (
                await admin._manager.send(DescribeGroupsRequest(groups=ids), node_id=node_id)
            ).groups
        ]
        for _, answer in answers:
            error = errors.for_code(answer.error_code)
            if error not in (errors.NoError, errors.GroupIdNotFoundError):
                raise error(answer.group_id)
        return answers

    found = {}
    for coordinator, answer in admin._manager.run(ask) if group_ids else ():
        if answer.error_code or answer.group_state == "Dead":
            continue
        found[answer.group_id] = ListedGroup(
            group_id=answer.group_id,
            state=answer.group_state,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_data,
            coordinator=coordinator,
            members=tuple(
                ListedMember(
                    member_id=member.member_id,
                    group_instance_id=getattr(member, "group_instance_id", None),
                    client_id=member.client_id,
                    client_host=member.client_host.removeprefix("/"),
                    assigned=_assigned(answer.protocol_type, member.member_assignment),
                )
                for member in answer.members
            ),
        )
    return found


def _assigned(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a consumer's assignment; none if the bytes are not such an assignment."""
    from kafka import TopicPartition
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    if protocol_type != "consumer" or not assignment:
        return ()
    try:
        decoded = ConsumerProtocolAssignment.decode(assignment)
    except (ValueError, struct.error):
        return ()
    return tuple(
        sorted(
            TopicPartition(part.topic, number)
            for part in decoded.assigned_partitions
            for number in part.partitions
        )
    )


def find(admin: KafkaAdminClient, group_id: str) -> ListedGroup | None:
    """The group, or None if it does not exist. Fails for a group of a newer protocol."""
    found = describe(admin, [group_id]).get(group_id)
    if found is None:
        # Only its coordinator lists it; another broker may be dead.
        asked = admin._manager.run(admin._find_coordinator_ids, [group_id]).values()
        for listed in admin.list_groups(broker_ids=list(asked)):
            kind = listed.get("group_type") or "classic"
            if listed["group_id"] == group_id and kind.lower() != "classic":
                raise click.ClickException(
                    f"group {printable(group_id)} uses the {kind} protocol, "
                    "which this command does not support"
                )
    return found


def committed_offsets(admin: KafkaAdminClient, group_id: str) -> dict[TopicPartition, int]:
    found = admin.list_group_offsets({group_id: None})[group_id]
    return {part: committed.offset for part, committed in found.items() if committed.offset >= 0}


def topic_partitions(topics: Iterable[dict[str, Any]]) -> set[TopicPartition]:
    """All partitions of the topics that were described."""
    from kafka import TopicPartition

    return {
        TopicPartition(topic["name"], part["partition_index"])
        for topic in topics
        for part in topic["partitions"]
    }


def partition_names(partitions: Sequence[TopicPartition]) -> str:
    """Such as `orders:0,1 payments:0`, in the form that --topic takes."""
    by_topic: dict[str, list[str]] = defaultdict(list)
    for part in partitions:
        by_topic[part.topic].append(str(part.partition))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()) or NONE


def as_text(words: str) -> Text:
    """A name that somebody else chose, without control characters and without rich's markup."""
    from rich.text import Text

    return Text(printable(words))
