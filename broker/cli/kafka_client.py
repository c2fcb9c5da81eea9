"""Kafka's client, as the commands that talk to a running broker use it.

They are ordinary clients (kafka-python) and do not use the broker's internals, so they work
against any Kafka. Nothing here joins a group or creates a topic that was not asked for. Every
error becomes one sentence.

A request that fails because a broker is away, or with an error that may pass, is repeated until
`Bootstrap.timeout_s` is over (broker/cli/retries.py).
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brokerhouse.broker.cli.bootstrap import answering
from brokerhouse.broker.cli.ctrl_c import CtrlC
from brokerhouse.broker.cli.options import Bootstrap
from brokerhouse.broker.cli.retries import explained, last_broker_error, may_pass, repeated

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.net.compat import KafkaNetClient

T = TypeVar("T")

LINGER_MS = 5
BATCH_BYTES = 256 * 1024
REQUEST_MAX_BYTES = 2**30
MAX_RECONNECT_BACKOFF_MS = 500
GIVE_UP_S = 5.0
"""How long a producer that gives up its records may take to end."""


def _common(bootstrap: Bootstrap) -> dict[str, Any]:
    """Settings of every client. A request to a broker that is stopped leaves time for another."""
    return {
        "bootstrap_servers": str(answering(bootstrap.addresses, bootstrap.timeout_s)),
        "bootstrap_timeout_ms": int(bootstrap.timeout_s * 1000),
        "request_timeout_ms": int(bootstrap.timeout_s * 1000 / 3),
        "reconnect_backoff_max_ms": MAX_RECONNECT_BACKOFF_MS,
        # The table consumer_offsets shows it beside the offsets that these commands commit.
        "client_id": "brokerhouse",
    }


@dataclass(slots=True)
class Refusals:
    """The last error with which a broker refused a request of a producer or a group's member.

    These clients repeat what may pass, and say only that the time is over (kafka-python 3.0.12).
    """

    error: Any = None
    said: str | None = None

    def watch(self, manager: Any) -> None:
        """Looks at the answers to all requests of a connection manager."""
        send_once = manager.send

        def send(*request: Any, **options: Any) -> Any:
            answer = send_once(*request, **options)
            answer.add_callback(self._note)
            return answer

        manager.send = send

    def _note(self, response: Any) -> None:
        from kafka.errors import for_code
        from kafka.protocol.producer import ProduceResponse

        if isinstance(response, ProduceResponse):
            topics = response.responses
            parts = [part for topic in topics for part in topic.partition_responses]
        else:
            parts = [response]
        for part in parts:
            if code := getattr(part, "error_code", 0):
                self.error, self.said = for_code(code), getattr(part, "error_message", None)

    def explained(self, otherwise: str) -> str:
        return otherwise if self.error is None else explained(self.error, self.said)

    def said_of(self, error: BaseException) -> str | None:
        """The broker's own words for this error, which these clients may have dropped."""
        return self.said if isinstance(error, self.error or ()) else None


@contextmanager
def admin_client(bootstrap: Bootstrap) -> "Iterator[KafkaAdminClient]":
    """An admin client. An error that Kafka answers, or no answer, becomes one sentence."""
    with _kafka_errors(bootstrap):
        from kafka import KafkaAdminClient

        with KafkaAdminClient(**_common(bootstrap)) as admin:
            _repeat_requests(admin, bootstrap.timeout_s)
            yield admin


def _repeat_requests(admin: "KafkaAdminClient", timeout_s: float) -> None:
    """Kafka-python (3.0.12) sends each request of its admin client once, and to one broker.

    All public calls of that client go through `run` of its connection manager.
    """
    manager = admin._manager
    run_once = manager.run

    def forget() -> None:
        admin._controller_id = None
        manager.cluster._coordinators.clear()
        manager.cluster.request_update()

    def repeat(attempt: Callable[[], T]) -> T:
        return repeated(attempt, timeout_s, forget, lambda seconds: admin.sleep(seconds))

    admin.sleep = time.sleep
    admin.repeated = repeat
    manager.run = lambda ask, *arguments: repeat(lambda: run_once(ask, *arguments))


def end_at_ctrl_c(admin: "KafkaAdminClient", stop: CtrlC) -> None:
    """Let Ctrl-C, which `stop` has seen, end the repeating of requests."""
    admin.sleep = stop.sleep


@contextmanager
def consumer_client(
    bootstrap: Bootstrap, group: str | None = None, reset: str = "earliest"
) -> "Iterator[KafkaConsumer]":
    """A consumer with its `refusals`, in a group only if one is named; errors as in `admin_client`.

    `reset`: where a group starts that has committed nothing.
    """
    with _kafka_errors(bootstrap):
        from kafka import KafkaConsumer

        with KafkaConsumer(
            **_common(bootstrap),
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset=reset if group else "earliest",
            kafka_client=_client_that_creates_no_topics,
        ) as consumer:
            consumer.refusals = Refusals()
            consumer.refusals.watch(consumer._client._manager)
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
    """A producer to topics that exist, with its `refusals`; errors as in `admin_client`."""
    with _kafka_errors(bootstrap):
        from kafka import KafkaProducer

        timeout_ms = int(bootstrap.timeout_s * 1000)
        producer = KafkaProducer(
            **_common(bootstrap),
            delivery_timeout_ms=timeout_ms,
            max_block_ms=timeout_ms,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
            # The broker says what is too large (max.message.bytes).
            max_request_size=REQUEST_MAX_BYTES,
            kafka_client=_client_that_creates_no_topics,
            **options,
        )
        producer.refusals = Refusals()
        producer.refusals.watch(producer._sender._client._manager)
        try:
            yield producer
        except BaseException:
            # What is not stored yet would be sent again. `close` alone waits for that, then fails
            # itself, and once more when the producer is deleted (kafka-python 3.0.12).
            producer._sender.force_close()
            producer.close(timeout=GIVE_UP_S)
            raise
        producer.close(timeout=bootstrap.timeout_s)


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

    from kafka.errors import BrokerResponseError, KafkaError, RequestTimedOutError

    # The client's log repeats at length what is reported here.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        yield
    except KafkaError as error:
        known = last_broker_error(error)
        if isinstance(known, BrokerResponseError) and not isinstance(known, RequestTimedOutError):
            raise click.ClickException(f"{bootstrap} answered {explained(known)}") from error
        if may_pass(error):
            raise click.ClickException(
                f"no broker at {bootstrap} succeeded within {bootstrap.timeout_s:g} s ({known})"
            ) from error
        raise click.ClickException(f"{bootstrap} failed: {known}") from error


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
    raise click.ClickException(f"{subject}: {explained(error, message)}")
