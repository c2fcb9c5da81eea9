"""DescribeClientQuotas and AlterClientQuotas: what is stored, and which filter finds it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey
from tests.support.admin_requests import INVALID_REQUEST, UNSUPPORTED_VERSION, AdminWire
from tests.support.broker_process import BrokerProcess

AlterQuotas = APIS[ApiKey.AlterClientQuotas].request
DescribeQuotas = APIS[ApiKey.DescribeClientQuotas].request
EXACT, DEFAULT, ANY = range(3)

Entity = tuple[tuple[str, str | None], ...]


def entry(entity: Entity, **ops: float | None) -> Any:
    rows = AlterQuotas.EntryData
    return rows(
        entity=[rows.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            rows.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in ops.items()
        ],
    )


def alter(wire: AdminWire, *entries: Any, validate_only: bool = False) -> list[int]:
    answer = wire.ask(ApiKey.AlterClientQuotas, entries=list(entries), validate_only=validate_only)
    for one in answer.entries:
        assert (one.error_code == 0) == (one.error_message is None)
    return [one.error_code for one in answer.entries]


def ask(wire: AdminWire, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    rows = [
        DescribeQuotas.ComponentData(entity_type=kind, match_type=match, match=name)
        for kind, match, name in components
    ]
    return wire.ask(ApiKey.DescribeClientQuotas, components=rows, strict=strict)


def described(
    wire: AdminWire, *components: tuple[str, int, str | None], strict: bool = False
) -> dict[Entity, dict[str, float]]:
    answer = ask(wire, *components, strict=strict)
    assert answer.error_code == 0
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in one.entity)): {
            value.key: value.value for value in one.values
        }
        for one in answer.entries
    }


ALICE: Entity = (("user", "alice"),)
ANYBODY: Entity = (("user", None),)
CLIENT: Entity = (("client-id", "c"),)
BOTH: Entity = (("client-id", "c"), ("user", "alice"))
HOST: Entity = (("ip", "127.0.0.1"),)


@pytest.fixture(scope="module")
def stored(broker: BrokerProcess) -> Iterator[AdminWire]:
    """The shared broker with quotas, which the tests leave as they are."""
    wire = AdminWire(broker.kafka)
    entries = [
        entry(ALICE, producer_byte_rate=1024.0, request_percentage=12.5),
        entry(ANYBODY, consumer_byte_rate=10.0),
        entry(CLIENT, controller_mutation_rate=0.5),
        entry(BOTH, producer_byte_rate=5.0),
        entry(HOST, connection_creation_rate=3.0),
    ]
    assert alter(wire, *entries) == [0] * 5
    yield wire
    assert alter(wire, *(removed(e, v) for e, v in described(wire).items())) == [0] * 5
    wire.close()


def removed(entity: Entity, values: Mapping[str, float]) -> Any:
    return entry(entity, **dict.fromkeys(values))


def test_a_filter_finds_the_quotas_of_entities_with_all_its_types(stored: AdminWire) -> None:
    alice, anybody = ("user", EXACT, "alice"), ("user", DEFAULT, None)
    some_user, some_client = ("user", ANY, None), ("client-id", ANY, None)
    for components, found, found_strictly in (
        ((), {ALICE, ANYBODY, CLIENT, BOTH, HOST}, set()),
        ((alice,), {ALICE, BOTH}, {ALICE}),
        ((anybody,), {ANYBODY}, {ANYBODY}),
        ((some_user,), {ALICE, ANYBODY, BOTH}, {ALICE, ANYBODY}),
        ((some_client,), {CLIENT, BOTH}, {CLIENT}),
        ((alice, some_client), {BOTH}, {BOTH}),
        ((("ip", ANY, None),), {HOST}, {HOST}),
        ((("user", EXACT, "nobody"),), set(), set()),
    ):
        assert described(stored, *components).keys() == found, components
        assert described(stored, *components, strict=True).keys() == found_strictly, components
    assert described(stored)[ALICE] == {"producer_byte_rate": 1024.0, "request_percentage": 12.5}


def test_a_wrong_filter_of_quotas_is_refused(wire: AdminWire) -> None:
    for components, code in (
        ((("planet", ANY, None),), UNSUPPORTED_VERSION),
        ((("", ANY, None),), INVALID_REQUEST),
        ((("user", 7, None),), INVALID_REQUEST),
        ((("user", EXACT, None),), INVALID_REQUEST),
        ((("user", DEFAULT, "x"),), INVALID_REQUEST),
        ((("user", ANY, "x"),), INVALID_REQUEST),
        ((("user", ANY, None), ("user", EXACT, "alice")), INVALID_REQUEST),
        ((("ip", ANY, None), ("user", ANY, None)), INVALID_REQUEST),
    ):
        answer = ask(wire, *components)
        assert (answer.error_code, answer.entries) == (code, None), components
        assert answer.error_message


def test_a_wrong_change_of_quotas_changes_nothing(wire: AdminWire, topic: str) -> None:
    user: Entity = (("user", topic),)
    for entity, values in (
        ((), {"producer_byte_rate": 1.0}),
        ((("planet", "mars"),), {"producer_byte_rate": 1.0}),
        ((("user", ""),), {"producer_byte_rate": 1.0}),
        ((("user", topic), ("user", "other")), {"producer_byte_rate": 1.0}),
        ((("user", "x" * 5000),), {"producer_byte_rate": 1.0}),
        ((("ip", "127.0.0.1"), ("user", topic)), {"connection_creation_rate": 1.0}),
        ((("ip", "no address"),), {"connection_creation_rate": 1.0}),
        ((("ip", "no\0address"),), {"connection_creation_rate": 1.0}),
        ((("ip", "127.0.0.1"),), {"producer_byte_rate": 1.0}),
        (user, {"connection_creation_rate": 1.0}),
        (user, {"no_such_quota": 1.0}),
        (user, {"consumer_byte_rate": 5.0, "producer_byte_rate": 10.5}),
        (user, {"consumer_byte_rate": 5.0, "producer_byte_rate": -1.0}),
        (user, {"consumer_byte_rate": 5.0, "producer_byte_rate": 0.0}),
        (user, {"consumer_byte_rate": 5.0, "producer_byte_rate": 1e30}),
        (user, {"consumer_byte_rate": 5.0, "request_percentage": math.nan}),
        (user, {"consumer_byte_rate": 5.0, "request_percentage": math.inf}),
    ):
        assert alter(wire, entry(entity, **values)) == [INVALID_REQUEST], (entity, values)
    twice = entry(user, producer_byte_rate=1.0)
    twice.ops = [*twice.ops, *twice.ops]
    assert alter(wire, twice) == [INVALID_REQUEST]
    good = entry(user, producer_byte_rate=1.0)
    assert alter(wire, good, good) == [INVALID_REQUEST]
    assert alter(wire, good, validate_only=True) == [0]
    assert described(wire, ("user", EXACT, topic)) == {}


def test_quotas_of_each_entity_in_a_request_succeed_or_fail_alone(
    wire: AdminWire, topic: str
) -> None:
    user, default = (("user", topic),), (("client-id", None), ("user", topic))
    bad = entry((("user", f"{topic}-bad"),), producer_byte_rate=-1.0)
    good = entry(user, producer_byte_rate=1.0, consumer_byte_rate=2.0)
    assert alter(wire, good, bad, entry(default, request_percentage=1.5)) == [0, INVALID_REQUEST, 0]
    of_user = ("user", EXACT, topic)
    assert described(wire, of_user) == {
        user: {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0},
        default: {"request_percentage": 1.5},
    }
    changed = entry(user, producer_byte_rate=None, consumer_byte_rate=7.0, request_percentage=None)
    assert alter(wire, changed, entry(default, request_percentage=None)) == [0, 0]
    assert described(wire, of_user) == {user: {"consumer_byte_rate": 7.0}}
    assert alter(wire, entry(user, consumer_byte_rate=None)) == [0]
    assert described(wire, of_user) == {}
    assert alter(wire, entry(user, consumer_byte_rate=8.0)) == [0]
    assert described(wire, of_user) == {user: {"consumer_byte_rate": 8.0}}
    assert alter(wire, entry(user, consumer_byte_rate=None)) == [0]


def test_any_text_can_be_the_name_of_a_user_with_quotas(wire: AdminWire) -> None:
    user: Entity = (("user", "null \0, line\n, quotes \"'`, back\\slash\\, %2F, {a:String}, é 😀"),)
    assert alter(wire, entry(user, producer_byte_rate=1.0)) == [0]
    assert described(wire, ("user", EXACT, user[0][1])) == {user: {"producer_byte_rate": 1.0}}
    assert alter(wire, entry(user, producer_byte_rate=None)) == [0]
    assert described(wire, ("user", EXACT, user[0][1])) == {}


def test_quotas_survive_a_kill(configured: BrokerProcess) -> None:
    process = configured
    wire = AdminWire(process.kafka)
    assert alter(
        wire, entry(ALICE, producer_byte_rate=5.0), entry(CLIENT, producer_byte_rate=6.0)
    ) == [0, 0]
    assert alter(wire, entry(CLIENT, producer_byte_rate=None)) == [0]
    wire.close()
    process.kill()
    process.start()
    wire = AdminWire(process.kafka)
    assert described(wire) == {ALICE: {"producer_byte_rate": 5.0}}
    assert alter(wire, entry(ALICE, producer_byte_rate=None)) == [0]
    wire.close()
