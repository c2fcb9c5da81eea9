"""`brokerhouse groups reset-offsets`: moves the committed offsets of a group.

It follows Kafka's own tool: it only shows what it would do unless --execute is given, keeps offsets
within what the partitions hold, creates a group that does not exist yet, and refuses one that has
members.
"""

import csv
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any

import click

from brokerhouse.broker.cli.consumer_groups import (
    NONE,
    as_text,
    committed_offsets,
    find,
    group_argument,
    partition_names,
    topic_partitions,
)
from brokerhouse.broker.cli.kafka_client import (
    PartitionRange,
    admin_client,
    existing,
    partition_ranges,
)
from brokerhouse.broker.cli.options import Bootstrap, bootstrap_option, if_given
from brokerhouse.broker.cli.retries import explained, is_of_coordinator
from brokerhouse.common.console import console, new_table, printable

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, TopicPartition

_TOPIC = re.compile(r"[^:]+(:\d{1,10}(,\d{1,10})*)?", re.ASCII)
_DURATION = re.compile(
    r"P(?=\d|T)(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


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


def _to_timestamp_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"write a time such as 2026-05-17T08:30:00 or 2026-05-17T10:30:00+02:00, not {text!r}"
        ) from None
    return _timestamp_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _to_timestamp_before_now_ms(text: str) -> int:
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
        raise click.BadParameter(f"{file.name} is not a CSV file ({error})") from error
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


@click.command("reset-offsets")
@group_argument
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1,2]",
    multiple=True,
    callback=_to_partitions,
    help="A topic, or some of its partitions; may be repeated.",
)
@click.option(
    "--all-topics", is_flag=True, help="Every partition with a committed offset of the group."
)
@click.option("--to-earliest", is_flag=True, default=None, help="To the first record.")
@click.option("--to-latest", is_flag=True, default=None, help="To the end, after the last record.")
@click.option("--to-offset", metavar="N", type=click.IntRange(min=0), help="To this offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    callback=if_given(_to_timestamp_ms),
    help="To the first record of this time or later: ISO 8601, in UTC if it names no zone.",
)
@click.option(
    "--by-duration",
    metavar="PnDTnHnMnS",
    callback=if_given(_to_timestamp_before_now_ms),
    help="To the first record of the last P7D, PT2H30M or other duration.",
)
@click.option("--shift-by", metavar="N", type=int, help="Forward by N records; back if negative.")
@click.option(
    "--to-current",
    is_flag=True,
    default=None,
    help="To the committed offset, or to the end without one.",
)
@click.option(
    "--from-file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    callback=_to_plan,
    help="To the offsets in a CSV file, as --export prints it; - reads standard input.",
)
@click.option("--execute/--dry-run", help="Store the offsets, or only show them (the default).")
@click.option("--export", is_flag=True, help="Print topic,partition,offset as CSV, not a table.")
@bootstrap_option
def reset_offsets(
    group: str,
    topics: dict[str, set[int] | None],
    all_topics: bool,
    execute: bool,
    export: bool,
    bootstrap: Bootstrap,
    **targets: Any,
) -> None:
    """Move the committed offsets of GROUP, which must have no active members.

    Name partitions with --topic or --all-topics and exactly one target, one of the options from
    --to-earliest to --from-file (a file names its partitions itself). Without --execute nothing
    is changed. An offset that a partition does not hold becomes the nearest one that it holds.
    """
    target, value = _only_target(targets)
    if target == "from_file" and (topics or all_topics):
        raise click.UsageError("the file names the partitions: leave out --topic and --all-topics")
    if target != "from_file" and bool(topics) == all_topics:
        raise click.UsageError("name the partitions with either --topic or --all-topics")
    with admin_client(bootstrap) as admin:
        _refuse_active(admin, group)
        committed = committed_offsets(admin, group)
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
        ranges = partition_ranges(admin, partitions)
        offsets = _within(ranges, _wanted(admin, target, value, ranges, committed))
        if execute:
            _store(admin, group, offsets)

    if export:
        _print_csv(offsets)
        return
    _print_table(offsets, committed)
    done = "stored" if execute else "dry run, nothing was changed: --execute stores these offsets"
    click.echo(f"\n{done}")


def _only_target(targets: Mapping[str, Any]) -> tuple[str, Any]:
    """The name and the value of the only target that was given."""
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in targets)
        raise click.UsageError(f"give exactly one target, one of {names}")
    [(target, value)] = given.items()
    return target, value


