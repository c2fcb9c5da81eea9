"""`brokerhouse topics` and `brokerhouse tail`: commands that speak Kafka to a running broker.

They are ordinary clients (kafka-python) and know nothing of the broker's inside, so they work
against any Kafka. Nothing here joins a group or makes a topic that was not asked for. What the
commands of groups.py need as well has a public name.
"""

import base64
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from common.address import Address, parse_address
from common.console import console, escaped, new_table
from common.environment import ENV_PREFIX

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.net.compat import KafkaNetClient

CONNECT_TIMEOUT_S = 5.0
BOOTSTRAP_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 30_000
POLL_TIMEOUT_MS = 200
SILENT_S = 5.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _to_address(_context: click.Context, _parameter: click.Parameter, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    envvar=ENV_PREFIX + "KAFKA",
    callback=_to_address,
    show_default=True,
    show_envvar=True,
    help="The broker to ask.",
)


@click.group()
def topics() -> None:
    """List, create, describe and delete topics."""


@topics.command("list")
@bootstrap_option
def list_topics(bootstrap: Address) -> None:
    """Print every topic with its number of partitions and its id."""
    with admin_client(bootstrap) as admin:
        found = sorted(admin.describe_topics(), key=lambda topic: str(topic["name"]))
    table = new_table("topic", "partitions", "id", right=["partitions"])
    for topic in found:
        table.add_row(topic["name"], str(len(topic["partitions"])), str(topic.get("topic_id", "")))
    console().print(table)


def _to_configs(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    configs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(
                f"write NAME=VALUE, for example max.message.bytes=2000000, not {pair!r}"
            )
        configs[name] = value
    return configs


@topics.command("create")
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="As the broker is set, if not given."
)
@click.option(
    "--config",
    "configs",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_to_configs,
    help="A topic config such as max.message.bytes=2000000; may be repeated.",
)
@bootstrap_option
def create_topic(
    name: str, partitions: int | None, configs: dict[str, str], bootstrap: Address
) -> None:
    """Create the topic NAME."""
    options = {"num_partitions": partitions or -1, "configs": configs}
    with admin_client(bootstrap) as admin:
        [outcome] = admin.create_topics({name: options}, raise_errors=False)["topics"]
        raise_for(outcome["error_code"], outcome.get("error_message"), f"topic {name}")
        count = len(_partitions(admin, name))
    click.echo(f"created {name} with {count} {'partition' if count == 1 else 'partitions'}")


@topics.command("describe")
@click.argument("name")
@bootstrap_option
def describe_topic(name: str, bootstrap: Address) -> None:
    """Print the partitions of the topic NAME, the offsets they hold, and the configs set on it."""
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec

    with admin_client(bootstrap) as admin:
        [topic] = existing(admin.describe_topics([name]))
        names = [TopicPartition(name, part["partition_index"]) for part in topic["partitions"]]
        earliest = admin.list_partition_offsets(dict.fromkeys(names, OffsetSpec.EARLIEST))
        latest = admin.list_partition_offsets(dict.fromkeys(names, OffsetSpec.LATEST))
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        configs = admin.describe_configs([resource])["topic"][name]

    columns = ("partition", "leader", "earliest", "latest", "records")
    parts = new_table(*columns, right=columns)
    for part in sorted(topic["partitions"], key=lambda part: int(part["partition_index"])):
        key = TopicPartition(name, part["partition_index"])
        start, end = earliest[key].offset, latest[key].offset
        parts.add_row(
            *map(str, (part["partition_index"], part["leader_id"], start, end, end - start))
        )
    click.echo(f"{name}  {topic.get('topic_id', '')}\n")
    console().print(parts)
    if configs:
        chosen = new_table("config", "value")
        for config, entry in sorted(configs.items()):
            chosen.add_row(config, str(entry["value"]))
        click.echo()
        console().print(chosen)


@topics.command("delete")
@click.argument("name")
@bootstrap_option
def delete_topic(name: str, bootstrap: Address) -> None:
    """Delete the topic NAME and all its records."""
    with admin_client(bootstrap) as admin:
        [outcome] = admin.delete_topics([name], raise_errors=False)["topics"]
        raise_for(outcome["error_code"], outcome.get("error_message"), f"topic {name}")
    click.echo(f"deleted {name}")


@click.command()
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.")
@click.option(
    "--offset",
    metavar="earliest|latest|N",
    default="latest",
    show_default=True,
    help="Where to start; N needs --partition where there are several.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Columns (partition:offset, time, key, value, headers), or one JSON object per line.",
)
@click.option("--exit-at-end", is_flag=True, help="Stop at the end there was when this started.")
@bootstrap_option
def tail(
    topic: str,
    partition: int | None,
    offset: str,
    output: str,
    exit_at_end: bool,
    bootstrap: Address,
) -> None:
    """Print the records of TOPIC as they come, until Ctrl-C.

    In text, bytes that are no printable UTF-8 stand as backslash escapes and null as \\N; in JSON,
    bytes that are not UTF-8 stand as {"base64": ...}.
    """
    if offset not in ("earliest", "latest") and not offset.isdecimal():
        raise click.BadParameter("write earliest, latest or a number", param_hint="--offset")
    render = {"text": record_as_text, "json": record_as_json}[output]
    with suppress(KeyboardInterrupt), admin_client(bootstrap) as admin, ctrl_c() as ending:
        known = _partitions(admin, topic)
        chosen = known if partition is None else [partition]
        if partition is not None and partition not in known:
            raise click.ClickException(f"topic {topic} has no partition {partition}")
        with consumer_client(bootstrap) as consumer:
            ends = _start(consumer, topic, chosen, offset)
            for records in _polls(consumer, ends if exit_at_end else None, ending):
                if not records:
                    # The client goes on asking for a topic that was deleted.
                    _partitions(admin, topic)
                sys.stdout.writelines(render(record) + "\n" for record in records)
                sys.stdout.flush()


