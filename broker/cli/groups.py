"""`brokerhouse groups`: consumer groups, how far they are behind, and moving their offsets.

Ordinary client code (kafka-python), as in topics.py: it works against any Kafka and never joins
a group. `reset-offsets` follows Kafka's own tool: it only shows what it would do unless told to do
it, keeps offsets within the log, takes a group that does not exist yet, and refuses one that has
members. What clients chose themselves (group, member and client ids) is escaped before it is
printed.
"""

import csv
import re
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any

import click
from rich.console import Group as Stacked
from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker.cli.topics import (
    admin_client,
    bootstrap_option,
    ctrl_c,
    existing,
    explained,
)
from common.address import Address
from common.console import console, new_table, printable

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, TopicPartition

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
NONE = "-"
DEFAULT_WATCH_S = "2"
MIN_WATCH_S, MAX_WATCH_S = 0.1, 86_400.0

_TOPIC = re.compile(r"[^:]+(:\d{1,10}(,\d{1,10})*)?", re.ASCII)
_DURATION = re.compile(
    r"P(?=\d|T)(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assigned: "tuple[TopicPartition, ...]"


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    coordinator: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """The offsets that a partition holds: from `start` to just before `end`."""

    start: int
    end: int


def _to_seconds(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        # The option's value is optional, so it takes a group's name that follows it.
        raise click.BadParameter(
            f"{text!r} is no number of seconds; without one, write --watch last"
        ) from None
    if not MIN_WATCH_S <= seconds <= MAX_WATCH_S:
        raise click.BadParameter(f"from {MIN_WATCH_S} to {MAX_WATCH_S:.0f} seconds")
    return seconds


watch_option = click.option(
    "--watch",
    "watch_s",
    metavar="[SECONDS]",
    callback=_to_seconds,
    is_flag=False,
    flag_value=DEFAULT_WATCH_S,
    help=f"Draw again every so many seconds ({DEFAULT_WATCH_S}, if not given) until Ctrl-C. "
    "A broker that is away for a moment is waited for.",
)


def _to_group_id(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not text:
        raise click.BadParameter("a group's name is not empty")
    return text


group_argument = click.argument("group", callback=_to_group_id)


@click.group()
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


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
    _show(lambda: _draw_list(bootstrap, states), watch_s)


@groups.command("describe")
@group_argument
@click.option("--members", is_flag=True, help="Only the members and what they are assigned.")
@click.option("--offsets", is_flag=True, help="Only the offsets and the lag.")
@watch_option
@bootstrap_option
def describe_group(
    group: str, members: bool, offsets: bool, watch_s: float | None, bootstrap: Address
) -> None:
    """Print the state of GROUP, its members, and how far each partition is behind."""
    both = members == offsets
    _show(lambda: _draw_group(bootstrap, group, members or both, offsets or both), watch_s)


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


# Reading


def _describe(admin: "KafkaAdminClient", group_ids: Collection[str]) -> dict[str, ConsumerGroup]:
    """The groups that exist, by id.

    The client's own `describe_groups` fails as a whole over one member whose assignment is no
    consumer's, and does not say who coordinates (kafka-python 3.0.12).
    """
    from kafka import errors
    from kafka.protocol.admin import DescribeGroupsRequest

    async def ask() -> list[tuple[int, Any]]:
        by_coordinator: dict[int, list[str]] = defaultdict(list)
        for group_id, node_id in (await admin._find_coordinator_ids(group_ids)).items():
            by_coordinator[node_id].append(group_id)
        return [
            (node_id, described)
            for node_id, ids in by_coordinator.items()
            for described in (
                await admin._manager.send(DescribeGroupsRequest(groups=ids), node_id=node_id)
            ).groups
        ]

    found = {}
    for coordinator, answer in admin._manager.run(ask) if group_ids else ():
        error = errors.for_code(answer.error_code)
        if error is errors.GroupIdNotFoundError or answer.group_state == "Dead":
            continue
        if error is not errors.NoError:
            raise error(answer.group_id)
        found[answer.group_id] = ConsumerGroup(
            group_id=answer.group_id,
            state=answer.group_state,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_data,
            coordinator=coordinator,
            members=tuple(
                Member(
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


def _assigned(protocol_type: str, assignment: bytes) -> "tuple[TopicPartition, ...]":
    """Nothing for bytes that are no assignment of a consumer."""
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


def _find(admin: "KafkaAdminClient", group_id: str) -> ConsumerGroup | None:
    found = _describe(admin, [group_id]).get(group_id)
    if found is None:
        for listed in admin.list_groups():
            kind = listed.get("group_type") or "classic"
            if listed["group_id"] == group_id and kind.lower() != "classic":
                raise click.ClickException(
                    f"group {printable(group_id)} speaks another protocol ({kind}), "
                    "which this command does not know"
                )
    return found


def _logs(
    admin: "KafkaAdminClient", partitions: "Collection[TopicPartition]"
) -> "dict[TopicPartition, Log]":
    """What each of these existing partitions holds."""
    from kafka.admin import OffsetSpec

    if not partitions:
        return {}
    starts = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {part: Log(starts[part].offset, ends[part].offset) for part in partitions}


def _partitions_of(topics: Iterable[dict[str, Any]]) -> "set[TopicPartition]":
    from kafka import TopicPartition

    return {
        TopicPartition(topic["name"], part["partition_index"])
        for topic in topics
        for part in topic["partitions"]
    }


# Drawing


def _show(draw: Callable[[], RenderableType], watch_s: float | None) -> None:
    """Draws once; or, with a time between two drawings, until Ctrl-C."""
    if watch_s is None:
        console().print(draw())
        return
    with suppress(KeyboardInterrupt), ctrl_c() as ending:
        frames = _frames(draw, watch_s, ending)
        if not sys.stdout.isatty():
            for frame in frames:
                console().print(frame, "")
            return
        with Live(next(frames), console=console(), auto_refresh=False) as live:
            for frame in frames:
                live.update(frame, refresh=True)


def _frames(
    draw: Callable[[], RenderableType], watch_s: float, ending: threading.Event
) -> Iterator[RenderableType]:
    """The first drawing must succeed; a later one that fails stands there as what went wrong."""
    seen = draw()
    while True:
        yield Stacked(Text(datetime.now(UTC).isoformat(timespec="seconds")), seen)
        if ending.wait(watch_s):
            return
        try:
            seen = draw()
        except click.ClickException as error:
            seen = Text(f"{error.message}; trying again")


def _draw_list(bootstrap: Address, states: Sequence[str]) -> RenderableType:
    with admin_client(bootstrap) as admin:
        from kafka.admin import GroupState

        wanted = [GroupState(state) for state in states]
        listed = {each["group_id"]: each for each in admin.list_groups(states_filter=wanted)}
        described = _describe(admin, listed)
    table = new_table("group", "state", "protocol", "members", "coordinator", right=["members"])
    for group_id, each in sorted(listed.items()):
        group = described.get(group_id)
        table.add_row(
            _text(group_id),
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
        group = _find(admin, group_id)
        if group is None:
            raise click.ClickException(f"group {printable(group_id)} does not exist")
        offsets = _offset_table(admin, group) if with_offsets else None
        nodes = {node["broker_id"]: node for node in admin.describe_cluster()["brokers"]}
    node = nodes[group.coordinator]
    about = Table(box=None, show_header=False, pad_edge=False)
    about.add_row("group", _text(group_id))
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


def _member_table(members: Sequence[Member]) -> Table:
    table = new_table("member", "instance", "client", "host", "partitions")
    for member in sorted(members, key=lambda member: (member.client_id, member.member_id)):
        table.add_row(
            _text(member.member_id),
            _text(member.group_instance_id or NONE),
            _text(member.client_id),
            _text(member.client_host),
            _text(_partition_names(member.assigned)),
        )
    return table


def _offset_table(admin: "KafkaAdminClient", group: ConsumerGroup) -> Table:
    """Every partition that the group committed or is assigned."""
    committed = _committed(admin, group.group_id)
    owners = {part: member for member in group.members for part in member.assigned}
    wanted = committed.keys() | owners.keys()
    topics = admin.describe_topics(sorted({part.topic for part in wanted})) if wanted else []
    # A member may be assigned what is no more, or what somebody made up.
    logs = _logs(admin, wanted & _partitions_of(topics))
    numbers = ("partition", "committed", "end", "lag")
    table = new_table("topic", *numbers, "owner", right=numbers)
    for part in sorted(wanted):
        offset, log, owner = committed.get(part), logs.get(part), owners.get(part)
        table.add_row(
            _text(part.topic),
            str(part.partition),
            NONE if offset is None else str(offset),
            NONE if log is None else str(log.end),
            NONE if log is None or offset is None else str(log.end - offset),
            _text(NONE if owner is None else owner.member_id),
        )
    return table


def _protocol(group: ConsumerGroup) -> str:
    """Such as `consumer range`; a group that nobody ever joined has no protocol."""
    return printable(" ".join(filter(None, (group.protocol_type, group.protocol_name)))) or NONE


def _partition_names(partitions: "Sequence[TopicPartition]") -> str:
    """Such as `orders:0,1 payments:0`, in the form that --topic takes."""
    by_topic: dict[str, list[str]] = defaultdict(list)
    for part in partitions:
        by_topic[part.topic].append(str(part.partition))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()) or NONE


def _text(words: str) -> Text:
    """What others named, without control characters and without the library's own markup."""
    return Text(printable(words))


# Resetting


def _to_partitions(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, set[int] | None]:
    """Topic -> its chosen partitions, or None for all of them."""
    chosen: dict[str, set[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not _TOPIC.fullmatch(text):
            raise click.BadParameter(f"write TOPIC or TOPIC:0,1,2, not {text!r}")
        before = chosen.get(topic, set())
        picked = {int(number) for number in numbers.split(",")} if colon else None
        chosen[topic] = None if before is None or picked is None else before | picked
    return chosen


def _to_timestamp_ms(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"write a time such as 2026-05-17T08:30:00 or 2026-05-17T10:30:00+02:00, not {text!r}"
        ) from None
    return _timestamp_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _to_timestamp_before_now_ms(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | None:
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"write a duration such as P7D, PT2H30M or P1DT12H, not {text!r}")
    units = {unit: float(number) for unit, number in match.groupdict(default="0").items()}
    try:
        return _timestamp_ms(datetime.now(UTC) - timedelta(**units))
    except OverflowError:
        # Longer ago than there are dates.
        return 0


def _timestamp_ms(moment: datetime) -> int:
    """Never negative: negative timestamps mean other things in a ListOffsets request."""
    return max(0, (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))


def _to_plan(
    _context: click.Context, _parameter: click.Parameter, file: IO[str] | None
) -> "list[tuple[str | None, TopicPartition, int]] | None":
    """The lines of a file: `topic,partition,offset`, or the same with a group in front."""
    if file is None:
        return None
    from kafka import TopicPartition

    plan: list[tuple[str | None, TopicPartition, int]] = []
    try:
        rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise click.BadParameter(f"{file.name} is no CSV file ({error})") from error
    for number, row in enumerate(rows, start=1):
        try:
            *named, topic, partition, offset = row
            [group_id] = named or (None,)
            plan.append((group_id, TopicPartition(topic, int(partition)), int(offset)))
        except ValueError:
            raise click.BadParameter(
                f"line {number} of {file.name} is not topic,partition,offset: {','.join(row)!r}"
            ) from None
    return plan


@groups.command("reset-offsets")
@group_argument
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1,2]",
    multiple=True,
    callback=_to_partitions,
    help="A topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Every partition that the group committed.")
@click.option("--to-earliest", is_flag=True, default=None, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, default=None, help="Behind the last record.")
@click.option("--to-offset", metavar="N", type=click.IntRange(min=0), help="To this offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    callback=_to_timestamp_ms,
    help="To the first record of this time or later: ISO 8601, in UTC if it names no zone.",
)
@click.option(
    "--by-duration",
    metavar="PnDTnHnMnS",
    callback=_to_timestamp_before_now_ms,
    help="To the first record since so long ago: P7D, PT2H30M.",
)
@click.option("--shift-by", metavar="N", type=int, help="Forward by N records; back if negative.")
@click.option(
    "--to-current",
    is_flag=True,
    default=None,
    help="To what is committed; behind the last record where nothing is.",
)
@click.option(
    "--from-file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    callback=_to_plan,
    help="To what a CSV file says, as --export prints it; - reads standard input.",
)
@click.option(
    "--execute/--dry-run", help="Store the offsets, or only show them, as is done by default."
)
@click.option("--export", is_flag=True, help="Print topic,partition,offset as CSV, not a table.")
@bootstrap_option
def reset_offsets(
    group: str,
    topics: dict[str, set[int] | None],
    all_topics: bool,
    execute: bool,
    export: bool,
    bootstrap: Address,
    **targets: Any,
) -> None:
    """Move the committed offsets of GROUP, which must have no members at work.

    Name partitions with --topic or --all-topics and exactly one target, one of the options from
    --to-earliest to --from-file (a file names its partitions itself). Without --execute nothing
    is changed. An offset outside of what a partition holds becomes the nearest that it does hold.
    """
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in targets)
        raise click.UsageError(f"say where to, with exactly one of {names}")
    [(target, value)] = given.items()
    if target == "from_file" and (topics or all_topics):
        raise click.UsageError("the file names the partitions: no --topic and no --all-topics")
    if target != "from_file" and bool(topics) == all_topics:
        raise click.UsageError("say which partitions, with either --topic or --all-topics")

    with admin_client(bootstrap) as admin:
        _refuse_active(admin, group)
        committed = _committed(admin, group)
        if target == "from_file":
            value = _plan_for(group, value)
            partitions = _known(admin, value)
        elif all_topics:
            partitions = _known(admin, committed)
        else:
            partitions = _chosen(admin, topics)
        if not partitions:
            raise click.ClickException(
                f"group {printable(group)} has committed no offsets: name topics with --topic"
            )
        logs = _logs(admin, partitions)
        offsets = _within(logs, _wanted(admin, target, value, logs, committed))
        if execute:
            _store(admin, group, offsets)

    if export:
        _print_csv(offsets)
        return
    columns = ("partition", "committed", "new offset")
    table = new_table("topic", *columns, right=columns)
    for part, offset in sorted(offsets.items()):
        before = str(committed.get(part, NONE))
        table.add_row(_text(part.topic), str(part.partition), before, str(offset))
    console().print(table)
    done = "stored" if execute else "dry run, nothing is changed: --execute stores these offsets"
    click.echo(f"\n{done}")


def _refuse_active(admin: "KafkaAdminClient", group_id: str) -> None:
    found = _find(admin, group_id)
    if found is not None and found.state != "Empty":
        raise click.ClickException(
            f"group {printable(group_id)} is active ({found.state}, members: "
            f"{len(found.members)}): its offsets can be moved when every member has stopped"
        )


def _committed(admin: "KafkaAdminClient", group_id: str) -> "dict[TopicPartition, int]":
    found = admin.list_group_offsets({group_id: None})[group_id]
    return {part: committed.offset for part, committed in found.items() if committed.offset >= 0}


def _chosen(
    admin: "KafkaAdminClient", topics: Mapping[str, set[int] | None]
) -> "set[TopicPartition]":
    """The partitions that --topic names; fails if one does not exist."""
    from kafka import TopicPartition

    every = _partitions_of(existing(admin.describe_topics(list(topics))))
    named = {
        TopicPartition(topic, number)
        for topic, numbers in topics.items()
        for number in numbers or ()
    }
    _refuse_unknown(named - every)
    return {
        part
        for part in every
        if (numbers := topics[part.topic]) is None or part.partition in numbers
    }


def _known(
    admin: "KafkaAdminClient", partitions: "Collection[TopicPartition]"
) -> "set[TopicPartition]":
    """The same partitions; fails if one does not exist."""
    if not partitions:
        return set()
    topics = sorted({part.topic for part in partitions})
    _refuse_unknown(set(partitions) - _partitions_of(existing(admin.describe_topics(topics))))
    return set(partitions)


def _refuse_unknown(partitions: "Collection[TopicPartition]") -> None:
    if partitions:
        first = min(partitions)
        raise click.ClickException(
            f"topic {printable(first.topic)} has no partition {first.partition}"
        )


def _plan_for(
    group_id: str, plan: "Sequence[tuple[str | None, TopicPartition, int]]"
) -> "dict[TopicPartition, int]":
    """What a file says about this group. A line without a group is about any."""
    ours = {part: offset for named, part, offset in plan if named in (None, group_id)}
    if not ours:
        raise click.ClickException(f"the file has no offsets for group {printable(group_id)}")
    return ours


def _wanted(
    admin: "KafkaAdminClient",
    target: str,
    value: Any,
    logs: "Mapping[TopicPartition, Log]",
    committed: "Mapping[TopicPartition, int]",
) -> "dict[TopicPartition, int]":
    """The offsets that are asked for, whether or not the partitions hold them."""
    match target:
        case "to_earliest":
            return {part: log.start for part, log in logs.items()}
        case "to_latest":
            return {part: log.end for part, log in logs.items()}
        case "to_offset":
            return dict.fromkeys(logs, value)
        case "to_current":
            return {part: committed.get(part, log.end) for part, log in logs.items()}
        case "to_datetime" | "by_duration":
            return _at_time(admin, value, logs)
        case "shift_by":
            if missing := logs.keys() - committed.keys():
                names = printable(_partition_names(sorted(missing)))
                raise click.ClickException(f"nothing to shift: no offset is committed for {names}")
            return {part: committed[part] + value for part in logs}
        case _:
            return dict(value)


def _at_time(
    admin: "KafkaAdminClient", timestamp_ms: int, logs: "Mapping[TopicPartition, Log]"
) -> "dict[TopicPartition, int]":
    found = admin.list_partition_offsets(dict.fromkeys(logs, timestamp_ms))
    offsets = {}
    for part, log in logs.items():
        offset = found[part].offset
        if offset < 0:
            _warn(f"{_partition_names([part])} has no record since then: its end is taken")
            offset = log.end
        offsets[part] = offset
    return offsets


def _within(
    logs: "Mapping[TopicPartition, Log]", wanted: "Mapping[TopicPartition, int]"
) -> "dict[TopicPartition, int]":
    """Each offset, or the nearest that its partition holds."""
    offsets = {}
    for part, offset in sorted(wanted.items()):
        log = logs[part]
        offsets[part] = min(max(offset, log.start), log.end)
        if offsets[part] != offset:
            _warn(
                f"{_partition_names([part])} goes from {log.start} to {log.end}: "
                f"{offsets[part]} is taken, not {offset}"
            )
    return offsets


def _warn(sentence: str) -> None:
    click.echo(f"Warning: {printable(sentence)}", err=True)


def _store(
    admin: "KafkaAdminClient", group_id: str, offsets: "Mapping[TopicPartition, int]"
) -> None:
    from kafka.errors import NoError, UnknownMemberIdError
    from kafka.structs import OffsetAndMetadata

    commits = {part: OffsetAndMetadata(offset, "", None) for part, offset in offsets.items()}
    outcomes = admin.alter_group_offsets(group_id, commits)
    failed = {part: error for part, error in outcomes.items() if error is not NoError}
    if not failed:
        return
    if set(failed.values()) == {UnknownMemberIdError}:
        # What Kafka answers to a commit from outside of a group that has members.
        raise click.ClickException(
            f"group {printable(group_id)} has become active: nothing is changed"
        )
    part, error = min(failed.items())
    raise click.ClickException(
        f"{len(failed)} of {len(offsets)} offsets are not stored; "
        f"{_partition_names([part])}: {explained(error)}"
    )


def _print_csv(offsets: "Mapping[TopicPartition, int]") -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows((*part, offset) for part, offset in sorted(offsets.items()))
