"""Where to start reading, as people write it for every --offset of a command or a job."""

from __future__ import annotations

import re
from datetime import UTC, datetime

Place = str | int | datetime
"""`earliest`, `latest`, an offset (negative: so many records before the end), or a time."""


def parse_place(text: str) -> Place:
    """`earliest`, `latest`, N, -N, or @TIME: a date and time (UTC), or ms since 1970.

    Raises ValueError.
    """
    if text in ("earliest", "latest"):
        return text
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text) if text != "-0" else "latest"
    if not text.startswith("@"):
        raise ValueError("write earliest, latest, N, -N (the last N), or @TIME")
    try:
        if text[1:].isdecimal():
            return datetime.fromtimestamp(int(text[1:]) / 1000, UTC)
        moment = datetime.fromisoformat(text[1:])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[1:]!r} is not a time: {error}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def timestamp_ms(moment: datetime) -> int:
    """Milliseconds since 1970, not before: negative ones mean other things to Kafka."""
    return max(0, round(moment.timestamp() * 1000))
