"""Kafka's rules for topic names: length, characters, collisions, internal topics."""

import re

from brokerhouse.protocol.errors import InvalidTopic

MAX_LENGTH = 249
"""Kafka's limit: it names directories after topics."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def check(name: str) -> None:
    """Raises `InvalidTopic`, with a sentence, if a topic may not have this name."""
    if not name:
        raise InvalidTopic("A topic name must not be empty.")
    if name in (".", ".."):
        raise InvalidTopic(f"{name!r} is not allowed as a topic name.")
    if len(name) > MAX_LENGTH:
        raise InvalidTopic(
            f"A topic name may have {MAX_LENGTH} characters at most; this one has {len(name)}."
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(
            f"The topic name {name!r} has characters other than ASCII letters, digits, "
            "'.', '_' and '-'."
        )


def is_valid(name: str) -> bool:
    """Whether `check` accepts the name."""
    return 0 < len(name) <= MAX_LENGTH and name not in (".", "..") and bool(_LEGAL.fullmatch(name))


def is_internal(name: str) -> bool:
    """Whether Kafka keeps its own state in the topic. Clients hide such topics from users."""
    return name in _INTERNAL


def collision_key(name: str) -> str | None:
    """Topics with equal keys collide. None if the name cannot collide with any other.

    In the names of Kafka's metrics '.' becomes '_', so Kafka refuses `a.b` if `a_b` exists.
    """
    return name.replace(".", "_") if "." in name or "_" in name else None
