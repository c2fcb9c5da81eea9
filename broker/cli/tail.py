"""`brokerhouse tail`: the records of a topic as they arrive, as text or as JSON."""

import base64
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from brokerhouse.broker.cli.ctrl_c import ctrl_c
from brokerhouse.broker.cli.kafka_client import (
    admin_client,
    consumer_client,
    end_at_ctrl_c,
    partition_ranges,
)
from brokerhouse.broker.cli.options import Bootstrap, bootstrap_option, json_lines_option
from brokerhouse.broker.cli.reading import (
    chosen_partitions,
    offset_option,
    partition_option,
    polls,
    seek,
)
from brokerhouse.common.console import escaped
from brokerhouse.common.places import Place

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command()
@click.argument("topic")
@partition_option
@offset_option("latest")
@json_lines_option
@click.option(
    "--exit-at-end",
    is_flag=True,
    help="Stop at the end that the topic had when the command started.",
)
@bootstrap_option
def tail(
    topic: str,
    partitions: tuple[int, ...],
    offset: Place,
    as_json: bool,
    exit_at_end: bool,
    bootstrap: Bootstrap,
) -> None:
    """Print the records of TOPIC as they arrive, until Ctrl-C.

    A line has partition:offset, time, key, value and headers. Bytes that are not printable UTF-8
    are written as backslash escapes and null as \\N; in JSON, bytes that are not UTF-8 are written
    as {"base64": ...}.
    """
    render = record_as_json if as_json else record_as_text
    with suppress(KeyboardInterrupt), admin_client(bootstrap) as admin, ctrl_c() as stop:
        end_at_ctrl_c(admin, stop)
        chosen = chosen_partitions(admin, [topic], partitions)
        ends = {part: held.end for part, held in partition_ranges(admin, chosen).items()}
        with consumer_client(bootstrap) as consumer:
            seek(consumer, admin, chosen, offset)
            for records in polls(
                consumer, ends if exit_at_end else None, stop, bootstrap.timeout_s
            ):
                if not records:
                    # Kafka's client keeps requesting a deleted topic, and from a leader that is
                    # away; these calls fail.
                    partition_ranges(admin, chosen_partitions(admin, [topic], partitions))
                sys.stdout.writelines(render(record) + "\n" for record in records)
                sys.stdout.flush()


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
