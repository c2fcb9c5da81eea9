"""`brokerhouse consume`: the records of topics, for programs: byte for byte, JSON, or a template.

With a group it is an ordinary member: it commits a record after it was written to standard output,
so a record is printed again rather than lost. `tail` shows records to people.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from broker.cli.ctrl_c import CtrlC, ctrl_c
from broker.cli.kafka_client import (
    admin_client,
    bootstrap_option,
    consumer_client,
    partition_ranges,
    partitions_of,
)
from broker.cli.options import Bootstrap, to_delimiter, unescaped
from broker.cli.tail import SILENT_S, record_as_json

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
    from kafka.consumer.fetcher import ConsumerRecord

POLL_TIMEOUT_MS = 200

Ends = dict["TopicPartition", int]
Render = Callable[["ConsumerRecord"], bytes]

_WORDS: dict[bytes, Callable[["ConsumerRecord"], bytes]] = {
    b"t": lambda record: str(record.topic).encode(),
    b"p": lambda record: b"%d" % record.partition,
    b"o": lambda record: b"%d" % record.offset,
    b"T": lambda record: b"%d" % record.timestamp,
    b"k": lambda record: record.key or b"",
    b"s": lambda record: record.value or b"",
    b"K": lambda record: b"%d" % _length(record.key),
    b"S": lambda record: b"%d" % _length(record.value),
    b"h": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
    b"%": lambda _: b"%",
}


def _length(data: bytes | None) -> int:
    """-1 for null, as kcat prints it."""
    return -1 if data is None else len(data)


def _template(text: str) -> Render:
    """The words between `%` signs, filled in for each record."""
    parts = re.split(rb"%(.?)", unescaped(text), flags=re.DOTALL)
    for word in parts[1::2]:
        if word not in _WORDS:
            raise click.BadParameter(
                f"%{word.decode('latin-1')} is unknown: write %t topic, %p partition, %o offset, "
                "%T timestamp, %k key, %s value, %K and %S their lengths, %h headers, %%",
                param_hint="--format",
            )

    def render(record: "ConsumerRecord") -> bytes:
        return b"".join(
            _WORDS[part](record) if index % 2 else part for index, part in enumerate(parts)
        )

    return render


def _to_offset(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> str | int | datetime:
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text) if text != "-0" else "latest"
    if text.startswith("@"):
        try:
            if text[1:].isdecimal():
                return datetime.fromtimestamp(int(text[1:]) / 1000, UTC)
            moment = datetime.fromisoformat(text[1:])
        except (ValueError, OverflowError) as error:
            raise click.BadParameter(f"{text[1:]!r} is no time: {error}") from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    raise click.BadParameter("write earliest, latest, N, -N (the last N), or @TIME")


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only these."
)
@click.option(
    "--offset",
    metavar="earliest|latest|N|-N|@TIME",
    default="earliest",
    show_default=True,
    callback=_to_offset,
    help="Where to start: -N is the last N of each partition; TIME is in milliseconds or as in "
    "2026-01-31T12:00 (UTC). With --group: where it has committed nothing.",
)
@click.option("--group", help="Read as a member of this group, and commit what was printed.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at the end that there was at the start.")
@click.option(
    "--format",
    "form",
    default="raw",
    show_default=True,
    help="raw (values), json (one object per line), or a text with %t topic, %p partition, "
    "%o offset, %T timestamp, %k key, %s value, %K %S their lengths, %h headers, such as "
    "'%o %k=%s\\n'.",
)
@click.option(
    "--delimiter",
    default="\\n",
    show_default=True,
    callback=to_delimiter,
    help="Follows a raw value.",
)
@click.option(
    "--key-delimiter", callback=to_delimiter, help="Prints the key and this before a raw value."
)
@bootstrap_option
def consume(
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    offset: str | int | datetime,
    group: str | None,
    count: int | None,
    exit_at_end: bool,
    form: str,
    delimiter: bytes,
    key_delimiter: bytes | None,
    bootstrap: Bootstrap,
) -> None:
    """Print the records of topics, until Ctrl-C, --count or --exit-at-end."""
    render = _renderer(form, delimiter, key_delimiter)
    if group is not None and (partitions or offset not in ("earliest", "latest")):
        raise click.UsageError(
            "with --group the group chooses partitions and offsets:"
            " leave out --partition, and --offset N"
        )
    with suppress(KeyboardInterrupt), admin_client(bootstrap) as admin, ctrl_c() as stop:
        chosen = _chosen(admin, topics, partitions)
        ends = {part: held.end for part, held in partition_ranges(admin, chosen).items()}
        with consumer_client(bootstrap, group, str(offset)) as consumer:
            if group is None:
                _seek(consumer, admin, chosen, offset)
            else:
                consumer.subscribe(list(topics))
            left = count
            for records in _polls(consumer, ends if exit_at_end else None, stop):
                if not records:
                    # Kafka's client keeps requesting a deleted topic; this call fails.
                    _chosen(admin, topics, partitions)
                printed = records if left is None else records[:left]
                sys.stdout.buffer.writelines(map(render, printed))
                sys.stdout.buffer.flush()
                if group is not None and printed:
                    _commit(consumer, printed)
                if left is not None:
                    left -= len(printed)
                    if left == 0:
                        return


def _renderer(form: str, delimiter: bytes, key_delimiter: bytes | None) -> Render:
    if form == "json":
        return lambda record: record_as_json(record).encode() + b"\n"
    if form != "raw":
        if "%" not in form:
            raise click.BadParameter("write raw, json or a text with %s", param_hint="--format")
        return _template(form)
    if key_delimiter is None:
        return lambda record: (record.value or b"") + delimiter
    return lambda record: (record.key or b"") + key_delimiter + (record.value or b"") + delimiter


def _chosen(
    admin: "KafkaAdminClient", topics: Sequence[str], partitions: Sequence[int]
) -> "list[TopicPartition]":
    from kafka import TopicPartition

    chosen = []
    for topic in dict.fromkeys(topics):
        known = partitions_of(admin, topic)
        for partition in partitions:
            if partition not in known:
                raise click.ClickException(f"topic {topic} has no partition {partition}")
        chosen += [TopicPartition(topic, partition) for partition in partitions or known]
    return chosen


def _seek(
    consumer: "KafkaConsumer",
    admin: "KafkaAdminClient",
    chosen: "list[TopicPartition]",
    offset: str | int | datetime,
) -> None:
    ranges = partition_ranges(admin, chosen)
    consumer.assign(chosen)
    if isinstance(offset, datetime):
        found = consumer.offsets_for_times(dict.fromkeys(chosen, int(offset.timestamp() * 1000)))
    for part in chosen:
        held = ranges[part]
        if isinstance(offset, datetime):
            start = held.end if found[part] is None else found[part].offset
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


def _polls(
    consumer: "KafkaConsumer", ends: "Ends | None", stop: CtrlC
) -> "Iterator[list[ConsumerRecord]]":
    """Records as they arrive, until Ctrl-C or until every partition that is read is at its end.

    An empty list says that nothing arrived for SILENT_S.
    """
    heard_s = time.monotonic()
    while ends is None or not _at_end(consumer, ends):
        polled = consumer.poll(timeout_ms=POLL_TIMEOUT_MS)
        if stop.is_pressed():
            return
        records = [
            record
            for part, found in polled.items()
            for record in found
            if ends is None or record.offset < ends[part]
        ]
        now_s = time.monotonic()
        if records or now_s - heard_s >= SILENT_S:
            heard_s = now_s
            yield records


def _at_end(consumer: "KafkaConsumer", ends: "Ends") -> bool:
    assigned = consumer.assignment()
    return bool(assigned) and all(consumer.position(part) >= ends[part] for part in assigned)


def _commit(consumer: "KafkaConsumer", printed: "list[ConsumerRecord]") -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    consumer.commit(
        {
            TopicPartition(record.topic, record.partition): OffsetAndMetadata(
                record.offset + 1, "", -1
            )
            for record in printed
        }
    )
