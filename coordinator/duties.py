"""What a broker may and must do for the groups whose rows are on one shard."""

from __future__ import annotations

from typing import Protocol


class Duties(Protocol):
    """Check it before each step that depends on it: it may end at any moment."""

    def may_serve(self) -> bool:
        """Whether the session of this broker is valid: it may answer for its groups and write."""

    def is_housekeeper(self) -> bool:
        """Whether this is the housekeeping broker of the shard."""

    @property
    def is_alone(self) -> bool:
        """Whether there can be no other broker, so that nothing has to be read again."""


class SoleBroker:
    """The duties of a broker that runs alone: it may always serve, and is the housekeeper."""

    def may_serve(self) -> bool:
        return True

    def is_housekeeper(self) -> bool:
        return True

    @property
    def is_alone(self) -> bool:
        return True
