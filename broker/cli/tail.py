"""`brokerhouse tail`: the records of a topic as they arrive, as text or as JSON."""

import base64
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from broker.cli.ctrl_c import CtrlC, ctrl_c
from broker.cli.kafka_client import (
    admin_client,
    bootstrap_option,
    consumer_client,
    partitions_of,
)
from broker.cli.options import Bootstrap
from common.console import escaped

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.consumer.fetcher import ConsumerRecord

POLL_TIMEOUT_MS = 200
SILENT_S = 5.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command()
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option(
    "--offset",
    metavar="earliest|latest|N",
    default="latest",
    show_default=True,
    help="Where to start; N needs --partition if the topic has several.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Columns (partition:offset, time, key, value, headers), or one JSON object per line.",
)
@click.option(
    "--exit-at-end",
    is_flag=True,
    help="Stop at the end that the topic had when the command started.",
)
@bootstrap_option
def tail(
    topic: str,
    partition: int | None,
    offset: str,
    output: str,
    exit_at_end: bool,
    bootstrap: Bootstrap,
) -> None:
    """Print the records of TOPIC as they arrive, until Ctrl-C.

    In text, bytes that are not printable UTF-8 are written as backslash escapes and null as \\N;
    in JSON, bytes that are not UTF-8 are written as {"base64": ...}.
    """
    if offset not in ("earliest", "latest") and not offset.isdecimal():
        raise click.BadParameter("write earliest, latest or a number", param_hint="--offset")
    render = {"text": record_as_text, "json": record_as_json}[output]
    with suppress(KeyboardInterrupt), admin_client(bootstrap) as admin, ctrl_c() as stop:
        known = partitions_of(admin, topic)
        chosen = known if partition is None else [partition]
        if partition is not None and partition not in known:
            raise click.ClickException(f"topic {topic} has no partition {partition}")
        with consumer_client(bootstrap) as consumer:
            ends = _seek(consumer, topic, chosen, offset)
            for records in _polls(consumer, ends if exit_at_end else None, stop):
                if not records:
                    # Kafka's client keeps requesting a deleted topic; this call fails.
                    partitions_of(admin, topic)
                sys.stdout.writelines(render(record) + "\n" for record in records)
                sys.stdout.flush()


def _seek(
    consumer: "KafkaConsumer", topic: str, partitions: list[int], offset: str
) -> "Mapping[TopicPartition, int]":
    """Assigns the partitions and seeks. Returns the end offset of each as it is now."""
    from kafka import TopicPartition

    assigned = [TopicPartition(topic, partition) for partition in partitions]
    consumer.assign(assigned)
    starts: Mapping[TopicPartition, int] = consumer.beginning_offsets(assigned)
    ends: Mapping[TopicPartition, int] = consumer.end_offsets(assigned)
    if offset.isdecimal():
        if len(assigned) > 1:
            raise click.ClickException(
                f"topic {topic} has {len(assigned)} partitions: an offset needs --partition"
            )
        [only] = assigned
        if not starts[only] <= int(offset) <= ends[only]:
            raise click.ClickException(
                f"offset {offset} is out of range: partition {only.partition} of {topic} "
                f"starts at {starts[only]} and ends at {ends[only]}"
            )
        consumer.seek(only, int(offset))
    else:
        for each in assigned:
            consumer.seek(each, (starts if offset == "earliest" else ends)[each])
    return ends


def _polls(
    consumer: "KafkaConsumer",
    ends: "Mapping[TopicPartition, int] | None",
    stop: CtrlC,
) -> "Iterator[list[ConsumerRecord]]":
    """Records as they arrive, until Ctrl-C or until every partition is at its end in `ends`.

    An empty list says that nothing arrived for SILENT_S.
    """
    heard_s = time.monotonic()
    while ends is None or any(consumer.position(part) < end for part, end in ends.items()):
        polled = consumer.poll(timeout_ms=POLL_TIMEOUT_MS)
        if stop.is_pressed():
            return
        now_s = time.monotonic()
        if polled or now_s - heard_s >= SILENT_S:
            heard_s = now_s
            yield [
                record
                for part, records in polled.items()
                for record in records
                if ends is None or record.offset < ends[part]
            ]


def record_as_text(record: "ConsumerRecord") -> str:
    """One line between tabs: `partition:offset`, time, key, value, and headers if there are any."""
    columns = [
        f"{record.partition}:{record.offset}",
        _time(record.timestamp),
        escaped(record.key),
        escaped(record.value),
    ]
    if record.headers:
        pairs = (f"{escaped(key.encode())}={escaped(value)}" for key, value in record.headers)
        columns.append(",".join(pairs))
    return "\t".join(columns)


def record_as_json(record: "ConsumerRecord") -> str:
    """The whole record as a JSON object on one line."""
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp,
            "key": _jsonable(record.key),
            "value": _jsonable(record.value),
            "headers": [[key, _jsonable(value)] for key, value in record.headers],
        },
        ensure_ascii=False,
    )


def _time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the number itself where it is not a date (Kafka accepts any int64)."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    if timestamp_ms < 0:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _jsonable(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
