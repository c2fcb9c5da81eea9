"""`brokerhouse consume`: the records of topics, for programs: byte for byte, JSON, or a template.

With a group it is an ordinary member: it commits a record after it was written to standard output,
so a record is printed again rather than lost. `tail` shows records to people.
"""

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from brokerhouse.broker.cli.ctrl_c import ctrl_c
from brokerhouse.broker.cli.kafka_client import (
    admin_client,
    consumer_client,
    end_at_ctrl_c,
    partition_ranges,
)
from brokerhouse.broker.cli.options import (
    Bootstrap,
    bootstrap_option,
    json_lines_option,
    to_delimiter,
    unescaped,
)
from brokerhouse.broker.cli.reading import (
    chosen_partitions,
    offset_option,
    partition_option,
    polls,
    seek,
)
from brokerhouse.broker.cli.tail import record_as_json
from brokerhouse.common.places import Place

if TYPE_CHECKING:
    from kafka import KafkaConsumer
    from kafka.consumer.fetcher import ConsumerRecord

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


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@partition_option
@offset_option("earliest", " With --group: where it has committed nothing.")
@click.option("--group", help="Read as a member of this group; commit offsets after printing.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "--exit-at-end", is_flag=True, help="Stop at the end that the partitions had at the start."
)
@json_lines_option
@click.option(
    "--format",
    "form",
    metavar="raw|TEXT",
    default="raw",
    show_default=True,
    help="raw (values), or a text with %t topic, %p partition, %o offset, %T timestamp, %k key, "
    "%s value, %K %S their lengths, %h headers, such as '%o %k=%s\\n'.",
)
@click.option(
    "--delimiter",
    default="\\n",
    show_default=True,
    callback=to_delimiter,
    help="Text after each raw value.",
)
@click.option(
    "--key-delimiter",
    callback=to_delimiter,
    help="Print the key and this text before each raw value.",
)
@bootstrap_option
def consume(
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    offset: Place,
    group: str | None,
    count: int | None,
    exit_at_end: bool,
    as_json: bool,
    form: str,
    delimiter: bytes,
    key_delimiter: bytes | None,
    bootstrap: Bootstrap,
) -> None:
    """Print the records of topics, until Ctrl-C, --count or --exit-at-end."""
    render = _json_line if as_json else _renderer(form, delimiter, key_delimiter)
    if group is not None and (partitions or offset not in ("earliest", "latest")):
        raise click.UsageError(
            "with --group the group chooses partitions and offsets:"
            " leave out --partition, and --offset N"
        )
    with suppress(KeyboardInterrupt), admin_client(bootstrap) as admin, ctrl_c() as stop:
        end_at_ctrl_c(admin, stop)
        chosen = chosen_partitions(admin, topics, partitions)
        ends = {part: held.end for part, held in partition_ranges(admin, chosen).items()}
        with consumer_client(bootstrap, group, str(offset)) as consumer:
            if group is None:
                seek(consumer, admin, chosen, offset)
            else:
                consumer.subscribe(list(topics))
            left, began_s = count, time.monotonic()
            for records in polls(
                consumer, ends if exit_at_end else None, stop, bootstrap.timeout_s
            ):
                if not records:
                    # Kafka's client asks for ever: for a deleted topic, a leader that is away, and
                    # a group that cannot be joined. These calls fail.
                    partition_ranges(admin, chosen_partitions(admin, topics, partitions))
                    if group is not None:
                        _check_joined(consumer, group, began_s + bootstrap.timeout_s)
                printed = records if left is None else records[:left]
                sys.stdout.buffer.writelines(map(render, printed))
                sys.stdout.buffer.flush()
                if group is not None and printed:
                    _commit(consumer, printed, bootstrap.timeout_s)
                if left is not None:
                    left -= len(printed)
                    if left == 0:
                        return


def _json_line(record: "ConsumerRecord") -> bytes:
    return record_as_json(record).encode() + b"\n"


def _renderer(form: str, delimiter: bytes, key_delimiter: bytes | None) -> Render:
    if form != "raw":
        if "%" not in form:
            raise click.BadParameter(
                "write raw, or a text with %s; JSON is --json", param_hint="--format"
            )
        return _template(form)
    if key_delimiter is None:
        return lambda record: (record.value or b"") + delimiter
    return lambda record: (record.key or b"") + key_delimiter + (record.value or b"") + delimiter


def _check_joined(consumer: "KafkaConsumer", group: str, deadline_s: float) -> None:
    """Raises click's error if the group could not be joined in time."""
    coordinator = consumer._coordinator
    if time.monotonic() > deadline_s and not consumer.assignment() and coordinator.need_rejoin():
        why = consumer.refusals.explained("its coordinator does not answer")
        raise click.ClickException(f"group {group} cannot be joined: {why}")


def _commit(consumer: "KafkaConsumer", printed: "list[ConsumerRecord]", timeout_s: float) -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    consumer.commit(
        {
            TopicPartition(record.topic, record.partition): OffsetAndMetadata(
                record.offset + 1, "", -1
            )
            for record in printed
        },
        timeout_ms=timeout_s * 1000,
    )
