"""Reading records by hand: where `consume` and `tail` start, and how they wait for more."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click

from brokerhouse.broker.cli.ctrl_c import CtrlC
from brokerhouse.broker.cli.kafka_client import partition_ranges, partitions_of
from brokerhouse.broker.cli.retries import may_pass
from brokerhouse.common.places import Place, parse_place, timestamp_ms

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
    from kafka.consumer.fetcher import ConsumerRecord

POLL_TIMEOUT_MS = 200
SILENT_S = 5.0
AGAIN_S = 0.1

Ends = dict["TopicPartition", int]
CommandT = TypeVar("CommandT", bound=Callable[..., object])


def _to_place(_context: click.Context, _parameter: click.Parameter, text: str) -> Place:
    try:
        return parse_place(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


partition_option = click.option(
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; may be repeated.",
)


def offset_option(default: str, more: str = "") -> Callable[[CommandT], CommandT]:
    """--offset: where to start in each partition."""
    return click.option(
        "--offset",
        metavar="PLACE",
        default=default,
        show_default=True,
        callback=_to_place,
        help="Where to start: earliest, latest, an offset N, the last N records of each partition"
        f" (-N), or a time (@2026-01-31T12:00, UTC, or @ and milliseconds since 1970).{more}",
    )


def chosen_partitions(
    admin: "KafkaAdminClient", topics: Sequence[str], partitions: Sequence[int]
) -> "list[TopicPartition]":
    """Those partitions, or all, of topics; all of them must exist."""
    from kafka import TopicPartition

    chosen = []
    for topic in dict.fromkeys(topics):
        known = partitions_of(admin, topic)
        for partition in partitions:
            if partition not in known:
                raise click.ClickException(f"topic {topic} has no partition {partition}")
        chosen += [TopicPartition(topic, partition) for partition in partitions or known]
    return chosen


def seek(
    consumer: "KafkaConsumer",
    admin: "KafkaAdminClient",
    chosen: "list[TopicPartition]",
    offset: Place,
) -> None:
    """Assigns the partitions, and moves to the place in each."""
    ranges = partition_ranges(admin, chosen)
    consumer.assign(chosen)
    if isinstance(offset, datetime):
        found = admin.list_partition_offsets(dict.fromkeys(chosen, timestamp_ms(offset)))
    for part in chosen:
        held = ranges[part]
        if isinstance(offset, datetime):
            start = held.end if found[part].offset < 0 else found[part].offset
        elif isinstance(offset, str):
            start = held.start if offset == "earliest" else held.end
        elif offset < 0:
            start = max(held.start, held.end + offset)
        elif held.start <= offset <= held.end:
            start = offset
        else:
            raise click.ClickException(
                f"offset {offset} is out of range: partition {part.partition} of {part.topic} "
                f"starts at {held.start} and ends at {held.end}"
            )
        consumer.seek(part, start)


def polls(
    consumer: "KafkaConsumer", ends: "Ends | None", stop: CtrlC, timeout_s: float
) -> "Iterator[list[ConsumerRecord]]":
    """Records as they arrive, until Ctrl-C or until every partition that is read is at its end.

    An empty list says that nothing arrived for SILENT_S. A poll that fails in a way that may pass,
    as while a coordinator is away, is made again until `timeout_s` is over.
    """
    heard_s = polled_s = time.monotonic()
    while not stop.is_pressed():
        now_s = time.monotonic()
        try:
            if ends is not None and _at_end(consumer, ends):
                return
            polled = consumer.poll(timeout_ms=POLL_TIMEOUT_MS)
        except Exception as error:
            if not may_pass(error) or now_s - polled_s > timeout_s:
                raise
            stop.wait(AGAIN_S)
            continue
        polled_s = now_s
        records = [
            record
            for part, found in polled.items()
            for record in found
            if ends is None or record.offset < ends.get(part, 0)
        ]
        if stop.is_pressed():
            return
        if records or now_s - heard_s >= SILENT_S:
            heard_s = now_s
            yield records


def _at_end(consumer: "KafkaConsumer", ends: "Ends") -> bool:
    assigned = consumer.assignment()
    positions = {part: consumer.position(part, timeout_ms=POLL_TIMEOUT_MS) for part in assigned}
    return bool(assigned) and all(
        position is not None and position >= ends.get(part, 0)
        for part, position in positions.items()
    )
