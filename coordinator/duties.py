"""What a broker may and must do for the groups whose rows are on one shard."""

from __future__ import annotations

from typing import Protocol


class Duties(Protocol):
    """Asked before each step that depends on it, because it may end at any moment."""

    def may_serve(self) -> bool:
        """Whether the session of this broker is valid: it may answer for its groups and write."""

    def is_housekeeper(self) -> bool:
        """Whether this is the broker that does what one broker has to do for the whole shard."""


class SoleBroker:
    """The duties of a broker that is alone: it always serves, and does everything."""

    def may_serve(self) -> bool:
        return True

    def is_housekeeper(self) -> bool:
        return True
