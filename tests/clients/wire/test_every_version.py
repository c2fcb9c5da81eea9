"""Every version of every API, byte for byte, with the samples of `tests/support/samples`.

Real clients use one version each, the newest that both sides know. Here every version that the
broker advertises is sent, with content. Its answer must decode exactly and say what the sample of
the key expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import ApiVersionsRequest

from brokerhouse.protocol.versions import ApiKey
from tests.support import messages, samples
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.one_partition import FETCH, LIST, PRODUCE
from tests.support.samples import Asked
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")

EVERY_VERSION = [
    pytest.param(key, version, id=f"{key.name}-{version}")
    for key, version in samples.every_version()
]
LISTED_BUT_NOT_SERVED = {(int(ApiKey.Produce), version) for version in range(3)}
"""Kafka 4 lists Produce 0 to 2 for librdkafka, and answers none of them (KAFKA-18659)."""


def test_every_version_that_the_broker_advertises_is_tested(wire: Wire) -> None:
    """Each key has a sample (`samples.of` raises if not), and each of its versions is asked."""
    advertised = wire.ask(ApiVersionsRequest(), 0).api_keys
    for api in advertised:
        assert samples.of(ApiKey(api.api_key)).request is not None
    asked = {(int(key), version) for key, version in samples.every_version()}
    assert {
        (api.api_key, version)
        for api in advertised
        for version in range(api.min_version, api.max_version + 1)
        if (api.api_key, version) not in LISTED_BUT_NOT_SERVED
    } == asked


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_every_version_is_answered_in_that_version(
    broker: BrokerProcess, wire: Wire, known: Target, key: ApiKey, version: int
) -> None:
    sample = samples.of(key)
    answer = wire.ask(sample.request(known, version), version)
    if sample.throttle_time_since is not None and version >= sample.throttle_time_since:
        assert answer.throttle_time_ms == 0
    sample.check(Asked(broker, known, version), answer)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_every_version_answers_an_error_about_an_unknown_topic(
    wire: Wire, key: ApiKey, version: int
) -> None:
    """The same requests about a topic that does not exist are answered with an error."""
    nowhere = Target("no such topic", UUID(int=7))  # with spaces, or Metadata would make it
    sample = samples.of(key)
    answer = wire.ask(sample.request(nowhere, version), version)
    if sample.names_the_topic:
        assert set(_error_codes(answer.to_dict(json=False))) & {3, 17, 100}


def _error_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name.endswith("error_code"):  # also partition_error_code
                yield inner
            else:
                yield from _error_codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _error_codes(inner)


def test_answers_come_in_the_order_of_the_requests(wire: Wire, target: Target) -> None:
    """A slow request in the middle holds up those behind it; none of them overtakes it."""
    requests: list[tuple[ApiMessage, int]] = [
        (messages.produce(target, messages.small_batch()), PRODUCE),
        (messages.fetch(target, 2, max_wait_ms=300, min_bytes=1), FETCH),
        (messages.produce(target, messages.small_batch()), PRODUCE),
        (ApiVersionsRequest(client_software_name="w", client_software_version="1"), 3),
        (messages.list_offsets(target, -1), LIST),
        (messages.produce(target, messages.small_batch()), PRODUCE),
    ]
    ids = [wire.send_request(request, version) for request, version in requests]
    answers = [
        wire.receive_response(request, version, correlation_id)
        for (request, version), correlation_id in zip(requests, ids, strict=True)
    ]
    assert answers[1].responses[0].partitions[0].high_watermark == 2
    assert answers[4].topics[0].partitions[0].offset == 4
    assert answers[5].responses[0].partition_responses[0].base_offset == 4
