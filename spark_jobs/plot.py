"""Lag over time as a picture: a PNG, or an HTML page that holds it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from string import Template

FORMATS = (".png", ".html")

_PAGE = Template(
    '<!doctype html>\n<meta charset="utf-8">\n<title>Lag</title>\n'
    '<img alt="Lag over time" src="data:image/png;base64,$png">\n'
)


def draw(series: Mapping[str, tuple[Sequence[datetime], Sequence[int]]], path: Path) -> None:
    """Draw one line per name: records behind over time (UTC). Raises OSError."""
    png = _png(series)
    if path.suffix.lower() == ".html":
        path.write_text(_PAGE.substitute(png=base64.b64encode(png).decode()), encoding="utf-8")
    else:
        path.write_bytes(png)


def _png(series: Mapping[str, tuple[Sequence[datetime], Sequence[int]]]) -> bytes:
    # Not pyplot: it looks for a display, and keeps every figure in memory.
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for name, (times, values) in series.items():
        # In names that people chose, $ would start a formula, and a leading _ would hide the line.
        label = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
        axes.plot(times, values, label=" " + label.replace("$", r"\$"), linewidth=1.5)  # type: ignore[arg-type]
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("UTC")
    axes.set_ylabel("records behind")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if series:
        axes.legend(loc="upper left", fontsize="small")
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()
