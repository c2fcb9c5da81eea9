"""Kafka's client, as the commands that talk to a running broker use it.

They are ordinary clients (kafka-python) and do not use the broker's internals, so they work
against any Kafka. Nothing here joins a group or creates a topic that was not asked for. Every
error becomes one sentence.
"""

import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from broker.cli.options import Bootstrap, to_bootstrap
from common.options import server_option

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.net.compat import KafkaNetClient

CONNECT_TIMEOUT_S = 5.0
BOOTSTRAP_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 30_000
DELIVERY_TIMEOUT_MS = 60_000
LINGER_MS = 5
BATCH_BYTES = 256 * 1024
REQUEST_MAX_BYTES = 2**30

bootstrap_option = server_option(
    "--bootstrap",
    "HOST:PORT,...",
    "127.0.0.1:9092",
    "KAFKA",
    to_bootstrap,
    "Brokers to connect to; one of them names the others.",
)


@contextmanager
def admin_client(bootstrap: Bootstrap) -> "Iterator[KafkaAdminClient]":
    """An admin client. An error that Kafka answers, or no answer, becomes one sentence."""
    with _kafka_errors(bootstrap):
        from kafka import KafkaAdminClient

        _connect_once(bootstrap)
        with KafkaAdminClient(
            bootstrap_servers=str(bootstrap),
            # The table consumer_offsets shows it beside the offsets that these commands commit.
            client_id="brokerhouse",
            bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        ) as admin:
            yield admin


@contextmanager
def consumer_client(
    bootstrap: Bootstrap, group: str | None = None, reset: str = "earliest"
) -> "Iterator[KafkaConsumer]":
    """A consumer, in a group only if one is named; errors as in `admin_client`.

    `reset`: where a group starts that has committed nothing.
    """
    with _kafka_errors(bootstrap):
        from kafka import KafkaConsumer

        with KafkaConsumer(
            bootstrap_servers=str(bootstrap),
            bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            client_id="brokerhouse",
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=reset if group else "earliest",
            kafka_client=_client_that_creates_no_topics,
        ) as consumer:
            if group is not None:
                _join_until_joined(consumer)
            yield consumer


def _join_until_joined(consumer: "KafkaConsumer") -> None:
    """Let the next poll go on with a join that the one before has begun.

    The leader of a group joins again when partitions have been added, also when its first metadata
    did not have the topic yet. kafka-python (3.0) takes that for done as soon as it has computed an
    assignment; if the time of a poll is over before the broker has answered with it, it is never
    applied and nothing is read. Kafka's client had the same error (KAFKA-9815). The consumer has no
    public call for this.
    """
    coordinator = consumer._coordinator
    must_join = coordinator.need_rejoin

    def need_rejoin() -> bool:
        if not must_join():
            return False
        coordinator.request_rejoin()  # it holds until an assignment is applied
        return True

    coordinator.need_rejoin = need_rejoin


@contextmanager
def producer_client(bootstrap: Bootstrap, **options: Any) -> "Iterator[KafkaProducer]":
    """A producer to topics that exist; errors as in `admin_client`."""
    with _kafka_errors(bootstrap):
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=str(bootstrap),
            bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            client_id="brokerhouse",
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
            # The broker says what is too large (max.message.bytes).
            max_request_size=REQUEST_MAX_BYTES,
            kafka_client=_client_that_creates_no_topics,
            **options,
        )
        try:
            yield producer
        finally:
            producer.close(timeout=CONNECT_TIMEOUT_S)


def _client_that_creates_no_topics(**configs: Any) -> "KafkaNetClient":
    """Without this, a consumer would create a deleted topic again.

    The consumer's own option `allow_auto_create_topics` does not reach its metadata requests
    (kafka-python 3.0.12).
    """
    from kafka.net.compat import KafkaNetClient

    client = KafkaNetClient(**configs)
    client.cluster.config["allow_auto_create_topics"] = False
    return client


@contextmanager
def _kafka_errors(bootstrap: Bootstrap) -> Iterator[None]:
    import logging

    from kafka.errors import BrokerResponseError, KafkaError, KafkaTimeoutError

    # The client's log repeats at length what is reported here.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        yield
    except BrokerResponseError as error:
        raise click.ClickException(f"{bootstrap} answered {explained(type(error))}") from error
    except KafkaTimeoutError as error:
        raise click.ClickException(f"{bootstrap} does not answer as a Kafka broker") from error
    except KafkaError as error:
        raise click.ClickException(f"{bootstrap} failed: {error}") from error


def _connect_once(bootstrap: Bootstrap) -> None:
    """Fails at once if nothing listens. Kafka's client would keep retrying."""
    reasons = []
    for address in bootstrap:
        try:
            socket.create_connection(address, CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(f"{address} ({error.strerror or error})")
        else:
            return
    raise click.ClickException(
        f"no broker at {', '.join(reasons)}: start one with `brokerhouse serve`, "
        "or name another with --bootstrap"
    )


def existing(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Descriptions of topics, all of which must exist."""
    for topic in found:
        raise_for(topic["error_code"], None, f"topic {topic['name']}")
    return found


def partitions_of(admin: "KafkaAdminClient", topic: str) -> list[int]:
    """The partitions of a topic, which must exist."""
    [described] = existing(admin.describe_topics([topic]))
    return sorted(part["partition_index"] for part in described["partitions"])


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets that a partition holds: from `start` to just before `end`."""

    start: int
    end: int


def partition_ranges(
    admin: "KafkaAdminClient", partitions: "Collection[TopicPartition]"
) -> "dict[TopicPartition, PartitionRange]":
    """The offsets that each of these partitions, which must exist, holds."""
    from kafka.admin import OffsetSpec

    if not partitions:
        return {}
    starts = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {part: PartitionRange(starts[part].offset, ends[part].offset) for part in partitions}


def raise_for(error_code: int, message: str | None, subject: str) -> None:
    """Turns an error code in an answer into a sentence about `subject`."""
    if error_code == 0:
        return
    from kafka.errors import UnknownTopicOrPartitionError, for_code

    error = for_code(error_code)
    if error is UnknownTopicOrPartitionError:
        raise click.ClickException(f"{subject} does not exist")
    raise click.ClickException(f"{subject}: {message or explained(error)}")


def explained(error: type[Any]) -> str:
    """The name of a Kafka error, and Kafka's description of it."""
    return f"{error.message}: {error.description}"
