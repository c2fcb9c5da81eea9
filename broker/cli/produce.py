"""`brokerhouse produce`: records from files or standard input into a topic.

A record is confirmed before its memory is given back, and input is read no faster than the broker
confirms, so a file of any size can be produced. Whatever goes wrong, what was read before it is
flushed, and the error says how many records are stored.
"""

import base64
import binascii
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import TYPE_CHECKING, Any, cast

import click

from brokerhouse.broker.cli.ctrl_c import INTERRUPTED
from brokerhouse.broker.cli.kafka_client import admin_client, partitions_of, producer_client
from brokerhouse.broker.cli.options import Bootstrap, bootstrap_option, to_delimiter
from brokerhouse.broker.cli.retries import explained

if TYPE_CHECKING:
    from kafka import KafkaProducer

PIECE_BYTES = 64 * 1024
RECORD_MAX_BYTES = 256 * 1024 * 1024
UNCONFIRMED_MAX_BYTES = 32 * 1024 * 1024
UNCONFIRMED_MAX_RECORDS = 50_000
RECORD_OVERHEAD_BYTES = 500  # of the objects that stand for a record until it is confirmed
CONFIRM_SLACK_S = 2.0
"""The producer gives up by itself when the time is over; this is for its threads."""

_FIELDS = frozenset({"key", "value", "headers", "partition", "timestamp_ms", "topic", "offset"})

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class InputRecord:
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        return RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")


