"""Client quotas: their keys, their entities, and filters of entities (KIP-546).

Quotas are stored and described; this broker does not enforce them. An entity is a user, a client
id, both, or an IP address. The name None is the default for all that have no quota themselves.
Each entity is one object in the `AdminStore`, so all changes of one entity are atomic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from brokerhouse.broker.settings.admin_store import AdminStore, Object
from brokerhouse.protocol.errors import InvalidRequest, UnsupportedVersion
from brokerhouse.storage.registry_values import text_of

_PREFIX = "quota/"
USER, CLIENT_ID, IP = "user", "client-id", "ip"
_TYPES = frozenset({USER, CLIENT_ID, IP})
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1
_OF_CLIENTS: Mapping[str, int | None] = MappingProxyType(
    {
        "producer_byte_rate": _INT64_MAX,
        "consumer_byte_rate": _INT64_MAX,
        "request_percentage": None,
        "controller_mutation_rate": None,
    }
)
"""The largest value if it must be a whole number, else None."""
_OF_ADDRESSES: Mapping[str, int | None] = MappingProxyType({"connection_creation_rate": _INT32_MAX})

Entity = Mapping[str, str | None]
"""A name for each type of entity; None is the default of the type."""


@dataclass(frozen=True, slots=True)
class Quota:
    """All quotas of one entity, by key."""

    entity: Entity
    values: Mapping[str, float]


class Match(IntEnum):
    """Which names of a type are asked for, by its number in DescribeClientQuotas."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a filter: entities that have a name of this type, and which name."""

    entity_type: str
    match: Match
    name: str | None


class ClientQuotas:
    """The quotas of a broker or a cluster."""

    def __init__(self, store: AdminStore) -> None:
        self._store = store

    async def described(self, components: Sequence[Component], *, strict: bool) -> list[Quota]:
        """Quotas whose entities match every component; `strict`: that have no other type.

        Raises `EngineError`.
        """
        stored = await self._store.all(_PREFIX)
        quotas = [Quota(dict(json.loads(key)), values) for key, values in stored.items()]
        return [one for one in quotas if _matches(one.entity, components, strict=strict)]

    async def alter(self, entity: Entity, ops: Mapping[str, float | None]) -> None:
        """Set quotas; None removes one. They have been checked. Raises `EngineError`."""

        def change(before: Object) -> Object:
            after = {**before, **ops}
            return {key: value for key, value in after.items() if value is not None}

        await self._store.change(_PREFIX + text_of(sorted(entity.items())), change)


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity of (type, name). Raises `InvalidRequest`."""
    entity: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in _TYPES:
            raise InvalidRequest(f"There is no quota entity type {kind!r}.")
        if kind in entity:
            raise InvalidRequest(f"The quota entity has the type {kind} more than once.")
        if name == "":
            raise InvalidRequest(f"The name of the {kind} is empty.")
        entity[kind] = name
    if not entity:
        raise InvalidRequest("The quota entity is empty.")
    if IP in entity and len(entity) > 1:
        raise InvalidRequest("A quota of an IP address cannot be of a user or client id, too.")
    return entity


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raises `InvalidRequest` unless the entity can have this quota."""
    known = _OF_ADDRESSES if IP in entity else _OF_CLIENTS
    if key not in known:
        raise InvalidRequest(f"{' and '.join(sorted(entity))} has no quota {key!r}.")
    if not value > 0 or math.isinf(value):  # also what is not a number
        raise InvalidRequest(f"The quota {key} must be larger than 0 and finite, not {value}.")
    largest = known[key]
    if largest is None:
        return
    if value != int(value):
        raise InvalidRequest(f"The quota {key} must be a whole number, not {value}.")
    if value > largest:
        raise InvalidRequest(f"The quota {key} must be at most {largest}, not {value}.")


def filter_of(parts: Iterable[tuple[str, int, str | None]]) -> list[Component]:
    """The filter of (type, match, name). Raises `InvalidRequest` and `UnsupportedVersion`."""
    components: dict[str, Component] = {}
    for kind, number, name in parts:
        if kind == "":
            raise InvalidRequest("A filter has an empty entity type.")
        if kind in components:
            raise InvalidRequest(f"The filter has the type {kind} more than once.")
        if kind not in _TYPES:
            raise UnsupportedVersion(f"There is no quota entity type {kind!r}.")
        if number not in set(Match):
            raise InvalidRequest(f"There is no match type {number}.")
        match = Match(number)
        if (match is Match.EXACT) != (name is not None):
            needs = "needs a name" if match is Match.EXACT else "takes no name"
            raise InvalidRequest(f"The match {match.name} of {kind} {needs}.")
        components[kind] = Component(kind, match, name)
    if IP in components and len(components) > 1:
        raise InvalidRequest("A filter by IP address cannot have users or client ids, too.")
    return list(components.values())


def _matches(entity: Entity, components: Sequence[Component], *, strict: bool) -> bool:
    if strict and len(entity) != len(components):
        return False
    return all(
        one.entity_type in entity
        and (one.match is Match.ANY or entity[one.entity_type] == one.name)
        for one in components
    )
