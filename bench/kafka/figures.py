"""Figures: read from what Kafka's tools print, and shown as Markdown tables.

Nothing here starts a process.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_PRODUCED = re.compile(
    r"^(?P<records>\d+)(?P<steady> steady state)? records sent,"
    r" (?P<records_per_s>[\d.]+) records/sec"
    r" .* (?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th\.$",
    re.MULTILINE,
)
_CONSUMED = re.compile(r"^\S+ \S+, \S+ \S+, (?P<values>[\d., ]+)$", re.MULTILINE)


class UnreadableOutput(Exception):
    """A tool did not print its figures; the message is what it printed."""


@dataclass(frozen=True, slots=True)
class Produced:
    """What ProducerPerformance measured. Records and rate are of the whole run; the latencies leave
    out the warm-up, if there was one. Its latencies are whole milliseconds."""

    records: int
    records_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float

    @property
    def seconds(self) -> float:
        return self.records / self.records_per_s


def produced(output: str) -> Produced:
    found = list(_PRODUCED.finditer(output))
    whole = [match for match in found if not match["steady"]]
    if len(whole) != 1:
        raise UnreadableOutput(output)
    latencies = found[-1]
    return Produced(
        int(whole[0]["records"]),
        float(whole[0]["records_per_s"]),
        float(latencies["p50"]),
        float(latencies["p99"]),
        float(latencies["p999"]),
    )


@dataclass(frozen=True, slots=True)
class Consumed:
    """What ConsumerPerformance measured. `fetch`: without the time until it had its partitions."""

    records: int
    mb_per_s: float
    fetch_mb_per_s: float


def consumed(output: str) -> Consumed:
    found = _CONSUMED.findall(output)
    values = found[-1].split(", ") if found else []
    if len(values) != 8:
        raise UnreadableOutput(output)
    _, mb_per_s, records, _, _, _, fetch_mb_per_s, _ = values
    return Consumed(int(records), float(mb_per_s), float(fetch_mb_per_s))


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    place = -(-len(ascending) * percent // 100)
    return ascending[max(int(place) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Figure:
    """One value that a round found. `name` has the unit."""

    case: str
    name: str
    value: float


@dataclass
class Table:
    """What all rounds of a part found, by load, in the order in which they found it."""

    servers: Sequence[str]
    values: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)

    def add(self, server: str, figures: Iterable[Figure]) -> None:
        for figure in figures:
            of_servers = self.values.setdefault((figure.case, figure.name), {})
            of_servers.setdefault(server, []).append(figure.value)

    def markdown(self) -> str:
        """The median of each figure, and of several rounds the least and the greatest beside it."""
        first, second = self.servers
        lines = [
            f"| load | figure | {first} | {second} | {second} / {first} |",
            "|---|---|---:|---:|---:|",
        ]
        cases = list(dict.fromkeys(case for case, _ in self.values))
        by_case = sorted(self.values.items(), key=lambda item: cases.index(item[0][0]))
        for (case, name), of_servers in by_case:
            shown = [median_and_spread(of_servers.get(server, [])) for server in self.servers]
            lines.append(
                f"| {case} | {name} | {' | '.join(shown)} | {_ratio(of_servers, first, second)} |"
            )
        return "\n".join(lines)


def _ratio(of_servers: dict[str, list[float]], first: str, second: str) -> str:
    if first not in of_servers or second not in of_servers:
        return ""
    one, other = (statistics.median(of_servers[server]) for server in (first, second))
    return f"{other / one:.2f}" if one else ""


def median_and_spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    median = short(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({short(min(values))}-{short(max(values))})"


def short(value: float) -> str:
    """About three digits: 0.123, 1.23, 12.3, 123, 123,456."""
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


FLAT_WITHIN = 0.2


@dataclass(frozen=True, slots=True)
class Growth:
    """The medians of a sampled figure in the second and in the last quarter of the time."""

    before: float
    after: float

    @property
    def flat(self) -> bool:
        return self.after <= self.before * (1 + FLAT_WITHIN)


def growth(samples: Sequence[float]) -> Growth:
    """Of at least four samples. The first quarter is left out: caches fill, first merges begin."""
    quarter = len(samples) // 4
    return Growth(
        statistics.median(samples[quarter : 2 * quarter]), statistics.median(samples[-quarter:])
    )