def _refuse_active(admin: "KafkaAdminClient", group_id: str) -> None:
    found = find(admin, group_id)
    if found is not None and found.state != "Empty":
        raise click.ClickException(
            f"group {printable(group_id)} is active ({found.state}, members: "
            f"{len(found.members)}): stop its members before you move its offsets"
        )


def _chosen(
    admin: "KafkaAdminClient", topics: Mapping[str, set[int] | None]
) -> "set[TopicPartition]":
    """The partitions that --topic names; fails if one does not exist."""
    from kafka import TopicPartition

    every = topic_partitions(existing(admin.describe_topics(list(topics))))
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
    _refuse_unknown(set(partitions) - topic_partitions(existing(admin.describe_topics(topics))))
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
    """The offsets that a file gives for this group. A line without a group is for any group."""
    ours = {part: offset for named, part, offset in plan if named in (None, group_id)}
    if not ours:
        raise click.ClickException(f"the file has no offsets for group {printable(group_id)}")
    return ours


def _wanted(
    admin: "KafkaAdminClient",
    target: str,
    value: Any,
    ranges: "Mapping[TopicPartition, PartitionRange]",
    committed: "Mapping[TopicPartition, int]",
) -> "dict[TopicPartition, int]":
    """The offsets that the target asks for, whether or not the partitions hold them."""
    match target:
        case "to_earliest":
            return {part: held.start for part, held in ranges.items()}
        case "to_latest":
            return {part: held.end for part, held in ranges.items()}
        case "to_offset":
            return dict.fromkeys(ranges, value)
        case "to_current":
            return {part: committed.get(part, held.end) for part, held in ranges.items()}
        case "to_datetime" | "by_duration":
            return _at_time(admin, value, ranges)
        case "shift_by":
            if missing := ranges.keys() - committed.keys():
                names = printable(partition_names(sorted(missing)))
                raise click.ClickException(f"nothing to shift: no offset is committed for {names}")
            return {part: committed[part] + value for part in ranges}
        case _:
            return dict(value)


def _at_time(
    admin: "KafkaAdminClient", timestamp_ms: int, ranges: "Mapping[TopicPartition, PartitionRange]"
) -> "dict[TopicPartition, int]":
    found = admin.list_partition_offsets(dict.fromkeys(ranges, timestamp_ms))
    offsets = {}
    for part, held in ranges.items():
        offset = found[part].offset
        if offset < 0:
            _warn(f"{partition_names([part])} has no record since then: using its end")
            offset = held.end
        offsets[part] = offset
    return offsets


def _within(
    ranges: "Mapping[TopicPartition, PartitionRange]", wanted: "Mapping[TopicPartition, int]"
) -> "dict[TopicPartition, int]":
    """Each offset, or the nearest that its partition holds."""
    offsets = {}
    for part, offset in sorted(wanted.items()):
        held = ranges[part]
        offsets[part] = min(max(offset, held.start), held.end)
        if offsets[part] != offset:
            _warn(
                f"{partition_names([part])} starts at {held.start} and ends at {held.end}: "
                f"using {offsets[part]} instead of {offset}"
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

    def commit() -> Any:
        outcomes = admin.alter_group_offsets(group_id, commits)
        for error in outcomes.values():
            if is_of_coordinator(error):
                raise error
        return outcomes

    outcomes = admin.repeated(commit)
    failed = {part: error for part, error in outcomes.items() if error is not NoError}
    if not failed:
        return
    if set(failed.values()) == {UnknownMemberIdError}:
        # Kafka's answer to a commit from outside when a group has members.
        raise click.ClickException(
            f"group {printable(group_id)} became active: nothing was changed"
        )
    part, error = min(failed.items())
    raise click.ClickException(
        f"{len(failed)} of {len(offsets)} offsets were not stored; "
        f"{partition_names([part])}: {explained(error)}"
    )


def _print_table(
    offsets: "Mapping[TopicPartition, int]", committed: "Mapping[TopicPartition, int]"
) -> None:
    columns = ("partition", "committed", "new offset")
    table = new_table("topic", *columns, right=columns)
    for part, offset in sorted(offsets.items()):
        before = str(committed.get(part, NONE))
        table.add_row(as_text(part.topic), str(part.partition), before, str(offset))
    console().print(table)


def _print_csv(offsets: "Mapping[TopicPartition, int]") -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows((*part, offset) for part, offset in sorted(offsets.items()))
