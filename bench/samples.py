"""What a long run samples: sizes on disk, tables of samples, and whether figures stayed flat."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from bench.kafka.figures import FLAT_WITHIN, Growth, growth, short

MINUTE = "minute"
_LINES = 20

Sample = Mapping[str, float]
"""Figures at one moment, by name; `MINUTE` is when."""


def directory_bytes(directory: Path) -> int:
    """The blocks that all files below take. A file that is deleted meanwhile counts as nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def samples_table(samples: Sequence[Sample]) -> str:
    """Markdown: the samples, thinned out."""
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    step = max(1, len(samples) // _LINES)
    lines = [f"| {' | '.join(names)} |", f"|{'---:|' * len(names)}"]
    for sample in samples[::step]:
        values = (short(sample[name]) if name in sample else "" for name in names)
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def growths(samples: Sequence[Sample]) -> dict[str, Growth]:
    """Of each figure of the last sample."""
    return {
        name: growth([sample.get(name, 0.0) for sample in samples])
        for name in samples[-1]
        if name != MINUTE
    }


def growth_table(samples: Sequence[Sample], just_shown: Collection[str]) -> str:
    """Markdown: which figures stayed flat. `just_shown`: those that need not."""
    lines = [
        f"| figure | second quarter | last quarter | flat (at most {FLAT_WITHIN:.0%} more) |",
        "|---|---:|---:|---|",
    ]
    for name, found in growths(samples).items():
        flat = "" if name in just_shown else "yes" if found.flat else "no"
        lines.append(f"| {name} | {short(found.before)} | {short(found.after)} | {flat} |")
    return "\n".join(lines)
