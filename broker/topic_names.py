"""Which topic names may be, as Kafka has them: length, characters, collisions, internal topics."""

import re

from protocol.errors import InvalidTopic

MAX_LENGTH = 249
"""Kafka's limit: a topic directory's name has to fit a file name."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def check(name: str) -> None:
    """InvalidTopic, with a sentence for a person, unless a topic may have this name."""
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
    """Whether `check` lets the name pass."""
    return 0 < len(name) <= MAX_LENGTH and name not in (".", "..") and bool(_LEGAL.fullmatch(name))


def is_internal(name: str) -> bool:
    """Whether Kafka keeps its own state under this name; clients hide such topics from users."""
    return name in _INTERNAL


def collision_key(name: str) -> str | None:
    """Two topics whose keys are equal collide; None where the name cannot collide.

    Kafka's metric names write '.' as '_', so it refuses `a.b` where `a_b` exists.
    """
    return name.replace(".", "_") if "." in name or "_" in name else None
