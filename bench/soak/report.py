"""What a soak found: a table, a picture, and whether anything grew that should not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.samples import MINUTE, Sample, growth_table, growths, samples_table

RSS, FDS, THREADS = "RSS MB", "descriptors", "threads"
PARTS, OUTDATED, DISK, RECORDS = "parts", "outdated parts", "disk MB", "1000 rows"
JUST_SHOWN = (OUTDATED,)
"""Merged-away parts stay for some minutes; how many there are depends on when one looks."""
_PLOTTED = (RSS, DISK, PARTS, FDS, THREADS, RECORDS)
_FEW = 10
"""Growth of a count by fewer than so many is noise: 12 descriptors instead of 10, for example."""


@dataclass
class Report:
    """`calm_since`: the minute of the last restart; what comes after is of one process.

    `problems`: what was lost, doubled or failed. `done`: what happened, in sentences.
    """

    samples: list[Sample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    calm_since: float = 0.0
    problems: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    @property
    def calm(self) -> list[Sample]:
        return [one for one in self.samples if one[MINUTE] >= self.calm_since]

    def grown(self) -> list[str]:
        """The figures that grew in the second half, which is one process without a restart."""
        if len(self.calm) < 4:
            return []
        return [
            name
            for name, found in growths(self.calm).items()
            if name not in JUST_SHOWN and not found.flat and found.after - found.before >= _FEW
        ]

    def markdown(self) -> str:
        parts = [samples_table(self.samples)]
        if len(self.calm) >= 4:
            parts += ["After the last kill:", growth_table(self.calm, JUST_SHOWN)]
        parts.append("\n".join(f"* {one}" for one in self.done))
        parts += [f"PROBLEM: {one}" for one in self.problems]
        return "\n\n".join(parts)

    def draw(self, path: Path) -> None:
        """One small chart for each figure; dotted lines are kills. The suffix says the format."""
        # Not pyplot: it looks for a display, and keeps every figure in memory.
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 8), dpi=100, layout="constrained")
        charts = figure.subplots(-(-len(_PLOTTED) // 2), 2, sharex=True)
        for axes, name in zip(charts.flat, _PLOTTED, strict=True):
            shown = [one for one in self.samples if name in one]
            axes.plot([one[MINUTE] for one in shown], [one[name] for one in shown], linewidth=1.2)
            for minute in self.kills:
                axes.axvline(minute, color="grey", linewidth=0.5, linestyle=":")
            axes.set_title(name, fontsize="medium")
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        for axes in charts[-1]:
            axes.set_xlabel("minutes")
        figure.savefig(path)


def verdict(report: Report, *, must_be_flat: bool) -> Sequence[str]:
    """Why the soak failed; empty if it did not."""
    grown = [f"{name} grew" for name in report.grown()] if must_be_flat else []
    return [*report.problems, *grown]
