"""Lag over time as a picture: a PNG, or an HTML page that holds it.

Everything about matplotlib is here; lag.py knows numbers.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from brokerhouse.common.console import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".html")
NAME_CHARACTERS = 44
"""Of a name in the legend: two fit beside each other, even of wide letters."""

_PAGE = Template(
    '<!doctype html>\n<meta charset="utf-8">\n<title>Lag</title>\n'
    '<img alt="Lag over time" src="data:image/png;base64,$png">\n'
)
_WIDTH, _HEIGHT, _ROW_HEIGHT = 11.0, 5.0, 0.2
"""In inches: the picture without a legend, and a row of the legend."""
_STYLES = ("-", "--", ":", "-.")
_COLOURS = 10

Series = Mapping[str, tuple[Sequence[datetime], Sequence[int]]]
"""By group and topic: times (UTC), and the records behind."""


def draw(series: Series, about: str, path: Path) -> None:
    """Draw a line for each group and topic. `about` is under the title. Raises OSError."""
    made = io.BytesIO()
    figure_of(series, about).savefig(made, format="png")
    png = made.getvalue()
    if path.suffix.lower() == ".html":
        path.write_text(_PAGE.substitute(png=base64.b64encode(png).decode()), encoding="utf-8")
    else:
        path.write_bytes(png)


def figure_of(series: Series, about: str) -> Figure:
    # Not pyplot: it looks for a display, and keeps every figure in memory.
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    rows = -(-len(series) // 2)
    figure = Figure(figsize=(_WIDTH, _HEIGHT + _ROW_HEIGHT * rows), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (name, (times, values)) in enumerate(series.items()):
        style = _STYLES[number // _COLOURS % len(_STYLES)]
        colour = f"C{number % _COLOURS}"
        axes.plot(times, values, style, color=colour, label=_label(name), linewidth=1.5)  # type: ignore[arg-type]
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("UTC")
    axes.set_ylabel("records behind")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.suptitle(_title(list(series)))
    axes.set_title(_plain(about), fontsize="small")
    if series:
        figure.legend(loc="outside lower left", ncols=2, fontsize="small", frameon=False)
    return figure


def _title(names: Sequence[str]) -> str:
    if not names:
        return "Lag: no row in lag_history matches"
    if len(names) == 1:
        return f"Lag of{_label(names[0])}"
    return f"Lag of {len(names)} groups and topics"


def _label(name: str) -> str:
    """The start and the end of a long name.

    matplotlib hides a line whose name starts with _, so a space comes first.
    """
    text = printable(name)
    if len(text) > NAME_CHARACTERS:
        half = (NAME_CHARACTERS - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return " " + _plain(text)


def _plain(text: str) -> str:
    """In text that people chose, $ would start a formula."""
    return text.replace("$", r"\$")
