"""The picture of lag over time: what a person must be able to read in it."""

from datetime import UTC, datetime

import pytest
from matplotlib.figure import Figure

from brokerhouse.spark_jobs.plot import NAME_CHARACTERS, figure_of

TIMES = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3)]
ABOUT = "http://broker:8123: yesterday to today"


def drawn(*names: str) -> Figure:
    figure = figure_of({name: (TIMES, [0, 1_500_000, 900]) for name in names}, ABOUT)
    figure.draw_without_rendering()
    return figure


def labels(figure: Figure) -> list[str]:
    return [text.get_text().strip() for text in figure.legends[0].get_texts()]


def test_the_title_says_what_is_shown() -> None:
    figure = drawn("a · t", "b · t", "c · t")
    assert figure.get_suptitle() == "Lag of 3 groups and topics"
    assert figure.axes[0].get_title() == ABOUT
    assert drawn("a · t").get_suptitle() == "Lag of a · t"


def test_records_have_thousands_separators() -> None:
    ticks = [label.get_text() for label in drawn("a").axes[0].get_yticklabels()]
    assert "1,000,000" in ticks


@pytest.mark.parametrize("count", [1, 3, 25])
def test_the_legend_covers_neither_the_plot_nor_the_edge(count: int) -> None:
    figure = drawn(*(f"{number} {'W' * 300}" for number in range(count)))
    legend = figure.legends[0].get_window_extent()
    plot = figure.axes[0].get_window_extent()
    assert legend.y1 <= plot.y0
    assert figure.bbox.x0 <= legend.x0
    assert legend.x1 <= figure.bbox.x1
    assert plot.height > figure.dpi * 3
    assert len(labels(figure)) == count


def test_a_long_name_keeps_its_start_and_its_end() -> None:
    (label,) = labels(drawn("start" + "x" * 300 + "end"))
    assert len(label) <= NAME_CHARACTERS
    assert label.startswith("start")
    assert label.endswith("end")
    assert "…" in label


def test_names_cannot_control_the_picture() -> None:
    assert labels(drawn("_hidden", "a\x1b\nb", "$x$")) == ["_hidden", r"a\x1b\nb", r"\$x\$"]


def test_a_plot_of_nothing_says_so() -> None:
    assert "no row" in drawn().get_suptitle()
