"""What the codec needs of an API key: its message classes and the versions that are served.

Which keys and versions are served is the broker's decision, so the broker hands its table in:
`broker.api.APIS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

from kafka.protocol.api_key import ApiKey
from kafka.protocol.api_message import ApiMessage

__all__ = ["ApiKey", "ServedApi", "ServedT", "served"]


@dataclass(frozen=True, slots=True)
class ServedApi:
    """The message classes of an API key, and the first and last version that is answered.

    `decode`: from (frame, position, version) to (message, position after it); None: the decoder
    that protocol/decoder.py generates.
    """

    request: type[ApiMessage]
    response: type[ApiMessage]
    _: KW_ONLY
    versions: tuple[int, int]
    decode: Callable[[bytes, int, int], tuple[Any, int]] | None = None

    key: ApiKey = field(init=False)
    flexible_since: int = field(init=False)
    """The first version whose requests are flexible (KIP-482); above `versions` if none is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", ApiKey(self.request.API_KEY))
        first, last = self.versions
        flexible = filter(self.request.flexible_version_q, range(first, last + 1))
        object.__setattr__(self, "flexible_since", next(flexible, last + 1))

    @property
    def min_version(self) -> int:
        return self.versions[0]

    @property
    def max_version(self) -> int:
        return self.versions[1]

    def serves(self, version: int) -> bool:
        first, last = self.versions
        return first <= version <= last

    def has_error_code(self, version: int) -> bool:
        """Whether the response itself, not only its parts, has an error code in this version."""
        return any(
            field.name == "error_code" and field.for_version_q(version)
            for field in self.response._struct._fields
        )


ServedT = TypeVar("ServedT", bound=ServedApi)


def served(apis: Mapping[int, ServedT], api_key: int, api_version: int) -> ServedT | None:
    """The API of a request header's key, if that version of it is answered."""
    api = apis.get(api_key)
    return api if api is not None and api.serves(api_version) else None