def record_as_text(record: "ConsumerRecord") -> str:
    """`partition:offset`, time, key, value and headers, if any, between tabs on one line."""
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


@contextmanager
def admin_client(bootstrap: Address) -> "Iterator[KafkaAdminClient]":
    """An admin client; whatever Kafka answers or fails to answer becomes one sentence."""
    with _kafka_errors(bootstrap):
        from kafka import KafkaAdminClient

        _reach(bootstrap)
        with KafkaAdminClient(
            bootstrap_servers=str(bootstrap),
            # Stands beside the offsets that it moves, in the table consumer_offsets.
            client_id="brokerhouse",
            bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        ) as admin:
            yield admin


@contextmanager
def consumer_client(bootstrap: Address) -> "Iterator[KafkaConsumer]":
    """A consumer outside of any group; errors as in `admin_client`."""
    with _kafka_errors(bootstrap):
        from kafka import KafkaConsumer

        with KafkaConsumer(
            bootstrap_servers=str(bootstrap),
            bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            kafka_client=_client_that_makes_no_topics,
        ) as consumer:
            yield consumer


def _client_that_makes_no_topics(**configs: Any) -> "KafkaNetClient":
    """The consumer's own `allow_auto_create_topics` does not reach its metadata requests.

    (kafka-python 3.0.12.) Without this, a tail would make a deleted topic again.
    """
    from kafka.net.compat import KafkaNetClient

    client = KafkaNetClient(**configs)
    client.cluster.config["allow_auto_create_topics"] = False
    return client


@contextmanager
def _kafka_errors(bootstrap: Address) -> Iterator[None]:
    import logging

    from kafka.errors import BrokerResponseError, KafkaError, KafkaTimeoutError

    # The client's log repeats what is reported here, at length.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        yield
    except BrokerResponseError as error:
        raise click.ClickException(f"{bootstrap} answered {explained(type(error))}") from error
    except KafkaTimeoutError as error:
        raise click.ClickException(f"{bootstrap} does not answer as a Kafka broker") from error
    except KafkaError as error:
        raise click.ClickException(f"{bootstrap} failed: {error}") from error


def _reach(bootstrap: Address) -> None:
    """Fails at once where nothing listens; the client would go on trying."""
    try:
        socket.create_connection(bootstrap, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or error
        raise click.ClickException(
            f"no broker at {bootstrap} ({reason}): start one with `brokerhouse serve`, "
            "or name another with --bootstrap"
        ) from error


def existing(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for topic in found:
        raise_for(topic["error_code"], None, f"topic {topic['name']}")
    return found


def _partitions(admin: "KafkaAdminClient", topic: str) -> list[int]:
    [described] = existing(admin.describe_topics([topic]))
    return sorted(part["partition_index"] for part in described["partitions"])


def raise_for(error_code: int, message: str | None, subject: str) -> None:
    if error_code == 0:
        return
    from kafka.errors import UnknownTopicOrPartitionError, for_code

    error = for_code(error_code)
    if error is UnknownTopicOrPartitionError:
        raise click.ClickException(f"{subject} does not exist")
    raise click.ClickException(f"{subject}: {message or explained(error)}")


def explained(error: type[Any]) -> str:
    return f"{error.message}: {error.description}"


def _start(
    consumer: "KafkaConsumer", topic: str, partitions: list[int], offset: str
) -> "Mapping[TopicPartition, int]":
    """Assigns and seeks. Returns the end offset of each partition as it is now."""
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
                f"offset {offset} is outside of partition {only.partition} of {topic}, "
                f"which goes from {starts[only]} to {ends[only]}"
            )
        consumer.seek(only, int(offset))
    else:
        for each in assigned:
            consumer.seek(each, (starts if offset == "earliest" else ends)[each])
    return ends


def _polls(
    consumer: "KafkaConsumer",
    ends: "Mapping[TopicPartition, int] | None",
    ending: threading.Event,
) -> "Iterator[list[ConsumerRecord]]":
    """Records as they come, until `ending` or until every partition stands at its end in `ends`.

    An empty list says that nothing came for SILENT_S.
    """
    heard_s = time.monotonic()
    while ends is None or any(consumer.position(part) < end for part, end in ends.items()):
        polled = consumer.poll(timeout_ms=POLL_TIMEOUT_MS)
        if ending.is_set():
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


@contextmanager
def ctrl_c() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C, which is not an exception here; a second one is.

    kafka-python's event loop takes what is raised inside it for the failure of a task, and goes on.
    """
    ending = threading.Event()
    former = signal.getsignal(signal.SIGINT)

    def end(*_: object) -> None:
        ending.set()
        signal.signal(signal.SIGINT, former)

    signal.signal(signal.SIGINT, end)
    try:
        yield ending
    finally:
        signal.signal(signal.SIGINT, former)


def _time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the number itself where it is no time (Kafka takes any int64)."""
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