def _to_headers(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> tuple[Header, ...]:
    headers = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"write NAME=VALUE, not {pair!r}")
        headers.append((name, value.encode()))
    return tuple(headers)


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--input-format",
    "form",
    type=click.Choice(["raw", "json", "file"]),
    default="raw",
    show_default=True,
    help="A value in each line, a JSON object in each line, or a value in each file.",
)
@click.option(
    "--delimiter",
    default="\\n",
    show_default=True,
    callback=to_delimiter,
    help="End of a record of the format raw; \\t, \\0 and \\xNN are understood.",
)
@click.option(
    "--key-delimiter", callback=to_delimiter, help="Separator of key and value in the format raw."
)
@click.option("--key", help="The key of every record without one.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_to_headers,
    help="A header of every record; may be repeated.",
)
@click.option("--empty-is-null", is_flag=True, help="An empty value is null, a tombstone.")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    help="Without it the key decides; records without a key go to any partition.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="When the broker confirms a record; 0: never, and errors are not reported.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="How batches of records are compressed.",
)
@bootstrap_option
def produce(
    topic: str,
    files: tuple[str, ...],
    form: str,
    delimiter: bytes,
    key_delimiter: bytes | None,
    key: str | None,
    headers: tuple[Header, ...],
    empty_is_null: bool,
    partition: int | None,
    acks: str,
    compression: str,
    bootstrap: Bootstrap,
) -> None:
    """Write records to TOPIC from FILES, or from standard input.

    An object of the input format json may have key, value, headers, partition and timestamp_ms, as
    `consume --json` prints them: bytes that are not UTF-8 as {"base64": ...}.
    """
    if key_delimiter is not None and form != "raw":
        raise click.UsageError("--key-delimiter is for the input format raw")
    with admin_client(bootstrap) as admin:
        known = partitions_of(admin, topic)
    default_key = None if key is None else key.encode()

    def completed(found: InputRecord) -> InputRecord:
        return InputRecord(
            default_key if found.key is None else found.key,
            None if empty_is_null and not found.value else found.value,
            headers + found.headers,
            partition if found.partition is None else found.partition,
            found.timestamp_ms,
        )

    options = {"acks": acks if acks == "all" else int(acks)}
    if compression != "none":
        options["compression_type"] = compression
    with producer_client(bootstrap, **options) as producer:
        sink = _Sink(producer, topic, known, bootstrap.timeout_s)
        try:
            for name in files or ("-",):
                for place, found in _records(name, form, delimiter, key_delimiter):
                    sink.add(place, completed(found))
            sink.flush()
        except _BadInput as error:
            sink.flush()
            raise click.ClickException(f"{error}; {sink.confirmed} records are stored") from error
        except KeyboardInterrupt:
            sink.flush()
            click.echo(f"interrupted: {sink.confirmed} records are stored", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


class _BadInput(Exception):
    """What is wrong with the input, and where."""


class _Sink:
    """Sends records, and waits for the oldest when too many are not confirmed."""

    def __init__(
        self, producer: "KafkaProducer", topic: str, partitions: list[int], timeout_s: float
    ) -> None:
        self._producer = producer
        self._timeout_s = timeout_s
        self._topic = topic
        self._partitions = partitions
        self._waiting: deque[tuple[Any, int]] = deque()
        self._waiting_bytes = 0
        self.confirmed = 0

    def add(self, place: str, record: InputRecord) -> None:
        if record.partition is not None and record.partition not in self._partitions:
            raise _BadInput(f"{place}: topic {self._topic} has no partition {record.partition}")
        if record.key is None and record.value is None:
            # KafkaProducer.send refuses such records (kafka-python 3.0.12).
            raise _BadInput(f"{place}: a record without a value needs a key")
        future = self._producer.send(
            self._topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
        )
        self._waiting.append((future, record.size_bytes))
        self._waiting_bytes += record.size_bytes
        while self._waiting and (
            self._waiting[0][0].is_done
            or self._waiting_bytes > UNCONFIRMED_MAX_BYTES
            or len(self._waiting) > UNCONFIRMED_MAX_RECORDS
        ):
            self._confirm()

    def flush(self) -> None:
        """Wait until every record is stored. Fails if one is not."""
        while self._waiting:
            self._confirm()

    def _confirm(self) -> None:
        from kafka.errors import BrokerResponseError, KafkaError, RequestTimedOutError

        future, size = self._waiting.popleft()
        self._waiting_bytes -= size
        try:
            future.get(timeout=self._timeout_s + CONFIRM_SLACK_S)
        except KafkaError as error:
            if isinstance(error, BrokerResponseError) and not isinstance(
                error, RequestTimedOutError
            ):
                said = error.args[0] if error.args else self._producer.refusals.said_of(error)
                why = explained(error, said)
            else:
                late = f"no broker has stored a record within {self._timeout_s:g} s"
                why = self._producer.refusals.explained(late)
            raise click.ClickException(
                f"topic {self._topic}: {why}; {self.confirmed} records are stored"
            ) from error
        self.confirmed += 1


def _records(
    name: str, form: str, delimiter: bytes, key_delimiter: bytes | None
) -> Iterator[tuple[str, InputRecord]]:
    """Each record of a file with its place, in words."""
    shown = "standard input" if name == "-" else name
    with click.open_file(name, "rb") as opened:
        file = cast(BufferedReader, opened)
        if form == "file":
            yield shown, InputRecord(None, file.read())
            return
        for number, piece in enumerate(
            _split(file, shown, delimiter if form == "raw" else b"\n"), 1
        ):
            place = f"{shown}, record {number}"
            if form == "raw":
                yield place, _raw(piece, key_delimiter, place)
            elif piece.strip():
                yield place, _from_json(piece, place)


def _split(file: BufferedReader, shown: str, delimiter: bytes) -> Iterator[bytes]:
    """What stands between delimiters; the last may be without one."""
    rest = bytearray()
    while chunk := file.read1(PIECE_BYTES):
        # Of what was searched before, only the last bytes can be the start of a delimiter.
        start = max(len(rest) - len(delimiter) + 1, 0)
        rest += chunk
        begin = 0
        while (end := rest.find(delimiter, start)) >= 0:
            yield bytes(rest[begin:end])
            begin = start = end + len(delimiter)
        del rest[:begin]
        if len(rest) > RECORD_MAX_BYTES:
            raise _BadInput(f"{shown}: no delimiter within {RECORD_MAX_BYTES} bytes")
    if rest:
        yield bytes(rest)


def _raw(piece: bytes, key_delimiter: bytes | None, place: str) -> InputRecord:
    if key_delimiter is None:
        return InputRecord(None, piece)
    key, found, value = piece.partition(key_delimiter)
    if not found:
        raise _BadInput(f"{place}: there is no key delimiter {key_delimiter.decode('latin-1')!r}")
    return InputRecord(key, value)


def _from_json(line: bytes, place: str) -> InputRecord:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadInput(f"{place} is not JSON: {error}") from error
    if not isinstance(fields, dict) or (unknown := sorted(fields.keys() - _FIELDS)):
        why = f"unknown field {unknown[0]!r}" if isinstance(fields, dict) else "not an object"
        raise _BadInput(
            f"{place}: {why}; a record has key, value, headers, partition, timestamp_ms"
        )
    try:
        return InputRecord(
            _bytes(fields.get("key")),
            _bytes(fields.get("value")),
            _headers(fields.get("headers")),
            _number(fields.get("partition"), 0, 2**31 - 1),
            _number(fields.get("timestamp_ms"), 0, 2**63 - 1),
        )
    except _WrongField as error:
        raise _BadInput(f"{place}: {error}") from error


class _WrongField(Exception):
    """A field of a JSON record has a value of the wrong kind."""


def _bytes(field: Any) -> bytes | None:
    if field is None:
        return None
    if isinstance(field, str):
        # A lone surrogate (\\ud800) is no text.
        try:
            return field.encode()
        except UnicodeEncodeError as error:
            raise _WrongField(f"{field!r} is not text") from error
    if isinstance(field, dict) and field.keys() == {"base64"}:
        try:
            return base64.b64decode(field["base64"], validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise _WrongField(f"{field['base64']!r} is not base64") from error
    raise _WrongField(f'{field!r} is neither a string, null nor {{"base64": ...}}')


def _headers(field: Any) -> tuple[Header, ...]:
    pairs = list(field.items()) if isinstance(field, dict) else field or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in pairs
    ):
        raise _WrongField("headers are a list of [name, value], or an object")
    headers = tuple((name, _bytes(value)) for name, value in pairs)
    for name, value in headers:
        if value is None:
            # KafkaProducer.send refuses them (kafka-python 3.0.12).
            raise _WrongField(f"header {name!r} is null, which this command cannot produce")
    return headers


def _number(field: Any, lowest: int, highest: int) -> int | None:
    if field is None:
        return None
    if type(field) is not int or not lowest <= field <= highest:
        raise _WrongField(f"{field!r} is not a number from {lowest} to {highest}")
    return field
