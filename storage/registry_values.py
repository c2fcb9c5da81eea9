"""JSON texts that brokers store in the registry: written compactly, checked when they are read."""

from __future__ import annotations

import json
from typing import Any


class MalformedState(ValueError):
    """Text in the registry that a broker of this version would not write."""


def text_of(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def object_of(text: str, keys: set[str], what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise MalformedState(
            f"a text in the registry is not {what}: {error}: {shortened(text)}"
        ) from error
    if not isinstance(found, dict) or not found.keys() >= keys:  # newer versions may say more
        raise MalformedState(
            f"a text in the registry is not {what} with {', '.join(sorted(keys))}:"
            f" {shortened(text)}"
        )
    return found


def shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def count_of(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number of 0 or more")
    return value


def name_of(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name")
    return value
